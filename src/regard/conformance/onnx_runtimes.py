"""Runtimes of ONNX, tried with its node tests of attention: ONNX Runtime, and the evaluator of the package ``onnx``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from regard.conformance.equations import largest_error
from regard.conformance.onnx_cases import (
    OPERATORS,
    NodeTest,
    expected_outputs,
    make_case,
    read_expanded_tests,
    read_node_tests,
)
from regard.conformance.outcomes import Progress, up_to_first_wrong
from regard.conformance.report import Finding, Outcome, Report
from regard.errors import MissingPackageError, class_and_line

RUNTIMES = ("onnxruntime", "onnx.reference")
LOWEST = -6e4
"""Scores below it stand for minus infinity."""
Run = Callable[[list[str], Mapping[str, np.ndarray]], list[np.ndarray]]
"""Names of outputs and inputs by their names to outputs."""


def make_run(runtime: str, model: Any) -> Run:
    """The function by which a runtime computes a model. Raises what the runtime raises for a model that it refuses."""
    if runtime == "onnx.reference":
        from onnx.reference import ReferenceEvaluator

        session: Any = ReferenceEvaluator(model)
    else:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda outputs, inputs: [np.asarray(part) for part in session.run(outputs, dict(inputs))]


def check_onnx_runtime(runtime: str, *, fail_fast: bool = False, progress: Progress | None = None) -> Report:
    """Compare a runtime of ``RUNTIMES`` with the exact results of ONNX's node tests of attention.

    Tests that spell others in other operators are tried, too: for them, the runtime computes those operators.
    Raises MissingPackageError without the runtime.
    """
    package = runtime.partition(".")[0]
    if find_spec(package) is None:
        raise MissingPackageError(f"the package {package} is not installed", do=f"pip install {package}")
    outcomes = _try_tests(runtime, progress)
    conventions = f"{package} {version(package)}, with the node tests of onnx {version('onnx')}"
    return Report(
        runtime, "attention", "onnx", (conventions,), tuple(up_to_first_wrong(outcomes) if fail_fast else outcomes)
    )


def _try_tests(runtime: str, progress: Progress | None) -> Iterator[Outcome]:
    tests = tuple(read_expanded_tests(read_node_tests(*OPERATORS)))
    for number, test in enumerate(tests):
        yield _try_test(runtime, test)
        if progress is not None:
            progress(number + 1, len(tests))


def _try_test(runtime: str, test: NodeTest) -> Outcome:
    name = test.name.removeprefix("test_")
    if test.without_case:
        return Outcome(name, test.dtype, "not tried", reason=test.without_case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numbers behind a mask overflow on purpose
            found = make_run(runtime, test.model)(list(test.outputs), test.inputs)
    except Exception as error:  # of the runtime, for an operator or a dtype that it does not have
        return Outcome(name, test.dtype, "refused", reason=class_and_line(error, 200))
    exact = expected_outputs(test, make_case(test))
    findings = tuple(
        finding
        for output, actual in zip(test.outputs, found, strict=True)
        for finding in compare_output(output, actual, *exact[output])
    )
    return Outcome(name, test.dtype, "wrong" if findings else "right", findings)


def compare_output(name: str, actual: np.ndarray, exact: np.ndarray, bound: float) -> tuple[Finding, ...]:
    """Findings about an output of an operator; the lowest numbers of a dtype are as good as minus infinity."""
    actual = actual.astype(np.float64)
    if actual.shape == exact.shape:
        exact = np.where(np.isneginf(exact) & (actual <= LOWEST), actual, exact)
    error = largest_error(actual, exact)
    return () if error <= bound else (Finding(name, error, bound),)
