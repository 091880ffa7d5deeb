"""``python -m benchmarks.learning.train_wikitext``: a small language model on WikiText-2, with `regard train lm`.

The data are wikitext2_valid.txt.gz and wikitext2_test.txt.gz, the validation and test sets of Merity et al. 2016,
"Pointer sentinel mixture models". The model is trained on the validation set, of whose text the last tenth chooses its
weights, and measured on the test set: published models are trained on a set ten times as large. Words are separated by
white space, and an end of a line is one more, as is usual for this data. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import gzip
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning.experiment import Experiment, Trainings, option_list, run_for_json, set_options, train_model
from benchmarks.learning.report import Report, markdown_table

SIZES = {"layers": 4, "width": 192, "heads": 6, "dropout": 0.2, "embedding_dropout": 0.2, "attention_dropout": 0.1}
GPT2_DROPOUT = ("dropout", "embedding_dropout")
"""Settings that a Llama does not have."""
VOCABULARY, BLOCK, BATCH, RATE, WEIGHT_DECAY = 3000, 128, 16, 1e-3, 0.1


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: perplexities and bits per byte of each model, the best first."""
    rows = []
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["bits_per_byte"])):
        shown = f"{one['perplexity']:.1f} | {one['perplexity per word']:.1f} | {one['bits_per_byte']:.3f}"
        rows.append(f"{name} | {shown} | {one['steps']:,} | {one['seconds'] / 60:.1f} | {one['memory GB']:.2f}")
    columns = "perplexity of a token | perplexity of a word | bits per byte | steps | minutes | memory GB"
    return markdown_table(f"model | {columns}", rows)


REPORT = Report(
    "wikitext",
    """\
## WikiText-2

A small language model with subwords, 4 layers of width 192, trained on the validation set of WikiText-2 (Merity et al.
2016) and measured on its test set. The training set of the published models is ten times as large, so perplexities per
word cannot be compared with theirs. A word is what white space separates, and the end of a line is one more.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_wikitext --data data/ --publish
```
""",
    _table,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="folder of wikitext2_valid.txt.gz, .."
    )
    parser.add_argument("--model", default="gpt2,llama", metavar="NAMES", help="gpt2, llama or both")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of matrix products")
    parser.add_argument("--device", default="cpu")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each architecture."""
    common = option_list(
        data=_file(asked, "valid"), vocabulary=VOCABULARY, block=BLOCK, batch=BATCH, rate=RATE,
        weight_decay=WEIGHT_DECAY, patience=0, steps=asked.steps, seed=asked.seed, dtype=asked.dtype,
        device=asked.device, validate_every=max(1, asked.steps // 10),
    )  # fmt: skip
    sizes = {key: value for key, value in SIZES.items() if key not in GPT2_DROPOUT}
    return {
        name: [*common, *option_list(model=name), *set_options(SIZES if name == "gpt2" else sizes)]
        for name in asked.model.split(",")
    }


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a model, and measure it on the test set."""
    test = _file(asked, "test")
    measured = train_model(model, "lm", options)
    command = ["evaluate", "lm", "--model", str(model), "--data", str(test), "--format", "json"]
    scores = run_for_json(command, options)
    text = gzip.decompress(test.read_bytes()).decode("utf-8")
    words = len(text.split()) + text.count("\n")
    chosen = ("loss", "perplexity", "bits_per_byte", "tokens", "bytes", "unknown")
    return {
        **{key: scores[key] for key in chosen},
        "words": words,
        "perplexity per word": math.exp(scores["nats"] / words),
        **measured,
    }


def _file(asked: argparse.Namespace, part: str) -> Path:
    file: Path = asked.data / f"wikitext2_{part}.txt.gz"
    return file


EXPERIMENT = Experiment("train_wikitext", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed",))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
