"""Conversion of a translator's subwords to tokens that can be displayed.

    " De" "lete" " " placeholder 1   ->   De|lete ␣ <b>      text "Delete <b>"

A placeholder becomes the code that it replaces. A byte of a character outside the vocabulary keeps its name, such as
<0xF0>, and the text has the character.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from regard.text.placeholders import TOKENS
from regard.text.sentence_tokenizer import Piece, SentenceTokenizer
from regard.text.subword_training import BYTE_TOKENS
from regard.view.reading import Tokens

_BYTE_BY_NAME = {name: bytes([byte]) for byte, name in enumerate(BYTE_TOKENS)}
_SPACE = "␣"
"""Display of a token that is a single space."""


def ids_to_tokens(
    subwords: SentenceTokenizer,
    ids: Sequence[int],
    kept: Sequence[str],
    *,
    start: str | None = None,
    end: str | None = None,
) -> Tokens:
    """Convert ``ids`` to tokens, between the special tokens ``start`` and ``end``.

    ``kept`` is the codes that placeholders replace, as returned by ``regard.text.placeholders.protect``.
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
    """Displayed text of each placeholder: its code, or its code point if it replaces none."""
    shown = {token: f"⟨U+{ord(token):04X}⟩" for token in TOKENS} | dict(zip(TOKENS, kept, strict=False))
    return {ord(token): string for token, string in shown.items()}


def _join_pieces(names: Iterable[str], restored: Mapping[int, str]) -> tuple[str, list[tuple[int, int]]]:
    """Join pieces to a text, and find the span of each without its space; bytes have empty spans."""
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
    """Group the pieces into words with their tokens; a piece without a word is a group of its own."""
    for number, group in groupby(enumerate(pieces, start=first), key=lambda pair: pair[1].word):
        members = list(group)
        if number is None:
            yield from ((piece.text, (place,)) for place, piece in members)
        else:
            yield names[number], tuple(place for place, _ in members)
