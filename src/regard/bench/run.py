"""``run``: time, peak memory and error of mechanisms for a shape, at several lengths.

At each length, every mechanism first makes one call in a process of its own, which gives its peak memory and stops a
call that takes too long. Then all make calls in turns, for their times. Last, the weights of some queries are compared
with exact ones.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from regard.arguments import explain_arguments
from regard.available_memory import available_memory
from regard.bench.case_process import describe_failure
from regard.bench.choose_mechanisms import EXACT, choose_mechanisms
from regard.bench.error_source import ErrorSource, SyntheticErrors
from regard.bench.peak_memory import CaseProcess
from regard.bench.problem import Tokens, make_call, make_tokens, refusal_reason
from regard.bench.report import BenchCase, BenchedMechanism, BenchReport
from regard.bench.settings import BenchSettings
from regard.bench.timing import Timing
from regard.comparison import MechanismChoice
from regard.devices import counts_peak_bytes, describe_device, measure_peak_bytes
from regard.energy import EnergyMeter
from regard.errors import OptionError, RegardError
from regard.interleaved_timing import sample_seconds
from regard.kernels import extension
from regard.mechanism_catalogue import BUILT_IN_NAMES
from regard.mechanisms import Mechanism

ROUNDS = 21
"""Maximum number of turns of a call."""

_ENERGY_SECONDS = 0.5
"""Minimum seconds of calls whose energy is measured."""

Advance = Callable[[int], None]
"""Receives the number of finished cases."""


@explain_arguments
def run(
    mechanisms: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    advance: Advance | None = None,
    **settings: Any,
) -> BenchReport:
    """Measure mechanisms against exact attention (``dot_product``), on random tokens.

    Args:
        mechanisms: names, with options as the shell writes them ("nystromformer:landmarks=32"), or a mapping from names
            to options; None is the whole catalogue.
        advance: called with the number of finished cases, one per mechanism and length.
        settings: fields of ``BenchSettings``: lengths, heads, head_dim, batch, dtype, causal, backward, device,
            threads, seconds, rows, top, seed.

    A mechanism that refuses a case, or fails in it, is in the report with the reason. Raises OptionError for settings
    out of range, and for unknown mechanisms and options.
    """
    chosen, checked = choose_mechanisms(mechanisms), BenchSettings(**settings)
    return measure(chosen, checked, SyntheticErrors(checked), advance)


def measure(
    choices: Sequence[MechanismChoice], settings: BenchSettings, errors: ErrorSource, advance: Advance | None
) -> BenchReport:
    """Measure time and memory on random tokens, and the error on the tokens of ``errors``."""
    for chosen in choices:
        _check_buildable(chosen, settings)
    cases: list[BenchCase] = []
    in_process = torch.device(settings.device).type == "cpu" and CaseProcess.is_supported()
    with _threads(settings.threads), CaseProcess(settings) if in_process else nullcontext() as process:
        machine, meter = describe_machine(settings), EnergyMeter(settings.device)
        for length in settings.lengths:
            if advance is not None:
                advance(len(cases))
            cases += _measure_length(choices, settings, length, cases, process, errors, meter)
    if advance is not None:
        advance(len(cases))
    described = tuple(_describe(choice, settings) for choice in choices)
    return BenchReport(settings, machine, errors.tokens_note, described, tuple(cases), meter.missing_reason)


def _check_buildable(choice: MechanismChoice, settings: BenchSettings) -> None:
    """Raise the error of a constructor that refuses its options at every length: they are wrong, not the lengths."""
    errors = []
    for length in settings.lengths:
        try:
            _build(choice, settings, length)
        except OptionError as error:
            errors.append(error)
        except RegardError:
            return
    if choice.options and len(errors) == len(settings.lengths):
        raise errors[-1]


def _build(choice: MechanismChoice, settings: BenchSettings, length: int) -> Mechanism:
    built = choice.build(heads=settings.heads, head_dim=settings.head_dim, length=length, seed=settings.seed)
    return built.to(device=settings.device)


def _describe(choice: MechanismChoice, settings: BenchSettings) -> BenchedMechanism:
    row = choice.row
    approximates, weights_are = row.approximates, row.weights_are  # options may change both
    try:
        built = _build(choice, settings, settings.lengths[-1])
        untrained = sum(parameter.numel() for parameter in built.parameters())
        left_out = tuple(extra_input.name for extra_input in built.extra_inputs if extra_input.projected)
        approximates, weights_are, is_causal = built.approximates, built.weights_are, built.traits.hides_later_keys
    except RegardError:
        untrained, left_out, is_causal = 0, (), False
    return BenchedMechanism(
        choice.label,
        row.name,
        dict(choice.options),
        approximates,
        weights_are,
        untrained,
        left_out=left_out,
        hides_later_keys=is_causal,
    )


def _measure_length(
    choices: Sequence[MechanismChoice],
    settings: BenchSettings,
    length: int,
    earlier: Sequence[BenchCase],
    process: CaseProcess | None,
    errors: ErrorSource,
    meter: EnergyMeter,
) -> list[BenchCase]:
    """Measure all mechanisms at one length."""
    cases: dict[str, BenchCase] = {}
    ready: dict[str, Mechanism] = {}
    by_label = {choice.label: choice for choice in choices}
    for chosen in choices:
        case = BenchCase(chosen.label, length)
        reason = _reason_to_skip(chosen, settings, length, earlier)
        if reason is not None:
            cases[chosen.label] = _without_result(case, reason)
            continue
        try:
            mechanism = _build(chosen, settings, length)
            refused = refusal_reason(mechanism, settings, length)
        except RegardError as error:
            refused = describe_failure(error)
        if refused is not None:
            cases[chosen.label] = replace(_without_result(case, refused), refused=refused)
            continue
        cases[chosen.label] = case = _measure_first_call(case, chosen, settings, process)
        if not case.missing.keys() & {"time"}:
            ready[chosen.label] = mechanism
    if ready:
        tokens = make_tokens(settings, length)
        cases |= _measure_times(ready, cases, settings, tokens, meter)
        for label, mechanism in ready.items():
            if label != EXACT and cases[label].time is not None:
                cases[label] = _measure_error(cases[label], by_label[label], mechanism, tokens, errors)
    return [cases[choice.label] for choice in choices]


def _reason_to_skip(
    choice: MechanismChoice, settings: BenchSettings, length: int, earlier: Sequence[BenchCase]
) -> str | None:
    """Return why a case is not started: too many tokens for the memory, or a shorter length took too long."""
    room, needed = available_memory(), settings.token_bytes * length
    if settings.device == "cpu" and room is not None and needed > room:
        return f"its tokens alone need {needed / 1e9:,.1f} GB, and {room / 1e9:,.1f} GB are available"
    for case in earlier:
        if case.mechanism != choice.label:
            continue
        if case.stopped is not None or (case.time is not None and case.time.median > settings.stop_seconds):
            return f"a call at {case.length:,} tokens took longer than {settings.stop_seconds:g} s"
        if case.missing.get("time") == "not enough memory":
            return f"there was not enough memory at {case.length:,} tokens"
    return None


def _without_result(case: BenchCase, reason: str) -> BenchCase:
    missing = dict.fromkeys(("time", "peak_bytes", "error"), reason)
    if case.mechanism == EXACT:
        del missing["error"]
    return replace(case, missing=missing)


def _measure_first_call(
    case: BenchCase, choice: MechanismChoice, settings: BenchSettings, process: CaseProcess | None
) -> BenchCase:
    """Measure the peak memory of one call; a case that failed or was stopped gets the reason."""
    if process is None:
        if counts_peak_bytes(torch.device(settings.device)):
            return case
        reason = "measured on a device whose memory torch counts, and on CPUs on Linux and macOS"
        return replace(case, missing={"peak_bytes": reason})
    if choice.name not in BUILT_IN_NAMES:
        return replace(case, missing={"peak_bytes": "the mechanism is registered in this process alone"})
    first = process.measure(choice, case.length)
    if first.too_slow:
        stopped = _without_result(case, f"a call took longer than {settings.stop_seconds:g} s")
        return replace(stopped, stopped=settings.stop_seconds)
    if first.refused is not None:
        return replace(_without_result(case, first.refused), refused=first.refused)
    if first.failed is not None:
        return _without_result(case, first.failed)
    return replace(
        case, peak_bytes=None if first.peak_bytes is None else max(first.peak_bytes, _output_bytes(case, settings))
    )


def _output_bytes(case: BenchCase, settings: BenchSettings) -> int:
    """The bytes of the output, which a call adds at least: a process' memory grows by whole pages, or not at all."""
    numbers = settings.batch * settings.heads * case.length * settings.head_dim
    return numbers * getattr(torch, settings.dtype).itemsize


