"""Try a function on all cases of its mechanism: results, gradients, canaries, determinism, dropout."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from regard.arguments import explain_arguments
from regard.conformance.arguments import NAMES, read_signature
from regard.conformance.attention_cases import Sizes, attention_cases, dropout_case
from regard.conformance.cases import Case
from regard.conformance.equations import differences, largest_error
from regard.conformance.faults.gradients import name_gradient_fault
from regard.conformance.faults.naming import assume_scale
from regard.conformance.frameworks import Framework, make_framework
from regard.conformance.kernel import LAYOUTS, MASK_FORMS, SUITES, Convention, Kernel, Results
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.other_cases import SCANS, mechanism_cases, scan_cases
from regard.conformance.packed_cases import packed_cases
from regard.conformance.report import Finding, Outcome, Report
from regard.errors import RefusedError, check_choice, check_flag, check_kind

SIZES = (Sizes(), Sizes(16), Sizes(16, 16), Sizes(64, 64), Sizes(64, 128))
"""Sizes that are tried until the function accepts a call: primes, and then multiples of usual tiles."""

DTYPES = ("float32", "bfloat16", "float16", "float64")
"""Dtypes in the order in which they are tried."""
ALIGNMENTS = ("end", "start")
NOT_FINITE = ("inf", "nan")
"""Canaries that only kernels survive which leave hidden values out of their products."""
WORDS = {"cu_seqlens_q": "packed texts", "cu_seqlens_k": "texts with other lengths of keys than of queries"}
"""Arguments in words, where the name says too little."""
NAMED = 40
"""Wrong cases whose faults are looked for."""

Progress = Callable[[int, int], None]


@explain_arguments
def check(
    function: Callable[..., Any],
    *,
    mechanism: str = "dot_product",
    backward: Callable[..., Any] | None = None,
    framework: str | Framework | None = None,
    names: Mapping[str, str] | None = None,
    layout: str | None = None,
    mask: str | None = None,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    align: str = "end",
    heads: tuple[int, int] | None = None,
    fixed: Mapping[str, Any] | None = None,
    suite: str = "regard",
    strict: bool = False,
    fail_fast: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Compare a function with the exact results of its mechanism, forward and backward, and name its faults.

    ``function(query, key, value, ...)`` takes the arguments of the mechanism that it has, by any of their usual names,
    or by ``names``, from those of this package to the function's. Cases that need others are listed as not tried. A
    second result of the shape of lse, weights or a final state is compared, too.

    Args:
        function: the function, of arrays of NumPy, torch or JAX.
        mechanism: its name in the catalogue.
        backward: for NumPy, a function ``(upstream, query, key, value, ...)`` that returns gradients by name.
        framework: "numpy", "torch", "jax" or a module with ``from_dlpack``, such as "cupy", then without gradients;
            None finds it by what the function's module imports.
        names: names of arguments, such as ``{"bias": "relative_position"}``.
        layout: "bhld" for (batch, heads, length, head_dim), "blhd" for FlashAttention's order; None tries both.
        mask: "allowed" (True may attend), "hidden" (True may not) or "additive"; None recognises it.
        dtypes: the first for all cases, the others for some; None is float32 and bfloat16 where they exist.
        device: of torch.
        align: "end": the last query is at the position of the last key; "start": the first at that of the first key.
        heads: those of queries and of keys, for a function that takes no others.
        fixed: arguments that the function always has without taking them, such as ``{"causal": True}``.
        suite: "regard"; "packed" for rows of texts given by their lengths, as a function that takes ``cu_seqlens_q`` is
            tried by itself; or "onnx" for ONNX's own node tests of Attention, with exact results.
        strict: try inf and nan behind masks, too, which most kernels multiply with weights of 0.
        fail_fast: stop at the first case that is wrong.
        progress: called with the number of cases done and of all.

    Raises OptionError for an unknown name and RefusedError if the function accepts no call.
    """
    _check_options(mechanism, dtypes, {"names": names, "fixed": fixed}, layout=layout, mask=mask, align=align)
    check_flag("strict", strict)
    check_choice("suite", suite, SUITES if mechanism == "dot_product" else ("regard",))
    parameters = () if mechanism in SCANS or mechanism == "dot_product" else tuple(_parameter_names(mechanism))
    signature, convention = read_signature(function, names or {}, parameters), Convention(align=align)
    frameworks = _find_frameworks(function, framework, backward, device)
    takes_lengths = suite == "regard" and mechanism == "dot_product" and signature.takes("cu_seqlens_q")
    kernels = [
        Kernel(function, candidate, signature, convention, fixed=fixed or {}, suite=candidate_suite)
        for candidate_suite in (("packed", suite) if takes_lengths else (suite,))
        for candidate in frameworks
    ]
    if heads is not None:
        check_kind("heads", heads, (tuple, list), do="for example (8, 2)")
    all_sizes = [sizes._replace(heads=None if heads is None else (heads[0], heads[-1])) for sizes in SIZES]
    kernel, sizes, main = _recognise(kernels, all_sizes, mechanism, dtypes, layout)
    kernel = _assume_scale(kernel, mechanism, sizes, main)
    kernel = kernel if mask is None else replace(kernel, convention=kernel.convention._replace(mask=mask))
    kernel = _recognise_masks(kernel, mechanism, sizes, main, mask)
    others = list(dtypes)[1:] if dtypes else [name for name in ("bfloat16",) if name in kernel.framework.dtypes]
    others = [name for name in others if name != main]
    tried = _try_all(kernel, mechanism, sizes, main, others, strict, progress)
    outcomes = tuple(_up_to_first_wrong(tried) if fail_fast else tried)
    title = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return Report(title, mechanism, kernel.framework.name, _describe(kernel, sizes, main), outcomes)


