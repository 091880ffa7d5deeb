"""Runs for a shape: errors against NumPy, memory against known sizes, and cases that are refused or stopped."""

import importlib
import json
import math

import numpy as np
import pytest
import torch

import regard.bench
from regard.bench.peak_memory import CaseProcess
from regard.bench.settings import BenchSettings
from regard.bench.tables import report_tables
from regard.comparison import MechanismChoice
from regard.errors import OptionError
from script_process import run_script

LENGTH, HEADS, HEAD_DIM = 53, 3, 7
run_module = importlib.import_module("regard.bench.run")  # its package has a function of that name


class CountingMeter:
    """Counts 7 joules for each reading."""

    missing_reason = None

    def __init__(self, device):
        assert device == "cpu"
        self.joules = 0.0

    def read(self):
        self.joules += 7.0
        return self.joules


class SilentMeter(CountingMeter):
    """Has no counters."""

    missing_reason = "this system has no energy counters; virtual machines seldom have them"

    def read(self):
        return None


@pytest.fixture(scope="module")
def report():
    return regard.bench.run(
        ["linear", "longformer:window=8", "linformer:projected=5", "bigbird:causal=true"],
        lengths=[LENGTH, 19],
        heads=HEADS,
        head_dim=HEAD_DIM,
        causal=True,
        batch=2,
        seconds=0.05,
        top=5,
        seed=3,
    )


@pytest.fixture(scope="module")
def process():
    """One process for all tests that measure cases by themselves, since its start takes seconds."""
    with CaseProcess(BenchSettings()) as process:
        yield process


@pytest.fixture
def without_processes(monkeypatch):
    """Measure no memory, as on systems that cannot fork: starting a process takes seconds."""
    monkeypatch.setattr(CaseProcess, "is_supported", lambda: False)


@pytest.mark.parametrize("mechanism", ["longformer", "longformer:window=8"])
def test_a_case_is_found_by_label_or_by_the_name_of_one(report, mechanism):
    assert report.case(mechanism, 19).mechanism == "longformer:window=8"
    assert report.crossing(mechanism) == report.crossing("longformer:window=8")


def test_a_case_that_was_not_measured(report):
    with pytest.raises(OptionError, match=r"'performer' was not measured(.|\n)*'longformer:window=8'"):
        report.crossing("performer")
    with pytest.raises(OptionError, match=r"length 20 was not measured(.|\n)*53, 19|length 20(.|\n)*19, 53"):
        report.case("linear", 20)


def draw_tokens():
    """Draw the tokens of the first text as a reader of the report would: standard normal numbers of the seed."""
    generator = torch.Generator().manual_seed(3)
    shape = (2, HEADS, LENGTH, HEAD_DIM)
    return [torch.randn(shape, generator=generator)[0].double().numpy() for _ in range(3)]


