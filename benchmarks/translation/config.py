"""Configs: data, training options and metric, one TOML file each in configs/."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parent / "configs"
NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@dataclass(frozen=True)
class Config:
    """A result to reproduce.

    ``prepare`` names a function of ``prepare``, which makes files of pairs from the data; None uses the data's files.
    ``train``, ``valid`` and ``test`` are files in the data folder, or in the folder of prepared data. ``options`` are
    those of `regard train translate`. ``published`` is a sentence with the published score, and ``note`` explains how
    a score was measured, if necessary. ``target_score`` is the target for ``metric``, and ``max_memory`` the target for
    the memory of training in GB.
    """

    name: str
    title: str
    languages: tuple[str, str]
    train: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    options: tuple[str, ...]
    published: str
    metric: str
    note: str = ""
    target_score: float | None = None
    max_memory: float | None = None
    prepare: str | None = None
    beam: int = 5
    length_penalty: float = 1.0
    sentences: tuple[str, ...] = field(default_factory=tuple)

    @classmethod
    def read(cls, name: str) -> Config:
        """Read the config of that name."""
        fields = tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        return cls(name=name, **{key: _lists_to_tuples(value) for key, value in fields.items()})


def _lists_to_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
