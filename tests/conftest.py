"""Fixtures of the whole suite: random state, calls without shape checks, and the table of proved claims."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jaxtyping
import pytest
import torch

from device_under_test import find_device_under_test
from shape_checks import jaxtyped_if_shaped

# regard is imported late here: modules that are imported before pytest is configured get no shape checks.

os.environ["LANGUAGE"] = "en"  # messages are compared in English, whatever the language of the contributor

jaxtyping.jaxtyped = jaxtyped_if_shaped  # before regard is imported
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
    if item.get_closest_marker("gpu") and find_device_under_test() is None:
        pytest.skip("needs a device")


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
