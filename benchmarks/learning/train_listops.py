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

from benchmarks.learning.classification_report import LISTOPS
from benchmarks.learning.listops import MAX_LENGTH
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options
from benchmarks.learning.program import make_parser, report_classifiers
from benchmarks.learning.train import train_table

SIZES = {"layers": 2, "width": 64, "heads": 2, "inner": 128, "dropout": 0.1}


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_listops", __doc__, "trained/listops", "seed", "dtype", "minutes", "device")
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
    return parser.parse_args()


def training_options(
    data: Path,
    *,
    length: int = MAX_LENGTH,
    position: str = "sinusoidal",
    pooling: str = "mean",
    batch: int = 32,
    steps: int = 5000,
    rate: float = 5e-4,
    warmup: int = 500,
    seed: int = 1,
    dtype: str = "float32",
    minutes: float | None = None,
) -> list[str]:
    """The options of `regard train classify` that all mechanisms share."""
    options = ["--data", str(data / "train.tsv"), "--valid", str(data / "valid.tsv")]
    options += ["--tokenizer", "words", "--model", "tiny", "--most-tokens", str(length + 1)]
    options += ["--position", position, "--pooling", pooling, "--batch", str(batch)]
    options += ["--steps", str(steps), "--rate", str(rate), "--warmup", str(warmup)]
    options += ["--patience", "0", "--average", "1", "--seed", str(seed), "--dtype", dtype]
    options += ["--validate-every", str(max(1, steps // 10))]
    options += [part for name, value in SIZES.items() for part in ("--set", f"{name}={value}")]
    return options if minutes is None else [*options, "--minutes", str(minutes)]


def main() -> int:
    """Train and evaluate the model with each mechanism; write results.json and print the table."""
    asked = parse_options()
    common = training_options(
        asked.data,
        length=asked.length,
        position=asked.position,
        pooling=asked.pooling,
        batch=asked.batch,
        steps=asked.steps,
        rate=asked.rate,
        warmup=asked.warmup,
        seed=asked.seed,
        dtype=asked.dtype,
        minutes=asked.minutes,
    )
    common += [] if asked.device is None else ["--device", asked.device]
    runs = {
        name: [*common, *mechanism_options(name, asked.length + 1, asked.option)]
        for name in choose_mechanisms(asked.mechanism)
    }
    found = train_table(asked.out, runs, ["--data", str(asked.data / "test.tsv")])
    return report_classifiers(LISTOPS, found, asked)


if __name__ == "__main__":
    sys.exit(main())
