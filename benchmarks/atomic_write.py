"""Files that are there complete or not at all."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    """Put ``text`` in place of what the file held, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
