"""Error rates of texts, computed by ``jiwer``: the usual measures of speech recognition.

    rate = (substitutions + insertions + deletions) / length        of the words, or of the characters

of the shortest edit from each reference to its hypothesis, summed over all texts; length is the length of the
references. Insertions count, so a rate may exceed 1. Words are separated by spaces, and a space between words is a
character; those at the ends of a text do not count. Upper and lower case and punctuation count.

Measures of a model that writes texts: error rates, and the loss of the texts that its labels can write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.devices import to_float64
from regard.errors import DataError, MissingPackageError, OptionError
from regard.models.audio_encoder import AudioEncoderOutput
from regard.models.ctc import count_needed_tokens, ctc_loss, decode_ctc
from regard.text.tokenizer import check_texts
from regard.transcription.text_labels import TextLabels


@final
@explain_arguments
@dataclass(frozen=True)
class ErrorRate:
    """An error rate, and the counts behind it; ``length`` counts the words or characters of the references."""

    rate: float
    substitutions: int
    insertions: int
    deletions: int
    length: int


@final
@explain_arguments
@dataclass(frozen=True)
class TranscriptionScores:
    """The error rates of ``texts`` texts, of which ``exact`` have no error; ``errors`` is the edits of each.

    ``errors`` counts characters, in the order of the texts.
    """

    texts: int
    exact: int
    words: ErrorRate
    characters: ErrorRate
    errors: tuple[int, ...]


@explain_arguments
def score_transcriptions(hypotheses: Sequence[str], references: Sequence[str]) -> TranscriptionScores:
    """Compare texts with references.

    Raises OptionError for other numbers of hypotheses than references, DataError for an empty reference or none, and
    MissingPackageError without jiwer.
    """
    check_texts("hypotheses", hypotheses)
    check_texts("references", references)
    if len(hypotheses) != len(references):
        raise OptionError(
            "there is not one hypothesis for each reference",
            expected=f"{len(references):,}, one for each reference",
            got=f"{len(hypotheses):,}",
            do="pass lists of the same length",
        )
    if not references or not all(reference.strip() for reference in references):
        raise DataError(
            "there is no error rate without words",
            expected="references of at least one word",
            got="an empty reference" if references else "no references",
            do="leave sounds without a text out",
        )
    jiwer = load_jiwer()
    words = jiwer.process_words(list(references), list(hypotheses))
    characters = jiwer.process_characters(list(references), list(hypotheses))
    errors = tuple(sum(map(_count_edits, chunks)) for chunks in characters.alignments)
    return TranscriptionScores(
        texts=len(references),
        exact=sum(error == 0 for error in errors),
        words=_make_rate(words.wer, words),
        characters=_make_rate(characters.cer, characters),
        errors=errors,
    )


def load_jiwer() -> Any:
    """Import jiwer. Raises MissingPackageError if it is not installed."""
    try:
        import jiwer
    except ImportError as error:
        raise MissingPackageError(
            "error rates of texts need a package", expected="jiwer", got=str(error), do="pip install 'regard[train]'"
        ) from None
    return jiwer


def _make_rate(rate: float, counts: Any) -> ErrorRate:
    length = sum(map(len, counts.references))
    return ErrorRate(float(rate), counts.substitutions, counts.insertions, counts.deletions, length)


def _count_edits(chunk: Any) -> int:
    """The edits of a chunk of an alignment: of a substitution, both sides are equally long."""
    if chunk.type == "equal":
        return 0
    return int(max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx))


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
        self.hypotheses += [self.labels.decode(ids) for ids in decode_ctc(output)]
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
            self._loss += float(to_float64(ctc_loss(_select(output, list(kept)), list(kept.values())).detach()).sum())
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
