"""The interface of the models that a folder holds: their hyperparameters, the names of their weights, loading, saving.

    config = read_config(config.json)                   completed by the weights: labels, optional parts
    weights: names in the file -> names in the model    ``make_weight_names``
    model = from_folder(folder)                         built without memory, then filled

A folder is written back with the same three: ``config_fields``, ``weight_names``, and the texts of ``folder_texts``.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from regard.errors import CheckpointError, RefusedError, check_kind
from regard.layers.quantized_linear import QuantizedLinear
from regard.mechanisms import Mechanism
from regard.media.processor_file import PROCESSOR_FILE
from regard.models import checkpoint_reader, checkpoint_writer
from regard.models.config_file import ConfigFile
from regard.models.kinds import ModelKind
from regard.models.label_names import label_fields
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.models.weight_names import Origin, WeightNames
from regard.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from regard.audio import AudioProcessor
    from regard.text.sentence_tokenizer import SentenceTokenizer
    from regard.vision import ImageProcessor

_RUN_TIME_OPTIONS = re.compile(r"(, )?\b(impl='\w+'|dropout=[^,)]*)")
"""Options that change neither the equation nor the weights."""


class Model(nn.Module, ABC):
    """A model that ``regard.load`` loads from a folder."""

    model_types: ClassVar[tuple[str, ...]] = ()
    """The values of the field "model_type" in config.json whose folders this class reads; () for a part of others."""

    kind: ClassVar[ModelKind]
    """The noun for such a model in messages, its inputs, and the commands that use it."""

    attends_through_latents: bool = False
    """Whether attention layers are between the tokens of the input and latents, as in a Perceiver."""

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters."""

    config: Any
    """The hyperparameters of the model."""

    layer_stack: ClassVar[str] = ""
    """The name of the stack of layers, if loading compares their number with the weights; "" compares with all."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}(...)")
        self.config = config

    notes: tuple[str, ...] = ()
    """Messages about files that loading read otherwise than they say, or in part."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata of the training: steps, data, scores; empty for a new model."""

    @classmethod
    def class_of(cls, folder: ModelFolder) -> type[Model]:
        """The class of the model of a folder whose type is read by this class."""
        del folder
        return cls

    @classmethod
    def kind_of(cls, folder: ModelFolder) -> ModelKind:
        """The kind of the model of a folder."""
        del folder
        return cls.kind

    @classmethod
    def read_config(cls, config: ConfigFile) -> Any:
        """Read the hyperparameters from config.json, but for labels, which belong to the head.

        They have the names of published files, if the config has such names, else their own. Raises CheckpointError for
        missing or unusable fields.
        """
        if hasattr(cls.config_class, "from_hugging_face"):
            return cls.config_class.from_hugging_face(config)
        return config.parse_dataclass(cls.config_class)

    @classmethod
    def read_stored_config(cls, folder: ModelFolder) -> Any:
        """Read the hyperparameters from config.json, and from other files of the folder if they say more.

        Raises CheckpointError for missing or unusable fields.
        """
        return cls.read_config(folder.config)

    @classmethod
    def complete_config(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> Any:
        """Complete the hyperparameters by the weights of the folder, by their names in the model: ``origins``."""
        del folder, origins
        return config

    @classmethod
    def check_layers(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError if the weights do not have the layers of ``config``, before any layer is built."""
        if cls.layer_stack:
            checkpoint_reader.check_layers(config.layers, origins, cls.layer_stack)
        else:
            checkpoint_reader.check_depth(config.layers, folder.stored)

    @classmethod
    def build(cls, folder: ModelFolder, config: Any) -> Self:
        """Build the model of ``folder`` with hyperparameters that it holds, without weights."""
        del folder
        return cls(config)

    @classmethod
    @abstractmethod
    def make_weight_names(cls, config: Any) -> WeightNames:
        """Make the table of the names of weights in a file: also of the parts that a file may lack."""

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file."""
        return self.make_weight_names(self.config)

    @property
    def tied_weights(self) -> dict[str, str]:
        """Maps the names of tied weights to the name under which each is saved."""
        return dict(self.weight_names.tied_weights)

    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json, for ``transformers`` if it can compute the model."""
        if hasattr(self.config, "to_hugging_face"):
            published: dict[str, Any] = self.config.to_hugging_face()
            return published
        fields = {"model_type": self.model_types[0], **asdict(self.config)}
        labels = label_fields(fields.pop("labels")) if "labels" in fields else {}
        return fields | labels

    def read_files(self, folder: ModelFolder) -> None:
        """Read the files beside config.json and the weights, such as the tokenizer, into the new model.

        Raises CheckpointError for damaged files, and for files that do not belong to the model.
        """
        del folder

    def folder_texts(self) -> dict[str, str]:
        """The files that ``read_files`` reads, as texts by file name."""
        return {}

    def stored_weights(self) -> dict[str, Tensor]:
        """The weights under their names in a file."""
        return self.weight_names.to_file(self.state_dict())

    @property
    def configured(self) -> Model:
        """The module that ``config`` describes, whose class builds it from its config: the model, or its encoder."""
        return self

    @property
    def text_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the texts that the model reads; None if it reads none, or if its folder has no tokenizer."""
        tokenizer = getattr(self, "tokenizer", None)
        return tokenizer if isinstance(tokenizer, Tokenizer) else None  # a CCT has a layer of this name

    def require_tokenizer(self) -> Tokenizer:
        """The tokenizer of the texts that the model reads. Raises CheckpointError for a model without one."""
        if self.text_tokenizer is not None:
            return self.text_tokenizer
        reads = self.kind.texts or self.kind.files is None
        raise CheckpointError(
            "the model has no tokenizer, so it cannot read text",
            expected="a model that reads texts, with tokenizer.json in its folder",
            got="none" if reads else f"a {type(self).__name__}, {self.kind.noun}",
            do="put tokenizer.json of the same model beside config.json" if reads else f"use it with: {self.commands}",
        )

    @property
    def parts(self) -> tuple[Model, ...]:
        """Models that may be used alone in place of this one, such as the towers of a CLIP."""
        return ()

    @property
    def commands(self) -> str:
        """The commands, or the functions, that use this model."""
        return self.kind.commands

    @classmethod
    def part_of(cls, model: object) -> Self | None:
        """Return ``model``, or a part of it, that is a model of this class; None if there is none."""
        candidates = (model, *model.parts) if isinstance(model, Model) else (model,)
        return next((candidate for candidate in candidates if isinstance(candidate, cls)), None)

    @classmethod
    def load(
        cls,
        folder_or_name: FolderOrName,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        cache_format: str | None = None,
    ) -> Self:
        """Load a model of this class as ``regard.load`` does, or the part of another that is one.

        Raises CheckpointError for another kind of model, and as ``regard.load``.
        """
        from regard.models.load import load

        folder = ModelFolder.open(folder_or_name, cls.kind)
        model = load(folder, device=device, dtype=dtype, weights=weights, cache_format=cache_format)
        part = cls.part_of(model)
        if part is None:
            raise CheckpointError(
                f"{folder_or_name} is another kind of model",
                expected=cls.kind.noun,
                got=type(model).__name__,
                do=f"load another model; this one is used with: {model.commands}",
            )
        return part

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @classmethod
    def from_folder(cls, folder: ModelFolder, *, dtype: torch.dtype) -> Self:
        """Load the model of an opened folder, in eval mode on the CPU.

        Raises CheckpointError for files that do not belong together.
        """
        config = cls.read_stored_config(folder)
        origins, skipped = cls.make_weight_names(config).origins(folder.stored)
        config = cls.complete_config(folder, config, origins)
        cls.check_layers(folder, config, origins)
        with checkpoint_reader.init_on_meta():
            model = cls.build(folder, config)
        checkpoint_reader.load_weights(model, origins, dtype)
        model.read_files(folder)
        model.metadata = folder.read_metadata()
        folder.note_skipped(skipped)
        model.notes = tuple(folder.notes)
        return model.eval()

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        keep_others: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write a folder that ``regard.load`` reads; it appears complete or not at all.

        ``transformers`` reads it too, if it has a class that computes the model. Weights of more than
        ``max_shard_bytes`` are written in several files with an index. Raises OutputExistsError if the folder exists,
        unless ``overwrite``, and with ``overwrite`` if it holds files that are not of a model, unless ``keep_others``,
        which keeps them; and RefusedError for a model whose mechanism was replaced by another than its config has.
        """
        fields = self.config_fields()
        check_mechanisms(self.configured, self.configured.config)
        files = {"config.json": checkpoint_writer.config_text(fields, next(self.parameters()).dtype)}
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files | self.folder_texts() | checkpoint_writer.metadata_texts(self.metadata),
            self.stored_weights(),
            overwrite=overwrite,
            keep_others=keep_others,
            max_shard_bytes=max_shard_bytes,
        )


def tokenizer_text(tokenizer: Tokenizer | SentenceTokenizer | None) -> dict[str, str]:
    """The file of a tokenizer, as a text by file name; none without a tokenizer."""
    return {} if tokenizer is None else {"tokenizer.json": tokenizer.to_json()}


def processor_text(processor: AudioProcessor | ImageProcessor | None) -> dict[str, str]:
    """The file that says how inputs are made of pictures or sounds, as a text by file name; none without it."""
    return {} if processor is None else {PROCESSOR_FILE: json.dumps(processor.fields(), indent=2) + "\n"}


def check_not_rounded(model: nn.Module) -> None:
    """Raise RefusedError for linear layers with weights of few bits, which no folder and no exported form holds."""
    for module in model.modules():
        if isinstance(module, QuantizedLinear):
            raise RefusedError(
                f"a {type(model).__name__} with {module.format_name} weights cannot be saved",
                expected="a model with the weights of its training",
                got="linear layers with rounded weights",
                do="save the model before its weights are converted, and convert them again after loading",
            )


def check_mechanisms(model: nn.Module, config: object) -> None:
    """Raise RefusedError unless the class of ``model``, called with ``config``, has the same mechanisms.

    A folder holds a config and weights, and the config names the mechanism. A model whose mechanism was replaced
    (``comparison.replace_mechanism``) has the config of the model before. Raises what ``check_not_rounded`` raises.
    """
    check_not_rounded(model)
    with checkpoint_reader.init_on_meta(), torch.random.fork_rng(devices=[]):
        loaded = describe_mechanisms(type(model)(config))
    for name, described in describe_mechanisms(model).items():
        if loaded.get(name) != described:
            raise RefusedError(
                f"a {type(model).__name__} with a replaced mechanism cannot be saved: a folder has that of the config",
                expected=f"{loaded.get(name)} in {name}, as the model's config says",
                got=described,
                do="save the model before replace_mechanism, and replace its mechanism again after loading",
            )


def describe_mechanisms(model: nn.Module) -> dict[str, str]:
    """Return the class and the options of each mechanism in a model, by name."""
    mechanisms = {name: part for name, part in model.named_modules() if isinstance(part, Mechanism)}
    return {name: " ".join(_RUN_TIME_OPTIONS.sub("", repr(part)).split()) for name, part in mechanisms.items()}
