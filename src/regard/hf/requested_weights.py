"""Whether the caller of a model asked for its attention weights.

``output_attentions=True`` reaches a layer in one of two ways: a model passes it down as an argument, or collects the
weights by hooks, and then only the collector that is active says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers.utils import output_capturing


def are_weights_requested(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Whether this call of a layer should return its weights."""
    if "output_attentions" in arguments:
        return bool(arguments["output_attentions"])
    if torch.compiler.is_compiling():  # the collector is a context variable, which cannot be traced
        return False
    collected = output_capturing._active_collector.get()
    return collected is not None and any(name.endswith("attentions") for name in collected)
