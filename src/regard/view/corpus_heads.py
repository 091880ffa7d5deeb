"""Statistics of each head over many texts: what it does on a corpus, not on one sentence.

With n_t queries in text t, and n_tP of them for which pattern P is possible:

    mean of a statistic x      sum_t n_t x_t / sum_t n_t                 of all queries of the corpus
    score of a pattern         sum_t n_tP score_tP / sum_t n_tP          and of its chance
    agreement                  the share of the texts long enough for the pattern in which it names the head too

Marks, the special tokens and a first token that is kept apart, are left out unless asked for: most heads attend to them
most of all, which would hide what else they do. ``marks`` is the share of attention that they had.

The statistics of one text are those of ``head_statistics``, the patterns those of ``head_patterns``. Long and short
texts count by their queries, and no text is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import final

from regard.arguments import explain_arguments
from regard.errors import DataError, check_flag, check_kind
from regard.view.head_patterns import MIN_QUERIES, HeadPattern
from regard.view.head_statistics import HeadStatistics, statistics_of
from regard.view.reading import Reading
from regard.view.tables import Table
from regard.view.without_marks import has_only_marks, mass_of_marks, without_marks

_MEANS = ("entropy", "distance", "itself", "previous", "next", "later")


@final
@explain_arguments
@dataclass(frozen=True)
class CorpusHead:
    """One head over a corpus: its ``statistics``, each the mean of all queries.

    ``marks`` is the share of attention that other tokens give to special tokens and to a first token that is kept
    apart; the statistics have its shares by token, unless marks are left out of them.
    ``agreement`` is the share of the texts long enough for its ``pattern`` in which the head has this name, None
    without a pattern.
    """

    statistics: HeadStatistics
    marks: float
    agreement: float | None

    @property
    def layer(self) -> int:
        """The number of the layer."""
        return self.statistics.layer

    @property
    def head(self) -> int:
        """The number of the head in its layer."""
        return self.statistics.head

    @property
    def pattern(self) -> HeadPattern | None:
        """The pattern that names the head: well above chance; None for a head without such a pattern."""
        return self.statistics.pattern

    def row(self) -> dict[str, str | int | float | None]:
        """Give the head as a row of a table."""
        named = self.pattern
        return {
            "layer": self.layer,
            "head": self.head,
            **{name: getattr(self.statistics, name) for name in _MEANS},
            "marks": self.marks,
            **{f"share of {token}": share for token, share in self.statistics.special.items()},
            "pattern": named.name if named else None,
            "score": named.score if named else None,
            "chance": named.chance if named else None,
            "agreement": self.agreement,
            **{f"score of {pattern.name}": pattern.score for pattern in self.statistics.patterns},
        }


@final
@explain_arguments
@dataclass(frozen=True)
class CorpusStatistics:
    """Every head over the texts of a corpus, in order of layer and head, and how many texts and tokens there were."""

    heads: tuple[CorpusHead, ...]
    texts: int
    tokens: int

    def table(self) -> Table:
        """Give a row for each head."""
        return Table([head.row() for head in self.heads])


@explain_arguments
def corpus_statistics(readings: Iterable[Reading], *, marks: bool = False) -> CorpusStatistics:
    """Compute the statistics of every head over all readings, each of which is read once and not kept.

    With ``marks`` special tokens, and a first token that is kept apart, count as other tokens do; else the statistics
    are those without them (``without_marks``), and a text of nothing else is left out.

    Raises DataError for no reading, for readings of models with other layers or heads, and for a reading of the
    attention of one text to another.
    """
    check_flag("marks", marks)
    totals: dict[tuple[int, int], _Totals] = {}
    texts = tokens = 0
    for reading in readings:
        check_kind("reading", reading, Reading, do="make one with regard.view.read")
        if reading.keys is not None:
            raise DataError(
                "the statistics of a corpus are of self-attention",
                expected="readings of texts",
                got="the attention of one text to another",
                do="leave it out",
            )
        if not marks and has_only_marks(reading):
            continue
        counted = reading if marks else without_marks(reading)
        statistics = statistics_of(counted)
        places = [(head.layer, head.head) for head in statistics]
        if texts and places != list(totals):
            raise DataError(
                "the readings are of different models",
                expected=f"{len(totals)} heads, as in the first reading",
                got=f"{len(places)}",
                do="read all texts with one model",
            )
        for place, head, mass in zip(places, statistics, mass_of_marks(reading), strict=True):
            totals.setdefault(place, _Totals()).add(head, len(counted.tokens), float(mass))
        texts, tokens = texts + 1, tokens + len(counted.tokens)
    if not texts:
        raise DataError("there is no text to summarize", expected="one or more readings", got="none", do="read a text")
    heads = tuple(total.mean(layer, head, tokens) for (layer, head), total in totals.items())
    return CorpusStatistics(heads, texts, tokens)


@final
@dataclass
class _Totals:
    """Sums over the queries of the texts so far, of one head."""

    means: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_MEANS, 0.0))
    marks: float = 0.0
    special: dict[str, float] = field(default_factory=dict)
    patterns: dict[str, _PatternTotals] = field(default_factory=dict)

    def add(self, head: HeadStatistics, queries: int, marks: float) -> None:
        self.marks += queries * marks
        for name in _MEANS:
            self.means[name] += queries * getattr(head, name)
        for token, share in head.special.items():
            self.special[token] = self.special.get(token, 0.0) + queries * share
        for pattern in head.patterns:
            self.patterns.setdefault(pattern.name, _PatternTotals()).add(pattern, head.pattern)

    def mean(self, layer: int, head: int, queries: int) -> CorpusHead:
        patterns = tuple(total.mean(name) for name, total in self.patterns.items())
        statistics = HeadStatistics(
            layer=layer,
            head=head,
            **{name: total / queries for name, total in self.means.items()},
            special={token: share / queries for token, share in self.special.items()},
            patterns=patterns,
        )
        named = statistics.pattern
        agreement = self.patterns[named.name].agreement if named else None
        return CorpusHead(statistics, marks=self.marks / queries, agreement=agreement)


@final
@dataclass
class _PatternTotals:
    """Sums over the queries for which one pattern is possible, and the texts in which it names the head."""

    score: float = 0.0
    chance: float = 0.0
    queries: int = 0
    texts: int = 0
    naming: int = 0

    def add(self, pattern: HeadPattern, named: HeadPattern | None) -> None:
        self.score += pattern.queries * pattern.score
        self.chance += pattern.queries * pattern.chance
        self.queries += pattern.queries
        self.texts += pattern.queries >= MIN_QUERIES
        self.naming += named is not None and named.name == pattern.name

    def mean(self, name: str) -> HeadPattern:
        return HeadPattern(name, self.score / self.queries, self.chance / self.queries, self.queries)

    @property
    def agreement(self) -> float | None:
        """The share of the texts that are long enough in which the pattern names the head; None if none is."""
        return self.naming / self.texts if self.texts else None
