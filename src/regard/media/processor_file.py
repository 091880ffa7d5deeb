"""The file of a model folder that says how inputs are made of pictures or sounds: ``preprocessor_config.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regard.errors import CheckpointError

PROCESSOR_FILE = "preprocessor_config.json"
_MAX_BYTES = 2**20


def read_processor_fields(folder: Path) -> dict[str, Any] | None:
    """Read the fields of the file; None if there is none. Raises CheckpointError unless it is a JSON object."""
    path = folder / PROCESSOR_FILE
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ValueError(f"{path.stat().st_size:,} bytes")
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("it is not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read", expected="a JSON object", got=str(error)[:200], do="fetch the file again"
        ) from error
    return fields
