"""The classification task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from regard.errors import renamed_arguments
from regard.log import log
from regard.media import TEXTS, check_labels
from regard.models import Encoder, TextClassifier, TextClassifierConfig
from regard.tasks.classification import new_model
from regard.tasks.classification.data import LabelledTextBatches, LengthReport, encode_texts, split_texts
from regard.tasks.classification.recipe import ClassificationRecipe, reads_bytes
from regard.tasks.labelled_data import find_labels, report_replaced_head
from regard.tasks.low_rank_adapters import add_adapters
from regard.tasks.medium_task import ClassifierTask
from regard.tasks.recipe_task import read_tokenizer
from regard.text.byte_tokenizer import byte_tokenizer
from regard.text.gzip_io import inner_suffix
from regard.text.labelled import LabelledText
from regard.text.line_reader import JSON_SUFFIXES
from regard.text.subword_training import cover_characters
from regard.text.tokenizer import Tokenizer
from regard.text.tokenizer_training import train_text_tokenizer
from regard.train import RunContext

_HEAD_DROPOUT = 0.1


@final
class ClassificationTask(ClassifierTask[ClassificationRecipe]):
    """Training a text classifier by ``recipe``: see ``ClassifierTask``."""

    model: TextClassifier
    medium = TEXTS
    presets = new_model.PRESETS
    check_hyperparameters = staticmethod(new_model.check_hyperparameters)
    data_kind = "labelled texts"

    def load_start(self) -> Encoder | None:
        """Load the encoder or classifier to start from: see ``new_model.load_start``."""
        return new_model.load_start(self._recipe)

    def read(self, start: Encoder | None, context: RunContext) -> tuple[LabelledTextBatches, LabelledTextBatches]:
        """Read the texts, hold some out, make or load tokenizer and encoder, and encode the texts."""
        recipe = self._recipe
        training, validation = split_texts(recipe, seed=self._seed)
        self.several = _has_several(recipe, [*training, *validation])
        self._size = new_model.choose_size(len(training), recipe.model)
        limit = new_model.most_tokens(recipe, start)
        tokenizer = self._choose_tokenizer(start, [text.text for text in training], context).with_limit(limit)
        lengths = LengthReport()
        sentences, training = encode_texts(training, tokenizer, truncate=recipe.truncate, lengths=lengths)
        labels = find_labels(training, TEXTS, several=self.several)
        check_labels(validation, labels, "the training data", TEXTS)
        held, validation = encode_texts(validation, tokenizer, truncate=recipe.truncate, lengths=lengths)
        lengths.report(tokenizer.limit)
        self.model = self._make_model(start, tokenizer, labels, most_tokens=limit)
        if isinstance(start, TextClassifier):
            report_replaced_head(str(recipe.start), start.labels, labels, is_kept=self._keeps_head(start, labels))
        log.info(f"the model: {new_model.describe_model(recipe, self._size, self.model)}")
        if recipe.lora is not None:
            log.info(add_adapters(self.model, rank=recipe.lora, alpha=recipe.lora_alpha, trained=[self.model.head]))
        options: dict[str, Any] = {"size": recipe.batch, "tokens": recipe.batch_tokens, "seed": self._seed}
        options |= {"pad_id": self.model.pad_id}
        return LabelledTextBatches(training, sentences, **options), LabelledTextBatches(validation, held, **options)

    @property
    def validation_batch(self) -> int:
        """The most texts of a batch of ``validate``."""
        return self._recipe.batch

    @property
    def recorded_configs(self) -> dict[str, tuple[str, Any]]:
        """The config of the encoder."""
        return {"model.encoder.": ("", self.model.encoder.config)}

    def model_fields(self) -> dict[str, Any]:
        """The fields of the model for ``recipe``."""
        config = self.model.config
        fields = {"encoder": self.model.encoder_fields, "labels": list(config.labels), "several": config.several}
        return fields | {"dropout": config.dropout, "max_tokens": config.max_tokens}

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
        self, start: Encoder | None, tokenizer: Tokenizer, labels: tuple[str, ...], *, most_tokens: int
    ) -> TextClassifier:
        """Build the classifier on a new encoder, or on the one to start from."""
        recipe, dropout = self._recipe, _HEAD_DROPOUT
        if start is None:
            start = new_model.new_encoder(recipe, self._size, vocabulary=tokenizer.vocabulary, pad_id=tokenizer.pad_id)
            dropout = start.config.dropout
        config = TextClassifierConfig(labels, self.several, recipe.pooling, dropout, most_tokens)
        encoder = start.encoder if isinstance(start, TextClassifier) else start
        encoder.tokenizer = tokenizer
        model = TextClassifier(encoder, config)
        if isinstance(start, TextClassifier) and self._keeps_head(start, labels):
            model.head.load_state_dict(start.head.state_dict())
        return model

    def _keeps_head(self, start: TextClassifier, labels: tuple[str, ...]) -> bool:
        """Whether the head of a classifier to start from answers with the labels of the data, in their order."""
        return start.labels == labels and start.config.several == self.several


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
