"""``python -m benchmarks.learning.train_listops``: the same small model learns ListOps with each mechanism.

2 layers of width 64 with 2 heads and a feed-forward layer of 128, batches of 32, 5,000 steps: the small model of Long
Range Arena's set-up, with positions and pooling the same for all. The pooling is the mean over the tokens: a mechanism
that is causal by itself, such as forgetting attention, shows the first token nothing but itself.
``benchmarks.learning.listops`` writes the data. The same command resumes interrupted runs, and keeps the results that
are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, option_list, set_options, train_and_evaluate
from benchmarks.learning.listops import MAX_LENGTH
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options

SIZES = {"layers": 2, "width": 64, "heads": 2, "inner": 128, "dropout": 0.1}
REPORT = classifier_report(
    "listops",
    """\
## ListOps

A text is an expression such as `[MAX 2 [MIN 4 7 ] 0 ]`, with 500 to 2,000 tokens and nested up to ten deep; the label
is its value, a digit, here 4. This is ListOps as the Long Range Arena defines it (Tay et al. 2021, section 2.2.1), from
a generator of our own, with 96,000 training texts. Every [mechanism](mechanisms.md) is put into the same model: 2
layers of width 64 with 2 heads and a feed-forward layer of 128, sinusoidal positions, the mean over all tokens, dropout
0.1. AdamW trains it with a learning rate of 5e-4 after a warm-up of 500 steps, on the same batches of 32. The options
of the mechanisms are their defaults, but for the length of Linformer's projections. The published models have sizes,
positions and learning rates of their own for each mechanism. In a mechanism that is causal by itself, a token attends
to earlier tokens only. Each row is one training; with 2,000 test texts the standard error of an accuracy of 37 % is 1.1
percentage points. Rows with fewer than 5,000 steps were cut by `--minutes`; `additive` had not left the plateau of its
first steps by then. `additive` and `talking_heads` were trained in float32, on a processor without products of
bfloat16.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.listops --out listops/
python -m benchmarks.learning.train_listops --data listops/ --dtype bfloat16 --publish
```
""",
    published={
        "dot_product": 0.3637,
        "longformer": 0.3563,
        "bigbird": 0.3605,
        "reformer": 0.3727,
        "linformer": 0.3570,
        "performer": 0.1801,
        "linear": 0.1613,
    },
    source="Published: Tay et al. 2021, Long Range Arena, table 1, after 5,000 steps of batches of 32.",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="train.tsv, valid.tsv and test.tsv")
    parser.add_argument("--mechanism", default="all", metavar="NAMES", help="dot_product,linear,.. or all")
    parser.add_argument("--option", action="append", default=[], metavar="NAME.OPTION=VALUE", help="of a mechanism")
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=MAX_LENGTH, help="most tokens of a text in the data")
    parser.add_argument("--position", default="sinusoidal")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--warmup", type=int, default=500)


def training_options(asked: argparse.Namespace) -> list[str]:
    """The options of `regard train classify` that all mechanisms share."""
    options = option_list(data=asked.data / "train.tsv", valid=asked.data / "valid.tsv")
    options += option_list(tokenizer="words", model="tiny", most_tokens=asked.length + 1)
    options += option_list(position=asked.position, pooling=asked.pooling, batch=asked.batch)
    options += option_list(steps=asked.steps, rate=asked.rate, warmup=asked.warmup)
    options += option_list(patience=0, average=1, seed=asked.seed, dtype=asked.dtype)
    options += [*option_list(validate_every=max(1, asked.steps // 10)), *set_options(SIZES)]
    return options + option_list(minutes=asked.minutes, device=asked.device)


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each mechanism."""
    common = training_options(asked)
    return {
        name: [*common, *mechanism_options(name, asked.length + 1, asked.option)]
        for name in choose_mechanisms(asked.mechanism)
    }


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train and evaluate the model with a mechanism."""
    return train_and_evaluate(model, options, ["--data", str(asked.data / "test.tsv")])


EXPERIMENT = Experiment(
    "train_listops",
    __doc__,
    REPORT,
    add_options,
    make_trainings,
    measure,
    shared=("seed", "dtype", "minutes", "device"),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
