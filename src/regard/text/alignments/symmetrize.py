"""Symmetrize two alignments, found in the two directions of translation, into one.

    intersection          links in both directions: high precision
    union                 links in either direction: high recall
    grow-diag-final-and   the intersection, grown by neighbours from the union, then links between unaligned words

Koehn, Och and Marcu 2003, "Statistical phrase-based translation", section 4.1; the last step: Koehn et al. 2005,
"Edinburgh system description for the 2005 IWSLT speech translation evaluation".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from regard.errors import check_choice, check_kind
from regard.text.alignments.alignment import Alignment, Link

SYMMETRIZATIONS = ("intersection", "union", "grow-diag-final-and")

_NEIGHBOURS = ((0, -1), (-1, 0), (0, 1), (1, 0), (-1, -1), (1, -1), (-1, 1), (1, 1))
"""(source, target) steps in the order of the paper, where points are (target, source). The order affects the result."""


def symmetrized(forward: Alignment, backward: Alignment, *, how: str) -> Alignment:
    """Combine two alignments of a sentence pair. Sure and possible links count alike; the result has sure links only.

    Links of both are (source word, target word); pass ``.reversed`` of an alignment of the other direction. ``how`` is
    one of ``SYMMETRIZATIONS``; raises OptionError for another.
    """
    check_choice("symmetrization", how, SYMMETRIZATIONS)
    for name, weights in (("forward", forward), ("backward", backward)):
        check_kind(name, weights, Alignment, do="regard.text.alignments.Alignment(frozenset({(0, 0)}))")
    both, either = forward.possible & backward.possible, forward.possible | backward.possible
    if how == "intersection":
        return Alignment(both)
    if how == "union":
        return Alignment(either)
    growing = _GrowingAlignment(both)
    growing.grow(either)
    for weights in (forward, backward):
        growing.add_final_links(weights.possible)
    return Alignment(frozenset(growing.links))


@final
class _GrowingAlignment:
    """Set of links, and the words that are linked."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: set[Link] = set()
        self._sources: set[int] = set()
        self._targets: set[int] = set()
        for link in links:
            self._add(link)

    def grow(self, allowed: frozenset[Link]) -> None:
        """Add allowed neighbours of links, diagonals included, with at least one unlinked word, until none is left."""
        before = -1
        while before != len(self.links):
            before = len(self.links)
            for source, target in _sort_by_target(allowed):
                if (source, target) not in self.links:
                    continue
                for near in ((source + i, target + j) for i, j in _NEIGHBOURS):
                    if near in allowed and (near[0] not in self._sources or near[1] not in self._targets):
                        self._add(near)

    def add_final_links(self, candidates: frozenset[Link]) -> None:
        """Add candidates whose two words are both unlinked."""
        for source, target in _sort_by_target(candidates):
            if source not in self._sources and target not in self._targets:
                self._add((source, target))

    def _add(self, link: Link) -> None:
        self.links.add(link)
        self._sources.add(link[0])
        self._targets.add(link[1])


def _sort_by_target(links: Iterable[Link]) -> list[Link]:
    """Sort by target word, then by source word: the order of the paper."""
    return sorted(links, key=lambda link: (link[1], link[0]))
