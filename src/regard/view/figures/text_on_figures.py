"""Text on figures: the fonts that have its characters, and its width.

The font is DejaVu Sans, which comes with matplotlib, so that a figure is the same on every machine. For characters that
it lacks, fonts of the machine are used.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

from regard.language import translate
from regard.log import log

FONT = "DejaVu Sans"
POINT = 25.4 / 72
"""A point in millimetres."""
_SCALE = 10
"""Pixels per point with which widths are measured."""


def find_families(texts: Iterable[str]) -> list[str]:
    """The families of fonts that have all characters of the texts, as far as there are any; it logs which lack."""
    families, missing = _match_fonts(texts)
    if missing:
        listed = "".join(sorted(missing)[:20])
        log.warning("no font on this machine has %s: figures show boxes; install one, such as fonts-noto", listed)
    return families


def translate_on_figure(template: str, **values: object) -> str:
    """The template in the language in use; in English, which it logs, if no font of this machine has the characters."""
    text = translate(template, **values)
    if not _match_fonts([text])[1]:
        return text
    log.warning("no font on this machine has %s: the figure says it in English", text)
    return template.format(**values)


def _match_fonts(texts: Iterable[str]) -> tuple[list[str], set[str]]:
    """The families of fonts for the characters of the texts, and the characters that none has."""
    from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font

    missing = {character for text in texts for character in text if _is_drawn(character)}
    missing -= set(map(chr, get_font(findfont(FontProperties(family=FONT))).get_charmap()))
    families = [FONT]
    for entry in sorted(fontManager.ttflist, key=_rank_font):
        if not missing:
            break
        found = missing & _characters_of(entry.fname)
        if found:
            families.append(entry.name)
            missing -= found
    return families, missing


def _is_drawn(character: str) -> bool:
    return not character.isspace() and unicodedata.category(character) not in ("Cf", "Mn")


def _rank_font(entry: Any) -> tuple[bool, ...]:
    """Fonts in the order in which they are tried: upright, of usual weight, without serifs; of Chinese, simplified."""
    upright = entry.style == "normal" and entry.weight in (400, "normal", "regular") and entry.stretch == "normal"
    return not upright, "Sans" not in entry.name, "CJK" in entry.name and "SC" not in entry.name, entry.name


@cache
def _characters_of(path: str) -> frozenset[str]:
    from matplotlib.font_manager import get_font

    try:
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (OSError, RuntimeError):  # a font that FreeType cannot read
        return frozenset()


def measure(text: str, points: float) -> float:
    """The width of a text in millimetres, in the fonts of the settings of matplotlib."""
    from matplotlib.font_manager import FontProperties

    width, _, _ = _renderer().get_text_width_height_descent(text, FontProperties(size=points), False)
    return float(width) / _SCALE * POINT


@cache
def _renderer() -> Any:
    from matplotlib.backends.backend_agg import RendererAgg

    return RendererAgg(1, 1, 72 * _SCALE)  # type: ignore[no-untyped-call,unused-ignore]


def shorten(text: str, room: float, points: float) -> str:
    """The text, or as much of its beginning as has room in so many millimetres, with an ellipsis."""
    if measure(text, points) <= room:
        return text
    kept = text
    while kept and measure(f"{kept}…", points) > room:
        kept = kept[:-1]
    return f"{kept}…"
