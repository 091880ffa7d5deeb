"""Try a function on all cases of its mechanism: results, gradients, canaries, determinism, dropout."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regard.arguments import explain_arguments
from regard.conformance.arguments import read_signature
from regard.conformance.frameworks import Framework, make_framework
from regard.conformance.kernel import LAYOUTS, MASK_FORMS, Convention, Kernel
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.other_cases import SCANS, mechanism_cases
from regard.conformance.outcomes import Progress, try_all, up_to_first_wrong
from regard.conformance.recognition import DTYPES, describe, guess_frameworks, recognise
from regard.conformance.report import Report
from regard.conformance.suites import ALIGNMENTS, SIZES, check_suite
from regard.errors import check_choice, check_flag, check_kind


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
            tried by itself; or "onnx" for ONNX's own node tests of the mechanism, with exact results.
        strict: try inf and nan behind masks, too, which most kernels multiply with weights of 0.
        fail_fast: stop at the first case that is wrong.
        progress: called with the number of cases done and of all.

    Raises OptionError for an unknown name and RefusedError if the function accepts no call.
    """
    _check_options(mechanism, dtypes, {"names": names, "fixed": fixed}, layout=layout, mask=mask, align=align)
    check_flag("strict", strict)
    check_suite(suite, mechanism)
    if heads is not None:
        check_kind("heads", heads, (tuple, list), do="for example (8, 2)")
        heads = (heads[0], heads[-1])
    parameters = () if mechanism in SCANS or mechanism == "dot_product" else tuple(_parameter_names(mechanism))
    signature, convention = read_signature(function, names or {}, parameters), Convention(align=align)
    takes_lengths = suite == "regard" and mechanism == "dot_product" and signature.takes("cu_seqlens_q")
    kernels = [
        Kernel(function, candidate, signature, convention, mechanism, candidate_suite, fixed=fixed or {})
        for candidate_suite in (("packed", suite) if takes_lengths else (suite,))
        for candidate in _find_frameworks(function, framework, backward, device)
    ]
    kernel = recognise(kernels, heads, dtypes, layout, mask)
    others = list(dtypes)[1:] if dtypes else [name for name in ("bfloat16",) if name in kernel.framework.dtypes]
    others = [name for name in others if name != kernel.dtype]
    tried = try_all(kernel, others, strict=strict, progress=progress)
    outcomes = tuple(up_to_first_wrong(tried) if fail_fast else tried)
    title = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"
    return Report(title, mechanism, kernel.framework.name, describe(kernel), outcomes)


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


def _parameter_names(mechanism: str) -> list[str]:
    return [name for name in mechanism_cases(mechanism, SIZES[0])[0].inputs if name not in ("query", "key", "value")]