def _check_options(mechanism: object, dtypes: object, mappings: Mapping[str, object], **choices: object) -> None:
    """Raise OptionError for a wrong argument of ``check``; None is valid where it is the default."""
    check_choice("mechanism", mechanism, ORACLES)
    valid = {"layout": tuple(LAYOUTS), "mask": tuple(MASK_FORMS), "align": ALIGNMENTS}
    for kind, value in choices.items():
        if value is not None or kind == "align":
            check_choice(kind, value, valid[kind])
    if dtypes is not None:
        check_kind("dtypes", dtypes, (tuple, list), do='for example ("float32", "bfloat16")')
        for dtype in dtypes:  # type: ignore[attr-defined]
            check_choice("dtype", dtype, DTYPES)
    for name, mapping in mappings.items():
        if mapping is not None:
            check_kind(name, mapping, dict, do="pass a dict by the names of arguments")
            for argument in mapping:  # type: ignore[attr-defined]
                check_kind(f"name in {name}", argument, str, do="use the names of arguments")


def _find_frameworks(
    function: Callable[..., Any], framework: str | Framework | None, backward: Callable[..., Any] | None, device: str
) -> list[Framework]:
    """The framework, or those that the function's module uses."""
    if isinstance(framework, Framework):
        return [framework]
    check_kind("device", device, str, do='for example "cpu"')
    guesses = guess_frameworks(function) if framework is None else (framework,)
    return [make_framework(name, backward, device) for name in guesses]


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


def _parameter_names(mechanism: str) -> list[str]:
    return [name for name in mechanism_cases(mechanism, SIZES[0])[0].inputs if name not in ("query", "key", "value")]


@explain_arguments
def cases_of(mechanism: str, align: str = "end", suite: str = "regard") -> tuple[Case, ...]:
    """All cases of a mechanism, of sizes that are primes; a scan takes its scale as an argument.

    ``align`` and ``suite`` are as in ``check``. Raises OptionError for an unknown mechanism, alignment or suite.
    """
    check_choice("mechanism", mechanism, ORACLES)
    check_choice("align", align, ALIGNMENTS)
    check_choice("suite", suite, SUITES if mechanism == "dot_product" else ("regard",))
    return _build_cases(mechanism, suite, SIZES[0], align, with_scale=True)


