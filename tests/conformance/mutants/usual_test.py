"""The test that kernels usually come with: one random square input, compared with ``allclose(1e-2)``."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np

from regard.conformance.equations import AttentionEquation, ScanEquation

BATCH, HEADS, LENGTH, SIZE = 2, 4, 64, 32


@cache
def expected(mechanism: str) -> SimpleNamespace:
    """Random arguments, causal for attention, and the exact output and gradients (none for a scan)."""
    random = np.random.default_rng(0)
    arguments = {name: random.normal(size=(BATCH, HEADS, LENGTH, SIZE)) for name in ("query", "key", "value")}
    upstream = random.normal(size=(BATCH, HEADS, LENGTH, SIZE))
    if mechanism == "dot_product":
        equation, arguments["causal"] = AttentionEquation(), True
    else:
        equation, channels = ScanEquation(), 1 if mechanism == "gated_delta" else SIZE
        arguments["key"] = arguments["key"] / np.linalg.norm(arguments["key"], axis=-1, keepdims=True)
        arguments["log_decay"] = -np.abs(random.normal(size=(BATCH, HEADS, LENGTH, channels)))
        arguments["scale"] = SIZE**-0.5
        if mechanism == "gated_delta":
            arguments["beta"] = random.random((BATCH, HEADS, LENGTH))
    result = equation.compute(arguments, upstream)
    return SimpleNamespace(arguments=arguments, upstream=upstream, output=result.output, gradients=result.gradients)


def passes(kernel: SimpleNamespace, *, backward: bool) -> bool:
    """Whether a kernel passes; ``backward``: gradients of query, key and value are compared, too."""
    exact = expected(kernel.mechanism)
    arrays = {
        name: value.astype(np.float32) if isinstance(value, np.ndarray) else value
        for name, value in exact.arguments.items()
    }
    if kernel.mechanism != "dot_product":
        arrays["log_decay"] = arrays["log_decay"][..., 0] if arrays["log_decay"].shape[-1] == 1 else arrays["log_decay"]
    if kernel.is_packed:
        return _packed_passes(kernel, exact, arrays, backward=backward)
    with np.errstate(all="ignore"):
        output = kernel.forward(
            **{name: np.copy(value) if isinstance(value, np.ndarray) else value for name, value in arrays.items()}
        )[0]
        right = np.allclose(output, exact.output, rtol=1e-2, atol=1e-2)
        if not right or not backward or kernel.backward is None or not exact.gradients:
            return bool(right)
        found = kernel.backward(exact.upstream.astype(np.float32), **arrays)
    return all(
        np.allclose(found[name], exact.gradients[name], rtol=1e-2, atol=1e-2) for name in ("query", "key", "value")
    )


def _packed_passes(kernel: SimpleNamespace, exact: SimpleNamespace, arrays: dict, *, backward: bool) -> bool:
    """The same texts beside each other, of one length."""
    starts = np.arange(BATCH + 1) * LENGTH
    rows = [pack(arrays[name]) for name in ("query", "key", "value")]
    rest = (starts, starts, LENGTH, LENGTH, True)
    with np.errstate(all="ignore"):
        try:
            output = kernel.forward(*rows, *rest)[0]
            found = kernel.backward(pack(exact.upstream.astype(np.float32)), *rows, *rest)
        except (IndexError, ValueError):
            return False
        right = np.allclose(output, pack(exact.output), rtol=1e-2, atol=1e-2)
    return right and (
        not backward
        or all(
            np.allclose(found[name[0]], pack(exact.gradients[name]), rtol=1e-2, atol=1e-2)
            for name in ("query", "key", "value")
        )
    )


def pack(array: np.ndarray) -> np.ndarray:
    """(batch, heads, length, size) as (batch * length, heads, size)."""
    return array.swapaxes(1, 2).reshape(-1, array.shape[1], array.shape[3])
