"""Untrusted text made safe to display: invisible characters with an effect are written out as U+XXXX.

Control characters (terminal escapes, NUL), line and paragraph separators, overrides of writing direction, tag
characters and lone surrogates become visible; spaces stay spaces. Joiners and selectors that scripts and emoji need are
kept, and flags.
"""

from __future__ import annotations

import re
import unicodedata

_BIDI_CONTROLS = frozenset(range(0x202A, 0x202F)) | frozenset(range(0x2066, 0x206A))
_SEPARATORS = frozenset((0x2028, 0x2029))
_VARIATIONS = range(0xE0100, 0xE01F0)
"""Selectors of the form of the character before them, as in Japanese names."""
_FLAGS = re.compile("(\U0001f3f4[\U000e0030-\U000e007a]+\U000e007f)")
"""The flags of England, Scotland and Wales: a black flag, and the name in tag characters."""


def escape_text(text: str) -> str:
    """Write out every invisible character with an effect; a tab or line end becomes a space."""
    parts = _FLAGS.split(text)  # the flags at odd places
    return "".join(part if place % 2 else "".join(map(_escape_character, part)) for place, part in enumerate(parts))


def escape_and_isolate(text: str) -> str:
    """Escape the text, and put it between isolates (U+2068, U+2069) if it has letters written from right to left.

    Two such words in one line then keep their order (Unicode Bidirectional Algorithm, section 2.4).
    """
    shown = escape_text(text)
    if any(unicodedata.bidirectional(character) in ("R", "AL") for character in shown):
        return f"\u2068{shown}\u2069"
    return shown


def direction_of(text: str) -> str:
    """ "rtl" or "ltr", by the first character with a strong direction (Unicode Bidirectional Algorithm, P2 and P3)."""
    for character in text:
        kind = unicodedata.bidirectional(character)
        if kind in ("L", "R", "AL"):
            return "ltr" if kind == "L" else "rtl"
    return "ltr"


def _escape_character(character: str) -> str:
    code = ord(character)
    if character in "\t\n\r":
        return " "
    if code in _VARIATIONS:
        return character
    if unicodedata.category(character) in ("Cc", "Cs") or code in _BIDI_CONTROLS | _SEPARATORS or code >= 0xE0000:
        return f"⟨U+{code:04X}⟩"
    return character
