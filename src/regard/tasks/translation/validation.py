"""Validation of a translator: BLEU and chrF of greedy translations of validation pairs, and the mean token loss.

BLEU counts 4-grams of words. If no target has four words in a row, such as names and buttons, BLEU is 0 even for a
perfect translation, and models are compared by chrF.

The loss of a translator: cross-entropy of each target token, end tokens included.

    L = sum_t -(1 - e) log p_t[y_t] - e / V sum_v log p_t[v]            label smoothing: Szegedy et al. 2016, section 7

The sum is over the target tokens t, and V is the vocabulary size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.layers.eval_mode import eval_mode
from regard.models import EncoderDecoder
from regard.search import Greedy
from regard.tasks.recipe_task import sample_rows
from regard.tasks.sentences import Indices
from regard.tasks.translation.data import CorpusBatches
from regard.text.pairs import Pair
from regard.train import Validation
from regard.train.loss import smoothed_cross_entropy
from regard.translation import Scorer, Translator, score


def pair_loss(model: nn.Module, batches: CorpusBatches, pairs: Indices, *, smoothing: float) -> Float[Tensor, ""]:
    """The loss summed over all target tokens of ``pairs``, indices into ``batches``: a scalar. ``smoothing`` is e."""
    batch = batches.batch(pairs).to(next(model.parameters()).device)
    # Padding after a target needs no mask: the decoder is causal, and the labels of padding are ignored.
    output = model(batch.source, batch.decoder_input, mask=masks.padding(batch.lengths))
    return smoothed_cross_entropy(output.logits, batch.labels, smoothing=smoothing)


_NUM_SAMPLES = 3
_ZERO = 0.00499
"""The highest BLEU or chrF that is shown as 0.00."""


@final
class PairValidation:
    """Measures translators on ``pairs``; ``batches`` holds the same pairs as token ids.

    ``ranking_metric`` is the metric that decides which weights are the best: "BLEU" or "chrF".
    """

    def __init__(self, pairs: Sequence[Pair], batches: CorpusBatches, *, language: str | None = None) -> None:
        self.pairs, self.batches, self.language = pairs, batches, language
        targets = [pair.target for pair in pairs]
        self.ranking_metric = Scorer(targets, language=language).ranking_metric

    @torch.no_grad()
    def measure(self, model: EncoderDecoder) -> Validation:
        """Measure bleu, chrf and loss (mean per token, without label smoothing), with samples of translations."""
        translator = Translator(model)
        translations = translator.translate([pair.source for pair in self.pairs], search=Greedy())
        texts = [translation.text for translation in translations]
        scores = score(texts, [pair.target for pair in self.pairs], language=self.language)
        metrics = {"bleu": scores.bleu, "chrf": scores.chrf, "loss": self._loss(model)}
        compared = scores.bleu if self.ranking_metric == "BLEU" else scores.chrf
        return Validation(score=compared, metrics=metrics, samples=self._samples(texts))

    def baseline(self) -> float:
        """The score of a model that writes the most frequent target for every source; at least what rounds to 0.00.

        No model is better than that where all targets are the same: then it is 0.00.
        """
        targets = [pair.target for pair in self.pairs]
        ((answer, count),) = Counter(targets).most_common(1)
        if count == len(targets):
            return _ZERO
        scores = score([answer] * len(targets), targets, language=self.language)
        return max(_ZERO, scores.bleu if self.ranking_metric == "BLEU" else scores.chrf)

    def _loss(self, model: EncoderDecoder) -> float:
        batches = self.batches.cut_for_validation(len(self.batches))
        with eval_mode(model):
            losses = [float(pair_loss(model, self.batches, pairs, smoothing=0.0)) for pairs in batches]
        return sum(losses) / float((self.batches.corpus.target.lengths + 1).sum())

    def _samples(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return some sources with their references and translations."""
        chosen = [(self.pairs[row], texts[row]) for row in sample_rows(len(texts), _NUM_SAMPLES)]
        return tuple(
            f"{label} {text}"
            for pair, translation in chosen
            for label, text in (
                ("source:     ", pair.source),
                ("reference:  ", pair.target),
                ("translation:", translation),
            )
        )
