"""Word alignment: links between the words of a sentence and the words of its translation.

    S  sure links, on which all annotators agree;  P  possible links, a superset of S

A link is (source word, target word), counted from 0. Och and Ney 2003, "A systematic comparison of various statistical
alignment models", section 6.

Alignment error rate (AER): how well predicted links agree with gold links.

    precision = |A & P| / |A|,   recall = |A & S| / |S|,   AER = 1 - (|A & S| + |A & P|) / (|A| + |S|)

A are the predicted links, S and P the sure and possible gold links. Och and Ney 2003, "A systematic comparison of
various statistical alignment models", section 6. Counts are summed over the corpus before dividing.

Expand links between words to links between the white-space tokens inside the words.

    source  Delete <a href="x">          target  Supprimer <a href="x">          parts  1 2, 1 2
    links   0-0 1-1                      ->      0-0 1-1 2-2

A model sees a placeholder as one word, but the string that it stands for may contain white space, and alignment formats
count tokens separated by white space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from numbers import Integral
from typing import Any, TypeAlias, final

from regard.errors import DataError, OptionError, check_count, check_kind, short_repr

Link: TypeAlias = tuple[int, int]


@final
@dataclass(frozen=True)
class Alignment:
    """Links of one sentence pair. ``sure`` links are added to ``possible``.

    Raises OptionError for anything but pairs of word numbers, counted from 0.
    """

    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()

    def __post_init__(self) -> None:
        for name in ("sure", "possible"):
            check_kind(name, getattr(self, name), frozenset, do="for example frozenset({(0, 0), (1, 2)})")
        object.__setattr__(self, "possible", self.possible | self.sure)
        for link in self.possible:
            if not _is_link(link):
                raise OptionError(
                    "a link is a pair of a source word and a target word",
                    expected="words counted from 0",
                    got=f"link {short_repr(link)}",
                    do="pass links as (source word, target word)",
                )

    @property
    def reversed(self) -> Alignment:
        """The same links with source and target swapped."""
        return Alignment(_reverse_links(self.sure), _reverse_links(self.possible))

    def text(self, *, first: int = 0) -> str:
        """Format as one line of the Pharaoh format: ``0-0 1-2``; a link that is only possible as ``1p2``.

        ``first`` is the number of the first word. Raises OptionError unless it is an integer of at least 0.
        """
        check_count("first", first, minimum=0)
        ordered = sorted(self.possible)
        return " ".join(f"{i + first}{'-' if (i, j) in self.sure else 'p'}{j + first}" for i, j in ordered)


def _is_link(link: Any) -> bool:
    """Whether it is a pair of word numbers of at least 0."""
    is_pair = isinstance(link, tuple) and len(link) == 2
    return is_pair and all(isinstance(word, Integral) and int(word) >= 0 for word in link)


def _reverse_links(links: Iterable[Link]) -> frozenset[Link]:
    return frozenset((target, source) for source, target in links)


@final
@dataclass(frozen=True)
class AlignmentScores:
    """Alignment error rate, precision and recall, each from 0 to 1, and the counts behind them.

    ``sentences`` counts sentence pairs, ``links`` predicted links, ``sure`` sure gold links. A ratio with denominator
    0 counts as perfect: precision and recall are then 1, the error rate 0.
    """

    error_rate: float
    precision: float
    recall: float
    sentences: int
    links: int
    sure: int


def alignment_scores(found: Sequence[Alignment], gold: Sequence[Alignment]) -> AlignmentScores:
    """Score the alignments ``found`` against ``gold``, one per sentence pair. All links of ``found`` count alike.

    Raises DataError if the numbers of sentences differ.
    """
    if len(found) != len(gold):
        raise DataError(
            "the number of alignments differs from the gold standard",
            expected=f"{len(gold):,} sentences, as in the gold standard",
            got=f"{len(found):,} sentences",
            do="check that both hold the same sentences in the same order",
        )
    links = sum(len(alignment.possible) for alignment in found)
    sure = sum(len(alignment.sure) for alignment in gold)
    possible_found = sum(len(alignment.possible & known.possible) for alignment, known in zip(found, gold, strict=True))
    sure_found = sum(len(alignment.possible & known.sure) for alignment, known in zip(found, gold, strict=True))
    return AlignmentScores(
        error_rate=1 - _ratio(sure_found + possible_found, links + sure),
        precision=_ratio(possible_found, links),
        recall=_ratio(sure_found, sure),
        sentences=len(gold),
        links=links,
        sure=sure,
    )


def _ratio(count: int, whole: int) -> float:
    return count / whole if whole else 1.0


def expand_links(alignment: Alignment, sources: Sequence[int], targets: Sequence[int]) -> Alignment:
    """Expand links to parts: source word i has ``sources[i]`` parts, target word j has ``targets[j]``.

    Part n of a target word is linked to part n of the source word, or to its last part if it has fewer. A word without
    parts has no links.
    """
    before = [list(accumulate(counts, initial=0)) for counts in (sources, targets)]

    def parts(link: Link) -> Iterator[Link]:
        source, target = link
        for number in range(targets[target] if sources[source] else 0):
            yield before[0][source] + min(number, sources[source] - 1), before[1][target] + number

    sure, possible = (
        frozenset(part for link in links for part in parts(link)) for links in (alignment.sure, alignment.possible)
    )
    return Alignment(sure, possible)