def causal_softmax(scores):
    scores = np.where(np.tri(LENGTH, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def measure(exact, other, value):
    """Mass kept, top-5 agreement and output error, by loops."""
    kept, agreed = [], []
    for row, other_row in zip(exact.reshape(-1, LENGTH), other.reshape(-1, LENGTH), strict=True):
        kept.append(sum(min(p, w) for p, w in zip(row, other_row, strict=True)))
        wanted = {key for key in np.argsort(-row)[:5] if row[key] > 0}
        agreed.append(len(wanted & {key for key in np.argsort(-other_row)[:5] if other_row[key] > 0}) / len(wanted))
    error = np.linalg.norm(other @ value - exact @ value) / np.linalg.norm(exact @ value)
    return np.mean(kept), np.mean(agreed), error


def expected_weights(name):
    query, key, _ = draw_tokens()
    if name == "linear":
        query, key = (np.where(one > 0, one + 1, np.exp(np.minimum(one, 0))) for one in (query, key))
        products = (query @ key.transpose(0, 2, 1)) * np.tri(LENGTH)
        return products / products.sum(-1, keepdims=True)
    scores = query @ key.transpose(0, 2, 1) / math.sqrt(HEAD_DIM)
    if name == "dot_product":
        return causal_softmax(scores)
    places = np.arange(LENGTH)
    near = np.abs(places[:, None] - places) <= 4  # a window of 8 is 4 keys on each side
    near[:, 0] = near[0, :] = True  # token 0 is global by default
    return causal_softmax(np.where(near, scores, -np.inf))


@pytest.mark.parametrize("label", ["linear", "longformer:window=8"])
def test_errors_agree_with_numpy(report, label):
    case = report.case(label, LENGTH)
    value = draw_tokens()[2]
    kept, agreed, error = measure(expected_weights("dot_product"), expected_weights(label), value)
    assert case.error_rows == LENGTH
    assert case.error.mass_kept == pytest.approx(kept, abs=1e-5)
    assert case.error.top_agreement == pytest.approx(agreed, abs=1e-5)
    assert case.error.output_error == pytest.approx(error, rel=1e-4)


def test_every_case_is_in_the_report(report):
    labels = ["dot_product", "linear", "longformer:window=8", "linformer:projected=5", "bigbird:causal=true"]
    assert [(case.mechanism, case.length) for case in report.cases] == [
        (label, length) for length in (19, LENGTH) for label in labels
    ]
    for case in report.cases:
        if case.refused is None:
            assert 0 < case.time.low <= case.time.median <= case.time.high
            assert case.time.runs >= 1
            assert case.peak_bytes >= 0
            assert not case.missing


def test_a_mechanism_without_causal_form_is_refused_with_the_reason(report):
    case = report.case("linformer:projected=5", LENGTH)
    assert "no causal mask" in case.refused
    assert set(case.missing) == {"time", "peak_bytes", "error"}
    assert (case.time, case.peak_bytes, case.error) == (None, None, None)
    assert report.crossing("linformer:projected=5").status == "unmeasured"


def test_json(report):
    found = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert found["settings"]["lengths"] == [19, LENGTH]
    assert found["machine"]["torch"] == torch.__version__
    assert "standard normal" in found["tokens"]
    exact, linear, longformer, linformer, _ = found["mechanisms"]
    assert exact["faster"] is None
    assert (linear["approximates"], longformer["approximates"]) == (None, "dot_product")
    assert longformer["options"] == {"window": 8}
    assert linformer["untrained"] == 2 * 5 * LENGTH  # projections of keys and of values, shared by all heads
    assert linformer["faster"]["status"] == "unmeasured"
    case = next(case for case in found["cases"] if (case["mechanism"], case["length"]) == ("linear", LENGTH))
    measured = report.case("linear", LENGTH)
    assert case["seconds"]["median"] == measured.time.median
    assert case["peak_bytes"] == measured.peak_bytes
    assert case["error"]["rows"] == LENGTH
    assert case["error"]["mass_kept"] == measured.error.mass_kept


@pytest.mark.usefixtures("without_processes")
def test_more_landmarks_than_tokens_is_exact():
    report = regard.bench.run(["nystromformer:landmarks=99"], lengths=[11], heads=2, head_dim=5, seconds=0.01)
    case = report.case("nystromformer:landmarks=99", 11)
    assert "Linux" in case.missing["peak_bytes"]
    error = case.error
    assert error.output_error < 1e-5
    assert error.mass_kept == pytest.approx(1.0)


def test_peak_memory_is_that_of_the_call(process):
    """At least the output, which the call allocates; forward and backward at least as much and three gradients.

    The weights of exact attention would take 256 times as much as the output.
    """
    length, heads, head_dim = 4096, 2, 16
    output = length * heads * head_dim * 4
    for backward, least in ((False, output), (True, 4 * output)):
        process.settings = BenchSettings(
            lengths=[length], heads=heads, head_dim=head_dim, backward=backward, seconds=60.0
        )
        for name in ("dot_product", "linear"):
            first = process.measure(MechanismChoice(name), length)
            assert first.failed is None
            assert least <= first.peak_bytes < length * length * heads * 4 / 2
            assert 0 < first.seconds < 60


def test_slow_calls_are_stopped_and_longer_ones_not_started(process):
    """Plain torch for 2^28 pairs takes longer than a second, in memory linear in length; the next case still runs."""
    process.settings = BenchSettings(lengths=[2**14], heads=8, head_dim=64, seconds=0.01)
    assert process.measure(MechanismChoice("talking_heads"), 2**14).too_slow
    assert process.measure(MechanismChoice("linear"), 16).seconds > 0


def test_a_length_whose_tokens_do_not_fit_is_not_started():
    report = regard.bench.run(["linear"], lengths=[2**24], heads=4096, head_dim=64)
    for case in report.cases:
        assert "tokens alone need" in case.missing["time"]


REGISTERED = """
import regard
from dataclasses import replace
(linear,) = (row for row in regard.catalogue() if row.name == "linear")
regard.register_mechanism(replace(linear, name="another"))
import regard.bench
report = regard.bench.run({"another": {}}, lengths=[11], heads=2, head_dim=5, seconds=0.01)
case = report.case("another", 11)
assert case.time is not None, case.missing
assert "registered in this process" in case.missing["peak_bytes"], case.missing
"""


def test_a_registered_mechanism_is_measured_without_memory():
    """The process that measures memory does not have it, and so is not asked, whatever is imported first."""
    result = run_script(REGISTERED)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.usefixtures("without_processes")
def test_thread_count_is_restored():
    before = torch.get_num_threads()
    report = regard.bench.run([], lengths=[11], heads=2, head_dim=5, seconds=0.01, threads=2)
    assert report.machine["threads"] == 2
    assert torch.get_num_threads() == before


def test_marks_follow_the_options(without_processes):
    names = ["performer:kernel=relu", "reformer", "longformer:window=8:global_projections=false", "longformer:window=8"]
    report = regard.bench.run(names, lengths=[LENGTH], heads=HEADS, head_dim=HEAD_DIM, seconds=0.01)
    _, relu, reformer, plain, projected = report.to_json()["mechanisms"]
    assert relu["approximates"] is None
    assert (reformer["left_out"], plain["left_out"]) == ((), ())  # inputs that only a caller can pass
    assert set(projected["left_out"]) == {"global_query", "global_key", "global_value"}


@pytest.mark.parametrize("causal", [False, True])
def test_mechanisms_that_hide_later_keys_are_marked_beside_exact_attention_that_sees_them(without_processes, causal):
    names = ["moba:block=8", "longformer:window=8"]
    report = regard.bench.run(names, lengths=[LENGTH], heads=HEADS, head_dim=HEAD_DIM, seconds=0.01, causal=causal)
    (errors,) = (table for table in report_tables(report) if table.title.startswith("Error"))
    marked = [row[0].startswith("moba") and "§" in row[0] for row in errors.rows]
    assert marked == [not causal, False]
    assert ("a causal mask" in errors.explanation) == (not causal)


@pytest.mark.usefixtures("without_processes")
def test_energy_is_that_of_a_call_where_the_machine_tells(monkeypatch):
    monkeypatch.setattr(run_module, "EnergyMeter", CountingMeter)
    monkeypatch.setattr(run_module, "_ENERGY_SECONDS", 0.0)  # one call between two readings
    found = regard.bench.run(["linear"], lengths=[20], heads=1, head_dim=4, batch=7, seconds=0.01)
    assert [case.to_json()["joules"] for case in found.cases] == [7.0, 7.0]
    (table,) = (table for table in report_tables(found) if table.title == "Energy of a token")
    assert [row[1] for row in table.rows] == ["50.0 mJ", "50.0 mJ"]  # of 7 texts of 20 tokens
    monkeypatch.setattr(run_module, "EnergyMeter", SilentMeter)
    found = regard.bench.run(["linear"], lengths=[20], heads=1, head_dim=4, seconds=0.01)
    assert not any(table.title == "Energy of a token" for table in report_tables(found))
    assert found.to_json()["energy_missing"] == SilentMeter.missing_reason
    assert f"No energy is measured: {SilentMeter.missing_reason}." in report_tables(found)[0].explanation
