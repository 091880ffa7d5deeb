"""Checkpoint folders of ``transformers``, for model types whose own model, if there is one, the views cannot read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import CheckpointError, MissingPackageError

if TYPE_CHECKING:
    from regard.hf.checkpoint import Checkpoint
    from regard.models.model_folder import ModelKind


def find_checkpoint(model: str, kind: ModelKind) -> Path | None:
    """Find the folder of a model that ``transformers`` reads for the views; None if regard's own model is read.

    Language models are read by ``transformers``, also those that regard has.

    Raises the errors of ``resolve_folder``, and CheckpointError for an unreadable config.json.
    """
    from regard.models.config_file import ConfigFile
    from regard.models.load import LANGUAGE_MODELS, has_loader, resolve_base
    from regard.models.model_folder import resolve_folder

    folder = resolve_folder(model, kind)
    if resolve_base(folder) != folder:
        raise CheckpointError(
            f"{folder} holds adapters, which the views do not read",
            expected="a whole model",
            got="adapter_config.json, without config.json",
            do=f"save the model with its adapters first: regard.load({str(folder)!r}).save(new_folder)",
        )
    model_type = ConfigFile.read(folder).model_type
    return None if has_loader(model_type) and model_type not in LANGUAGE_MODELS else folder


def load_checkpoint(folder: Path) -> Checkpoint:
    """Load a folder of ``transformers``. Raises MissingPackageError without that package, else CheckpointError."""
    try:
        from regard.hf import checkpoint
    except MissingPackageError as error:
        raise MissingPackageError(
            f"{folder} has an architecture that is read by transformers, so it needs a package",
            expected="transformers",
            got="it is not installed",
            do="pip install 'regard[hf]'",
        ) from error
    return checkpoint.load_checkpoint(folder)
