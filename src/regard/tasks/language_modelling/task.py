"""The language modelling task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from regard.errors import DataError
from regard.format_share import format_share
from regard.generation.scores import model_document_ids
from regard.log import log
from regard.models import CausalLanguageModel
from regard.tasks.document_task import DocumentTask
from regard.tasks.language_modelling.blocks import BlockBatch, make_blocks
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
from regard.tasks.sentences import Indices, Sentences, frequency_loss, without_first
from regard.text.language_tokenizer import train_language_tokenizer
from regard.train import RunContext


@final
class LanguageModelTask(DocumentTask[LanguageModelRecipe]):
    """Training a language model by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    blocks and ``validation`` to the metrics on held-out documents.
    """

    model: CausalLanguageModel
    validation: DocumentValidation
    presets = PRESETS
    check_hyperparameters = staticmethod(check_hyperparameters)
    _base: AdapterBase | None = None
    """The model whose adapters alone are saved, if they are."""

    def _load_start(self) -> CausalLanguageModel | None:
        return load_start(self._recipe)

    def _prepare(
        self, start: CausalLanguageModel | None, texts: list[str], held_out: list[str], context: RunContext
    ) -> None:
        recipe, seed = self._recipe, context.settings.seed
        block = choose_block(recipe, self._size, start)
        self.model = start or new_model(
            recipe, self._size, self._choose_tokenizer(train_language_tokenizer, texts, context, kind="bpe")
        )
        documents = self._encode(texts)
        if documents.lengths.max(initial=0) < 2:
            raise DataError(
                "the training texts leave no token to predict",
                expected="a text of two tokens or more",
                got=f"{len(texts)} shorter ones",
                do="give more text",
            )
        self.batches = make_blocks(documents, length=block, size=recipe.batch or self._size.batch, seed=seed)
        self.validation = DocumentValidation(held_out, self._encode(held_out), length=self.batches.length)
        log.info(f"the model: {describe_model(recipe, self._size, self.model, block)}")
        note = untrained_note(self.model)
        if note is not None:
            log.info(note)
        if recipe.lora is not None:
            if recipe.keep_adapters:
                self._base = AdapterBase.of(recipe.start, self.model)
            log.info(add_adapters(self.model, rank=recipe.lora, alpha=recipe.lora_alpha))
        log.info(self._describe_blocks(block))
        self._report_unknown()

    def rows_loss(self, model: nn.Module, batch: BlockBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        return block_loss(model, self.batches.tensors(batch, rows), decoder=self.model)

    def baseline(self) -> float:
        """The score of a model that predicts each token by its frequency in the training texts."""
        training, held_out = (
            without_first(documents) for documents in (self.batches.documents, self.validation.documents)
        )
        return -frequency_loss(training, held_out, self.model.config.vocabulary)

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of the model, or of its adapters alone, replacing an older one and keeping other files."""
        if self._base is None:
            super().save(model, folder, about)
            return
        assert isinstance(model, CausalLanguageModel)
        metadata = {**self.metadata(), **about}
        save_adapters(model, folder, base=self._base, alpha=self._recipe.lora_alpha, metadata=metadata)

    def describe(self, score: float) -> str:
        """Format a score, for example "loss 1.843 on held-out text"."""
        return f"loss {-score:.3f} on held-out text"

    @property
    def _held_out(self) -> Sentences:
        return self.validation.documents

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
