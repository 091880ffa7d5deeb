"""Results of learning benchmarks: one JSON file, and a table of it in Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import atomic_write


def read(path: Path) -> dict[str, Any]:
    """The results by name; empty if there is no file."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def add(path: Path, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Add or replace a result, and return all."""
    found = read(path) | {name: result}
    atomic_write.write(path, json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    return found


def publish(path: Path, found: dict[str, Any]) -> dict[str, Any]:
    """Add results to those in this repository, without the folders of this machine, and return all."""
    published = read(path) | {name: _without_folders(one) for name, one in found.items()}
    atomic_write.write(path, json.dumps(published, indent=2, ensure_ascii=False) + "\n")
    return published


def _without_folders(result: dict[str, Any]) -> dict[str, Any]:
    """A result whose options name files without the folders of this machine."""
    if isinstance(result["options"], dict):
        return result
    words = (Path(word).name if "/" in word else word for word in result["options"].split(" "))
    return result | {"options": " ".join(words)}


def group_seeds(found: dict[str, Any]) -> dict[str, list[Any]]:
    """Results of the same model with different seeds, by the model's name."""
    groups: dict[str, list[Any]] = {}
    for name, one in found.items():
        groups.setdefault(name.partition(", seed ")[0], []).append(one)
    return groups
