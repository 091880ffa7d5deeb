"""Subwords of a translator to tokens that can be shown.

    " De" "lete" " " placeholder 1   ->   De|lete ␣ <b>      text "Delete <b>"

A placeholder becomes what it stands for. A byte of a character that is no piece keeps its name, such as <0xF0>, and the
text has the character.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from regard.text.placeholders import TOKENS
from regard.text.subword_training import BYTE_TOKENS
from regard.text.subwords import Piece, Subwords
from regard.view.reading import Tokens

_BYTE_BY_NAME = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}
_SPACE = "␣"
"""How a token is shown that is nothing but a space."""


def ids_to_tokens(
    subwords: Subwords, ids: Sequence[int], kept: Sequence[str], *, start: str | None = None, end: str | None = None
) -> Tokens:
    """The tokens of ``ids``, between the special tokens ``start`` and ``end``.

    ``kept`` is what placeholders stand for, as ``regard.text.placeholders.protect`` gives it.
    """
    restored = _placeholder_table(kept)
    pieces = subwords.pieces_of(ids)
    text, spans = _join_pieces((piece.text for piece in pieces), restored)
    first, last = [] if start is None else [start], [] if end is None else [end]
    names = [piece.text.translate(restored).strip(" ") or _SPACE for piece in pieces]
    words = [word.translate(restored) for word in subwords.words_of(ids)]
    return Tokens(
        text=text,
        pieces=(*first, *names, *last),
        spans=(*[(0, 0)] * len(first), *spans, *[(len(text), len(text))] * len(last)),
        special=(*[True] * len(first), *[False] * len(pieces), *[True] * len(last)),
        words=tuple(_group_words(pieces, words, len(first))),
    )


def _placeholder_table(kept: Sequence[str]) -> Mapping[int, str]:
    """What is shown for each placeholder; for one that stands for nothing, its number."""
    shown = {token: f"⟨U+{ord(token):04X}⟩" for token in TOKENS} | dict(zip(TOKENS, kept, strict=False))
    return {ord(token): string for token, string in shown.items()}


def _join_pieces(names: Iterable[str], restored: Mapping[int, str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that pieces make up, and where each stands in it, its space left out; bytes stand nowhere."""
    text = ""
    spans: list[tuple[int, int]] = []
    for are_bytes, group in groupby(names, key=_BYTE_BY_NAME.__contains__):
        run = list(group)
        if are_bytes:
            spans += [(len(text), len(text))] * len(run)
            text += b"".join(_BYTE_BY_NAME[name] for name in run).decode("utf-8", "replace")
            continue
        for name in run:
            shown = name.translate(restored)
            shown = shown if text else shown.removeprefix(" ")
            spans.append((len(text) + shown.startswith(" "), len(text) + len(shown)))
            text += shown
    return text, spans


def _group_words(pieces: Sequence[Piece], names: Sequence[str], first: int) -> Iterable[tuple[str, tuple[int, ...]]]:
    """Each word and its tokens; a piece of no word is one alone."""
    for number, group in groupby(enumerate(pieces, start=first), key=lambda one: one[1].word):
        members = list(group)
        if number is None:
            yield from ((piece.text, (place,)) for place, piece in members)
        else:
            yield names[number], tuple(place for place, _ in members)
