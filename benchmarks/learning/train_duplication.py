"""``python -m benchmarks.learning.train_duplication``: Reformer learns to copy; evaluated with other hash rounds.

Trains with 4 rounds until the time is over, with other rotations at each step, and evaluates with 8, 4, 2 and 1
(published, at 1,024 symbols and 150,000 steps: 100, 99.9, 99.4 and 91.9 %). ``benchmarks.learning.duplication`` has the
task and the model. The last fifth of the time lowers the learning rate to 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

from benchmarks.learning import results
from benchmarks.learning.duplication import SIZES, DuplicationModel, accuracy, draw_sequences, loss_of
from benchmarks.learning.report import DUPLICATION
from benchmarks.machine import machine, versions
from regard.mechanisms import Reformer

_REPORT_EVERY = 100
_TEST_SEED, _TEST_HASH_SEED = 2**31, 2**62


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.train_duplication", description=__doc__)
    parser.add_argument("--length", type=int, default=1024, help="symbols of a sequence, an even number")
    parser.add_argument("--minutes", type=float, default=20.0, help="time to train")
    parser.add_argument("--steps", type=int, default=10**9, help="most steps")
    parser.add_argument("--rounds", type=int, default=4, help="hash rounds in training")
    parser.add_argument("--evaluate", default="8,4,2,1", metavar="ROUNDS", help="hash rounds in evaluation")
    parser.add_argument("--buckets", type=int, help="number of buckets; default: length / 32")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=200)
    parser.add_argument("--tests", type=int, default=128, help="sequences in evaluation")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--publish", action="store_true", help="write the result to this repository too")
    parser.add_argument("--out", type=Path, default=Path("trained/duplication.json"), metavar="FILE")
    return parser.parse_args()


def train(model: DuplicationModel, mechanism: Reformer, asked: argparse.Namespace) -> tuple[int, float]:
    """Train until the time or the steps are over. Returns the number of steps and the last loss."""
    generator = torch.Generator().manual_seed(asked.seed)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    began, step, mean = time.monotonic(), 0, float("nan")
    while step < asked.steps:
        share = (time.monotonic() - began) / (60 * asked.minutes)
        if share >= 1:
            break
        step += 1
        mechanism.seed = step
        for group in optimizer.param_groups:
            group["lr"] = asked.rate * min(1.0, step / asked.warmup, 5 * (1 - share))
        loss = loss_of(model, draw_sequences(asked.batch, asked.length, generator))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = loss.item() if step == 1 else 0.95 * mean + 0.05 * loss.item()
        if step % _REPORT_EVERY == 0:
            print(f"step {step:,}, {100 * share:.0f} % of the time, loss {mean:.3f}", file=sys.stderr)
    return step, mean


def main() -> int:
    """Train, evaluate, add the result to the file, and print a table."""
    asked = parse_options()
    torch.manual_seed(asked.seed)
    buckets = max(2, asked.length // 64 * 2) if asked.buckets is None else asked.buckets
    head_dim = SIZES["width"] // SIZES["heads"]
    mechanism = Reformer(heads=SIZES["heads"], head_dim=head_dim, rounds=asked.rounds, buckets=buckets)
    model = DuplicationModel(asked.length, mechanism)
    began = time.monotonic()
    steps, loss = train(model, mechanism, asked)
    minutes = (time.monotonic() - began) / 60
    model.eval()
    mechanism.seed = _TEST_HASH_SEED
    tests = draw_sequences(asked.tests, asked.length, torch.Generator().manual_seed(_TEST_SEED))
    found = {rounds: accuracy(model, mechanism, tests, rounds) for rounds in map(int, asked.evaluate.split(","))}
    result = {
        "length": asked.length,
        "rounds": asked.rounds,
        "buckets": buckets,
        "batch": asked.batch,
        "steps": steps,
        "minutes": round(minutes, 2),
        "loss": loss,
        "accuracy": {str(rounds): share for rounds, share in found.items()},
        "machine": machine(),
        "versions": versions(),
    }
    name = f"{asked.length:,} symbols"
    results.add(asked.out, name, result)
    print(f"{asked.length:,} symbols, trained with {asked.rounds} rounds: {steps:,} steps in {minutes:.1f} minutes\n")
    if asked.publish:
        results.add(DUPLICATION.path, name, result)
    print(DUPLICATION.table({name: result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
