"""Sentence pairs from two files of subtitles of one film, SubRip (.srt) or WebVTT (.vtt), aligned by their times.

    7                                     the number, which nothing reads
    00:01:02,500 --> 00:01:04,000         from .. to; WebVTT has a full stop, and may leave out the hours
    <i>Good morning.</i>                  the text, on one or more lines, up to a blank line

Two cues belong together if they share half of the time of the shorter one. One cue may belong to two of the other file,
which are joined; in groups of more it is unclear what is a translation of what, so they are skipped.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import final

from regard.errors import DataError, OptionError
from regard.text.gzip_io import inner_suffix
from regard.text.line import Line, skip_reason
from regard.text.line_reader import LineReader
from regard.text.pairs.pair import PairOrSkipped, make_pair
from regard.text.skip_counts import Skipped

SUBTITLE_SUFFIXES = (".srt", ".vtt")
_TIME = r"(?:(\d{1,3}):)?(\d{1,2}):(\d{2})[,.](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(\s.*)?", re.ASCII)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<[\d:.]+>|\{\\[^{}]*\}")
_MIN_AGREEMENT = 0.5
"""Median share of the time of two groups of cues that both have, at least, in files that belong together."""


@final
@dataclass
class Cue:
    """A text shown from ``start`` to ``end``, in milliseconds; ``problem`` is the reason to skip it, if any."""

    start: int
    end: int
    place: str
    texts: list[str] = field(default_factory=list)
    problem: str | None = None


Group = tuple[Sequence[Cue], Sequence[Cue]]


def read_subtitles(paths: Sequence[Path]) -> Iterator[PairOrSkipped]:
    """Read the pairs of two files, the source first, plain or gzip.

    Raises OptionError unless there are two files of subtitles, DataError for one without cues, and if their times do
    not agree.
    """
    if len(paths) != 2 or any(inner_suffix(path) not in SUBTITLE_SUFFIXES for path in paths):
        raise OptionError(
            "subtitles are read from two files, each in one language",
            expected="two files .srt or .vtt of one film, the source first",
            got=", ".join(map(str, paths)),
            do="give both files of a film, and join several films as tables",
        )
    sources, targets = map(_read_file, paths)
    groups = list(_align(sources, targets))
    _check_agreement(groups, paths)
    for group in groups:
        yield _pair_group(group)


def read_cues(lines: Iterable[Line], *, is_vtt: bool) -> Iterator[Cue]:
    """Read the cues of a file in their order; lines outside of cues, such as numbers and notes, are left out."""
    cue: Cue | None = None
    for line in lines:
        times = None if line.problem is not None else _TIMES.fullmatch(line.text)
        if times is not None:
            if cue is not None:
                # Without a blank line before it, the number of the next cue ends the text of this one.
                cue.texts = cue.texts[:-1] if cue.texts and cue.texts[-1].isdecimal() else cue.texts
                yield cue
            cue = Cue(_milliseconds(times.groups()[:4]), _milliseconds(times.groups()[4:8]), line.name)
        elif cue is not None and line.problem is not None:
            cue.problem = skip_reason(line)
        elif cue is not None and not line.text.strip():
            yield cue
            cue = None
        elif cue is not None:
            text = _TAG.sub("", line.text).strip()
            cue.texts.append(html.unescape(text) if is_vtt else text)
    if cue is not None:
        yield cue


def _read_file(path: Path) -> list[Cue]:
    with closing(LineReader(path)) as lines:
        cues = list(read_cues(lines, is_vtt=inner_suffix(path) == ".vtt"))
    if not cues:
        raise DataError(
            f"{path} has no subtitles",
            expected="lines such as 00:01:02,500 --> 00:01:04,000, and texts after them",
            got="none",
            do="check the file, or give it the suffix of its format",
        )
    return sorted(cues, key=lambda cue: (cue.start, cue.end))


def _milliseconds(parts: Sequence[str | None]) -> int:
    hours, minutes, seconds, fraction = (part or "0" for part in parts)
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1000 + int(fraction.ljust(3, "0"))


def _align(sources: Sequence[Cue], targets: Sequence[Cue]) -> Iterator[Group]:
    """Group the cues that belong together, in the order of time; a cue without a partner is a group of its own."""
    first = second = 0
    while first < len(sources) or second < len(targets):
        left, right = [first, first], [second, second]  # the ranges of the next group
        if second == len(targets) or (first < len(sources) and sources[first].start <= targets[second].start):
            left[1] += 1
        else:
            right[1] += 1
        while True:  # cues of either file that belong to one of the group
            if right[1] < len(targets) and _belongs(targets[right[1]], sources[left[0] : left[1]]):
                right[1] += 1
            elif left[1] < len(sources) and _belongs(sources[left[1]], targets[right[0] : right[1]]):
                left[1] += 1
            else:
                break
        yield sources[left[0] : left[1]], targets[right[0] : right[1]]
        first, second = left[1], right[1]


def _belongs(cue: Cue, others: Sequence[Cue]) -> bool:
    """Whether a cue shares half of the time of the shorter one with the last of the others, or the one before it."""
    return any(
        2 * _overlap(cue, other) >= max(1, min(cue.end - cue.start, other.end - other.start)) for other in others[-2:]
    )


def _overlap(cue: Cue, other: Cue) -> int:
    """Milliseconds in which both cues are shown; below 0 if there is a pause between them."""
    return min(cue.end, other.end) - max(cue.start, other.start)


def _check_agreement(groups: Sequence[Group], paths: Sequence[Path]) -> None:
    """Raise DataError if the times of the two files do not agree: then the pairs would be wrong."""
    shares = [_agreement(sources, targets) for sources, targets in groups]
    paired = [share for share, (sources, targets) in zip(shares, groups, strict=True) if sources and targets]
    if not paired or median(paired) < _MIN_AGREEMENT or 2 * len(paired) < len(groups):
        raise DataError(
            f"the times of {paths[0]} and {paths[1]} do not agree, so their subtitles cannot be paired",
            expected="subtitles of the same film, in two languages",
            got=f"{len(paired):,} of {len(groups):,} at the same time, which share "
            f"{median(paired) if paired else 0:.0%} of it",
            do="shift one of the files, for example with ffsubsync or alass, or pair the sentences in a table",
        )


def _agreement(sources: Sequence[Cue], targets: Sequence[Cue]) -> float:
    if not sources or not targets:
        return 0.0
    starts, ends = zip(*((side[0].start, max(cue.end for cue in side)) for side in (sources, targets)), strict=True)
    return max(0, min(ends) - max(starts)) / max(1, max(ends) - min(starts))


def _pair_group(group: Group) -> PairOrSkipped:
    sources, targets = group
    cues = [*sources, *targets]
    place = cues[0].place
    if not sources or not targets:
        return Skipped(place, "the other file has no subtitle at its time")
    problem = next((cue.problem for cue in cues if cue.problem is not None), None)
    if problem is not None:
        return Skipped(place, problem)
    if min(len(sources), len(targets)) > 1 or len(cues) > 3:
        return Skipped(place, "several subtitles overlap several of the other file")
    left, right = (" ".join(text for cue in side for text in cue.texts if text) for side in group)
    return make_pair(left, right, place)
