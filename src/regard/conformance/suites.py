"""The cases that a function is tried with: suites of cases by mechanism, in the sizes that the function accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.arguments import explain_arguments
from regard.conformance.attention_cases import Sizes, attention_cases
from regard.conformance.cases import Case
from regard.conformance.kernel import Kernel
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.other_cases import SCANS, mechanism_cases, scan_cases
from regard.conformance.packed_cases import packed_cases
from regard.errors import check_choice

SIZES = (Sizes(), Sizes(16), Sizes(16, 16), Sizes(64, 64), Sizes(64, 128))
"""Sizes that are tried until the function accepts a call: primes, and then multiples of usual tiles."""
ALIGNMENTS = ("end", "start")
SUITES = {"regard": ("bhld", "blhd"), "packed": ("thd",), "onnx": ("bhld", "blhd")}
"""The layouts in which functions take the cases of each suite."""
ONNX_SCANS = ("kda", "gated_linear", "mamba2")
"""Mechanisms of the scan family that ONNX's node tests of LinearAttention are cases of."""


def check_suite(suite: object, mechanism: str) -> None:
    """Raise OptionError unless the suite has cases of the mechanism."""
    others = ("regard", "onnx") if mechanism in ONNX_SCANS else ("regard",)
    check_choice("suite", suite, SUITES if mechanism == "dot_product" else others)


@explain_arguments
def cases_of(mechanism: str, align: str = "end", suite: str = "regard") -> tuple[Case, ...]:
    """All cases of a mechanism, of sizes that are primes; a scan takes its scale as an argument.

    ``align`` and ``suite`` are as in ``check``. Raises OptionError for an unknown mechanism, alignment or suite.
    """
    check_choice("mechanism", mechanism, ORACLES)
    check_choice("align", align, ALIGNMENTS)
    check_suite(suite, mechanism)
    return _build_cases(mechanism, suite, SIZES[0], align, with_scale=True)


def _build_cases(mechanism: str, suite: str, sizes: Sizes, align: str, *, with_scale: bool) -> tuple[Case, ...]:
    if suite == "onnx":
        from regard.conformance.onnx_cases import onnx_cases

        return onnx_cases(mechanism)
    if suite == "packed":
        return packed_cases(sizes, align)
    if mechanism == "dot_product":
        return attention_cases(sizes, align)
    scans = scan_cases(mechanism, sizes, with_scale=with_scale) if mechanism in SCANS else ()
    is_gated = mechanism in SCANS and mechanism != "retention"  # kernels take decays, the mechanism what its gates read
    return scans if is_gated else (*mechanism_cases(mechanism, sizes), *scans)


def cases_of_kernel(kernel: Kernel) -> tuple[Case, ...]:
    """The cases of a function in its sizes, with its fixed arguments."""
    with_scale = kernel.signature.takes("scale")
    cases = _build_cases(kernel.mechanism, kernel.suite, kernel.sizes, kernel.convention.align, with_scale=with_scale)
    return _with_arguments(cases, kernel) if kernel.fixed else cases


def _with_arguments(cases: Sequence[Case], kernel: Kernel) -> tuple[Case, ...]:
    """The cases with the fixed arguments, without those that have another value of one."""

    def change(case: Case) -> Case:
        arguments = {**case.arguments, **kernel.fixed, "align": kernel.convention.align}
        return replace(case, arguments=arguments, clean=None if case.clean is None else change(case.clean), _slopes={})

    return tuple(change(case) for case in cases if not case.arguments.keys() & kernel.fixed.keys())


def simplest_case(kernel: Kernel) -> Case:
    """The simplest case of several tokens that the function takes."""
    return next(case for case in cases_of_kernel(kernel) if case.layout.keys > 1 and not kernel.missing(case))
