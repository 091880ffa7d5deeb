"""Fixtures of the whole suite: random state, calls without shape checks, and the table of proved claims."""

import dataclasses
import functools
import gc
import inspect
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import beartype
import hypothesis
import jaxtyping
import pytest
import torch

# regard is imported late here: modules that are imported before pytest is configured get no shape checks.

os.environ["LANGUAGE"] = "en"  # messages are compared in English, whatever the language of the contributor

_jaxtyped = jaxtyping.jaxtyped
_axis_sizes = _jaxtyped("context")  # in its block an axis has one size; entered again by each call
_beartype = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def _jaxtyped_if_shaped(function_or_class: Any = None, **options: Any) -> Any:
    """Check the shapes in annotations of functions of modules and classes, and of the fields of dataclasses.

    jaxtyping's own wrapper binds the arguments and checks them twice, before and after the call, so it took a third of
    the time of the tests. Here beartype's wrapper checks arguments and result once, while jaxtyping has the axis sizes.
    Nested functions are skipped: their checks would be compiled again in every call, which takes longer than the tests.
    Functions without shapes are skipped too, since mypy checks all that they annotate: a training step of a small model
    calls 400 of them, and their checks took two fifths of its time.
    """
    if function_or_class is None:
        inside_a_function = sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
        return lambda function: function if inside_a_function else _jaxtyped_if_shaped(function, **options)
    if inspect.isclass(function_or_class):
        if dataclasses.is_dataclass(function_or_class) and "__init__" in vars(function_or_class):
            function_or_class.__init__ = _jaxtyped_if_shaped(function_or_class.__init__)
        return function_or_class
    if hasattr(function_or_class, "__wrapped__") or not _has_shape_annotation(function_or_class):
        return function_or_class
    if inspect.isgeneratorfunction(function_or_class):  # beartype would check nothing before its first value
        return _jaxtyped(function_or_class, typechecker=_beartype)
    return _with_shape_checks(function_or_class)


def _with_shape_checks(function: Any) -> Any:
    original_annotations = function.__annotations__
    function.__annotations__ = {name: _resolve(hint, function) for name, hint in original_annotations.items()}
    checked = _beartype(function)
    function.__annotations__ = original_annotations

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _axis_sizes:
            return checked(*args, **kwargs)

    return wrapper


def _resolve(annotation: Any, function: Any) -> Any:
    """Evaluate an annotation; Any if it contains a name that is imported for mypy alone or defined later."""
    holder = SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return get_type_hints(holder, function.__globals__, include_extras=True)["hint"]
    except (NameError, TypeError):  # TypeError: "Later" | None
        return Any


def _has_shape_annotation(function: Any) -> bool:
    """Whether an annotation contains a shape, as in Float[Tensor, "batch length"], or an alias of one."""
    names = {name for text in function.__annotations__.values() for name in re.findall(r"\w+", str(text))}
    values = (function.__globals__.get(name) for name in names)
    return any(
        inspect.isclass(value) and issubclass(value, jaxtyping.AbstractArray | jaxtyping.AbstractDtype)
        for value in values
    )


jaxtyping.jaxtyped = _jaxtyped_if_shaped
# Hypothesis' default time limits fail on a slow or busy machine.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile(
    "without slow tests", hypothesis.settings.get_profile("any machine"), max_examples=25
)
hypothesis.settings.load_profile("any machine")
torch.set_num_threads(1)  # the tests' tensors are tiny, and pytest's workers share the cores
# No test cuts the power, and waiting for the disk takes milliseconds for each file that a test saves. Commands that
# tests start as processes do wait, and tests/unit/train/test_run_folder.py checks what is synced, and when.
os.fsync = lambda handle: os.fstat(handle) and None  # raises for a handle that is closed
# Background jobs of a shell ignore SIGINT, but tests interrupt the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-table",
        metavar="FILE",
        help="after a run in which every claim of tests/conformance was proved, write the table of them to FILE",
    )


@pytest.fixture(autouse=True)
def reset_random_state() -> None:
    """Seed the random number generators and use one thread, independently of earlier tests.

    A CTranslate2 translator sets the number of threads of the whole process. With two threads in each pytest worker,
    the workers wait for one another, and all later tests took 5 to 10 times as long.
    """
    torch.default_generator.manual_seed(20_17)  # torch.manual_seed records the stack, for uninitialized devices
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(20_17)
    torch.set_num_threads(1)


@pytest.fixture
def without_shape_checks() -> Iterator[None]:
    """Disable the suite's shape checks, which would catch a wrong argument before the package raises its own error."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class ProofRecorder:
    """Collects the claims that were proved in this run, from all parallel workers."""

    def __init__(self, path: str) -> None:
        self.path, self.proved = Path(path), set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.proved |= {tuple(value) for name, value in report.user_properties if name == "proved"}

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        from conformance.claims import PORTABLE_CLAIMS
        from conformance.promise_table import render_page

        missing = [claim for claim in PORTABLE_CLAIMS if claim not in self.proved]
        if missing:
            terminalreporter.write_line(
                f"{self.path} not written: {len(missing)} claims unproved, such as {missing[0]}"
            )
        else:
            self.path.write_text(render_page(PORTABLE_CLAIMS), encoding="utf-8")
            terminalreporter.write_line(f"wrote {self.path}: {len(PORTABLE_CLAIMS)} claims proved")


def pytest_configure(config: pytest.Config) -> None:
    if "not slow" in config.option.markexpr:
        hypothesis.settings.load_profile(
            "without slow tests"
        )  # tests/support/hypothesis_examples.py lowers a test's own number
    path = config.getoption("--write-table")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(ProofRecorder(path), "proof_recorder")
        stale = "tests/conformance/test_table.py::test_docs_page_is_up_to_date"
        config.option.deselect = [*(config.option.deselect or []), stale]


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are imported: there is hardly any, and to look for it took a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Keep what is imported out of later collections of garbage, which took half a second of each of many tests."""
    gc.collect()
    gc.freeze()
    _let_loggers_of_torch_propagate()


def _let_loggers_of_torch_propagate() -> None:
    """Pass records of torch's 40 loggers to the logger "torch", since pytest's hooks add handlers to those that do not.

    To add and remove these handlers, three times a test, took longer than a small test.
    """
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch.") and isinstance(logger, logging.Logger):
            logger.propagate = True


@pytest.fixture
def record_proof(record_property):
    """Return a function that records a claim as proved, to be called at the end of its test; samples prove nothing."""

    def note(claim: tuple[str, ...], *, complete: bool = True) -> None:
        if complete:
            record_property("proved", tuple(claim))

    return note


@pytest.fixture(scope="session", autouse=True)
def no_error_inside_an_error() -> Iterator[None]:
    """Refuse an error of regard that quotes another one whole, as where one is caught as a ValueError."""
    from regard.errors import RegardError

    original = RegardError.__init__

    def checked(self: RegardError, what: str, *, expected: str = "", got: str = "", do: str = "") -> None:
        original(self, what, expected=expected, got=got, do=do)
        if not torch.compiler.is_compiling():
            assert not any("\n  expected: " in part for part in (what, expected, got, do)), (what, expected, got, do)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RegardError, "__init__", checked)
        yield
