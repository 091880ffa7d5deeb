"""Checkpoint folders of ``transformers``, for model types whose own model, if there is one, the views cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from regard.errors import CheckpointError, MissingPackageError

if TYPE_CHECKING:
    from regard.hf.checkpoint import Checkpoint
    from regard.models.model_folder import ModelFolder


def load_checkpoint(folder: ModelFolder) -> Checkpoint | None:
    """Load the model that ``transformers`` reads for the views; None if regard's own model is read.

    Language models are read by ``transformers``, also those that regard has. Raises CheckpointError for adapters and
    for an unusable folder, MissingPackageError without ``transformers``.
    """
    from regard.models.kinds import LANGUAGE_MODEL
    from regard.models.load import find_kind

    if folder.adapters is not None:
        raise CheckpointError(
            f"{folder.adapters} holds adapters, which the views do not read",
            expected="a whole model",
            got="adapter_config.json, without config.json",
            do=f"save the model with its adapters first: regard.load({str(folder.adapters)!r}).save(new_folder)",
        )
    if find_kind(folder) not in (None, LANGUAGE_MODEL):
        return None
    try:
        from regard.hf import checkpoint
    except MissingPackageError as error:
        raise MissingPackageError(
            f"{folder.path} has an architecture that is read by transformers, so it needs a package",
            expected="transformers",
            got="it is not installed",
            do="pip install 'regard[hf]'",
        ) from error
    return checkpoint.load_checkpoint(folder)
