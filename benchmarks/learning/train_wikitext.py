"""``python -m benchmarks.learning.train_wikitext``: a small language model on WikiText-2, with `regard train lm`.

The data are wikitext2_valid.txt.gz and wikitext2_test.txt.gz, the validation and test sets of Merity et al. 2016,
"Pointer sentinel mixture models". The model is trained on the validation set, of whose text the last tenth chooses its
weights, and measured on the test set: published models are trained on a set ten times as large. Words are separated by
white space, and an end of a line is one more, as is usual for this data. The same command resumes an interrupted run.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning import results
from benchmarks.learning.program import make_parser
from benchmarks.learning.report import WIKITEXT
from benchmarks.learning.train import train_model

SIZES = {"layers": 4, "width": 192, "heads": 6, "dropout": 0.2, "embedding_dropout": 0.2, "attention_dropout": 0.1}
GPT2_DROPOUT = ("dropout", "embedding_dropout")
"""Settings that a Llama does not have."""
VOCABULARY, BLOCK, BATCH, RATE, WEIGHT_DECAY = 3000, 128, 16, 1e-3, 0.1


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_wikitext", __doc__, "trained/wikitext", "seed")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="folder of wikitext2_valid.txt.gz, .."
    )
    parser.add_argument("--model", default="gpt2,llama", metavar="NAMES", help="gpt2, llama or both")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"), help="of matrix products")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> int:
    """Train and measure each model; write results.json and print the table."""
    asked = parse_options()
    found: dict[str, Any] = {}
    for name in asked.model.split(","):
        result = measure(asked, name)
        found = results.add(asked.out / "results.json", name, result)
        if asked.publish:
            results.add(WIKITEXT.path, name, result)
    print(WIKITEXT.table(found))
    return 0


def measure(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train a model of this architecture, and measure it on the test set."""
    training, test = (asked.data / f"wikitext2_{part}.txt.gz" for part in ("valid", "test"))
    settings: dict[str, Any] = {"vocabulary": VOCABULARY, "block": BLOCK, "batch": BATCH, "rate": RATE}
    settings |= {"weight-decay": WEIGHT_DECAY, "patience": 0}
    settings |= {"steps": asked.steps, "seed": asked.seed, "dtype": asked.dtype, "device": asked.device}
    settings |= {"validate-every": max(1, asked.steps // 10), "model": name}
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    sizes = {key: value for key, value in SIZES.items() if name == "gpt2" or key not in GPT2_DROPOUT}
    options += [part for key, value in sizes.items() for part in ("--set", f"{key}={value}")]
    measured = train_model(asked.out / name, "lm", ["--data", str(training), *options])
    command = [sys.executable, "-m", "regard", "evaluate", "lm", "--model", str(asked.out / name), "--data", str(test)]
    done = subprocess.run([*command, "--format", "json"], stdout=subprocess.PIPE, text=True, check=True)
    scores = json.loads(done.stdout)
    text = gzip.decompress(test.read_bytes()).decode("utf-8")
    words = len(text.split()) + text.count("\n")
    chosen = ("loss", "perplexity", "bits_per_byte", "tokens", "bytes", "unknown")
    return {
        "options": " ".join(options),
        **{key: scores[key] for key in chosen},
        "words": words,
        "perplexity per word": math.exp(scores["nats"] / words),
        **measured,
    }


if __name__ == "__main__":
    sys.exit(main())