def _measure_times(
    ready: Mapping[str, Mechanism],
    cases: Mapping[str, BenchCase],
    settings: BenchSettings,
    tokens: Tokens,
    meter: EnergyMeter,
) -> dict[str, BenchCase]:
    """Time all calls in turns, and measure their energy; each peak first, where torch counts a device's memory."""
    measured, calls = {}, {}
    for label, mechanism in ready.items():
        call = make_call(mechanism, tokens, settings.mask, backward=settings.backward)
        measured[label] = cases[label]
        try:
            if counts_peak_bytes(tokens[0].device):
                measured[label] = replace(cases[label], peak_bytes=measure_peak_bytes(call, tokens[0].device))
            elif cases[label].peak_bytes is None:
                call()  # no process of its own has tried it
        except (RegardError, MemoryError, RuntimeError) as error:
            measured[label] = _without_result(cases[label], describe_failure(error))
            continue
        calls[label] = call
    for label, seconds in sample_seconds(calls, seconds=settings.seconds, rounds=ROUNDS).items():
        measured[label] = replace(measured[label], time=Timing.of(seconds), joules=_measure_energy(meter, calls[label]))
    return measured


def _measure_energy(meter: EnergyMeter, call: Callable[[], object]) -> float | None:
    """Return the joules of one call, as the mean of calls for a while: counters advance every few milliseconds."""
    before, start, calls = meter.read(), time.perf_counter(), 0
    if before is None:
        return None
    while calls == 0 or time.perf_counter() - start < _ENERGY_SECONDS:
        call()
        calls += 1
    after = meter.read()
    return None if after is None else (after - before) / calls


def _measure_error(
    case: BenchCase, choice: MechanismChoice, mechanism: Mechanism, tokens: Tokens, errors: ErrorSource
) -> BenchCase:
    """Compare the weights and outputs of some queries with exact attention."""
    try:
        found, rows = errors.compare(choice, mechanism, tokens)
    except (RegardError, MemoryError, RuntimeError) as error:
        return replace(case, missing=dict(case.missing) | {"error": describe_failure(error)})
    return replace(case, error=found, error_rows=rows)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Use ``count`` threads inside; None is torch's number."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def describe_machine(settings: BenchSettings) -> dict[str, str | int]:
    """Return the processor or GPU, its cores, the threads in use, and the versions of the software."""
    device = torch.device(settings.device)
    return {
        "processor": _processor_name() if device.type == "cpu" else describe_device(device),
        "cores": os.cpu_count() or 1,
        "threads": torch.get_num_threads(),
        "instructions": extension.native.isa() if extension.missing_reason is None else "none",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "regard": version("regard"),
    }


def _processor_name() -> str:
    """Read the name of the processor; where the system does not say, its architecture."""
    file = Path("/proc/cpuinfo")
    if file.exists():
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
