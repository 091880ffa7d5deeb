"""The base of models with matrices for source embeddings, target embeddings and output, which may be shared.

shared="all"      source, target and output: Vaswani et al. 2017, section 3.4
shared="target"   target and output: Press and Wolf 2017
shared="none"     three separate matrices
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import nn

from regard.errors import CheckpointError, OptionError, check_weights
from regard.fields import SIZE, check_fields, declare
from regard.models.base import EncoderDecoder
from regard.models.checkpoint_reader import check_depth
from regard.models.hyperparameters import model_field, size_field
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin, Row, WeightNames
from regard.text.subword_training import END_ID, PAD_ID, START_ID
from regard.text.subwords import read_subword_files, subword_texts

SHARED = ("all", "target", "none")
_ID = "the {} token, an id in both vocabularies"


@dataclass(frozen=True)
class TokenConfig(ABC):
    """Hyperparameters of tokens.

    Raises OptionError for values out of range.
    """

    vocabulary: int = field(metadata=declare("number of tokens", **SIZE))
    target_vocabulary: int | None = size_field(None, "number of tokens of the target; None is ``vocabulary``")
    width: int = size_field(512, "size of an embedded token")
    shared: str = model_field(
        "all",
        'which matrices are shared: "all", source, target and output; "target", target and output; or "none"',
        choices=SHARED,
        noun="way of sharing embeddings",
    )
    pad_id: int = model_field(PAD_ID, _ID.format("padding"), below="smaller_vocabulary")
    start_id: int = model_field(START_ID, _ID.format("start"), below="smaller_vocabulary")
    end_id: int = model_field(END_ID, _ID.format("end"), below="smaller_vocabulary")

    model_name: ClassVar[str]
    """The name of the model in messages."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_weights(vocabulary=max(self.vocabulary, self.target_vocab_size), width=self.width)
        if self.shared == "all" and self.vocabulary != self.target_vocab_size:
            raise OptionError(
                "two vocabularies cannot share one matrix",
                expected="one vocabulary for both languages, or shared='target'",
                got=f"{self.vocabulary} and {self.target_vocabulary} tokens",
                do="train a joint tokenizer, or pass shared='target'",
            )

    @property
    def target_vocab_size(self) -> int:
        """The vocabulary size of the target."""
        return self.vocabulary if self.target_vocabulary is None else self.target_vocabulary

    @property
    def smaller_vocabulary(self) -> int:
        """The size of the smaller vocabulary, which has the special tokens too."""
        return min(self.vocabulary, self.target_vocab_size)


class TokenModel(EncoderDecoder, ABC):
    """A model with embeddings ``source_words`` and ``target_words``; a subclass adds ``output``, which gives logits."""

    model_type: ClassVar[str]
    """The field "model_type" in config.json."""

    rows: ClassVar[tuple[Row, ...]]
    """The names of the weights in a file and in the model."""

    output: nn.Linear

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.vocab_sizes = config.vocabulary, config.target_vocab_size
        self.pad_id, self.start_id, self.end_id = config.pad_id, config.start_id, config.end_id
        self.source_words = nn.Embedding(self.vocab_sizes[0], config.width)
        self.target_words = (
            self.source_words if config.shared == "all" else nn.Embedding(self.vocab_sizes[1], config.width)
        )

    @classmethod
    @final
    def make_weight_names(cls, config: Any) -> WeightNames:
        """Make the table of the names of weights in a file."""
        tied = {"output.weight": "target_words.weight"} if config.shared == "target" else {}
        if config.shared == "all":
            tied = dict.fromkeys(("target_words.weight", "output.weight"), "source_words.weight")
        return WeightNames(cls.rows, tied_weights=tied)

    def tie(self) -> None:
        """Tie the output matrix to the target embeddings, unless ``shared`` is "none"."""
        if self.config.shared != "none":
            self.output.weight = self.target_words.weight

    @classmethod
    @final
    def check_layers(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError if the deeper stack has more layers than the folder has tensors."""
        del origins
        check_depth(max(config.layers, getattr(config, "decoder_layers", None) or 0), folder.stored)

    @final
    def read_files(self, folder: ModelFolder) -> None:
        """Read the subwords. Raises CheckpointError for subwords of another model."""
        self.subwords = read_subword_files(folder.path)
        sizes = self.vocab_sizes if self.subwords is None else tuple(subword.vocabulary for subword in self.subwords)
        if sizes != self.vocab_sizes:
            raise CheckpointError(
                "the subwords do not belong to the model",
                expected=f"{self.vocab_sizes[0]} and {self.vocab_sizes[1]} tokens, from config.json",
                got=f"{sizes[0]} and {sizes[1]}",
                do="check that the files belong together",
            )

    @final
    def folder_texts(self) -> dict[str, str]:
        """The files of the subwords, as texts by file name."""
        return subword_texts(self.subwords)

    def _init_embeddings(self) -> None:
        """Initialise embeddings with a norm near 1, 0 for padding, and an unshared output layer with Xavier uniform."""
        # A dict, not a set: the order of random numbers must be the same in every process.
        for words in dict.fromkeys((self.source_words, self.target_words)):
            nn.init.normal_(words.weight, std=self.config.width**-0.5)
            with torch.no_grad():
                words.weight[self.config.pad_id] = 0
        if self.config.shared == "none":
            nn.init.xavier_uniform_(self.output.weight)
