"""The base of models that read pictures or sounds, and their folders: config.json, the weights and the processor.

A model has the parts whose weights its file holds, and as many labels as its head has rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import nn

from regard.errors import check_kind
from regard.media.processor_file import PROCESSOR_FILE
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.check_mechanisms import check_mechanisms
from regard.models.config_file import ConfigFile
from regard.models.weight_names import Origin, StoredTensor, WeightNames

if TYPE_CHECKING:
    from regard.audio import AudioProcessor
    from regard.vision import ImageProcessor


class MediaEncoder(nn.Module, ABC):
    """A model that reads pictures or sounds and returns hidden states; a classifier, if it has a head.

    ``processor`` makes its inputs from files; None if the model folder does not say how. ``notes`` lists messages about
    its weights.
    """

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters, with ``layers`` and ``labels``; labels=() is a model without a head."""

    processor_class: ClassVar[type[AudioProcessor] | type[ImageProcessor]]
    """The class of ``processor``."""

    config: Any
    """The hyperparameters of the model."""

    processor: Any = None
    """How the model's inputs are made from files; None if the model folder does not say."""

    notes: tuple[str, ...] = ()
    """Messages about weights that loading skipped."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata of the training: steps, data, scores."""

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}()")
        self.config = config

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""

    @classmethod
    @abstractmethod
    def read_stored_config(cls, config: ConfigFile, stored: Mapping[str, StoredTensor]) -> Any:
        """Read the hyperparameters from config.json, and from the weights ``stored`` in the file, by their names there.

        Raises CheckpointError for missing or unusable fields.
        """

    @classmethod
    def complete_config(cls, config: ConfigFile, hyperparameters: Any, origins: Mapping[str, Origin]) -> Any:
        """Complete the hyperparameters by the weights that a file holds, by the names of the model: ``origins``."""
        del config, origins
        return hyperparameters

    @classmethod
    @abstractmethod
    def make_weight_names(cls, config: Any) -> WeightNames:
        """Make the table of the names of weights in a file: also of the parts that a file may lack."""

    @abstractmethod
    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json."""

    @classmethod
    def count_layers(cls, config: Any) -> int:
        """The number of layers of a model, to be compared with the weights before any layer is built."""
        return int(config.layers)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; () without a head."""
        return tuple(self.config.labels)

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file."""
        return self.make_weight_names(self.config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @classmethod
    def from_folder(cls, folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> Self:
        """Load the model of ``folder``, whose config.json is ``config``, in eval mode on the CPU.

        Raises CheckpointError for files that do not belong together.
        """
        stored = checkpoint_reader.stored_tensors(folder)
        hyperparameters = cls.read_stored_config(config, stored)
        sequence_files.check_depth(cls.count_layers(hyperparameters), stored)
        origins, skipped = cls.make_weight_names(hyperparameters).origins(stored)
        hyperparameters = cls.complete_config(config, hyperparameters, origins)
        with checkpoint_reader.init_on_meta():
            model = cls(hyperparameters)
        checkpoint_reader.load_weights(model, origins, dtype)
        model.processor = cls.processor_class.from_folder(folder)
        model.metadata = sequence_files.read_metadata(folder)
        model.notes = checkpoint_reader.loading_notes(folder, skipped)
        return model.eval()

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        keep_others: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write the model to a folder that ``regard.load`` reads; it appears complete or not at all.

        Weights of more than ``max_shard_bytes`` are written in several files with an index. Raises OutputExistsError if
        the folder exists, unless ``overwrite``, and with ``overwrite`` if it holds files that are not of a model,
        unless ``keep_others``, which keeps them; and RefusedError for a model whose mechanism was replaced by another
        than its config has.
        """
        check_mechanisms(self, self.config)
        files = {"config.json": checkpoint_writer.config_text(self.config_fields(), next(self.parameters()).dtype)}
        if self.processor is not None:
            files[PROCESSOR_FILE] = json.dumps(self.processor.fields(), indent=2) + "\n"
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files | sequence_files.metadata_files(self.metadata),
            self.weight_names.to_file(self.state_dict()),
            overwrite=overwrite,
            keep_others=keep_others,
            max_shard_bytes=max_shard_bytes,
        )
