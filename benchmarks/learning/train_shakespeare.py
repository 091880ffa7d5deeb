"""``python -m benchmarks.learning.train_shakespeare``: nanoGPT's configuration of a character model for a CPU.

The data are tinyshakespeare.txt.gz or the same text unpacked, 1.1 million characters; nine tenths are for training, as
in https://github.com/karpathy/nanoGPT, whose README gives for this configuration: blocks of 64 characters, 12 in a
batch, 4 layers of 4 heads and width 128, 2,000 steps, no dropout; a validation loss of 1.88. The target here is 1.85 in
3 minutes on 2 cores. nanoGPT's learning rate is 1e-3 (``--rate 1e-3``); the default here is three times as high, since
these steps leave the lower one far from the end. Prints the loss on all of the last tenth, in blocks of 64, and the
processor time.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.learning.experiment import Experiment, Trainings, option_list, where
from benchmarks.learning.report import Report, describe_machine, markdown_table
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.train import Schedule, Settings, run

BLOCK, BATCH, STEPS, PEAK, WARMUP, FLOOR = 64, 12, 2000, 3e-3, 100, 0.1
SIZES = {"layers": 4, "heads": 4, "width": 128, "dropout": 0.0, "embedding_dropout": 0.0, "attention_dropout": 0.0}
_NANOGPT_LOSS = 1.88
"""The validation loss of nanoGPT's README for this configuration, with a peak learning rate of 1e-3."""


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: the loss of each learning rate, the best first."""
    rows = []
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["validation loss"])):
        minutes, rate = one["seconds"] / 60, one["tokens per second"]
        rows.append(f"{name} | {one['validation loss']:.3f} | {minutes:.1f} | {rate:,}")
    published = f"published, 1e-3 | {_NANOGPT_LOSS} | |"
    return markdown_table("learning rate | validation loss | minutes | tokens per second", [*rows, published])


REPORT = Report(
    "shakespeare",
    """\
## TinyShakespeare

A character model in nanoGPT's configuration for a CPU: blocks of 64 characters, 12 in a batch, 4 layers of 4 heads and
width 128, 2,000 steps, no dropout. The loss is that of all of the last tenth of the text; nanoGPT estimates it from
samples. nanoGPT has a learning rate of 1e-3, which these 2,000 steps leave far from the end.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_shakespeare --data tinyshakespeare.txt.gz --publish
python -m benchmarks.learning.time_shakespeare --data tinyshakespeare.txt.gz --nanogpt nanoGPT/
```
""",
    _table,
    lambda found: f"Measured on {describe_machine(next(iter(found.values())))}.\n",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, required=True, metavar="FILE", help="tinyshakespeare.txt.gz")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rate", type=float, default=PEAK, help="peak learning rate")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training, named by its learning rate."""
    options = option_list(data=asked.data, steps=asked.steps, rate=asked.rate, dtype=asked.dtype, seed=asked.seed)
    return {f"{asked.rate:g}": options}


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train, and return the validation loss and the time."""
    recipe = LanguageModelRecipe(
        data=(asked.data,), model="gpt2", tokenizer="characters", block=BLOCK, batch=BATCH, hyperparameters=SIZES
    )
    warmup = min(WARMUP, asked.steps // 10)
    settings = Settings(
        schedule=Schedule("cosine", peak=asked.rate, warmup=warmup, steps=asked.steps, floor=FLOOR),
        steps=asked.steps,
        validate_every=max(1, asked.steps // 4),
        precision=asked.dtype,
        seed=asked.seed,
        weight_decay=0.1,
        average=1,
        patience=0,
    )
    began = time.process_time()
    result = run(LanguageModelTask(recipe), settings, model, overwrite=True, device="cpu")
    assert result.score is not None
    return {
        "validation loss": round(-result.score, 4),
        "steps": result.steps,
        "tokens": result.tokens,
        "seconds": round(result.seconds, 1),
        "processor seconds": round(time.process_time() - began, 1),
        "tokens per second": round(result.tokens / result.seconds),
        **where(),
    }


EXPERIMENT = Experiment("train_shakespeare", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed",))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
