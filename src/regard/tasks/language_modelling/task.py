"""The language modelling task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from regard.errors import DataError, renamed_arguments
from regard.format_share import format_share
from regard.generation.scores import model_document_ids
from regard.log import log
from regard.models import CausalLanguageModel
from regard.tasks.language_modelling.blocks import BlockBatch, Blocks, RandomOffsetBlocks, make_blocks
from regard.tasks.language_modelling.data import split_documents
from regard.tasks.language_modelling.new_model import (
    PRESETS,
    check_hyperparameters,
    choose_block,
    describe_model,
    load_start,
    new_model,
    untrained_note,
)
from regard.tasks.language_modelling.recipe import LanguageModelRecipe
from regard.tasks.language_modelling.validation import DocumentValidation, block_loss
from regard.tasks.low_rank_adapters import AdapterBase, add_adapters, save_adapters
from regard.tasks.numbered_batches import EpochCache
from regard.tasks.recipe_fields import default_fields, to_json_value
from regard.tasks.recipe_task import RecipeTask, check_data_files, read_tokenizer
from regard.tasks.sentences import Sentences, frequency_loss, without_first
from regard.text.language_tokenizer import train_language_tokenizer
from regard.text.tokenizer import Tokenizer
from regard.train import RankShard, RunContext, Validation


@final
class LanguageModelTask(RecipeTask[LanguageModelRecipe]):
    """Training a language model by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``blocks`` to the training
    examples and ``validation`` to the metrics on held-out documents.
    """

    model: CausalLanguageModel
    blocks: Blocks
    validation: DocumentValidation
    sizes = PRESETS.by_name
    fine_tuning = PRESETS.fine_tuning

    def __init__(self, recipe: LanguageModelRecipe) -> None:
        super().__init__(recipe)
        self._base: AdapterBase | None = None
        self._latest_epoch = EpochCache[BlockBatch]()

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, DataError for a missing file."""
        self._recipe.check_effect()
        if self._recipe.start is None:
            check_hyperparameters(self._recipe)
        check_data_files((*self._recipe.data, *self._recipe.validation), kind="texts")

    def prepare(self, context: RunContext) -> None:
        """Read the documents, hold some out, make or load tokenizer and model, and encode the documents.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        # Settings that are invalid even with the shortest warm-up fail here, before data is read.
        self.complete(context.settings)
        start = load_start(recipe)
        texts, validation_texts = split_documents(recipe, seed=seed)
        self._size = PRESETS.choose_size(sum(map(len, texts)), recipe.size)
        block = choose_block(recipe, self._size, start)
        self.model = start or new_model(recipe, self._size, self._choose_tokenizer(texts, context))
        documents = self._encode(texts)
        if documents.lengths.max(initial=0) < 2:
            raise DataError(
                "the training texts leave no token to predict",
                expected="a text of two tokens or more",
                got=f"{len(texts)} shorter ones",
                do="give more text",
            )
        self.blocks = make_blocks(documents, length=block, size=recipe.batch or self._size.batch, seed=seed)
        self.validation = DocumentValidation(
            validation_texts, self._encode(validation_texts), length=self.blocks.length
        )
        log.info(f"the model: {describe_model(recipe, self._size, self.model, block)}")
        note = untrained_note(self.model)
        if note is not None:
            log.info(note)
        if recipe.lora is not None:
            if recipe.keep_adapters:
                self._base = AdapterBase.of(recipe.start, self.model)
            log.info(add_adapters(self.model, rank=recipe.lora, alpha=recipe.lora_alpha))
        log.info(_describe_blocks(self.blocks, block))
        self._report_unknown()

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and the blocks that were chosen, and a hash of the documents."""
        validation = self.validation.documents
        digests = self.blocks.digest + make_blocks(validation, length=1, size=1, seed=0).digest
        model = {"type": type(self.model).__name__, **asdict(self.model.config)}
        blocks = {"block": self.blocks.length, "batch": self.blocks.size}
        return {**self._recipe.fields(), **blocks, "model": to_json_value(model), "documents": digests}

    def recipe_defaults(self) -> dict[str, Any]:
        """The defaults of the recipe and of the model's config, by which runs of earlier versions went."""
        return {**super().recipe_defaults(), "model": default_fields(type(self.model.config))}

    def epoch(self, number: int) -> Sequence[BlockBatch]:
        """The batches of blocks of an epoch."""
        return self._latest_epoch.get_or_draw(number, self.blocks.epoch)

    def tokens(self, batch: BlockBatch) -> int:
        """The number of predicted tokens of a batch."""
        return self.blocks.tokens(batch)

    def loss(self, model: nn.Module, batch: BlockBatch, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        rows = np.arange(len(batch.begins))
        own = shard.rows(rows)
        if len(own) == 0:  # every process takes part in each step, even without rows
            return self._loss(model, batch, rows[:1]) * 0.0
        return self._loss(model, batch, own)

    def validate(self, model: nn.Module) -> Validation:
        """Measure loss, perplexity and bits per byte of the held-out documents."""
        assert isinstance(model, CausalLanguageModel)
        return self.validation.measure(model)

    def baseline(self) -> float:
        """The score of a model that predicts each token by its frequency in the training texts."""
        training, held_out = (without_first(one) for one in (self.blocks.documents, self.validation.documents))
        return -frequency_loss(training, held_out, self.model.config.vocabulary)

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of the model, or of its adapters alone, replacing an older one and keeping other files."""
        if self._base is None:
            super().save(model, folder, about)
            return
        assert isinstance(model, CausalLanguageModel)
        metadata = {**self.metadata(), **about}
        save_adapters(model, folder, base=self._base, alpha=self._recipe.lora_alpha, metadata=metadata)

    def metadata(self) -> dict[str, Any]:
        """The numbers of documents, and the model that training started from."""
        counts = {"documents": len(self.blocks.documents), "held_out": len(self.validation.texts)}
        return {**counts, "start": self._start_name}

    def describe(self, score: float) -> str:
        """Format a score, for example "loss 1.843 on held-out text"."""
        return f"loss {-score:.3f} on held-out text"

    def _loss(self, model: nn.Module, batch: BlockBatch, rows: np.ndarray) -> Tensor:
        return block_loss(model, self.blocks.tensors(batch, rows), decoder=self.model)

    @renamed_arguments(size="vocabulary")
    def _choose_tokenizer(self, texts: Sequence[str], context: RunContext) -> Tokenizer:
        """The tokenizer of the resumed run, or a new one."""
        read = read_tokenizer(context)
        if read is not None:
            return read
        kind = self._recipe.tokenizer or "bpe"
        size = self._recipe.vocabulary or PRESETS.choose_vocab_size(sum(map(len, texts)), kind)
        tokenizer = train_language_tokenizer(texts, kind=kind, size=size)
        names = {"bytes": "bytes", "characters": "characters"}
        log.info(f"a vocabulary of {tokenizer.vocabulary:,} {names.get(kind, 'subwords')}, special tokens included")
        return tokenizer

    def _encode(self, texts: Sequence[str]) -> Sentences:
        """Encode documents, each with its start and end token."""
        found = (model_document_ids(text, self.model).tolist() for text in texts)
        return Sentences.from_ids(found, self.model.config.vocabulary)

    def _report_unknown(self) -> None:
        """Report held-out characters outside the vocabulary, whose loss says nothing about them."""
        unknown = self.model.unknown_id
        count = 0 if unknown is None else int((self.validation.documents.ids == unknown).sum())
        if count:
            share = format_share(count / len(self.validation.documents.ids), 2)
            log.info(f"{share} of the held-out tokens are unknown, so bits per byte are underestimated")


def _describe_blocks(blocks: Blocks, block: int) -> str:
    if not isinstance(blocks, RandomOffsetBlocks):
        return f"{len(blocks.documents):,} documents packed into blocks; a token attends only to its own document"
    short = f", shortened from {block}, since the text has no more" if blocks.length < block else ""
    return f"blocks of {blocks.length} tokens{short}, at random offsets of the text of {blocks.predictions:,} tokens"
