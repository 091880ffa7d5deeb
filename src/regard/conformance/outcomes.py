"""Try a recognised function: the outcome of each case, of two equal calls, of strided tensors, and of dropout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from regard.conformance.attention_cases import dropout_case
from regard.conformance.cases import Case
from regard.conformance.equations import differences, largest_error
from regard.conformance.faults.gradients import name_gradient_fault
from regard.conformance.kernel import Kernel, Results
from regard.conformance.report import Finding, Outcome
from regard.conformance.suites import cases_of_kernel, simplest_case

NOT_FINITE = ("inf", "nan")
"""Canaries that only kernels survive which leave hidden values out of their products."""
WORDS = {"cu_seqlens_q": "packed texts", "cu_seqlens_k": "texts with other lengths of keys than of queries"}
"""Arguments in words, where the name says too little."""
NAMED = 40
"""Wrong cases whose faults are looked for."""
Progress = Callable[[int, int], None]


def try_all(
    kernel: Kernel, other_dtypes: Sequence[str], *, strict: bool, progress: Progress | None
) -> Iterator[Outcome]:
    """The outcome of each case; faults are named for the first ones that are wrong, since that takes the most time."""
    cases, wrong = cases_of_kernel(kernel), 0
    tries = [(case, kernel.dtype) for case in cases]
    tries += [(case, dtype) for dtype in other_dtypes for case in cases if case.every_dtype]
    tries = [(case, dtype) for case, dtype in tries if not (case.poison == "1e30" and dtype == "float16")]
    for number, (case, dtype) in enumerate(tries):
        if case.poison in NOT_FINITE and not strict:
            outcome = Outcome(case.name, dtype, "not tried", reason="inf and nan behind masks are tried if strict")
        else:
            outcome = _try_case(kernel, case, dtype, name_faults=wrong < NAMED)
        wrong += outcome.verdict == "wrong"
        yield outcome
        if progress is not None:
            progress(number + 1, len(tries))
    yield from _try_properties(kernel, simplest_case(kernel))
    if "dropout" in kernel.signature.names and kernel.mechanism == "dot_product" and kernel.suite == "regard":
        yield _try_dropout(kernel, dropout_case(kernel.sizes))


def up_to_first_wrong(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
    """The outcomes until one is wrong."""
    for outcome in outcomes:
        yield outcome
        if outcome.verdict == "wrong":
            return


def _try_case(kernel: Kernel, case: Case, dtype: str, *, name_faults: bool = True) -> Outcome:
    missing = kernel.missing(case)
    if missing:
        words = WORDS.get(missing, missing.replace("_", " "))
        return Outcome(case.name, dtype, "not tried", reason=f"the function takes no {words}")
    results = kernel.run(case, dtype)
    if results.refusal:
        return Outcome(case.name, dtype, "refused", reason=results.refusal)
    changed = tuple(
        Finding(name, np.inf, 0.0, cause=f"the function changes its argument {name}") for name in results.changed
    )
    findings = (*changed, *_wrong_results(kernel, case, results, dtype, name_faults=name_faults))
    has_gradients = any(part is not None for part in results.gradients.values())
    reason = results.backward_error and f"the backward pass is refused: {results.backward_error}"
    if case.inputs and not (findings or reason or has_gradients):
        reason = "the function has no backward pass"
    if findings and not name_faults:
        reason = f"after {NAMED} wrong cases, faults are not looked for"
    return Outcome(case.name, dtype, "wrong" if findings else "right", findings, reason)


def _wrong_results(
    kernel: Kernel, case: Case, results: Results, dtype: str, *, name_faults: bool = True
) -> tuple[Finding, ...]:
    """The wrong results of a forward pass, or else of the backward pass."""
    return tuple(
        find_wrong_values(kernel, case, results, dtype, name_faults=name_faults)
        or _wrong_gradients(case, results, dtype, name_faults=name_faults)
    )


def find_wrong_values(
    kernel: Kernel, case: Case, results: Results, dtype: str, *, name_faults: bool = True
) -> list[Finding]:
    """The wrong results of a forward pass."""
    findings, bounds = [], case.bounds(dtype)
    for part, actual in results.values.items():
        exact = getattr(case.expected, part)
        bound = bounds.get(part, bounds["output"])
        error = largest_error(actual, exact)
        if not error <= bound:
            cause = kernel.assumption.name(case, part, actual, dtype) if name_faults and part != "weights" else ""
            findings.append(Finding(part, error, bound, _place(actual, exact), cause))
    # The output says more about a fault than statistics that are wrong with it.
    return sorted(findings, key=lambda finding: finding.part != "output")


def _wrong_gradients(case: Case, results: Results, dtype: str, *, name_faults: bool = True) -> list[Finding]:
    """The wrong gradients of inputs, unless the function has none at all."""
    findings, bounds = [], case.bounds(dtype)
    if not any(part is not None for part in results.gradients.values()):
        return []
    for name, gradient in results.gradients.items():
        usable = gradient is not None and gradient.shape == case.arguments[name].shape
        error = case.equation.gradient_error(case, name, gradient) if gradient is not None and usable else np.inf
        if not error <= bounds[name]:
            cause = name_gradient_fault(case, name, gradient, bounds[name]) if name_faults else ""
            exact = case.expected.gradients.get(name)
            place = _place(gradient, exact) if gradient is not None and exact is not None else ""
            findings.append(Finding(f"gradient of {name}", error, bounds[name], place, cause))
    return findings


def _place(actual: np.ndarray, exact: np.ndarray) -> str:
    """Where the largest difference is."""
    if actual.shape != exact.shape or not actual.size:
        return ""
    error = differences(actual, exact)
    worst = tuple(map(int, np.unravel_index(int(error.argmax()), error.shape)))
    if len(worst) == 4:
        batch, head, token, channel = worst
        return f"most at batch {batch}, head {head}, token {token}, channel {channel}"
    if len(worst) == 3:
        batch, head, token = worst
        return f"most at batch {batch}, head {head}, token {token}"
    return f"most at the index {worst}"


def _try_properties(kernel: Kernel, case: Case) -> Iterator[Outcome]:
    """The same bits twice, and tensors that are not contiguous."""
    dtype = kernel.dtype
    first, second = kernel.run(case, dtype), kernel.run(case, dtype)
    parts = [("output", first.values["output"], second.values["output"])] if not second.refusal else []
    for name, gradient in first.gradients.items():
        other = second.gradients.get(name)
        if gradient is not None and other is not None:
            parts.append((f"gradient of {name}", gradient, other))
    findings = tuple(
        Finding(part, float(np.abs(before - after).max()), 0.0, cause="two calls with the same inputs differ")
        for part, before, after in parts
        if not np.array_equal(before, after, equal_nan=True)
    )
    yield Outcome("the same bits in each call", dtype, "wrong" if findings else "right", findings)
    strided = kernel.run(case, dtype, strided=True)
    if strided.refusal:
        yield Outcome("tensors that are not contiguous", dtype, "refused", reason=strided.refusal)
        return
    found = find_wrong_values(kernel, case, strided, dtype) or _wrong_gradients(case, strided, dtype)
    if found and not (find_wrong_values(kernel, case, first, dtype) or _wrong_gradients(case, first, dtype)):
        found = [
            replace(finding, cause="strides are ignored: the tensors are read as if contiguous") for finding in found
        ]
    yield Outcome("tensors that are not contiguous", dtype, "wrong" if found else "right", tuple(found))


def _try_dropout(kernel: Kernel, case: Case) -> Outcome:
    """Weights after dropout are 0 or the exact ones divided by 1 - p; about p of them are 0, and gradients follow."""
    if kernel.missing(case) == "mask":
        case = replace(case, arguments={name: value for name, value in case.arguments.items() if name != "mask"})
    dtype = kernel.dtype
    results = kernel.run(case, dtype)
    if results.refusal:
        return Outcome(case.name, dtype, "refused", reason=results.refusal)
    probability, output = case.arguments["dropout"], results.values["output"]
    kept, allowed = output != 0, case.expected.allowed
    dropped = replace(case, arguments={**case.arguments, "dropout_mask": kept / (1 - probability)}, _slopes={})
    count = int(allowed.sum())
    # A sum of independent decisions leaves its mean by 6 deviations once in 10^8 (Hoeffding's inequality).
    deviation = abs(int((kept & allowed).sum()) - (1 - probability) * count) / count
    allowance = 3 / np.sqrt(count)
    findings = _wrong_results(kernel, dropped, results, dtype)
    if not findings and deviation > allowance:
        share = 1 - (kept & allowed).sum() / count
        cause = f"dropout drops {share:.0%} of the weights instead of {probability:.0%}"
        findings = (Finding("share of dropped weights", deviation, allowance, cause=cause),)
    return Outcome(case.name, dtype, "wrong" if findings else "right", findings)