def _build_cases(mechanism: str, suite: str, sizes: Sizes, align: str, *, with_scale: bool) -> tuple[Case, ...]:
    if suite == "onnx":
        from regard.conformance.onnx_cases import onnx_attention_cases

        return onnx_attention_cases()
    if suite == "packed":
        return packed_cases(sizes, align)
    if mechanism == "dot_product":
        return attention_cases(sizes, align)
    scans = scan_cases(mechanism, sizes, with_scale=with_scale) if mechanism in SCANS else ()
    is_gated = mechanism in SCANS and mechanism != "retention"  # kernels take decays, the mechanism what its gates read
    return scans if is_gated else (*mechanism_cases(mechanism, sizes), *scans)


def _cases(kernel: Kernel, mechanism: str, sizes: Sizes) -> tuple[Case, ...]:
    with_scale = kernel.signature.takes("scale")
    cases = _build_cases(mechanism, kernel.suite, sizes, kernel.convention.align, with_scale=with_scale)
    return _with_arguments(cases, kernel) if kernel.fixed else cases


def _with_arguments(cases: Sequence[Case], kernel: Kernel) -> tuple[Case, ...]:
    """The cases with the fixed arguments, without those that have another value of one."""

    def change(case: Case) -> Case:
        arguments = {**case.arguments, **kernel.fixed, "align": kernel.convention.align}
        return replace(case, arguments=arguments, clean=None if case.clean is None else change(case.clean), _slopes={})

    return tuple(change(case) for case in cases if not case.arguments.keys() & kernel.fixed.keys())


def _recognise(
    kernels: Sequence[Kernel],
    all_sizes: Sequence[Sizes],
    mechanism: str,
    dtypes: Sequence[str] | None,
    layout: str | None,
) -> tuple[Kernel, Sizes, str]:
    """Find the framework, the dtype, the sizes and the layout that the function accepts, and is right with, if any."""
    refusals = []
    for kernel in kernels:
        for dtype in dtypes or [name for name in DTYPES if name in kernel.framework.dtypes]:
            for sizes in all_sizes:
                found, refusal = _recognise_layout(kernel, mechanism, sizes, dtype, layout)
                if found is not None:
                    return found, sizes, dtype
                refusals.append(refusal)
    raise RefusedError(
        "the function accepted no call",
        expected="results for tensors (batch, heads, length, head_dim) or (batch, length, heads, head_dim)",
        got=refusals[0],
        do="wrap it in a function of query, key and value of these shapes",
    )


def _recognise_layout(
    kernel: Kernel, mechanism: str, sizes: Sizes, dtype: str, layout: str | None
) -> tuple[Kernel | None, str]:
    """The kernel with the layout whose result is right or wrong in a known way, else the first that it accepts.

    If it accepts none, None and the message of its refusal.
    """
    case, accepted = _first_case(kernel, mechanism, sizes), None
    refusal = "" if layout in (None, *SUITES[kernel.suite]) else f"the layout {layout}, which its cases do not have"
    for order in [order for order in SUITES[kernel.suite] if layout in (None, order)]:
        candidate = replace(kernel, convention=kernel.convention._replace(layout=order))
        results = candidate.run(case, dtype)
        if results.refusal:
            refusal = refusal or results.refusal
            continue
        wrong = _wrong_parts(kernel, case, results, dtype)
        if not wrong or wrong[0].cause:
            return candidate, ""
        accepted = accepted or candidate
    return accepted, refusal


def _first_case(kernel: Kernel, mechanism: str, sizes: Sizes) -> Case:
    """The simplest case of several tokens."""
    cases = _cases(kernel, mechanism, sizes)
    return next(case for case in cases if case.layout.keys > 1 and not kernel.missing(case))


def _assume_scale(kernel: Kernel, mechanism: str, sizes: Sizes, dtype: str) -> Kernel:
    """The kernel with the wrong scale of its simplest result, if it has one."""
    case = _first_case(kernel, mechanism, sizes)
    output = kernel.run(case, dtype).values["output"]
    wrong = largest_error(output, case.expected.output) > case.bounds(dtype)["output"]
    return replace(kernel, assumption=assume_scale(case, output, dtype)) if wrong else kernel


