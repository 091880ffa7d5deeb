"""Recognise a function: its framework, dtype, sizes and layout, the form of its mask, and a wrong scale."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from regard.conformance.arguments import NAMES
from regard.conformance.equations import largest_error
from regard.conformance.faults.naming import assume_scale
from regard.conformance.kernel import LAYOUTS, MASK_FORMS, Kernel
from regard.conformance.outcomes import find_wrong_values
from regard.conformance.suites import SIZES, SUITES, cases_of_kernel, simplest_case
from regard.errors import RefusedError

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes in the order in which they are tried."""


def guess_frameworks(function: Callable[..., Any]) -> tuple[str, ...]:
    """The frameworks that the function's module uses, the most probable one first: "torch", "jax", "numpy"."""
    inner = getattr(function, "__wrapped__", function)
    scope = getattr(inner, "__globals__", None) or vars(sys.modules.get(type(inner).__module__, sys))
    roots = {str(getattr(inner, "__module__", "")).partition(".")[0]}
    for value in scope.values():
        roots |= {str(getattr(value, name, "")).partition(".")[0] for name in ("__name__", "__module__")}
    roots |= {"torch"} if "triton" in roots else set()
    used = [name for name in ("torch", "jax") if name in roots]
    imported = [name for name in ("torch", "jax") if name in sys.modules and name not in used]
    return (*used, "numpy", *imported)


def recognise(
    kernels: Sequence[Kernel],
    heads: tuple[int, int] | None,
    dtypes: Sequence[str] | None,
    layout: str | None,
    mask: str | None,
) -> Kernel:
    """The first of the kernels that accepts a call, with what it accepts; ``layout`` and ``mask`` if they are known.

    Raises RefusedError if none accepts any.
    """
    refusals = []
    for kernel in kernels:
        for dtype in dtypes or [name for name in DTYPES if name in kernel.framework.dtypes]:
            for sizes in SIZES:
                candidate = replace(kernel, dtype=dtype, sizes=sizes._replace(heads=heads))
                found, refusal = _recognise_layout(candidate, layout)
                if found is not None:
                    return _recognise_masks(_assume_scale(found), mask)
                refusals.append(refusal)
    raise RefusedError(
        "the function accepted no call",
        expected="results for tensors (batch, heads, length, head_dim) or (batch, length, heads, head_dim)",
        got=refusals[0],
        do="wrap it in a function of query, key and value of these shapes",
    )


def _recognise_layout(kernel: Kernel, layout: str | None) -> tuple[Kernel | None, str]:
    """The kernel with the layout whose result is right or wrong in a known way, else the first that it accepts.

    If it accepts none, None and the message of its refusal.
    """
    case, accepted = simplest_case(kernel), None
    refusal = "" if layout in (None, *SUITES[kernel.suite]) else f"the layout {layout}, which its cases do not have"
    for order in [order for order in SUITES[kernel.suite] if layout in (None, order)]:
        candidate = replace(kernel, convention=kernel.convention._replace(layout=order))
        results = candidate.run(case, kernel.dtype)
        if results.refusal:
            refusal = refusal or results.refusal
            continue
        wrong = find_wrong_values(kernel, case, results, kernel.dtype)
        if not wrong or wrong[0].cause:
            return candidate, ""
        accepted = accepted or candidate
    return accepted, refusal


def _assume_scale(kernel: Kernel) -> Kernel:
    """The kernel with the wrong scale of its simplest result, if it has one."""
    case = simplest_case(kernel)
    output = kernel.run(case, kernel.dtype).values["output"]
    wrong = largest_error(output, case.expected.output) > case.bounds(kernel.dtype)["output"]
    return replace(kernel, assumption=assume_scale(case, output, kernel.dtype)) if wrong else kernel


def _recognise_masks(kernel: Kernel, form: str | None) -> Kernel:
    """Find the form of a mask whose result is right, and whether a bias may be passed as the mask."""
    if form is not None:
        kernel = replace(kernel, convention=kernel.convention._replace(mask=form))
    if "mask" not in kernel.signature.names:
        return kernel
    case = next((case for case in cases_of_kernel(kernel) if case.arguments.get("mask") is not None), None)
    if case is None or kernel.missing(case):
        return kernel
    unscaled, case, right = case, kernel.assumption.apply(case), []
    for candidate_form in MASK_FORMS:
        candidate = replace(kernel, convention=kernel.convention._replace(mask=candidate_form))
        output = candidate.run(unscaled, kernel.dtype).values.get("output")
        if output is not None and largest_error(output, case.expected.output) <= case.bounds(kernel.dtype)["output"]:
            right.append(candidate_form)
    convention = kernel.convention if form or not right else kernel.convention._replace(mask=right[0])
    is_bias = kernel.mechanism == "dot_product" and "additive" in right and "bias" not in kernel.signature.names
    return replace(kernel, convention=convention._replace(bias_in_mask=is_bias))


def describe(kernel: Kernel) -> tuple[str, ...]:
    """The conventions that were recognised, in sentences."""
    convention, sizes = kernel.convention, kernel.sizes
    lines = [
        f"tensors are {LAYOUTS[convention.layout]}",
        f"arguments: {', '.join(kernel.signature.names[name] for name in NAMES if name in kernel.signature.names)}",
    ]
    if "mask" in kernel.signature.names:
        lines.append(f"mask: {MASK_FORMS[convention.mask]}")
    if convention.bias_in_mask:
        lines.append("a bias is passed as the mask")
    if sizes[:2] != SIZES[0][:2]:
        if sizes.multiple > 1:
            lines.append(
                f"head_dim is {sizes.head_dim}, and lengths are multiples of {sizes.multiple}: primes were refused"
            )
        else:
            lines.append(f"head_dim is {sizes.head_dim}: primes were refused")
    if kernel.dtype != "float32":
        lines.append(f"numbers are of {kernel.dtype}")
    return tuple(lines)
