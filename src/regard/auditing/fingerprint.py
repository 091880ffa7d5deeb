"""The identity of an audited model: versions of packages, and hashes of weights and config."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any

import torch
from torch import nn


def fingerprint(module: nn.Module | None, config: Any) -> dict[str, str]:
    """Versions, and SHA-256 of the weights by name and of the config as JSON with sorted fields."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0]}
    libraries = {kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    for package in ("regard", "torch", *(["transformers"] if "transformers" in libraries else [])):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    if module is not None:
        found["weights"] = hash_weights(module)
    if config is not None:
        fields = config.to_dict() if hasattr(config, "to_dict") else vars(config) if hasattr(config, "__dict__") else {}
        text = json.dumps(fields, sort_keys=True, default=str)
        found["config"] = hashlib.sha256(text.encode()).hexdigest()
    return found


def hash_weights(module: nn.Module) -> str:
    """SHA-256 of names, types, shapes and bytes of all weights and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
