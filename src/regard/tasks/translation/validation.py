"""Validation of a translator: BLEU and chrF of greedy translations of validation pairs, and the mean token loss.

BLEU counts 4-grams of words. If no target has four words in a row, such as names and buttons, BLEU is 0 even for a
perfect translation, and models are compared by chrF.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch

from regard.layers.eval_mode import eval_mode
from regard.models import EncoderDecoder
from regard.search import Greedy
from regard.tasks.translation.batches import Batches
from regard.tasks.translation.loss import pair_loss
from regard.text.pairs import Pair
from regard.train import Validation
from regard.translation import Translator, score

_NUM_SAMPLES = 3


@final
class PairValidation:
    """Measures translators on ``pairs``; ``batches`` holds the same pairs as token ids.

    ``ranking_metric`` is the metric that decides which weights are the best: "BLEU" or "chrF".
    """

    def __init__(self, pairs: Sequence[Pair], batches: Batches, *, language: str | None = None) -> None:
        self.pairs, self.batches, self.language = pairs, batches, language
        targets = [pair.target for pair in pairs]
        self.ranking_metric = "BLEU" if score(targets, targets, language=language).bleu > 0 else "chrF"

    @torch.no_grad()
    def measure(self, model: EncoderDecoder) -> Validation:
        """Measure bleu, chrf and loss (mean per token, without label smoothing), with samples of translations."""
        translator = Translator(model)
        translations = translator.translate([pair.source for pair in self.pairs], search=Greedy())
        texts = [one.text for one in translations]
        scores = score(texts, [pair.target for pair in self.pairs], language=self.language)
        metrics = {"bleu": scores.bleu, "chrf": scores.chrf, "loss": self._loss(model)}
        compared = scores.bleu if self.ranking_metric == "BLEU" else scores.chrf
        return Validation(score=compared, metrics=metrics, samples=self._samples(texts))

    def _loss(self, model: EncoderDecoder) -> float:
        batches = self.batches.batches_by_length()
        with eval_mode(model):
            losses = [float(pair_loss(model, self.batches, pairs, smoothing=0.0)) for pairs in batches]
        return sum(losses) / float((self.batches.corpus.target.lengths + 1).sum())

    def _samples(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Return some sources with their references and translations."""
        step = max(1, len(texts) // _NUM_SAMPLES)
        chosen = list(zip(self.pairs, texts, strict=True))[::step][:_NUM_SAMPLES]
        return tuple(
            f"{label} {text}"
            for pair, translation in chosen
            for label, text in (
                ("source:     ", pair.source),
                ("reference:  ", pair.target),
                ("translation:", translation),
            )
        )
