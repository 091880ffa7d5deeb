"""ONNX's operator LinearAttention, as a mechanism of the scan family with the decays and rates of the case."""

from __future__ import annotations

import torch
from torch import Tensor

from peers.onnx_cases import OnnxCase
from regard.kernels.reference.scan import ScanRequest
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.linear_state import LinearState
from regard.mechanisms.scan_mechanism import ScanMechanism


class LinearAttention(ScanMechanism):
    """S_t = D_t S_(t-1) + beta_t k_t (v_t - [delta] (D_t S_(t-1))^T k_t)^T, with D_t = diag(exp(decay_t))."""

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        sizes = {"decay": self.head_dim, "beta": 1}
        return tuple(ExtraInput(name, side="key", heads=self.heads, size=size) for name, size in sizes.items())

    def make_scan(self, query, key, value, inputs) -> ScanRequest:
        return ScanRequest(query, key, value, inputs.get("decay"), inputs.get("beta"))


def compute(case: OnnxCase) -> tuple[dict[str, Tensor], float]:
    """The outputs of a case, and a bound of the rounding errors of theirs relative to the largest number."""
    heads, key_heads = case.attributes["q_num_heads"], case.attributes["kv_num_heads"]
    group = heads // key_heads
    query = _split(case.inputs["query"], heads)
    key, value = (_split(case.inputs[name], key_heads) for name in ("key", "value"))
    width = query.shape[-1]
    inputs = {
        name: _per_head(case.inputs[name], heads, key_heads, size)
        for name, size in (("decay", width), ("beta", 1))
        if name in case.inputs
    }
    mechanism = LinearAttention(heads=heads, head_dim=width, scale=case.attributes.get("scale") or None, impl="auto")
    output, state = mechanism.step(query, key, value, past_state(case.inputs.get("past_state"), group), **inputs)
    outputs = {
        "output": output.transpose(1, 2).flatten(2),
        "present_state": state.sums[:, ::group].to(case.outputs["present_state"].dtype),
    }
    # They sum in float32, a step of which has some width + 6 roundings, and round the output once.
    steps = query.shape[2] * (width + 6) * torch.finfo(torch.float32).eps
    return outputs, steps + torch.finfo(query.dtype).eps


def _split(tokens: Tensor, heads: int) -> Tensor:
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2).contiguous()


def _per_head(tokens: Tensor, heads: int, key_heads: int, size: int) -> Tensor:
    """(batch, length, key heads * size), or with size 1 or one head, to (batch, heads, length, size)."""
    if tokens.shape[-1] in (1, key_heads) and size > 1:  # one decay for all channels
        return _per_head(tokens, heads, key_heads, 1).expand(-1, -1, -1, size).contiguous()
    own = _split(tokens, tokens.shape[-1] // size)
    return own.repeat_interleave(heads // own.shape[1], dim=1)


def past_state(sums: Tensor | None, group: int) -> LinearState:
    if sums is None:
        return LinearState()
    sums = sums.repeat_interleave(group, dim=1)
    none = torch.zeros(sums.shape[:2], dtype=torch.bool)
    return LinearState(length=1, sums=sums, has_nonfinite=none, has_visible_key=~none)
