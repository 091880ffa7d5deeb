"""Measures of a model that writes texts: error rates, and the loss of the texts that its labels can write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from regard.models.audio_encoder import AudioEncoderOutput
from regard.models.ctc import count_needed_tokens, ctc_loss, decode_ctc
from regard.transcription.scores import TranscriptionScores, score_transcriptions
from regard.transcription.text_labels import TextLabels


@final
class TranscriptionMeasure:
    """Collects the texts that a model with these ``labels`` writes, with references and losses, batch by batch.

    A reference that the model cannot write, since it has unknown characters or words or is too long for its sound,
    counts in the error rates and has no loss; ``without_loss`` counts these.
    """

    def __init__(self, labels: TextLabels) -> None:
        self.labels = labels
        self.hypotheses: list[str] = []
        self.references: list[str] = []
        self.without_loss = 0
        self._loss, self._length = 0.0, 0

    def add(self, output: AudioEncoderOutput, references: Sequence[str]) -> None:
        """Add a batch: the output of the model, and the text of each sound."""
        self.hypotheses += [self.labels.decode(one) for one in decode_ctc(output)]
        self.references += references
        targets = [self.labels.encode(reference) for reference in references]
        lengths = output.visible.sum(dim=1).tolist()
        kept = {
            row: target
            for row, (target, length) in enumerate(zip(targets, lengths, strict=True))
            if target is not None and count_needed_tokens(target) <= length
        }
        self.without_loss += len(references) - len(kept)
        if kept:
            self._loss += float(ctc_loss(_select(output, list(kept)), list(kept.values())).detach().double().sum())
            self._length += sum(map(len, kept.values()))

    @property
    def loss(self) -> float | None:
        """The mean loss of a character or word, in nats; None if no reference has a loss."""
        return self._loss / self._length if self._length else None

    def score(self) -> TranscriptionScores:
        """The error rates. Raises what ``score_transcriptions`` raises."""
        return score_transcriptions(self.hypotheses, self.references)


def _select(output: AudioEncoderOutput, rows: list[int]) -> AudioEncoderOutput:
    assert output.logits is not None
    return AudioEncoderOutput(output.hidden[rows], output.pooled[rows], output.visible[rows], output.logits[rows])
