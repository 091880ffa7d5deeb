"""``python -m benchmarks.learning.time_shakespeare``: tokens per second beside nanoGPT's own loop, in turns.

Both train the configuration of ``train_shakespeare``: nanoGPT by its ``train.py`` in a clone of
https://github.com/karpathy/nanoGPT, which on a CPU is in float32; ours by the loop of ``regard train lm``, in the
precision that it chooses on this processor and in float32. Each turn is a process of its own with the same number of
threads. A rate is a median of means over ten steps in a row, in both loops: a median over single steps would leave out
the slow ones. The first quarter of each turn is apart. Prints JSON, and with --publish writes it to this repository.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.learning import results, train_shakespeare
from benchmarks.learning.experiment import where
from benchmarks.learning.report import FOLDER
from benchmarks.learning.train_shakespeare import BATCH, BLOCK, PEAK, SIZES
from benchmarks.machine import machine
from regard.train.numeric_backends import choose_precision

_TOKENS = BLOCK * BATCH
_EVERY = 10
"""Steps of a mean."""
SPEEDS = FOLDER / "shakespeare_speed.json"
"""The file of published rates by processor."""
_SPEED_TEXT = """\
Tokens per second beside nanoGPT's own training loop, which on a CPU is in float32 and not compiled, in turns: each rate
is a median of means over ten steps. `regard train lm` takes bfloat16 where the processor multiplies it faster.
"""


def render_section(found: dict[str, Any], speeds: dict[str, Any]) -> Iterator[str]:
    """The lines of the section on TinyShakespeare in docs/results.md: losses, then speeds."""
    yield from train_shakespeare.REPORT.render(found)
    if speeds:
        yield f"{_SPEED_TEXT}\n{_speed_table(speeds)}\n"


def _speed_table(found: dict[str, Any]) -> str:
    """A table in Markdown: tokens per second of our loop and of nanoGPT's, for each processor."""
    lines = ["| processor | precision | tokens per second | nanoGPT | ratio |", "|---|---|--:|--:|--:|"]
    for processor, one in sorted(found.items()):
        rates = one["tokens per second"]
        for precision in dict.fromkeys((one["chosen"], "float32")):
            chosen = f"{precision}, the default here" if precision == one["chosen"] else precision
            rate = rates[f"regard, {precision}"]
            ratio = rate / rates["nanoGPT"]
            lines.append(f"| {processor} | {chosen} | {rate:,} | {rates['nanoGPT']:,} | {ratio:.2f} |")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.time_shakespeare", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="tinyshakespeare.txt.gz")
    parser.add_argument("--nanogpt", type=Path, required=True, metavar="FOLDER", help="clone of nanoGPT")
    parser.add_argument("--steps", type=int, default=400, help="steps of a turn, at least 80")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="write the result to this repository too")
    parser.add_argument("--compile", action="store_true", help="time nanoGPT with compile=True too, which needs g++")
    return parser.parse_args()


def write_characters(text: str, folder: Path) -> None:
    """Write the text as nanoGPT's ``prepare.py`` does: ids of characters by rank, nine tenths for training."""
    characters = sorted(set(text))
    ids = np.array([characters.index(one) for one in text], dtype=np.uint16)
    folder.mkdir(parents=True, exist_ok=True)
    cut = len(ids) * 9 // 10
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(characters)}))


def time_nanogpt(clone: Path, out: Path, steps: int, *, compiled: bool) -> list[float]:
    """The mean seconds of a step of nanoGPT's loop, for each ten steps in a row."""
    options = {
        "dataset": "shakespeare_char", "out_dir": str(out), "device": "cpu", "dtype": "float32", "compile": compiled,
        "eval_interval": 10**9, "eval_iters": 1, "log_interval": 1, "block_size": BLOCK, "batch_size": BATCH,
        "gradient_accumulation_steps": 1, "n_layer": SIZES["layers"], "n_head": SIZES["heads"],
        "n_embd": SIZES["width"], "max_iters": steps, "lr_decay_iters": steps, "dropout": 0.0, "learning_rate": PEAK,
        "min_lr": PEAK / 10, "beta2": 0.99, "warmup_iters": steps // 10,
    }  # fmt: skip
    command = [sys.executable, "train.py", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, cwd=clone, stdout=subprocess.PIPE, text=True, check=True)
    times = [float(one) / 1000 for one in re.findall(r"^iter \d+: .*time ([\d.]+)ms", done.stdout, re.MULTILINE)]
    groups = [times[first : first + _EVERY] for first in range(0, len(times) - _EVERY + 1, _EVERY)]
    return [statistics.fmean(group) for group in groups]


def time_regard(data: Path, out: Path, steps: int, *, dtype: str) -> list[float]:
    """The mean seconds of a step between logged steps of our loop."""
    command = [sys.executable, "-m", "benchmarks.learning.train_shakespeare", "--data", str(data), "--out", str(out)]
    command += ["--steps", str(steps), "--dtype", dtype]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    lines = (out / f"{PEAK:g}.run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return list(_seconds_per_step(lines, validated=steps // 4))


def _seconds_per_step(lines: list[str], *, validated: int) -> Iterator[float]:
    """The seconds of a step from one logged step to the next, unless there was a validation between them."""
    logged = [(one["step"], one["time"]) for one in map(json.loads, lines) if one["kind"] == "train"]
    for (step, began), (next_step, ended) in pairwise(logged):
        if step // validated == next_step // validated:
            yield (ended - began) / (next_step - step)


def main() -> int:
    """Time the loops in turns, and print the result as JSON."""
    asked = parse_options()
    text = gzip.decompress(asked.data.read_bytes()).decode() if asked.data.suffix == ".gz" else asked.data.read_text()
    write_characters(text, asked.nanogpt / "data" / "shakespeare_char")
    chosen = choose_precision("auto", torch.device("cpu"))
    dtypes = {f"regard, {dtype}": dtype for dtype in dict.fromkeys((chosen, "float32"))}
    kinds = [*dtypes, "nanoGPT", *(["nanoGPT, compiled"] if asked.compile else [])]
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder).resolve()
        for turn in range(asked.turns):
            for kind in kinds:
                print(f"turn {turn + 1}: {kind}", file=sys.stderr)
                if kind in dtypes:
                    found = time_regard(asked.data, out / f"{dtypes[kind]}-{turn}", asked.steps, dtype=dtypes[kind])
                else:
                    found = time_nanogpt(asked.nanogpt, out / "nanogpt", asked.steps, compiled=kind != "nanoGPT")
                seconds[kind] += found[len(found) // 4 :]
    rates = {kind: round(_TOKENS / statistics.median(found)) for kind, found in seconds.items()}
    ratios = {f"{kind} / nanoGPT": round(rate / rates["nanoGPT"], 2) for kind, rate in rates.items()}
    result = {
        "tokens per second": rates,
        "ratios": ratios,
        "chosen": chosen,
        "turns": asked.turns,
        "steps": asked.steps,
        **where(),
    }
    if asked.publish:
        results.add(SPEEDS, machine()["processor"], result)
    print(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
