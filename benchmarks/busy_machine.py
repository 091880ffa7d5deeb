"""How long commands and kernels take on a quiet machine, and beside processes that keep its cores busy.

    python -m benchmarks.busy_machine                            all cases, beside 0, 1 and 2 busy processes
    python -m benchmarks.busy_machine --cases view kernels --beside 0 2 --turns 5
    python -m benchmarks.busy_machine --publish                  writes the results of this machine for docs/speed.md

A case runs as a process of its own, in turns in these ways:

    sleeping     torch's threads sleep while they wait: the command's default; in Python OMP_WAIT_POLICY=passive
    spinning     they spin for milliseconds: OpenMP's own default (GOMP_SPINCOUNT=300000, KMP_BLOCKTIME=200)
    one thread   OMP_NUM_THREADS=1

The time is the wall time of the whole process, its start included: medians of all turns, after a run that does not
count. A busy process computes without end, on one core, at normal priority. "sleeping" should take no longer than "one
thread" beside busy processes, and at most 3 % longer than "spinning" without any.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import machine, results

WAYS: dict[str, dict[str, str]] = {
    "sleeping": {},
    "spinning": {"GOMP_SPINCOUNT": "300000", "KMP_BLOCKTIME": "200"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
"""The variables of each way."""

_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
_TEXT = "the a red old small dog cat man house tree sees takes likes near behind under river road bread water"

_KERNELS = """
import regard, torch
from regard import masks
torch.manual_seed(0)
for length, calls in ((17, 6000), (131, 1500), (521, 100)):
    query, key, value = (torch.randn(2, 4, length, 64, requires_grad=True) for _ in range(3))
    for _ in range(calls):
        regard.attention(query, key, value, mask=masks.causal(), impl="native").sum().backward()
"""
_MODEL = """
import regard, torch
torch.manual_seed(0)
model = regard.load("minilm")
ids = torch.randint(1000, 20000, (4, 32))
with torch.no_grad():
    for _ in range(150):
        model(ids)
"""


def _sentences(count: int, seed: int) -> list[str]:
    """Random sentences of 4 to 12 words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(_TEXT.split(), k=draw.randint(4, 12))) + "." for _ in range(count)]


def _regard(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "regard", *arguments]


def _script(text: str) -> list[str]:
    """A Python program, which chooses how threads wait as the command does."""
    choose = "import os\nif 'GOMP_SPINCOUNT' not in os.environ: os.environ['OMP_WAIT_POLICY'] = 'PASSIVE'\n"
    return [sys.executable, "-c", choose + text]


def _view(folder: Path) -> list[str]:
    """20 short sentences on one page."""
    (folder / "view.txt").write_text("\n".join(_sentences(20, 1)) + "\n", encoding="utf-8")
    return _regard("view", "--data", str(folder / "view.txt"), "-o", str(folder / "view.html"), "--overwrite")


def _embed(folder: Path) -> list[str]:
    """1,000 short sentences."""
    (folder / "embed.txt").write_text("\n".join(_sentences(1000, 2)) + "\n", encoding="utf-8")
    return _regard("embed", "--data", str(folder / "embed.txt"), "--out", str(folder / "embed.npy"), "--overwrite")


def _train(folder: Path) -> list[str]:
    """40 steps of a small translator."""
    pairs = [f"{one}\t{' '.join(reversed(one[:-1].split()))}." for one in _sentences(2000, 3)]
    (folder / "train.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")
    return _regard(
        "train", "translate", "--data", str(folder / "train.tsv"), "--out", str(folder / "translator"),
        "--steps", "40", "--overwrite",
    )  # fmt: skip


def _classify(folder: Path) -> list[str]:
    """60 steps of a small classifier."""
    lines = [f"{one}\t{'dog' if 'dog' in one else 'none'}" for one in _sentences(600, 4)]
    (folder / "classify.tsv").write_text("text\tlabel\n" + "\n".join(lines) + "\n", encoding="utf-8")
    return _regard(
        "train", "classify", "--data", str(folder / "classify.tsv"), "--out", str(folder / "classifier"),
        "--steps", "60", "--overwrite",
    )  # fmt: skip


