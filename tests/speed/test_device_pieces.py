"""Pieces of tests and measurements on a device: what is run, what is kept, and what is run again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

from benchmarks.devices import __main__ as program
from benchmarks.devices import device, run_pieces
from benchmarks.devices.cases import CASES
from benchmarks.devices.measure import _largest_error, measure_piece
from benchmarks.devices.pieces import LIMIT_SECONDS, Piece, list_pieces
from benchmarks.devices.render import render_devices
from benchmarks.devices.run_pieces import count_tests, list_remaining, read_results, result_path, run_piece

CPU = torch.device("cpu")


def program_piece(name, source, **facts):
    """A piece that runs a program; without measurement it counts as tests."""
    return Piece(name, ("timeit", "-n", "1", "-r", "1", source), **facts)


@pytest.fixture
def run(tmp_path):
    """Run a piece in a folder, and return whether it succeeded and what was said."""

    def run(piece, limit=60.0):
        said = []
        return run_piece(piece, tmp_path, CPU, limit=limit, say=said.append), " ".join(said)

    return run


def test_a_piece_that_is_done_is_not_run_again(run, tmp_path):
    pieces = [program_piece("first", "print('3 passed in 0.1s')"), program_piece("second", "pass")]
    assert list_remaining(pieces, tmp_path, CPU) == pieces
    assert run(pieces[0])[0]
    assert list_remaining(pieces, tmp_path, CPU) == pieces[1:]
    kept = json.loads(result_path(pieces[0], tmp_path).read_text())
    assert (kept["piece"], kept["tests"]["passed"], kept["failures"]) == ("first", 3, [])
    assert kept["device"] == "CPU, as a stand-in"


def test_a_killed_piece_starts_again_and_leaves_no_process(run, tmp_path):
    mark = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(4); pathlib.Path({str(mark)!r}).touch()"
    piece = program_piece(
        "long", f"import subprocess, time; subprocess.Popen([{sys.executable!r}, '-c', {child!r}]); time.sleep(60)"
    )
    done, said = run(piece, limit=2.0)
    assert not done
    assert "killed after 2 s; it will start again" in said
    assert list_remaining([piece], tmp_path, CPU) == [piece]
    run(program_piece("wait", "import time; time.sleep(3)"))
    assert not mark.exists()


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda ending: ending.name)
def test_a_piece_ends_with_the_run(ending, tmp_path):
    """It would go on computing on the device, beside the next run."""
    begun, alive = tmp_path / "begun", tmp_path / "alive"
    child = f"""
import pathlib, time
pathlib.Path({str(begun)!r}).touch()
time.sleep(2)
pathlib.Path({str(alive)!r}).touch()
"""
    script = f"""
import pathlib, signal, torch
from benchmarks.devices.run_pieces import end_with_pieces, run_piece
from speed.test_device_pieces import program_piece
signal.signal(signal.SIGTERM, end_with_pieces)
run_piece(program_piece("long", {child!r}), pathlib.Path({str(tmp_path)!r}), torch.device("cpu"), limit=60.0)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stderr=subprocess.DEVNULL) as process:
        while not begun.exists():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(ending)
        assert process.wait(30) != 0
    time.sleep(3)
    assert not alive.exists()
    assert not result_path(program_piece("long", ""), tmp_path).exists()


@pytest.mark.parametrize(
    "piece",
    [
        program_piece("rows", "raise ValueError", is_measurement=True),
        program_piece("tests that cannot be imported", "import os; os._exit(2)"),
    ],
    ids=lambda piece: piece.name,
)
def test_a_piece_that_did_not_come_to_its_end_is_not_done(piece, run, tmp_path):
    done, said = run(piece)
    assert not done
    assert "failed, see" in said
    assert list_remaining([piece], tmp_path, CPU) == [piece]


def test_tests_that_fail_are_done_and_named(run, tmp_path):
    source = "print('FAILED tests/a.py::test_b - no\\n2 failed, 17 passed in 3.1s'); import sys; sys.exit(1)"
    piece = program_piece("tests", source)
    done, said = run(piece)
    assert not done
    assert "with failures" in said
    kept = json.loads(result_path(piece, tmp_path).read_text())
    assert (kept["tests"]["failed"], kept["tests"]["passed"]) == (2, 17)
    assert kept["failures"] == ["tests/a.py::test_b - no"]
    assert list_remaining([piece], tmp_path, CPU) == []


def test_pieces_that_are_for_other_devices_are_left_out(tmp_path):
    piece = Piece("of CUDA", ("timeit",), kinds=("cuda",))
    assert list_remaining([piece], tmp_path, CPU) == []
    assert list_remaining([piece], tmp_path, torch.device("cuda")) == [piece]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("....\n17 passed in 3.1s\n", {"passed": 17}),
        ("2 failed, 17 passed, 1 error in 61.30s (0:01:01)\n", {"failed": 2, "passed": 17, "error": 1}),
        ("3 errors in 0.5s\n", {"error": 3}),
        ("Killed", {}),
    ],
)
def test_counts_of_pytest(text, counts):
    assert count_tests(text) == counts


