"""Mechanisms whose steps are more than a softmax of dot products, with their weights by oracles in float64."""

from __future__ import annotations

import numpy as np
import torch

import regard
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import attention as attention_oracle
from regard.mechanisms.base import Mechanism

OPTIONS: dict[str, tuple[str, dict]] = {
    "softcap": ("dot_product", {"softcap": 1.5}),
    "sinks": ("dot_product", {"sinks": True}),
    "sigmoid": ("sigmoid", {}),
    "forgetting": ("forgetting", {}),
    "differential": ("differential", ORACLES["differential"].options),
    "talking_heads": ("talking_heads", {}),
    "nsa": ("nsa", ORACLES["nsa"].options),
}
"""The mechanism of the catalogue and its options, by the name of the case."""


def make_case(
    name: str, *, heads: int, head_dim: int, tokens: int, dtype: torch.dtype
) -> tuple[Mechanism, dict[str, torch.Tensor]]:
    """A mechanism with random parameters, and random inputs of a causal call."""
    torch.manual_seed(4)
    of_catalogue, options = OPTIONS[name]
    mechanism = regard.mechanism(of_catalogue, heads=heads, head_dim=head_dim, **options).to(dtype)
    with torch.no_grad():
        for parameter in mechanism.parameters():
            parameter.normal_()
    inputs = {side: torch.randn(1, heads, tokens, head_dim, dtype=dtype) for side in ("query", "key", "value")}
    return mechanism, inputs | {
        one.name: torch.randn(1, heads, tokens, one.size, dtype=dtype) for one in mechanism.extra_inputs
    }


def causal_weights(name: str, mechanism: Mechanism, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """The weights (heads, tokens, tokens) of the case by its oracle: the output for values that are unit vectors."""
    arrays = {part: tensor.detach().double().numpy() for part, tensor in {**mechanism.state_dict(), **inputs}.items()}
    heads, tokens = arrays["query"].shape[1:3]
    unit = np.broadcast_to(np.eye(tokens), (1, heads, tokens, tokens))
    allowed = np.tril(np.ones((tokens, tokens), dtype=bool))[None, None]
    if name in ("softcap", "sinks"):
        terms = {"softcap": getattr(mechanism, "softcap", None), "sinks": arrays.get("sinks")}
        output, *_ = attention_oracle.attention(arrays["query"], arrays["key"], unit, allowed, **terms)
        return output[0]
    return ORACLES[name].forward(arrays["query"], arrays["key"], unit, allowed, arrays)[0]
