"""The skeleton of a task that learns from documents: a language model, or a masked one.

The sizes of new models and the training hyperparameters are chosen by the characters of the data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Generic, TypeVar

from regard.errors import renamed_arguments
from regard.log import log
from regard.tasks.document_recipe import DocumentRecipe
from regard.tasks.language_modelling.blocks import Blocks, RandomOffsetBlocks
from regard.tasks.language_modelling.data import split_documents
from regard.tasks.numbered_batches import EpochCache
from regard.tasks.recipe_fields import default_fields, to_json_value
from regard.tasks.recipe_task import RecipeTask, check_data_files, read_tokenizer
from regard.tasks.sentences import Sentences
from regard.text.tokenizer import Tokenizer
from regard.train import RunContext

AnyDocumentRecipe = TypeVar("AnyDocumentRecipe", bound=DocumentRecipe)
Batch = TypeVar("Batch")
_UNITS = {"wordpiece": "word pieces", "bpe": "subwords", "bytes": "bytes", "characters": "characters"}
"""Words for the tokens of each kind of tokenizer."""


class DocumentTask(RecipeTask[AnyDocumentRecipe], Generic[AnyDocumentRecipe, Batch]):
    """Training a model of documents by ``recipe``. ``prepare`` sets ``blocks`` to the training examples."""

    blocks: Blocks

    def __init__(self, recipe: AnyDocumentRecipe) -> None:
        super().__init__(recipe)
        self._latest_epoch = EpochCache[Batch]()
        self._num_held_out = 0

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, DataError for a missing file."""
        self._recipe.check_effect()
        if self._recipe.start is None:
            self._check_hyperparameters()
        check_data_files((*self._recipe.data, *self._recipe.validation), kind="texts")

    @abstractmethod
    def _check_hyperparameters(self) -> None:
        """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""

    def prepare(self, context: RunContext) -> None:
        """Read the documents, hold some out, make or load tokenizer and model, and encode the documents.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        self.check()
        self.complete(context.settings)  # settings that are invalid even with the shortest warm-up fail before reading
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

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and the blocks that were chosen, and a hash of the documents."""
        model = {"type": type(self.model).__name__, **asdict(self.model.config)}
        return {
            **self._recipe.fields(),
            "block": self.blocks.length,
            "batch": self.blocks.size,
            "model": to_json_value(model),
            "documents": self.blocks.documents.digest + self._held_out.digest,
        }

    def recipe_defaults(self) -> dict[str, Any]:
        """The defaults of the recipe and of the model's config, by which runs of earlier versions went."""
        return {**super().recipe_defaults(), "model": default_fields(type(self.model.config))}

    def metadata(self) -> dict[str, Any]:
        """The numbers of documents, and the model that training started from."""
        counts = {"documents": len(self.blocks.documents), "held_out": self._num_held_out}
        return {**counts, "start": self._start_name}

    def _describe_blocks(self, block: int) -> str:
        """Describe the training examples; a text may be shorter than a ``block``."""
        blocks = self.blocks
        if not isinstance(blocks, RandomOffsetBlocks):
            return f"{len(blocks.documents):,} documents packed into blocks; a token attends only to its own document"
        short = f", shortened from {block}, since the text has no more" if blocks.length < block else ""
        return (
            f"blocks of {blocks.length} tokens{short}, at random offsets of the text of {blocks.predictions:,} tokens"
        )


def _count(texts: Sequence[str]) -> int:
    """The number of characters."""
    return sum(map(len, texts))
