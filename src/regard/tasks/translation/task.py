"""The translation task, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, final

from torch import Tensor, nn

from regard.log import log
from regard.models import EncoderDecoder
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.recipe_fields import default_fields
from regard.tasks.recipe_task import RowTask
from regard.tasks.sentences import Indices
from regard.tasks.translation import new_model
from regard.tasks.translation.data import CorpusBatches, encode_pairs, split_pairs
from regard.tasks.translation.recipe import TranslationRecipe
from regard.tasks.translation.validation import PairValidation, pair_loss
from regard.text.subwords import read_subword_files, subword_texts
from regard.train import RunContext
from regard.translation.translator import MAX_TOKENS


@final
class TranslationTask(RowTask[TranslationRecipe]):
    """Training a translator by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    pairs, ``validation`` to the metrics on validation pairs, and ``size`` to the preset that provides the default
    learning rate, warm-up and batch size.
    """

    model: EncoderDecoder
    batches: CorpusBatches
    validation: PairValidation
    presets = new_model.PRESETS
    check_hyperparameters = staticmethod(new_model.check_hyperparameters)
    data_kind = "pairs"

    def __init__(self, recipe: TranslationRecipe) -> None:
        super().__init__(recipe)
        self._languages: tuple[str | None, str | None] = (None, None)

    @property
    def layer(self) -> str:
        """The cell of a recurrent model, else "linear". Raises CheckpointError as ``new_model.layer_kind``."""
        return new_model.layer_kind(self._recipe)

    def prepare(self, context: RunContext) -> None:
        """Read the pairs, hold some out, encode them as subwords, and build the model or load the one to fine-tune.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        start = new_model.load_start(recipe)
        self._languages = new_model.choose_languages(recipe, start)
        where = replace(recipe.where, source=self._languages[0], target=self._languages[1])
        pairs, validation_pairs = split_pairs(recipe, where, seed=seed)
        warning = new_model.few_pairs_warning(len(pairs))
        if warning:
            log.info(warning)
        self._size = new_model.choose_model_size(recipe, start, len(pairs))
        if start is None:
            own = None if context.folder is None else read_subword_files(context.folder)
            own = own or new_model.new_subwords(recipe, [pair.text for pair in pairs])
            self.model = new_model.new_model(recipe, self._size, own)
            self.model.subwords = own
            log.info(f"the model: {new_model.describe_model(recipe, self._size, self.model)}")
        else:
            self.model = start
        subwords, prefix = self.model.subwords, self.model.prefix
        assert subwords is not None  # a model to fine-tune was loaded with them
        if prefix:
            log.info(f"the prefix of each source: {prefix!r}")
        # Leave a position for the end token; validation sources must fit the translator.
        max_tokens = min(recipe.most_tokens, MAX_TOKENS - 1, (self.model.max_tokens or MAX_TOKENS) - 1)
        corpus, _ = encode_pairs(pairs, subwords, max_tokens, prefix=prefix)
        validation_corpus, kept = encode_pairs(validation_pairs, subwords, max_tokens, prefix=prefix)
        model = self.model
        ids = {"pad_id": model.pad_id, "start_id": model.target_start_id, "end_id": model.end_id}
        options = {"tokens": recipe.batch_tokens or self._size.batch, "seed": seed, **ids}
        self.batches = CorpusBatches(corpus, **options)
        self.validation = PairValidation(kept, CorpusBatches(validation_corpus, **options), language=self._languages[1])
        if self.validation.ranking_metric != "BLEU":
            log.info(
                "no held-out target has four words in a row, which BLEU needs: "
                f"the best model is chosen by {self.validation.ranking_metric}"
            )

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and batch size that were chosen, and a hash of the pairs."""
        model = {"type": self.model.model_type, **asdict(self.model.config)}
        pairs = self.batches.corpus.digest + self.validation.batches.corpus.digest
        prefix = {"prefix": self.model.prefix} if self.model.prefix else {}
        return {**self._recipe.fields(), **prefix, "tokens": self.batches.tokens, "model": model, "pairs": pairs}

    def recipe_defaults(self) -> dict[str, Any]:
        """The defaults of the recipe and of the model's config, by which runs of earlier versions went."""
        return {**super().recipe_defaults(), "model": default_fields(type(self.model.config))}

    def files(self) -> Mapping[str, str]:
        """The subwords as texts, by file name."""
        return subword_texts(self.model.subwords)

    def tokens(self, batch: NumberedBatch) -> int:
        """The number of target tokens of a batch, end tokens included."""
        return int((self.batches.corpus.target.lengths[batch.examples] + 1).sum())

    def rows_loss(self, model: nn.Module, batch: NumberedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        return pair_loss(model, self.batches, batch.examples[rows], smoothing=self._recipe.smoothing)

    def baseline(self) -> float:
        """The score of a model that writes the same translation for every source."""
        return self.validation.baseline()

    def metadata(self) -> dict[str, Any]:
        """The languages, the prefix and the numbers of pairs."""
        counts = {"pairs": len(self.batches.corpus), "held_out": len(self.validation.pairs)}
        prefix = {"prefix": self.model.prefix} if self.model.prefix else {}
        return {"languages": list(self._languages), **prefix, **counts}

    def describe(self, score: float) -> str:
        """Format a score, for example "BLEU 31.40 on held-out pairs"."""
        return f"{self.validation.ranking_metric} {score:.2f} on held-out pairs"
