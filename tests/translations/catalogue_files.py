"""The files of the Chinese catalogue, and the strings of the source that they must have: for ``make translations``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from translations.asset_strings import page_strings
from translations.help_strings import help_strings
from translations.message_strings import message_strings, view_strings

FOLDER = Path(__file__).resolve().parents[2] / "src" / "regard" / "translations" / "zh"
STRINGS: dict[str, Callable[[], set[str]]] = {
    "page": page_strings,
    "view": view_strings,
    "help": help_strings,
    "messages": message_strings,
}
"""What finds the strings of each part of the catalogue."""


def read_part(part: str) -> dict[str, str]:
    """The templates of one file."""
    catalogue: dict[str, str] = json.loads((FOLDER / f"{part}.json").read_text(encoding="utf-8"))
    return catalogue


def format_part(catalogue: dict[str, str]) -> str:
    """The text of a file: one line an entry, sorted by the English."""
    return json.dumps(dict(sorted(catalogue.items())), ensure_ascii=False, indent=0) + "\n"


def update_part(part: str) -> tuple[list[str], list[str]]:
    """Write missing strings with an empty translation, remove outdated ones, and return both."""
    catalogue, strings = read_part(part), STRINGS[part]()
    updated = {text: catalogue.get(text, "") for text in strings}
    (FOLDER / f"{part}.json").write_text(format_part(updated), encoding="utf-8")
    return sorted(text for text, translation in updated.items() if not translation), sorted(catalogue.keys() - strings)


if __name__ == "__main__":
    for name in STRINGS:
        missing, outdated = update_part(name)
        print(f"{name}.json: {len(missing)} to translate, {len(outdated)} outdated removed")
        for string in missing:
            print(f"  {string!r}")