def _recognise_masks(kernel: Kernel, mechanism: str, sizes: Sizes, dtype: str, form: str | None) -> Kernel:
    """Find the form of a mask whose result is right, and whether a bias may be passed as the mask."""
    if "mask" not in kernel.signature.names:
        return kernel
    case = next((case for case in _cases(kernel, mechanism, sizes) if case.arguments.get("mask") is not None), None)
    if case is None or kernel.missing(case):
        return kernel
    unscaled, case, right = case, kernel.assumption.apply(case), []
    for candidate_form in MASK_FORMS:
        candidate = replace(kernel, convention=kernel.convention._replace(mask=candidate_form))
        results = candidate.run(unscaled, dtype)
        output = results.values.get("output")
        if output is not None and largest_error(output, case.expected.output) <= case.bounds(dtype)["output"]:
            right.append(candidate_form)
    convention = kernel.convention if form or not right else kernel.convention._replace(mask=right[0])
    bias_in_mask = mechanism == "dot_product" and "additive" in right and "bias" not in kernel.signature.names
    return replace(kernel, convention=convention._replace(bias_in_mask=bias_in_mask))


def _describe(kernel: Kernel, sizes: Sizes, dtype: str) -> tuple[str, ...]:
    """The conventions that were recognised, in sentences."""
    convention = kernel.convention
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
    if dtype != "float32":
        lines.append(f"numbers are of {dtype}")
    return tuple(lines)


def _try_all(
    kernel: Kernel,
    mechanism: str,
    sizes: Sizes,
    main: str,
    others: list[str],
    strict: bool,
    progress: Progress | None,
) -> Iterator[Outcome]:
    """The outcome of each case; faults are named for the first ones that are wrong, since that takes the most time."""
    cases, wrong = _cases(kernel, mechanism, sizes), 0
    tries = [(case, dtype) for dtype in (main, *others) for case in cases if dtype == main or case.every_dtype]
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
    yield from _try_properties(kernel, _first_case(kernel, mechanism, sizes), main)
    if "dropout" in kernel.signature.names and mechanism == "dot_product" and kernel.suite == "regard":
        yield _try_dropout(kernel, dropout_case(sizes), main)


def _up_to_first_wrong(outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
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
    findings = _wrong_results(kernel, case, results, dtype, name_faults=name_faults)
    reason = results.backward_error and f"the backward pass is refused: {results.backward_error}"
    return Outcome(case.name, dtype, "wrong" if findings else "right", findings, reason)


def _wrong_results(
    kernel: Kernel, case: Case, results: Results, dtype: str, *, name_faults: bool = True
) -> tuple[Finding, ...]:
    """The wrong results of a forward pass, or else of the backward pass."""
    return tuple(
        _wrong_parts(kernel, case, results, dtype, name_faults=name_faults)
        or _wrong_gradients(case, results, dtype, name_faults=name_faults)
    )


def _wrong_parts(
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


def _try_properties(kernel: Kernel, case: Case, dtype: str) -> Iterator[Outcome]:
    """The same bits twice, inputs that stay as they were, and tensors that are not contiguous."""
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
    changed = tuple(
        Finding(name, np.inf, 0.0, cause=f"the function changes its argument {name}") for name in first.changed
    )
    yield Outcome("inputs are not changed", dtype, "wrong" if changed else "right", changed)
    strided = kernel.run(case, dtype, strided=True)
    if strided.refusal:
        yield Outcome("tensors that are not contiguous", dtype, "refused", reason=strided.refusal)
        return
    found = _wrong_parts(kernel, case, strided, dtype) or _wrong_gradients(case, strided, dtype)
    if found and not (_wrong_parts(kernel, case, first, dtype) or _wrong_gradients(case, first, dtype)):
        found = [
            replace(finding, cause="strides are ignored: the tensors are read as if contiguous") for finding in found
        ]
    yield Outcome("tensors that are not contiguous", dtype, "wrong" if found else "right", tuple(found))


def _try_dropout(kernel: Kernel, case: Case, dtype: str) -> Outcome:
    """Weights after dropout are 0 or the exact ones divided by 1 - p; about p of them are 0, and gradients follow."""
    if kernel.missing(case) == "mask":
        case = replace(case, arguments={name: value for name, value in case.arguments.items() if name != "mask"})
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
