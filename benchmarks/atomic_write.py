"""Atomic writes: files are complete or unchanged."""

from __future__ import annotations

from pathlib import Path


def write(path: Path, text: str) -> None:
    """Replace the contents of the file by ``text``; a missing folder is created."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
