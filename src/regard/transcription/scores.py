"""Error rates of texts, computed by ``jiwer``: the usual measures of speech recognition.

    rate = (substitutions + insertions + deletions) / length        of the words, or of the characters

of the shortest edit from each reference to its hypothesis, summed over all texts; length is the length of the
references. Insertions count, so a rate may exceed 1. Words are separated by spaces, and a space between words is a
character; those at the ends of a text do not count. Upper and lower case and punctuation count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import DataError, MissingPackageError, OptionError
from regard.text.tokenizer import check_texts


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
