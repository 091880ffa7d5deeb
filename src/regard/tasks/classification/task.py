"""The classification task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn

from regard.errors import renamed_arguments
from regard.log import log
from regard.media import TEXTS, check_labels, label_matrix
from regard.models import Encoder, TextClassifier, TextClassifierConfig
from regard.tasks.classification import new_model
from regard.tasks.classification.data import (
    Batches,
    LabelledCorpus,
    LengthReport,
    encode_texts,
    split_texts,
)
from regard.tasks.classification.recipe import ClassificationRecipe, reads_bytes
from regard.tasks.classification.validation import TextValidation, text_loss
from regard.tasks.label_validation import balanced_weights, baseline_score, describe_score
from regard.tasks.labelled_data import choose_metric, describe_labels, find_labels, report_replaced_head
from regard.tasks.low_rank_adapters import add_adapters
from regard.tasks.numbered_batches import EpochCache
from regard.tasks.recipe_task import RecipeTask, check_data_files, read_tokenizer
from regard.tasks.sentences import Indices
from regard.text.byte_tokenizer import byte_tokenizer
from regard.text.gzip_io import inner_suffix
from regard.text.labelled import LabelledText
from regard.text.labelled.read import JSON_SUFFIXES
from regard.text.subword_training import cover_characters
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_training import train_text_tokenizer
from regard.train import RankShard, RunContext, Validation

_HEAD_DROPOUT = 0.1


@final
class ClassificationTask(RecipeTask[ClassificationRecipe]):
    """Training a text classifier by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    texts and ``validation`` to the metrics on validation texts.
    """

    model: TextClassifier
    batches: Batches
    validation: TextValidation
    presets = new_model.PRESETS

    def __init__(self, recipe: ClassificationRecipe) -> None:
        super().__init__(recipe)
        self._weights: Tensor | None = None
        self._latest_epoch = EpochCache[Indices]()

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, DataError for a missing file."""
        self._recipe.check_effect()
        if self._recipe.start is None:
            new_model.check_hyperparameters(self._recipe)
        check_data_files((*self._recipe.data, *self._recipe.validation), kind="labelled texts")

    def prepare(self, context: RunContext) -> None:
        """Read the texts, hold some out, make or load tokenizer and encoder, and encode the texts.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from, and what the model raises for the longest text.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        # Settings that are invalid even with the shortest warm-up fail here, before data is read.
        self.complete(context.settings)
        start = new_model.load_start(recipe)
        training, validation = split_texts(recipe, seed=seed)
        several = _has_several(recipe, [*training, *validation])
        self._size = new_model.choose_size(len(training), recipe.model)
        limit = new_model.most_tokens(recipe, start)
        tokenizer = self._choose_tokenizer(start, [one.text for one in training], context).with_limit(limit)
        lengths = LengthReport()
        sentences, training = encode_texts(training, tokenizer, truncate=recipe.truncate, lengths=lengths)
        labels = find_labels(training, TEXTS, several=several)
        check_labels(validation, labels, "the training data", TEXTS)
        held, validation = encode_texts(validation, tokenizer, truncate=recipe.truncate, lengths=lengths)
        lengths.report(tokenizer.limit)
        self.model = self._make_model(start, tokenizer, labels, several=several, most_tokens=limit)
        if isinstance(start, TextClassifier):
            is_kept = _keeps_head(start, labels, several=several)
            report_replaced_head(str(recipe.start), start.labels, labels, is_kept=is_kept)
        log.info(f"the model: {new_model.describe_model(recipe, self._size, self.model)}")
        if recipe.lora is not None:
            log.info(add_adapters(self.model, rank=recipe.lora, alpha=recipe.lora_alpha, trained=[self.model.head]))
        for sentence in describe_labels(labels, [one.labels for one in training], several=several):
            log.info(sentence)
        self.batches, held_out = (
            Batches(
                LabelledCorpus(encoded, label_matrix(texts, labels, "the training data", TEXTS)),
                size=recipe.batch,
                tokens=recipe.batch_tokens,
                seed=seed,
                pad_id=self.model.pad_id,
            )
            for encoded, texts in ((sentences, training), (held, validation))
        )
        for one in (self.batches, held_out):
            new_model.check_longest_text(self.model, one)
        metric = choose_metric(recipe.metric, held_out.corpus.truth, labels, TEXTS)
        self.validation = TextValidation(validation, held_out, metric=metric)
        if recipe.class_weights == "balanced":
            self._weights = balanced_weights(self.batches.corpus.truth, several=several)

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the texts."""
        texts = self.batches.corpus.digest + self.validation.batches.corpus.digest
        config = self.model.config
        model = {"encoder": self.model.encoder_fields, "labels": list(config.labels), "several": config.several}
        model |= {"dropout": config.dropout, "max_tokens": config.max_tokens}
        return {**self._recipe.fields(), "metric": self.validation.metric, "model": model, "texts": texts}

    def epoch(self, number: int) -> list[Indices]:
        """The indices of the texts in each batch of an epoch."""
        return self._latest_epoch.get_or_draw(number, self.batches.epoch)

    def tokens(self, batch: Indices) -> int:
        """The number of predictions of a batch: texts, or with several labels per text texts x labels."""
        return len(batch) * (len(self.model.labels) if self.model.config.several else 1)

    @property
    def unit(self) -> str:
        """The unit of ``tokens``, in the plural."""
        return "predictions" if self.model.config.several else "texts"

    def loss(self, model: nn.Module, batch: Indices, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        own = shard.rows(batch)
        if len(own) == 0:  # every process takes part in each step, even without rows
            return self._loss(model, batch[:1]) * 0.0
        return self._loss(model, own)

    def validate(self, model: nn.Module) -> Validation:
        """Measure accuracy, F1, loss and calibration error on the validation texts."""
        assert isinstance(model, TextClassifier)
        return self.validation.measure(model)

    def baseline(self) -> float | None:
        """The score of a model that gives each label its frequency as the probability."""
        truth, metric = self.validation.batches.corpus.truth, self.validation.metric
        return baseline_score(truth, self.model.labels, metric, several=self.model.config.several)

    def metadata(self) -> dict[str, Any]:
        """The numbers of texts, and the encoder that training started from."""
        counts = {"texts": len(self.batches.corpus), "held_out": len(self.validation.texts)}
        return {**counts, "start": self._start_name}

    def describe(self, score: float) -> str:
        """Format a score, for example "accuracy 0.914 on held-out texts"."""
        return describe_score(score, self.validation.metric, TEXTS)

    def _loss(self, model: nn.Module, texts: Indices) -> Tensor:
        return text_loss(
            model,
            self.batches,
            texts,
            several=self.model.config.several,
            smoothing=self._recipe.smoothing,
            weights=self._weights,
        )

    @renamed_arguments(size="vocabulary")
    def _choose_tokenizer(self, start: Encoder | None, texts: Sequence[str], context: RunContext) -> Tokenizer:
        """The tokenizer of the model to start from, the tokenizer of the resumed run, or a new one."""
        if start is not None and start.tokenizer is not None:
            return start.tokenizer
        if reads_bytes(self._recipe.model):
            return byte_tokenizer()
        read = read_tokenizer(context)
        if read is not None:
            return read
        kind = self._recipe.tokenizer or "bpe"
        size = self._recipe.vocabulary or cover_characters(self.presets.choose_vocab_size(len(texts), kind), texts)
        tokenizer = train_text_tokenizer(texts, kind=kind, size=size)
        names = {"words": "words", "characters": "characters"}
        log.info(f"a vocabulary of {tokenizer.vocabulary:,} {names.get(kind, 'subwords')}")
        return tokenizer

    def _make_model(
        self, start: Encoder | None, tokenizer: Tokenizer, labels: tuple[str, ...], *, several: bool, most_tokens: int
    ) -> TextClassifier:
        """Build the classifier on a new encoder, or on the one to start from."""
        recipe, dropout = self._recipe, _HEAD_DROPOUT
        if start is None:
            start = new_model.new_encoder(recipe, self._size, vocabulary=tokenizer.vocabulary, pad_id=tokenizer.pad_id)
            dropout = start.config.dropout
        config = TextClassifierConfig(labels, several, recipe.pooling, dropout, most_tokens)
        encoder = start.encoder if isinstance(start, TextClassifier) else start
        encoder.tokenizer = tokenizer
        model = TextClassifier(encoder, config)
        if isinstance(start, TextClassifier) and _keeps_head(start, labels, several=several):
            model.head.load_state_dict(start.head.state_dict())
        return model


def _keeps_head(start: TextClassifier, labels: tuple[str, ...], *, several: bool) -> bool:
    """Whether the head of a classifier to start from answers with the labels of the data, in their order."""
    return start.labels == labels and start.config.several == several


def _has_several(recipe: ClassificationRecipe, texts: Sequence[LabelledText]) -> bool:
    """Whether a text may have several labels: as the recipe says, or if one has not exactly one."""
    if recipe.where.labels != "auto":
        return recipe.where.labels == "several"
    other = next((text for text in texts if len(text.labels) != 1), None)
    if other is not None:
        several = next((text for text in texts if len(text.labels) > 1), other)
        shown = f"the labels {' and '.join(several.labels)}" if several.labels else "none"
        is_cell = inner_suffix(Path(several.place)) not in JSON_SUFFIXES
        bar = "; if a vertical bar is part of a label, use `labels='one'`" if is_cell else ""
        log.info(f"texts may have any number of labels, since {several.place} has {shown}{bar}")
    return other is not None
