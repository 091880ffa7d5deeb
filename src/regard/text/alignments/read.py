"""Read word alignments from files in three formats.

pharaoh   0-0 1-2         one sentence pair per line, words counted from 0; all links are sure
talp      1-1 2p3         the same with possible links, ``p`` or ``?``; words counted from 1 or from 0
naacl     18 2 3 P 0.7    one link per line: sentence, source word, target word, S or P, confidence; all counted from 1

In naacl files S is the default, and word 0 is the null word: a link to it marks a word without translation. Mihalcea
and Pedersen 2003, "An evaluation exercise for word alignment". Talp files of Hansards, German and Romanian count from
1, Czech files from 0; the files do not record it, so pass ``first``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.errors import DataError, OptionError, check_choice
from regard.text.alignments.alignment import Alignment, Link
from regard.text.line import Line
from regard.text.line_reader import LineReader

FORMS = ("pharaoh", "talp", "naacl")
_FIRST_WORD = {"pharaoh": 0, "talp": 1, "naacl": 1}
_LINK = re.compile(r"([0-9]{1,7})([-p?])([0-9]{1,7})")
_NAACL_LINE = re.compile(
    r"([0-9]{1,7})\s+([0-9]{1,7})\s+([0-9]{1,7})(?:\s+([SP]))?(?:\s+[0-9]*\.?[0-9]+(?:[eE]-?[0-9]+)?)?"
)


@final
@dataclass(frozen=True)
class AlignmentFile:
    """Alignments of a file, one per sentence pair; ``form`` is its format, one of ``FORMS``.

    ``null_links`` counts links to word 0 in a naacl file, which mark words without translation and are dropped.
    ``unnamed`` holds the numbers, from 0, of the sentences that no line of a naacl file names: they have no links here,
    and may not have been annotated.
    """

    alignments: tuple[Alignment, ...]
    form: str
    null_links: int = 0
    unnamed: frozenset[int] = frozenset()


def read_alignments(
    path: Path,
    *,
    form: str | None = None,
    first: int | None = None,
    lengths: Sequence[tuple[int, int] | None] | None = None,
) -> AlignmentFile:
    """Read the alignments of a file, plain or gzip.

    Args:
        path: the file.
        form: one of ``FORMS``; None detects it: lines of three numbers are naacl, links with ``p`` or ``?`` talp,
            others pharaoh.
        first: number of the first word in the file, 0 or 1. None is 0 for pharaoh, 1 for the others.
        lengths: numbers of words (source, target) of each sentence pair, to check the links and the number of lines;
            None for a pair of unknown lengths. With lengths, the last sentences of a naacl file need no links.

    Raises OptionError for an unknown form or a wrong ``first``; DataError for a malformed link, a link to a word that
    does not exist, or a number of sentences other than the number of ``lengths``.
    """
    with closing(LineReader(path)) as source:
        lines = list(source)
        name = source.name
    for line in lines:
        line.require_text()
    form = _detect_form(lines) if form is None else form
    check_choice("form of alignments", form, FORMS)
    first = _FIRST_WORD[form] if first is None else first
    _check_first(first, form)
    if form == "naacl":
        found = _parse_naacl(lines, lengths)
    else:
        found = AlignmentFile(tuple(_parse_sentences(lines, form, first, lengths)), form)
    _check_count(len(found.alignments), lengths, name)
    return found


def _detect_form(lines: Sequence[Line]) -> str:
    start = next((line.text for line in lines if line.text.strip()), "")
    if re.match(r"\s*[0-9]+\s+[0-9]+\s", start + " "):
        return "naacl"
    return "talp" if any(re.search(r"[0-9][p?][0-9]", line.text) for line in lines) else "pharaoh"


def _check_first(first: int, form: str) -> None:
    if first not in (0, 1) or (form == "naacl" and first == 0):
        raise OptionError(
            f"wrong number of the first word for the format {form}",
            expected="1, since 0 is the null word" if form == "naacl" else "0 or 1",
            got=str(first),
            do="leave out `first=...`",
        )


def _check_count(count: int, lengths: Sequence[tuple[int, int] | None] | None, name: str) -> None:
    if lengths is not None and count != len(lengths):
        raise DataError(
            f"{name} has the wrong number of sentences",
            expected=f"{len(lengths):,} sentences",
            got=f"{count:,} in {name}",
            do="check that the file belongs to these sentences",
        )


def _parse_sentences(
    lines: Sequence[Line], form: str, first: int, lengths: Sequence[tuple[int, int] | None] | None
) -> list[Alignment]:
    alignments = []
    for line in lines:
        words = lengths[line.number - 1] if lengths is not None and line.number <= len(lengths) else None
        links: dict[str, set[Link]] = {"-": set(), "p": set()}
        for token in line.text.split():
            parts = _LINK.fullmatch(token)
            if parts is None or (form == "pharaoh" and parts[2] != "-"):
                raise _malformed_error(line.name, token, form)
            link = int(parts[1]) - first, int(parts[3]) - first
            _check_link(link, words, first, f"{line.name}: link {token}")
            links["-" if parts[2] == "-" else "p"].add(link)
        alignments.append(Alignment(frozenset(links["-"]), frozenset(links["p"])))
    return alignments


def _parse_naacl(lines: Sequence[Line], lengths: Sequence[tuple[int, int] | None] | None) -> AlignmentFile:
    """Parse the alignments of all sentences, or without ``lengths`` up to the last one that is named."""
    sure: defaultdict[int, set[Link]] = defaultdict(set)
    possible: defaultdict[int, set[Link]] = defaultdict(set)
    named: set[int] = set()
    null_links = 0
    for line in lines:
        text = line.text.strip()
        if not text:
            continue
        parts = _NAACL_LINE.fullmatch(text)
        if parts is None or int(parts[1]) == 0:
            raise _malformed_error(line.name, text, "naacl")
        sentence, link = int(parts[1]), (int(parts[2]) - 1, int(parts[3]) - 1)
        named.add(sentence)
        if min(link) < 0:
            null_links += 1
            continue
        words = lengths[sentence - 1] if lengths is not None and sentence <= len(lengths) else None
        _check_link(link, words, 1, f"{line.name}: link {text!r}")
        (possible if parts[4] == "P" else sure)[sentence].add(link)
    numbers = range(1, max(*named, len(lengths or ()), 0) + 1)
    return AlignmentFile(
        tuple(Alignment(frozenset(sure.get(number, ())), frozenset(possible.get(number, ()))) for number in numbers),
        "naacl",
        null_links,
        frozenset(number - 1 for number in numbers if number not in named),
    )


def _malformed_error(name: str, token: str, form: str) -> DataError:
    examples = {
        "pharaoh": "links such as 0-0 1-2",
        "talp": "links such as 1-1 2p3",
        "naacl": "a sentence number from 1, a source word, a target word; then optionally S or P, and a confidence",
    }
    other = {"pharaoh": "talp"}.get(form)
    return DataError(
        f"{name} is not an alignment in the format {form}",
        expected=examples[form],
        got=repr(token[:60]),
        do="correct the line, or name the format of the file"
        + (f": `form={other!r}` has possible links" if other else ": `form=...`"),
    )


def _check_link(link: Link, words: tuple[int, int] | None, first: int, name: str) -> None:
    """Raise DataError for a word before the first, or after the last if ``words`` is known."""
    if min(link) < 0:
        raise DataError(
            f"{name} points before the first word",
            expected=f"words counted from {first}",
            got="a word 0",
            do="if the file counts from 0, pass `first=0`",
        )
    if words is not None and (link[0] >= words[0] or link[1] >= words[1]):
        raise DataError(
            f"{name} points to a word that does not exist",
            expected=f"a source of {words[0]} and a target of {words[1]} words, counted from {first}",
            got=f"source word {link[0] + first} and target word {link[1] + first}",
            do="check that the file belongs to these sentences, in this direction"
            + (", and does not count from 1: `first=1`" if first == 0 else ""),
        )
