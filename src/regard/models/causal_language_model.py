"""The base of causal language models: decoders that continue a text, without an encoder, and their folders.

    logits = output(norm(h_L))          h_L: ``CausalStack``

With ``tied``, the output layer and the embedding share one matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import check_kind
from regard.layers.projection import linear_activation
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.causal_stack import CausalStack
from regard.models.check_mechanisms import check_mechanisms
from regard.models.check_token_ids import check_texts_of_ids
from regard.models.config_file import ConfigFile
from regard.models.generation_config import note_ignored_fields, read_generation_config
from regard.models.language_model_files import LanguageModelFiles
from regard.models.special_ids import NO_END, note_missing_special_ids, read_end_ids
from regard.models.weight_names import StoredTensor, WeightNames
from regard.text import Tokenizer

_OUTPUT, _EMBEDDING = "output.weight", "token_embedding.weight"
"""The weight that a tied model shares, and the name under which it is saved."""


class CausalLanguageModel(CausalStack, ABC):
    """A decoder-only language model: an embedding, a stack of ``layers``, a final ``norm`` and an ``output`` layer.

    ``tokenizer`` is that of a loaded model, else None. ``end_ids`` are all tokens that end a text; ``end_id`` is the
    first of them, or -1, which is no token, if there are none.
    """

    config: Any
    """The hyperparameters of the model."""

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters."""

    tokenizer: Tokenizer | None = None
    """The tokenizer from the model folder; None if there is none."""

    files: LanguageModelFiles = LanguageModelFiles()
    """What the model folder says of special tokens, chats and generation, which ``save`` writes again."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata of the training: steps, data, scores."""

    has_absolute_positions: ClassVar[bool] = False
    """Whether ``forward`` takes ``positions``, since positions are added to the embedding. Rotations by position depend
    on distances only, which are right in texts that are packed behind one another, too."""

    output: nn.Linear

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}(vocabulary=...)")
        self.config = config
        self.end_id = config.end_ids[0] if config.end_ids else NO_END
        self.pad_id, self.start_id = config.pad_id, config.start_id

    @property
    @abstractmethod
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file."""

    @final
    def config_fields(self) -> dict[str, Any]:
        """The fields of a config.json for ``transformers``."""
        fields: dict[str, Any] = self.config.to_hugging_face()
        return fields

    @classmethod
    @final
    def read_config(cls, config: ConfigFile) -> Any:
        """Read the hyperparameters from config.json. Raises CheckpointError for missing or unusable fields."""
        return cls.config_class.from_hugging_face(config)

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        return self.token_embedding.embedding_dim

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The ids of all tokens that end a text; none if the model has no end token."""
        return tuple(self.config.end_ids)

    @property
    def unknown_id(self) -> int | None:
        """The id of the unknown token, from the tokenizer; None if there is none."""
        return None if self.tokenizer is None else self.tokenizer.unknown_id

    def compute_logits(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Compute the logits of the token after each position from hidden states after the last norm."""
        return linear_activation(hidden, self.output)

    @final
    def tie(self) -> None:
        """Let the output layer share the matrix of the embedding, if the config says so."""
        if self.config.tied:
            self.output.weight = self.token_embedding.weight

    @property
    def tied_weights(self) -> dict[str, str]:
        """Maps the name of the tied weight to the name under which it is saved."""
        return {_OUTPUT: _EMBEDDING} if self.config.tied else {}

    @final
    def check_ids(self, ids: object) -> None:
        """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""
        do = "begin an empty text with model.start_id, if the model has one"
        check_texts_of_ids("ids", ids, self.config.vocabulary, do=do)

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: ConfigFile,
        *,
        dtype: torch.dtype,
        stored: Mapping[str, StoredTensor] | None = None,
    ) -> Self:
        """Load the model of ``folder``, whose config.json is ``config``, in eval mode on the CPU.

        ``stored`` are its tensors by name, if they are not all that the folder holds.
        A text ends by the tokens of generation_config.json, if it names some: in models for chats it has the end of a
        turn, which config.json may lack. Raises CheckpointError for files that do not belong together.
        """
        hyperparameters = cls.read_config(config)
        generation = read_generation_config(folder, hyperparameters.vocabulary)
        hyperparameters = _with_end_ids(hyperparameters, () if generation is None else read_end_ids(generation))
        stored = checkpoint_reader.stored_tensors(folder) if stored is None else stored
        with checkpoint_reader.init_on_meta():
            model = cls(hyperparameters)
        origins, skipped = model.weight_names.origins(stored)
        notes: tuple[str, ...] = ()
        if hyperparameters.tied and checkpoint_reader.hold_other_numbers(origins, _OUTPUT, _EMBEDDING):
            hyperparameters, notes = replace(hyperparameters, tied=False), checkpoint_reader.note_own_output(folder)
            with checkpoint_reader.init_on_meta():
                model = cls(hyperparameters)
        checkpoint_reader.check_layers(hyperparameters.layers, origins, "layers")
        checkpoint_reader.load_weights(model, origins, dtype)
        model.tokenizer = checkpoint_reader.read_tokenizer(
            folder, pad_id=hyperparameters.pad_id, limit=model.max_tokens, vocabulary=hyperparameters.vocabulary
        )
        model.files = LanguageModelFiles.read(folder)
        notes += note_missing_special_ids(config) + note_missing_special_ids(generation)
        model.notes = notes + checkpoint_reader.loading_notes(folder, skipped) + note_ignored_fields(generation)
        model.metadata = sequence_files.read_metadata(folder)
        return model.eval()

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        keep_others: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write a folder that ``transformers`` and ``regard.load`` read; it appears complete or not at all.

        It names the special tokens, and has the chat template of the folder that the model was loaded from. Weights of
        more than ``max_shard_bytes`` are written in several files with an index. Raises OutputExistsError if the folder
        exists, unless ``overwrite``, and with ``overwrite`` if it holds files that are not of a model,
        unless ``keep_others``, which keeps them; and RefusedError for a model whose mechanism was replaced.
        """
        check_mechanisms(self, self.config)
        files = {"config.json": checkpoint_writer.config_text(self.config_fields(), self.token_embedding.weight.dtype)}
        files |= self.files.texts(
            self.tokenizer,
            pad_id=self.pad_id,
            start_id=self.start_id,
            end_ids=self.end_ids,
            max_tokens=self.max_tokens,
        )
        files |= sequence_files.metadata_files(self.metadata)
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files,
            self.weight_names.to_file(self.state_dict()),
            overwrite=overwrite,
            keep_others=keep_others,
            max_shard_bytes=max_shard_bytes,
        )


def _with_end_ids(config: Any, end_ids: tuple[int, ...]) -> Any:
    """The config with these end tokens, if there are any, as in transformers; those it has already come first."""
    known = [end for end in config.end_ids if end in end_ids]
    return replace(config, end_ids=tuple(dict.fromkeys([*known, *end_ids]))) if end_ids else config
