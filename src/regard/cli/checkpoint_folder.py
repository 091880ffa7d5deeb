"""Checkpoint folders of ``transformers``, for model types that regard has no model for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import MissingPackageError

if TYPE_CHECKING:
    from regard.hf.checkpoint import Checkpoint
    from regard.models.load import ModelKind


def find_checkpoint(model: str, kind: ModelKind) -> Path | None:
    """Find the folder of a model whose type regard has no model for; None if it has one.

    Raises the errors of ``resolve_folder``, and CheckpointError for an unreadable config.json.
    """
    from regard.models.config_file import ConfigFile
    from regard.models.load import has_loader, resolve_folder

    folder = resolve_folder(model, kind)
    return None if has_loader(ConfigFile.read(folder).model_type) else folder


def load_checkpoint(folder: Path) -> Checkpoint:
    """Load a folder of ``transformers``. Raises MissingPackageError without that package, else CheckpointError."""
    try:
        from regard.hf import checkpoint
    except MissingPackageError as error:
        raise MissingPackageError(
            f"{folder} has an architecture that regard has no model for, so it needs a package",
            expected="transformers",
            got="it is not installed",
            do="pip install 'regard[hf]'",
        ) from error
    return checkpoint.load_checkpoint(folder)
