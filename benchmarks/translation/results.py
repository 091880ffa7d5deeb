"""Results as JSON, one file per config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks import atomic_write

FOLDER = Path(__file__).with_name("results")


def read(name: str) -> dict[str, Any] | None:
    """Read the result of a config; None if it does not exist yet."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def write(name: str, result: dict[str, Any]) -> None:
    """Write the result of a config, and replace an older one."""
    atomic_write.write(FOLDER / f"{name}.json", json.dumps(result, indent=2, ensure_ascii=False) + "\n")
