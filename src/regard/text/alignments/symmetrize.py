"""One alignment from two, found in the two directions of translation.

    intersection          links that both directions have: few, and mostly right
    union                 links that either has: many
    grow-diag-final-and   the intersection, grown into the union by neighbours, then links between words without any

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
"""(source, target) steps in the order of the paper, whose points are (target, source): the result depends on it."""


def symmetrized(forward: Alignment, backward: Alignment, *, how: str) -> Alignment:
    """One alignment from two; all links count, and those of the result are sure.

    Both have links of (source word, target word): of one that was found in the other direction, pass ``.reversed``.
    ``how`` is one of ``SYMMETRIZATIONS``. Raises OptionError for another.
    """
    check_choice("symmetrization", how, SYMMETRIZATIONS)
    for name, one in (("forward", forward), ("backward", backward)):
        check_kind(name, one, Alignment, do="regard.text.alignments.Alignment(frozenset({(0, 0)}))")
    both, either = forward.possible & backward.possible, forward.possible | backward.possible
    if how == "intersection":
        return Alignment(both)
    if how == "union":
        return Alignment(either)
    growing = _GrowingAlignment(both)
    growing.grow(either)
    for one in (forward, backward):
        growing.add_final_links(one.possible)
    return Alignment(frozenset(growing.links))


@final
class _GrowingAlignment:
    """Links, and the words that have one."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links: set[Link] = set()
        self._sources: set[int] = set()
        self._targets: set[int] = set()
        for link in links:
            self._add(link)

    def grow(self, allowed: frozenset[Link]) -> None:
        """Add neighbours of links, diagonal ones too, of which a word has none yet, until there are no more."""
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
        """Add links between two words that both have none."""
        for source, target in _sort_by_target(candidates):
            if source not in self._sources and target not in self._targets:
                self._add((source, target))

    def _add(self, link: Link) -> None:
        self.links.add(link)
        self._sources.add(link[0])
        self._targets.add(link[1])


def _sort_by_target(links: Iterable[Link]) -> list[Link]:
    """In the order of the paper: target words, and for each the source words."""
    return sorted(links, key=lambda link: (link[1], link[0]))
