"""Shell completion of option values, such as models and formats. Without a completer, a shell offers files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

Completer = Callable[[str], list[str]]
"""Maps the text typed so far to the values that begin with it."""


def choice_completer(names: Iterable[str]) -> Completer:
    """Make a completer of these names."""
    known = list(names)

    def complete(incomplete: str) -> list[str]:
        return [name for name in known if name.startswith(incomplete)]

    return complete


def complete_mechanism(incomplete: str) -> list[str]:
    """Complete the name of a mechanism in the catalogue, or "none"."""
    from regard.mechanism_catalogue import catalogue

    return choice_completer([*(row.name for row in catalogue()), "none"])(incomplete)


def model_completer(names: Iterable[str] = ()) -> Completer:
    """Make a completer of these names and of folders that hold a model."""
    named = choice_completer(names)

    def complete(incomplete: str) -> list[str]:
        return [*named(incomplete), *_model_folders(incomplete)]

    return complete


def _model_folders(incomplete: str) -> list[str]:
    """Folders that match the text and hold a config.json; none if the parent folder cannot be read."""
    typed, _, start = incomplete.rpartition("/")
    within = f"{typed}/" if "/" in incomplete else ""
    with suppress(OSError, ValueError, RuntimeError):
        folders = sorted(Path(within or ".").expanduser().iterdir())
        return [
            f"{within}{folder.name}" for folder in folders if folder.name.startswith(start) and _is_model_folder(folder)
        ]
    return []


def _is_model_folder(folder: Path) -> bool:
    return (folder / "config.json").is_file()
