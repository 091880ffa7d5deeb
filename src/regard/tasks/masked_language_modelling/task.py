"""The masked language modelling task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from regard.errors import DataError
from regard.format_share import format_share
from regard.generation.masked_scores import TokenIds, encode_document
from regard.log import log
from regard.models.masked_language_model import MaskedLanguageModel
from regard.tasks.document_task import DocumentTask
from regard.tasks.language_modelling.blocks import BlockBatch, Blocks, make_blocks
from regard.tasks.low_rank_adapters import add_adapters
from regard.tasks.masked_language_modelling.new_model import (
    PRESETS,
    check_hyperparameters,
    choose_block,
    describe_model,
    load_start,
    new_model,
    with_head,
)
from regard.tasks.masked_language_modelling.recipe import MaskedLanguageModelRecipe
from regard.tasks.masked_language_modelling.validation import (
    MaskedBlocks,
    MaskedValidation,
    count_unknown,
    mask_blocks,
    masked_loss,
)
from regard.tasks.sentences import Indices, Sentences, frequency_loss
from regard.text.encoder_tokenizer import train_encoder_tokenizer
from regard.text.token_masking import TokenMasking
from regard.train import RunContext


@final
class MaskedLanguageModelTask(DocumentTask[MaskedLanguageModelRecipe]):
    """Training a masked language model by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    blocks, ``masking`` to how their tokens are masked, and ``validation`` to the metrics on held-out documents. The
    masks of a batch depend on the seed, the epoch and the number of the batch alone, so a resumed run draws the same
    ones, and so do several processes.
    """

    model: MaskedLanguageModel
    masking: TokenMasking
    validation: MaskedValidation
    presets = PRESETS
    check_hyperparameters = staticmethod(check_hyperparameters)

    def _load_start(self) -> MaskedLanguageModel | None:
        return load_start(self._recipe)

    def _prepare(
        self, start: MaskedLanguageModel | None, texts: list[str], held_out: list[str], context: RunContext
    ) -> None:
        recipe, seed = self._recipe, context.settings.seed
        block = choose_block(recipe, self._size, start)
        if start is None:
            train = partial(train_encoder_tokenizer, lowercase=recipe.lowercase)
            tokenizer = self._choose_tokenizer(train, texts, context, kind="wordpiece")
            self.model = new_model(recipe, self._size, tokenizer)
        else:
            self.model = with_head(start)
        has_new_head = start is not None and start.head is None
        if has_new_head:
            log.info(f"{recipe.start} has no masked-language head: a new one, with random weights, is trained")
        tokenizer = self.model.require_tokenizer()
        self.masking = TokenMasking.of(tokenizer, share=recipe.mask_share)
        self.batches = self._make_blocks([encode_document(text, tokenizer) for text in texts], block, seed)
        documents = [encode_document(text, tokenizer) for text in held_out]
        self.validation = MaskedValidation(documents, tokenizer, self.masking, length=block)
        if not self.validation.texts:
            raise _nothing_to_mask_error("validation", held_out)
        log.info(f"the model: {describe_model(recipe, self._size, self.model, block)}")
        if recipe.lora is not None:
            new_head = [self.model.head] if has_new_head else []
            log.info(add_adapters(self.model, rank=recipe.lora, alpha=recipe.lora_alpha, trained=new_head))
        log.info(self._describe_blocks(block))
        _report_unknown(*count_unknown(documents, tokenizer.unknown_id))

    def tokens(self, batch: BlockBatch) -> int:
        """The number of masked tokens of a batch; 1 for a batch of special tokens alone, whose loss is 0."""
        return max(1, int(self._mask(batch).chosen.sum()))

    def rows_loss(self, model: nn.Module, batch: BlockBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        absolute = self.model.has_absolute_positions
        return masked_loss(model, self._mask(batch), rows, absolute_positions=absolute, device=self.model.device)

    def baseline(self) -> float:
        """The score of a model that predicts each masked token by its frequency in the training texts."""
        training = self.batches.documents.ids[np.isin(self.batches.documents.ids, self.masking.usable)]
        held_out = np.concatenate([text.ids[text.chosen] for text in self.validation.texts])
        return -frequency_loss(training, held_out, self.model.config.vocabulary)

    def describe(self, score: float) -> str:
        """Format a score, for example "loss 1.843 on held-out text"."""
        return f"loss {-score:.3f} on masked tokens of held-out text"

    @property
    def _held_out(self) -> Sentences:
        return Sentences.from_ids(map(list, self.validation.documents), self.model.config.vocabulary)

    def _mask(self, batch: BlockBatch) -> MaskedBlocks:
        """The blocks of a batch, with masks: all rows, since each process draws the masks of all."""
        blocks = self.batches.tensors(batch, np.arange(len(batch)))
        return mask_blocks(blocks, self.masking, np.random.default_rng(batch.seed))

    def _make_blocks(self, documents: Sequence[TokenIds], block: int, seed: int) -> Blocks:
        """The blocks of documents: several documents each between special tokens; of a single one, each block."""
        assert self.model.tokenizer is not None
        frame = self.model.tokenizer.frame
        if not any(np.isin(ids, self.masking.usable).any() for ids in documents):
            raise _nothing_to_mask_error("training", documents)
        if len(documents) > 1:
            documents = [np.concatenate([frame[0], ids, frame[1]]).astype(np.int64) for ids in documents]
        return make_blocks(
            Sentences.from_ids(map(list, documents), self.model.config.vocabulary),
            length=block,
            size=self._recipe.batch or self._size.batch,
            seed=seed,
            lookahead=0,
            frame=frame,
        )


def _nothing_to_mask_error(name: str, texts: Sequence[Any]) -> DataError:
    return DataError(
        f"the {name} texts leave no token to mask",
        expected="text in the characters of the vocabulary",
        got=f"{len(texts)} texts of special or unknown tokens",
        do="give more text",
    )


def _report_unknown(count: int, tokens: int) -> None:
    """Report held-out text outside the vocabulary, which is never masked."""
    if count:
        log.info(f"{format_share(count / tokens, 2)} of the held-out tokens are unknown, and are not predicted")