def test_every_implementation_and_measurement_has_a_piece():
    names = [piece.name for piece in list_pieces()]
    assert len(set(names)) == len(names)
    assert set(CASES) < set(names)
    for impl in ("auto", "sdpa", "flex", "fla", "triton", "reference"):
        assert f"tests of agreement, {impl}" in names
    files = [result_path(piece, device_folder := run_pieces.folder_of(CPU)).name for piece in list_pieces()]
    assert len(set(files)) == len(files)
    assert device_folder.name == "cpu-as-a-stand-in"
    assert LIMIT_SECONDS <= 360


@pytest.mark.parametrize("name", ["masks, forward", "embedding"])
def test_measurements_run_on_a_stand_in(name):
    found = measure_piece(name, CPU)
    assert set(found) == {"dtype", "peaks", "rows"}
    assert all(rate > 0 for rate in found["peaks"].values())
    for row in found["rows"]:
        assert row["times"], row
        assert not row["wrong"]
        assert all(time["low"] <= time["seconds"] <= time["high"] for time in row["times"].values())


def test_a_wrong_result_has_a_large_error():
    expected = torch.tensor([1.0, -4.0], dtype=torch.float64)
    assert _largest_error(torch.tensor([1.0, -3.0]), expected) == 0.25
    assert not _largest_error(torch.tensor([torch.nan, -4.0]), expected) <= 1


class TestProgram:
    @pytest.fixture
    def main(self, monkeypatch, tmp_path, capsys):
        def main(*arguments, named="cpu"):
            monkeypatch.setattr(sys, "argv", ["devices", *arguments])
            monkeypatch.setattr(run_pieces, "FOLDER", tmp_path)
            monkeypatch.setattr(program, "folder_of", lambda device: tmp_path / "here")
            monkeypatch.setattr(
                program, "list_pieces", lambda: [program_piece("first", "pass"), program_piece("second", "pass")]
            )
            monkeypatch.delenv(device.VARIABLE, raising=False)
            if named:
                monkeypatch.setenv(device.VARIABLE, named)
            return program.main(), capsys.readouterr().out

        return main

    def test_pieces_one_by_one(self, main):
        assert main("--list")[1] == "open: first\nopen: second\n"
        assert main("--one")[0] == 0
        assert main("--list")[1] == "done: first\nopen: second\n"
        code, text = main()
        assert code == 0
        assert "CPU, as a stand-in, which proves that the pieces run and measures nothing: 1 of 2 pieces to run" in text
        assert re.search(r"^second: done", text, re.MULTILINE)
        assert "0 of 2 pieces to run" in main()[1]
        assert "first: done" in main("first", "--again")[1]

    def test_an_unknown_piece(self, main):
        with pytest.raises(ValueError, match="piece"):
            main("third")

    def test_no_device(self, main, monkeypatch):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
        with pytest.raises(ValueError, match="no device to test and measure"):
            main(named=None)


class TestReport:
    MEASURED = SimpleNamespace(
        row={
            "case": "causal",
            "length": 2048,
            "operations": 3e12,
            "bytes": 1,
            "times": {"auto": {"seconds": 0.01, "low": 0.01, "high": 0.01}},
            "peak bytes": {"auto": 5_000_000},
            "refused": {"fla": "not here"},
            "wrong": {"flex": "off by 1"},
        }
    )

    def results(self):
        common = {"device": "NVIDIA H200", "date": "2026-11-30", "versions": {"commit": "abc", "torch": "2.13.0"}}
        peaks = {"operations per second": 6e14, "bytes per second": 4e12}
        measured = {"dtype": "bfloat16", "peaks": peaks, "rows": [self.MEASURED.row]}
        tests = {"tests": {"passed": 40, "failed": 1}, "failures": ["tests/a.py::test_b"]}
        return [common | {"piece": "causal, forward", "measured": measured}, common | {"piece": "tests"} | tests]

    def test_rows_of_a_device(self):
        text = "\n".join(render_devices({"nvidia-h200": self.results()}))
        assert "### NVIDIA H200" in text
        assert "40 passed, 1 failed, in 1 pieces" in text
        assert "`tests/a.py::test_b`" in text
        assert "bfloat16; torch's product of matrices 600.0 TFLOP/s, copy 4,000 GB/s." in text
        assert "| causal | 2,048 | 10.000 ms, 5 MB | - | wrong | 300.0 | 50 % |" in text
        assert "- fla: not here" in text
        assert "No device was measured" not in text

    def test_a_stand_in_is_no_measurement(self):
        assert "**No device was measured yet.**" in "\n".join(render_devices({"cpu-as-a-stand-in": self.results()}))

    def test_results_are_read_by_device(self, tmp_path):
        for name, piece in (("nvidia-h200", "a"), ("nvidia-h200", "b"), ("xpu", "c")):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{piece}.json").write_text(json.dumps({"piece": piece}))
        found = read_results(tmp_path)
        assert {name: [part["piece"] for part in parts] for name, parts in found.items()} == {
            "nvidia-h200": ["a", "b"],
            "xpu": ["c"],
        }
