"""The base of causal language models: decoders that continue a text, without an encoder, and their folders.

    logits = output(norm(h_L))          h_L: ``CausalStack``

With ``tied``, the output layer and the embedding share one matrix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

from torch import nn

from regard.layers import DecoderBlock
from regard.models import checkpoint_reader
from regard.models.causal_stack import CausalStack
from regard.models.check_token_ids import check_texts_of_ids
from regard.models.initial_weights import init_from_normal
from regard.models.kinds import LANGUAGE_MODEL
from regard.models.language_model_files import LanguageModelFiles, find_ignored_fields, read_generation_config
from regard.models.model import Model
from regard.models.model_folder import ModelFolder
from regard.models.special_ids import NO_END, find_missing_special_ids, read_end_ids
from regard.models.weight_names import Origin
from regard.text import Tokenizer

_OUTPUT, _EMBEDDING = "output.weight", "token_embedding.weight"
"""The weight that a tied model shares, and the name under which it is saved."""


class CausalLanguageModel(CausalStack, Model, ABC):
    """A decoder-only language model: an embedding, a stack of ``layers``, a final ``norm`` and an ``output`` layer.

    ``tokenizer`` comes with a loaded model, else None. ``end_ids`` are all tokens that end a text; ``end_id`` is the
    first of them, or -1, which is no token, if there are none.
    """

    kind = LANGUAGE_MODEL
    layer_stack = "layers"

    tokenizer: Tokenizer | None = None
    """The tokenizer from the model folder; None if there is none."""

    files: LanguageModelFiles = LanguageModelFiles()
    """Special tokens, chats and generation in the files of the model folder, which ``save`` writes again."""

    has_absolute_positions: ClassVar[bool] = False
    """Whether ``forward`` takes ``positions``, since positions are added to the embedding. Rotations by position depend
    on distances only, which are right in packed texts too."""

    output: nn.Linear

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.end_id = config.end_ids[0] if config.end_ids else NO_END
        self.pad_id, self.start_id = config.pad_id, config.start_id
        self.token_embedding = nn.Embedding(config.vocabulary, config.width)

    @final
    def _add_layers(self, layers: Iterable[DecoderBlock], norm: nn.Module) -> None:
        """Add the layers, the final norm and the output layer behind the embedding, and draw the initial weights."""
        self.layers, self.norm = nn.ModuleList(layers), norm
        self.output = nn.Linear(self.config.width, self.config.vocabulary, bias=False)
        self._init_weights()
        self.tie()

    def _init_weights(self) -> None:
        """Draw the initial weights."""
        init_from_normal(self, float(self.config.deviation))

    @property
    def max_tokens(self) -> int | None:
        """The length of the longest text that the model was trained for; None is no limit."""
        return int(self.config.max_length)

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

    @final
    def tie(self) -> None:
        """Let the output layer share the matrix of the embedding, if the config says so."""
        if self.config.tied:
            self.output.weight = self.token_embedding.weight

    @final
    def check_ids(self, ids: object) -> None:
        """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""
        do = "begin an empty text with model.start_id, if the model has one"
        check_texts_of_ids("ids", ids, self.config.vocabulary, do=do)

    @classmethod
    @final
    def read_stored_config(cls, folder: ModelFolder) -> Any:
        """Read the hyperparameters; a text ends by the tokens of generation_config.json, if it names some.

        In models for chats it has the end of a turn, which config.json may lack.
        """
        config = cls.read_config(folder.config)
        generation = read_generation_config(folder, config.vocabulary)
        folder.note(find_missing_special_ids(folder.config), find_missing_special_ids(generation))
        folder.note(find_ignored_fields(generation))
        return _with_end_ids(config, () if generation is None else read_end_ids(generation))

    @classmethod
    @final
    def complete_config(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> Any:
        """Return hyperparameters without a tied output layer if the weights hold one of its own."""
        if not config.tied or not checkpoint_reader.hold_other_numbers(origins, _OUTPUT, _EMBEDDING):
            return config
        folder.note(checkpoint_reader.note_own_output(folder.path))
        return replace(config, tied=False)

    @final
    def read_files(self, folder: ModelFolder) -> None:
        """Read the tokenizer, and what the folder says of special tokens, chats and generation."""
        self.tokenizer = folder.read_tokenizer(
            pad_id=self.config.pad_id, limit=self.max_tokens, vocabulary=self.config.vocabulary
        )
        self.files = LanguageModelFiles.read(folder)

    @final
    def folder_texts(self) -> dict[str, str]:
        """The files of the tokenizer, which name the special tokens, and the chat template of the model's folder."""
        return self.files.texts(
            self.tokenizer,
            pad_id=self.pad_id,
            start_id=self.start_id,
            end_ids=self.end_ids,
            max_tokens=self.max_tokens,
        )


def tied_output_weights(config: Any) -> dict[str, str]:
    """Maps the name of the tied weight to the name under which it is saved; empty without a tied output layer."""
    return {_OUTPUT: _EMBEDDING} if config.tied else {}


def _with_end_ids(config: Any, end_ids: tuple[int, ...]) -> Any:
    """The config with these end tokens, if there are any, as in transformers; those it has already come first."""
    known = [end for end in config.end_ids if end in end_ids]
    return replace(config, end_ids=tuple(dict.fromkeys([*known, *end_ids]))) if end_ids else config
