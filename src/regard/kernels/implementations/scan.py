"""The scan family: a state that decays and is updated token by token, by the kernel, and in plain torch.

    S_t = D_t S_(t-1) + k_t u_t^T,    output_t = scale S_t^T q_t        D_t = diag(exp(log_decay_t))
    u_t = v_t, or with the delta rule beta_t (v_t - (D_t S_(t-1))^T k_t)

``reference.scan`` has the sources. Every linear-time mechanism with a matrix as its state is a request of this
operation: linear attention, retention, Mamba-2, gated linear attention, the (gated) delta rule and KDA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from regard.errors import DtypeError, RefusedError, ShapeError
from regard.kernels.autocast import disable_autocast
from regard.kernels.implementation import Implementation
from regard.kernels.operators import scan_op
from regard.kernels.reference import scan as reference_scan
from regard.kernels.results import accumulation_dtype
from regard.kernels.support import unsupported_reason
from regard.kernels.tracing import is_eager, is_exported_to_onnx


@final
@dataclass(frozen=True)
class ScanRequest:
    """One call of the scan.

    Args:
        query: (batch, heads, length, head_dim).
        key: (batch, heads, length, head_dim); one head for each query head.
        value: (batch, heads, length, value_dim).
        log_decay: natural logarithms of decays, at most 0; -Inf is a decay of 0. (batch, heads, length) for one decay
            a token and head, (batch, heads, length, head_dim) for one a channel of the key; None: nothing decays.
        beta: (batch, heads, length), the rate of the delta rule; None: without the delta rule.
        state: (batch, heads, head_dim, value_dim), the state before the first token; None is 0.
        scale: factor of the queries.

    log_decay, beta and state are in the dtype of the tokens or of sums (float64 for float64, else float32).
    Raises ShapeError or DtypeError if they do not fit together.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    beta: Tensor | None = None
    state: Tensor | None = None
    scale: float = 1.0

    def __post_init__(self) -> None:
        batch, heads, length, head_dim = self.query.shape
        value_dim = self.value.shape[3]
        by_channel = self.log_decay is not None and self.log_decay.dim() == 4
        shapes: dict[str, tuple[int, ...]] = {
            "key": (batch, heads, length, head_dim),
            "value": (batch, heads, length, value_dim),
            "log_decay": (batch, heads, length, head_dim) if by_channel else (batch, heads, length),
            "beta": (batch, heads, length),
            "state": (batch, heads, head_dim, value_dim),
        }
        for name, shape in shapes.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None and tuple(tensor.shape) != shape:
                raise ShapeError(f"{name} does not fit the query", expected=str(shape), got=str(tuple(tensor.shape)))
        dtypes = (self.query.dtype, accumulation_dtype(self.query.dtype))
        for name in shapes:
            tensor = getattr(self, name)
            allowed = dtypes[:1] if name in ("key", "value") else dtypes
            if tensor is not None and tensor.dtype not in allowed:
                expected = " or ".join(str(dtype) for dtype in dict.fromkeys(allowed))
                raise DtypeError(f"{name} does not fit the query", expected=expected, got=str(tensor.dtype))

    def to(self, dtype: torch.dtype) -> ScanRequest:
        """Return the request with all of its tensors in ``dtype``."""
        log_decay, beta, state = (
            None if one is None else one.to(dtype) for one in (self.log_decay, self.beta, self.state)
        )
        tokens = (self.query.to(dtype), self.key.to(dtype), self.value.to(dtype))
        return ScanRequest(*tokens, log_decay, beta, state, self.scale)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """The tensors as the operator takes them: log_decay and beta with four dimensions."""
        decay = self.log_decay if self.log_decay is None or self.log_decay.dim() == 4 else self.log_decay[..., None]
        beta = None if self.beta is None else self.beta[..., None]
        return self.query, self.key, self.value, decay, beta, self.state

    def describe(self) -> str:
        """The request in one line, for messages."""
        decay = "none" if self.log_decay is None else "one a channel" if self.log_decay.dim() == 4 else "one a token"
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {self.query.device}, value "
            f"{tuple(self.value.shape)}, decay {decay}, {'no' if self.beta is None else 'a'} delta rule"
        )


@final
class ScanResult(NamedTuple):
    """Output (batch, heads, length, value_dim), and the state after the last token, in the dtype of sums."""

    output: Tensor
    state: Tensor


def _refuses(request: ScanRequest) -> str | None:
    """Refuse other devices, dtypes and transforms, and heads wider than the kernel supports.

    Raises OptionError if REGARD_ISA names an instruction set that does not run here.
    """
    reason = unsupported_reason(*(tensor for tensor in request.tensors if tensor is not None))
    if reason is None and max(request.query.shape[3], request.value.shape[3]) > scan_op.MAX_SCAN_DIM:
        return f"native takes a head_dim and value_dim of at most {scan_op.MAX_SCAN_DIM}"
    return reason


def _native(request: ScanRequest) -> ScanResult:
    """Compute it with the kernel. Raises OptionError if a log_decay is above 0."""
    return ScanResult(*scan_op.scan(*request.tensors, request.scale))


def _reference(request: ScanRequest) -> ScanResult:
    """Compute it in plain torch, half precision in float32.

    Raises OptionError if a log_decay is above 0, on a CPU: other devices would have to wait for it.
    """
    if request.beta is not None and is_exported_to_onnx():
        raise RefusedError(
            "the delta rule has no ONNX graph",
            expected="a scan without beta",
            got=request.describe(),
            do="export a model with another mechanism: ONNX has no operation that solves a triangular system",
        )
    decay = request.log_decay
    if decay is not None and decay.is_cpu and is_eager(decay) and bool((decay > 0).any()):
        raise scan_op.positive_decay_error()
    dtype = accumulation_dtype(request.query.dtype)
    with disable_autocast(request.query.device):
        output, state = reference_scan.scan_chunks(*request.to(dtype).tensors, scale=request.scale)
    return ScanResult(output.to(request.query.dtype), state)


NATIVE = Implementation("native", _native, _refuses, merit="regard's own kernels, made for this CPU")
REFERENCE = Implementation("reference", _reference, merit="plain torch, on any device, any number of derivatives")
