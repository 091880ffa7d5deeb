"""Names of tensors in files of wrapped models, without what the wrapper adds.

    module.wte.weight                              ``DistributedDataParallel``, ``DataParallel``: before every name
    h.0._orig_mod.attn.c_attn.weight               ``torch.compile``: wherever a module was compiled
    h.0._fsdp_wrapped_module.ln_1.weight           FSDP
    h.0._checkpoint_wrapped_module.ln_1.weight     activation checkpointing

No model has a module of one of the last three names. A model may have one that is called "module", so it is removed
only where all names begin with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from regard.models.weight_names import StoredTensor, duplicate_error

_PARALLEL = "module."
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})


def unwrap_names(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the model itself; ``StoredTensor.name`` stays the name in the file.

    Raises CheckpointError if two tensors get one name.
    """
    named = [(_remove_wrappers(name), tensor) for name, tensor in stored.items()]
    while named and all(name.startswith(_PARALLEL) for name, _ in named):
        named = [(name.removeprefix(_PARALLEL), tensor) for name, tensor in named]
    unwrapped: dict[str, StoredTensor] = {}
    for name, tensor in named:
        if name in unwrapped:
            raise duplicate_error(name, unwrapped[name].name, tensor.name)
        unwrapped[name] = tensor
    return unwrapped


def find_wrapped_names(folder: Path, stored: Mapping[str, StoredTensor]) -> str | None:
    """A note if the names in the files of a model have parts of a wrapper."""
    wrapped = next((tensor.name for name, tensor in stored.items() if tensor.name != name), None)
    if wrapped is None:
        return None
    note = f"{folder}: weights were saved from a wrapped model (torch.compile, DistributedDataParallel ..), and are "
    return note + f"read without the wrapper's names: {wrapped}"


def _remove_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)
