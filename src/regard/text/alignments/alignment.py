"""Links between the words of a sentence and those of its translation.

    S  sure links, on which all annotators agree;  P  possible links, S among them

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
    """The links of one sentence pair. Sure links are possible too, and need not be given twice.

    Raises OptionError for what is no link, such as one to a word before the first.
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
                    "a link joins a word of the source and one of the target",
                    expected="words counted from 0",
                    got=f"link {short_repr(link)}",
                    do="pass links as (source word, target word)",
                )

    @property
    def reversed(self) -> Alignment:
        """The same links, seen from the target."""
        return Alignment(_reverse_links(self.sure), _reverse_links(self.possible))

    def text(self, *, first: int = 0) -> str:
        """One line, as Pharaoh writes it: ``0-0 1-2``; a link that is merely possible as ``1p2``.

        ``first`` is the number that the first word has. Raises OptionError for what is no such number.
        """
        check_count("first", first, least=0)
        ordered = sorted(self.possible)
        return " ".join(f"{i + first}{'-' if (i, j) in self.sure else 'p'}{j + first}" for i, j in ordered)


def _is_link(link: Any) -> bool:
    """Whether it is a pair of words, by their numbers."""
    is_pair = isinstance(link, tuple) and len(link) == 2
    return is_pair and all(isinstance(word, Integral) and int(word) >= 0 for word in link)


def _reverse_links(links: Iterable[Link]) -> frozenset[Link]:
    return frozenset((target, source) for source, target in links)
