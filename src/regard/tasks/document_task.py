"""The skeleton of a task that learns from documents: a language model, or a masked one.

The sizes of new models and the training hyperparameters are chosen by the characters of the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

from regard.errors import renamed_arguments
from regard.log import log
from regard.tasks.document_recipe import DocumentRecipe
from regard.tasks.language_modelling.blocks import BlockBatch, Blocks, RandomOffsetBlocks
from regard.tasks.language_modelling.data import split_documents
from regard.tasks.recipe_fields import default_fields, to_json_value
from regard.tasks.recipe_task import RowTask, read_tokenizer
from regard.tasks.sentences import Sentences
from regard.text.tokenizer import Tokenizer
from regard.train import RunContext

AnyDocumentRecipe = TypeVar("AnyDocumentRecipe", bound=DocumentRecipe)
_UNITS = {"wordpiece": "word pieces", "bpe": "subwords", "bytes": "bytes", "characters": "characters"}
"""Words for the tokens of each kind of tokenizer."""


class DocumentTask(RowTask[AnyDocumentRecipe]):
    """Training a model of documents by ``recipe``. ``prepare`` sets ``batches`` to the blocks of the training texts."""

    batches: Blocks
    size_field = "size"
    data_kind = "texts"

    def __init__(self, recipe: AnyDocumentRecipe) -> None:
        super().__init__(recipe)
        self._num_held_out = 0

    def prepare(self, context: RunContext) -> None:
        """Read the documents, hold some out, make or load tokenizer and model, and encode the documents.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        self.check()
        start = self._load_start()
        texts, held_out = split_documents(self._recipe, seed=context.settings.seed)
        self._size, self._num_held_out = self.presets.choose_size(_count(texts), self._recipe.size), len(held_out)
        self._prepare(start, texts, held_out, context)

    @abstractmethod
    def _load_start(self) -> Any:
        """Load the model to fine-tune; None if the recipe trains a new one."""

    @abstractmethod
    def _prepare(self, start: Any, texts: list[str], held_out: list[str], context: RunContext) -> None:
        """Make the model, the blocks and the validation of the texts, and report what was chosen."""

    @renamed_arguments(size="vocabulary")
    def _choose_tokenizer(
        self, train: Callable[..., Tokenizer], texts: Sequence[str], context: RunContext, *, kind: str
    ) -> Tokenizer:
        """The tokenizer of the resumed run, or a new one that ``train`` makes, by default of this ``kind``."""
        read = read_tokenizer(context)
        if read is not None:
            return read
        kind = self._recipe.tokenizer or kind
        size = self._recipe.vocabulary or self.presets.choose_vocab_size(_count(texts), kind)
        tokenizer = train(texts, kind=kind, size=size)
        log.info(f"a vocabulary of {tokenizer.vocabulary:,} {_UNITS[kind]}, special tokens included")
        return tokenizer

    @property
    @abstractmethod
    def _held_out(self) -> Sentences:
        """The token ids of the held-out documents."""

    def tokens(self, batch: BlockBatch) -> int:
        """The number of predicted tokens of a batch."""
        return self.batches.tokens(batch)

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and the blocks that were chosen, and a hash of the documents."""
        model = {"type": type(self.model).__name__, **asdict(self.model.config)}
        return {
            **self._recipe.fields(),
            "block": self.batches.length,
            "batch": self.batches.size,
            "model": to_json_value(model),
            "documents": self.batches.documents.digest + self._held_out.digest,
        }

    def recipe_defaults(self) -> dict[str, Any]:
        """The defaults of the recipe and of the model's config, by which runs of earlier versions went."""
        return {**super().recipe_defaults(), "model": default_fields(type(self.model.config))}

    def metadata(self) -> dict[str, Any]:
        """The numbers of documents, and the model that training started from."""
        counts = {"documents": len(self.batches.documents), "held_out": self._num_held_out}
        return {**counts, "start": self._start_name}

    def _describe_blocks(self, block: int) -> str:
        """Describe the training examples; a text may be shorter than a ``block``."""
        blocks = self.batches
        if not isinstance(blocks, RandomOffsetBlocks):
            return f"{len(blocks.documents):,} documents packed into blocks; a token attends only to its own document"
        text = f"blocks of {blocks.length} tokens, at random offsets of the text of {blocks.predictions:,} tokens"
        if blocks.length < block:
            return f"{text}; shortened from {block}, since the text has no more"
        return text


def _count(texts: Sequence[str]) -> int:
    """The number of characters."""
    return sum(map(len, texts))
