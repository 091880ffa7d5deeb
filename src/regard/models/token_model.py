"""The base of models with matrices for source embeddings, target embeddings and output, which may be shared.

shared="all"      source, target and output: Vaswani et al. 2017, section 3.4
shared="target"   target and output: Press and Wolf 2017
shared="none"     three separate matrices
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from regard.errors import OptionError, check_kind, check_weights
from regard.fields import check_fields, size
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.base import EncoderDecoder
from regard.models.check_mechanisms import check_mechanisms
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, size_field
from regard.models.weight_names import Row, WeightNames
from regard.text.subword_training import END_ID, PAD_ID, START_ID

SHARED = ("all", "target", "none")
_ID = "the {} token, an id in both vocabularies"


@dataclass(frozen=True)
class TokenConfig(ABC):
    """Hyperparameters of tokens.

    Raises OptionError for values out of range.
    """

    vocabulary: int = field(metadata=size("number of tokens"))
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

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters."""

    rows: ClassVar[tuple[Row, ...]]
    """The names of the weights in a file and in the model."""

    output: nn.Linear

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}(vocabulary=...)")
        self.config = config
        self.vocab_sizes = config.vocabulary, config.target_vocab_size
        self.pad_id, self.start_id, self.end_id = config.pad_id, config.start_id, config.end_id
        self.source_words = nn.Embedding(self.vocab_sizes[0], config.width)
        self.target_words = (
            self.source_words if config.shared == "all" else nn.Embedding(self.vocab_sizes[1], config.width)
        )

    @property
    def tied_weights(self) -> dict[str, str]:
        """Maps the names of tied weights to the name under which each is saved."""
        if self.config.shared == "all":
            return dict.fromkeys(("target_words.weight", "output.weight"), "source_words.weight")
        return {"output.weight": "target_words.weight"} if self.config.shared == "target" else {}

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file."""
        return WeightNames(self.rows, tied_weights=self.tied_weights)

    def tie(self) -> None:
        """Tie the output matrix to the target embeddings, unless ``shared`` is "none"."""
        if self.config.shared != "none":
            self.output.weight = self.target_words.weight

    def save(self, folder: str | Path, *, overwrite: bool = False, keep_others: bool = False) -> None:
        """Write a folder that ``regard.load`` reads. See ``EncoderDecoder.save``.

        Raises RefusedError for a model whose mechanism was replaced by another than its config has.
        """
        check_mechanisms(self, self.config)
        sequence_files.write(
            checkpoint_writer.to_folder_path(folder),
            config={"model_type": self.model_type, **asdict(self.config)},
            weights=self.weight_names.to_file(self.state_dict()),
            subwords=self.subwords,
            metadata=self.metadata,
            overwrite=overwrite,
            keep_others=keep_others,
        )

    @classmethod
    def from_folder(cls, folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> Self:
        """Load the model of a folder, in eval mode on the CPU. Raises CheckpointError for unusable files."""
        stored = checkpoint_reader.stored_tensors(folder)
        hyperparameters = config.parse_dataclass(cls.config_class)
        sequence_files.check_depth(_depth(hyperparameters), stored)
        with checkpoint_reader.init_on_meta():
            model = cls(hyperparameters)
        origins, _ = model.weight_names.origins(stored)
        checkpoint_reader.load_weights(model, origins, dtype)
        model.subwords = sequence_files.read_subwords(folder)
        sequence_files.check_vocabularies(model.subwords, model.vocab_sizes)
        model.metadata = sequence_files.read_metadata(folder)
        return model.eval()

    def _init_embeddings(self) -> None:
        """Initialise embeddings with a norm near 1, 0 for padding, and an unshared output layer with Xavier uniform."""
        # A dict, not a set: the order of random numbers must be the same in every process.
        for words in dict.fromkeys((self.source_words, self.target_words)):
            nn.init.normal_(words.weight, std=self.config.width**-0.5)
            with torch.no_grad():
                words.weight[self.config.pad_id] = 0
        if self.config.shared == "none":
            nn.init.xavier_uniform_(self.output.weight)


def _depth(config: Any) -> int:
    """The number of layers of the deeper stack."""
    return max(config.layers, getattr(config, "decoder_layers", None) or 0)
