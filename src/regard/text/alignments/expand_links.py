"""Links of words as links of the parts that they fall into.

    source  Delete <a href="x">          target  Supprimer <a href="x">          parts  1 2, 1 2
    links   0-0 1-1                      ->      0-0 1-1 2-2

A model sees a placeholder as one word, and what it stands for may hold white space; formats of alignments count what
white space parts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from regard.text.alignments.alignment import Alignment, Link


def expand_links(alignment: Alignment, sources: Sequence[int], targets: Sequence[int]) -> Alignment:
    """The links of parts, of which word i of the source has ``sources[i]`` and word j of the target ``targets[j]``.

    Each part of a target word is linked to the part of the source word with its number, or to the last one. A word
    without parts has no links.
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
