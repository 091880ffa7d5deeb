"""Learning to translate: pairs in batches, the loss of each wanted token, BLEU on pairs that were held out.

BLEU counts runs of four words. Where the targets have none, as names and buttons, it is 0 for the best translation too,
and chrF tells which model is better.

    L = sum_t -(1 - e) log p_t[y_t] - e / V sum_v log p_t[v]            label smoothing: Szegedy et al. 2016, section 7

t goes over the tokens of the targets, their ends included, and V is the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from regard import masks
from regard.models import EncoderDecoder
from regard.search import Greedy
from regard.text.pairs import Pair
from regard.train.batches import Batches, Indices
from regard.train.loss import smoothed_cross_entropy
from regard.train.task import Share, Task, Validation
from regard.translation.scores import score
from regard.translation.translator import Translator

_SAMPLES = 3


@final
class TranslationTask(Task):
    """Teaches ``model`` the pairs of ``batches``.

    ``held_out`` are the pairs that it is measured with, and ``measured`` the same as batches; ``smoothing`` is e above.
    ``compares_by`` is "BLEU" or "chrF": what decides which weights are the best.
    """

    def __init__(
        self,
        model: EncoderDecoder,
        *,
        batches: Batches,
        measured: Batches,
        held_out: Sequence[Pair],
        smoothing: float = 0.1,
        language: str | None = None,
    ) -> None:
        self.model: EncoderDecoder = model
        self.batches, self.measured, self.held_out = batches, measured, held_out
        self.smoothing, self.language = smoothing, language
        self._epoch: tuple[int, list[Indices]] = (-1, [])
        targets = [pair.target for pair in held_out]
        self.compares_by = "BLEU" if score(targets, targets, language=language).bleu > 0 else "chrF"

    @property
    def digest(self) -> str:
        """A hash of all pairs as tokens."""
        return self.batches.corpus.digest + self.measured.corpus.digest

    def epoch(self, number: int) -> list[Indices]:
        """The batches of an epoch."""
        if self._epoch[0] != number:
            self._epoch = number, self.batches.epoch(number)
        return self._epoch[1]

    def tokens(self, batch: Indices) -> int:
        """Wanted tokens: those of the targets, and their ends."""
        return int((self.batches.corpus.target.lengths[batch] + 1).sum())

    def loss(self, model: nn.Module, batch: Indices, share: Share) -> Tensor:
        """The sum of the losses of a share of a batch."""
        own = batch[share.rank :: share.of]
        if len(own) == 0:  # every process takes part in each step, with nothing where there is nothing left
            return self._loss(model, self.batches, batch[:1]) * 0.0
        return self._loss(model, self.batches, own)

    def validate(self, model: nn.Module) -> Validation:
        """BLEU and chrF of greedy translations, and the loss of a token without smoothing."""
        assert isinstance(model, EncoderDecoder)
        translator = Translator(model)
        found = translator.translate([pair.source for pair in self.held_out], search=Greedy())
        texts = [one.text for one in found]
        scores = score(texts, [pair.target for pair in self.held_out], language=self.language)
        metrics = {"bleu": scores.bleu, "chrf": scores.chrf, "loss": self._validation_loss(model)}
        compared = scores.bleu if self.compares_by == "BLEU" else scores.chrf
        return Validation(score=compared, metrics=metrics, samples=self._samples(texts))

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of a model that can be used, in place of one that is there. What else is in it stays."""
        assert isinstance(model, EncoderDecoder)
        model.metadata = about
        model.save(folder, overwrite=True, keep_others=True)

    def _loss(self, model: nn.Module, batches: Batches, pairs: Indices, smoothing: float | None = None) -> Tensor:
        batch = batches.batch(pairs).to(next(model.parameters()).device)
        # Padding behind a target needs no mask: nothing before it looks at it, and its own losses do not count.
        output = model(batch.source, batch.given, mask=masks.padding(batch.lengths))
        smoothing = self.smoothing if smoothing is None else smoothing
        return smoothed_cross_entropy(output.logits, batch.wanted, smoothing=smoothing)

    def _validation_loss(self, model: nn.Module) -> float:
        was_training = model.training
        model.eval()
        with torch.no_grad():
            losses = [float(self._loss(model, self.measured, pairs, 0.0)) for pairs in self.measured.in_order()]
        model.train(was_training)
        return sum(losses) / float((self.measured.corpus.target.lengths + 1).sum())

    def _samples(self, texts: Sequence[str]) -> tuple[str, ...]:
        """Some of what was translated, beside what a person wrote."""
        step = max(1, len(texts) // _SAMPLES)
        chosen = list(zip(self.held_out, texts, strict=True))[::step][:_SAMPLES]
        return tuple(
            f"{label} {text}"
            for pair, found in chosen
            for label, text in (("source:", pair.source), ("wanted:", pair.target), ("got:   ", found))
        )
