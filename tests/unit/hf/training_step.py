"""One step of training a decoder, and the gradient it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor


def query_gradient(model: Any, inputs: Mapping[str, Tensor], *, run: Callable[..., Any] | None = None) -> Tensor:
    """The gradient of the first layer's query projection, for the loss of the next tokens; ``run`` runs the model."""
    model.train()
    model.zero_grad()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    (model if run is None else run)(**inputs, labels=labels, use_cache=False).loss.backward()
    gradient: Tensor = model.get_decoder().layers[0].self_attn.q_proj.weight.grad.clone()
    model.eval()
    return gradient
