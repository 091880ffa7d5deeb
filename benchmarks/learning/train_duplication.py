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
from typing import Any

import torch

from benchmarks.learning.duplication import SIZES, DuplicationModel, accuracy, draw_sequences, loss_of
from benchmarks.learning.experiment import Experiment, Trainings, option_list, where
from benchmarks.learning.report import Report, describe_machine, markdown_table, percent
from regard.mechanisms import Reformer

_REPORT_EVERY = 100
_TEST_SEED, _TEST_HASH_SEED = 2**31, 2**62
_PUBLISHED = {8: 1.0, 4: 0.999, 2: 0.994, 1: 0.919}
"""Accuracy by rounds of evaluation, Kitaev et al. 2020, table 2."""


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy by rounds of evaluation, one line for each trained model."""
    rounds = list(next(iter(found.values()))["accuracy"])
    rows = []
    for name, one in found.items():
        shares = " | ".join(percent(one["accuracy"].get(number, float("nan"))) for number in rounds)
        rows.append(f"{name} | {shares} | {one['steps']:,} | {one['batch']} | {one['minutes']:.0f}")
    published = (percent(_PUBLISHED[int(one)]) if int(one) in _PUBLISHED else "" for one in rounds)
    rows.append(f"published, 1,024 symbols | {' | '.join(published)} | 150,000 | |")
    columns = " | ".join(f"{one} round{'s' if int(one) > 1 else ''}" for one in rounds)
    return markdown_table(f"trained on | {columns} | steps | batch | minutes", rows)


def _note(found: dict[str, Any]) -> str:
    return (
        f"Part of the symbols of the second w that are predicted. Trained with 4 rounds, on "
        f"{describe_machine(next(iter(found.values())))}. Published: Kitaev et al. 2020, table 2.\n"
    )


REPORT = Report(
    "duplication",
    """\
## Duplication

A sequence has the form 0 w 0 w, where w is a string of random symbols from 1 to 127. The model predicts the second w,
whose next symbol is the one that stands half of the sequence before (Kitaev et al. 2020, section 2.1). One layer of
[Reformer](mechanisms.md#reformer) is trained with 4 hash rounds, with as many buckets as make 32 tokens in each on
average. It is evaluated with other numbers of rounds too, without further training: with more rounds, the query and
the symbol to copy share a bucket more often. The published model uses chunks of sorted tokens, this one exact attention
inside buckets.

```console
pip install -e '.[bench]'
python -m benchmarks.learning.train_duplication --length 1024 --minutes 8 --publish
python -m benchmarks.learning.train_duplication --length 4096 --batch 4 --minutes 20 --publish
```
""",
    _table,
    _note,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
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


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training, named by the length of the sequences."""
    options = option_list(
        length=asked.length, minutes=asked.minutes, steps=asked.steps, rounds=asked.rounds, evaluate=asked.evaluate,
        buckets=asked.buckets, batch=asked.batch, rate=asked.rate, warmup=asked.warmup, tests=asked.tests,
        seed=asked.seed,
    )  # fmt: skip
    return {f"{asked.length:,} symbols": options}


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


def measure(asked: argparse.Namespace, folder: Path, options: list[str]) -> dict[str, Any]:
    """Train, and evaluate with each number of rounds."""
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
    return {
        "length": asked.length,
        "rounds": asked.rounds,
        "buckets": buckets,
        "batch": asked.batch,
        "steps": steps,
        "minutes": round(minutes, 2),
        "loss": loss,
        "accuracy": {rounds: accuracy(model, mechanism, tests, int(rounds)) for rounds in asked.evaluate.split(",")},
        **where(),
    }


EXPERIMENT = Experiment("train_duplication", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed",))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