def _kernels(folder: Path) -> list[str]:
    """Attention of 17 to 521 tokens, forward and backward, from Python."""
    del folder
    return _script(_KERNELS)


def _model(folder: Path) -> list[str]:
    """MiniLM on 4 texts of 32 tokens, from Python."""
    del folder
    return _script(_MODEL)


CASES: dict[str, Callable[[Path], list[str]]] = {
    "view": _view,
    "embed": _embed,
    "train translate": _train,
    "train classify": _classify,
    "kernels": _kernels,
    "model": _model,
}
"""Each writes its data into a folder and returns its command."""


@contextlib.contextmanager
def _busy_processes(count: int) -> Iterator[None]:
    """Run processes that compute without end."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _seconds(command: Sequence[str], variables: dict[str, str], limit: float) -> float:
    """Run a command and return its wall time; infinity beyond the limit. Exits if the command fails."""
    environment = {name: value for name, value in os.environ.items() if name not in _WAITING} | variables
    start = time.perf_counter()
    try:
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return float("inf")
    if result.returncode:
        sys.exit(f"{' '.join(command)[:200]} failed:\n{result.stderr[-2000:]}")
    return time.perf_counter() - start


def measure(case: str, beside: int, turns: int, limit: float) -> dict[str, float]:
    """Return the median time of each way."""
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder, _busy_processes(beside):
        command = CASES[case](Path(folder))
        _seconds(command, {}, limit)  # files are read into memory
        for _ in range(turns):
            for way, variables in WAYS.items():
                times[way].append(_seconds(command, variables, limit))
    return {way: statistics.median(taken) for way, taken in times.items()}


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--beside", type=int, nargs="+", default=[0, 1, 2], help="numbers of busy processes")
    parser.add_argument("--turns", type=int, default=3, help="number of runs, of which the median counts")
    parser.add_argument("--publish", action="store_true", help="write the results of this machine")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds after which a run is ended")
    return parser.parse_args()


def render(busy: dict[str, Any]) -> Iterator[str]:
    """Render results as a section of docs/speed.md."""
    yield "### On a busy machine\n"
    yield (
        "Whole processes, their start included, beside processes that each keep one core busy. sleeping: torch's "
        "threads sleep while they wait, which is the default of the `regard` command, and `OMP_WAIT_POLICY=passive` "
        "in Python; spinning: OpenMP's own default.\n"
    )
    yield from _table(busy["rows"])
    yield f"\nMedians of {busy['turns']}, {busy['date']}, commit {busy['commit']}.\n"


def _table(rows: list[dict[str, Any]]) -> Iterator[str]:
    yield f"| case | busy processes | {' | '.join(WAYS)} |"
    yield "|---|--:|" + "--:|" * len(WAYS)
    for row in rows:
        yield _table_row(row)


def _table_row(row: dict[str, Any]) -> str:
    times = " | ".join(f"{one:.1f} s" if math.isfinite(one) else "ended" for one in row["seconds"].values())
    return f"| {row['case']} | {row['beside']} | {times} |"


def main() -> None:
    """Measure, and print one row for each case and number of busy processes."""
    asked = _parse_options()
    rows: list[dict[str, Any]] = []
    print(*_table([]), sep="\n")
    for case in asked.cases:
        for beside in asked.beside:
            rows.append({"case": case, "beside": beside, "seconds": measure(case, beside, asked.turns, asked.limit)})
            print(_table_row(rows[-1]), flush=True)
    if asked.publish:
        results.write_busy({
            "date": datetime.now(UTC).date().isoformat(),
            "commit": machine.versions()["commit"],
            "turns": asked.turns,
            "rows": rows,
        })  # fmt: skip


if __name__ == "__main__":
    main()
