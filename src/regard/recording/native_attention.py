"""``record(model, impl="native")``: scaled_dot_product_attention of a CPU, computed by regard's kernels.

Torch's operation returns its output and the logarithms of the sums, from which its backward pass computes the weights
again. Both are replaced by those of the kernel, so that gradients follow: they differ by rounding from torch's.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from regard.kernels.implementations import native
from regard.kernels.operators.attention_op import ATTENTION
from regard.kernels.operators.kernel_arguments import to_kernel_arguments
from regard.kernels.request import is_scale_in_range
from regard.recording.calls import LayerCall

_FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@final
class NativeAttention:
    """Computes the calls that it can, and keeps the ``reasons`` against others, with the names of their layers."""

    def __init__(self) -> None:
        self.reasons: dict[str, list[str]] = {}

    def compute(self, operation: Any, call: LayerCall, layer: str) -> tuple[Tensor, Tensor] | None:
        """The results of an operation that computes a call; None leaves it to torch."""
        result = _compute(operation, call)
        if isinstance(result, str):
            self.refuse(result, layer)
            return None
        return result

    def refuse(self, reason: str, layer: str) -> None:
        """Note that torch computes a layer."""
        layers = self.reasons.setdefault(reason, [])
        if layer not in layers:
            layers.append(layer)

    def describe(self) -> str:
        """The layers that torch computed, with the reasons; "" if there are none."""
        return "; ".join(f"{', '.join(layers)} ({reason})" for reason, layers in self.reasons.items())


def _compute(operation: Any, call: LayerCall) -> tuple[Tensor, Tensor] | str:
    """The output and the logarithms of the sums, or the reason why torch has to compute them."""
    if operation is not _FUSED:
        return "only scaled_dot_product_attention on a CPU is replaced"
    request = call.mechanism.make_request(call.query, call.key, call.value, call.mask, call.bias)
    reason = native.ATTENTION.refuses(request)
    if reason is not None or not is_scale_in_range(request.terms.scale):
        return reason or "its scale is out of range"
    output, lse, _, _ = ATTENTION.compute(request.query, request.key, request.value, *to_kernel_arguments(request))
    return "a query may attend to no key" if bool((lse == -torch.inf).any()) else (output, lse)
