"""The display of tokens that share a span of the text.

A tokenizer gives several tokens the span of the character that they were made from:

    the marker before the first word     "▁" "7"               of "7"       ␣ 7
    the bytes of a character             "æ" "¼" "¢"           of "漢"      <0xE6> <0xBC> <0xA2>
    a character that it spells out       "1" "⁄" "2"           of "½"       1 ⁄ 2

A byte-level vocabulary names each byte by a letter (Radford et al. 2019, GPT-2); others name it <0xE6>.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

_SPACE = "␣"
"""Display of a token that is a single space."""
_MARKERS = " ▁Ġ"
_BYTE = re.compile(r"(?:<0x[0-9A-F]{2}>)+")


def name_in_shared_span(pieces: Sequence[str], token: int, text: str) -> str | None:
    """The name of one of the ``pieces`` that share the span of ``text``; None if the text itself can be shown."""
    piece = pieces[token]
    if text.strip() and piece and not piece.strip(_MARKERS):
        return _SPACE
    words = [one for one in pieces if one.strip(_MARKERS)]
    if len(words) < 2:
        return None
    if _BYTE.fullmatch(piece):
        return piece
    found = [_bytes_of(one) for one in pieces]
    joined = b"".join(one or b"" for one in found).strip()
    if None not in found and not joined.isascii() and joined in text.encode():  # a part of it, if the text was cut
        return "".join(f"<0x{byte:02X}>" for byte in found[token] or b"")
    return piece.strip(_MARKERS).removeprefix("##") or piece


def _bytes_of(piece: str) -> bytes | None:
    """The bytes that a piece of a byte-level vocabulary stands for; None for another piece."""
    letters = _byte_of_letter()
    return bytes(letters[letter] for letter in piece) if all(letter in letters for letter in piece) else None


@cache
def _byte_of_letter() -> dict[str, int]:
    """The byte that each letter stands for: itself where it can be seen, else the next letter from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + number): byte for number, byte in enumerate(hidden)}
