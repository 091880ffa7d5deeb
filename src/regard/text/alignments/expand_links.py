"""Expand links between words to links between the white-space tokens inside the words.

    source  Delete <a href="x">          target  Supprimer <a href="x">          parts  1 2, 1 2
    links   0-0 1-1                      ->      0-0 1-1 2-2

A model sees a placeholder as one word, but the string that it stands for may contain white space, and alignment formats
count tokens separated by white space.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from regard.text.alignments.alignment import Alignment, Link


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
