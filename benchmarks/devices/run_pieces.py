"""Run pieces one by one, each in a process of its own with a time limit, and keep what each has found.

benchmarks/results/devices/<device>/<piece>.json    a piece that is done: it is not run again
benchmarks/results/devices/<device>/<piece>.log     what the last run of a piece has printed

A piece that is killed, by its limit or with the whole run, leaves no file, so it is run again from its start. A piece
ends with the run, however that ends: what went on computing on the device would spoil the measurements after it.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from benchmarks import atomic_write, machine
from benchmarks.devices.device import VARIABLE, file_name, name_device
from benchmarks.devices.pieces import Piece

FOLDER = Path(__file__).resolve().parents[1] / "results" / "devices"
_ROOT = Path(__file__).resolve().parents[2]
_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""
_NO_TESTS = 5
"""The exit code of pytest where it finds no test: none is for this device."""
_TESTS_ENDED = (0, 1, _NO_TESTS)
"""The exit codes of pytest at the end of all tests; with others it could not run them."""


def folder_of(device: torch.device, root: Path = FOLDER) -> Path:
    """The folder of a device's results."""
    return root / file_name(device)


def result_path(piece: Piece, folder: Path) -> Path:
    """The file of a piece that is done."""
    return folder / (re.sub(r"[^a-z0-9]+", "-", piece.name.lower()).strip("-") + ".json")


def list_remaining(pieces: Iterable[Piece], folder: Path, device: torch.device) -> list[Piece]:
    """The pieces for this device that are not done."""
    return [piece for piece in pieces if piece.suits(device) and not result_path(piece, folder).exists()]


def run_piece(
    piece: Piece, folder: Path, device: torch.device, *, limit: float, say: Callable[[str], None] = print
) -> bool:
    """Run one piece, and keep its result if it came to its end. Return whether it did, and nothing failed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = result_path(piece, folder)
    rows, log = path.with_suffix(".rows"), path.with_suffix(".log")
    rows.unlink(missing_ok=True)
    environment = {**os.environ, **piece.environment, VARIABLE: str(device), "PYTHONPATH": _python_path()}
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            piece.line(rows),
            cwd=_ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
        try:
            code = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            say(f"{piece.name}: killed after {limit:.0f} s; it will start again")
            return False
        finally:
            _end(process)
    seconds = time.monotonic() - start
    if code not in ((0,) if piece.is_measurement else _TESTS_ENDED):
        say(f"{piece.name}: failed, see {log}")
        return False
    text = log.read_text(encoding="utf-8", errors="replace")
    result: dict[str, Any] = {
        "piece": piece.name,
        "device": name_device(device),
        "date": datetime.now(UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "machine": machine.machine(),
        "versions": machine.versions(),
    }
    if piece.is_measurement:
        result["measured"] = json.loads(rows.read_text(encoding="utf-8"))
        rows.unlink()
    else:
        result["tests"] = count_tests(text) | {"none for this device": code == _NO_TESTS}
        result["failures"] = re.findall(r"^(?:FAILED|ERROR) (.*)$", text, re.MULTILINE)
    atomic_write.write(path, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    say(f"{piece.name}: done in {seconds:.0f} s" + ("" if code in (0, _NO_TESTS) else ", with failures"))
    return code in (0, _NO_TESTS)


def count_tests(text: str) -> dict[str, int]:
    """The counts in the last line of pytest's output, such as "2 failed, 17 passed in 3.1s"."""
    lines = [line for line in text.splitlines() if re.search(r" in [\d.]+s", line)]
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", lines[-1]) if lines else []
    return {name.removesuffix("s") if name == "errors" else name: int(count) for count, name in counts}


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with those that it has started; one that has ended has left none."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _end_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it ends, even by SIGKILL."""
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def end_with_pieces(number: int, frame: FrameType | None) -> None:
    """Handle a signal that ends the program: as an error, so that the running piece is ended, too."""
    del frame
    raise SystemExit(128 + number)


def _python_path() -> str:
    inner = os.pathsep.join(str(_ROOT / name) for name in ("", "src"))
    return os.pathsep.join(part for part in (inner, os.environ.get("PYTHONPATH", "")) if part)


def read_results(root: Path = FOLDER) -> dict[str, list[dict[str, Any]]]:
    """The results of all pieces that are done, by the name of the folder of their device."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(root.glob("*/*.json")):
        found.setdefault(path.parent.name, []).append(json.loads(path.read_text(encoding="utf-8")))
    return found
