"""Word alignment: links between the words of a sentence and the words of its translation.

    S  sure links, on which all annotators agree;  P  possible links, a superset of S

A link is (source word, target word), counted from 0. Och and Ney 2003, "A systematic comparison of various statistical
alignment models", section 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias, final

from regard.errors import OptionError, check_count, check_kind, short_repr

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
        check_count("first", first, least=0)
        ordered = sorted(self.possible)
        return " ".join(f"{i + first}{'-' if (i, j) in self.sure else 'p'}{j + first}" for i, j in ordered)


def _is_link(link: Any) -> bool:
    """Whether it is a pair of word numbers of at least 0."""
    is_pair = isinstance(link, tuple) and len(link) == 2
    return is_pair and all(isinstance(word, Integral) and int(word) >= 0 for word in link)


def _reverse_links(links: Iterable[Link]) -> frozenset[Link]:
    return frozenset((target, source) for source, target in links)
