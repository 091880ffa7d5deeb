"""``python -m benchmarks.learning.train_pretraining``: masked language modelling before classifying, and without it.

    1. regard train mlm              on WikiText-2 (validation and test set) and the sentences of SST-2's training set
    2. regard train classify --from  that encoder, on SST-2
    3. the same                      from the same model with random weights: same tokenizer, epochs and rates

The data are wikitext2_valid.txt.gz, wikitext2_test.txt.gz and sst2_train.tsv.gz, sst2_dev.tsv.gz, sst2_test.tsv.gz.
Steps 2 and 3 take each of ``--rates`` and each of ``--seeds``, which decide the random weights (in step 2 those of the
classifier alone) and the order of the texts. The rate with the best mean accuracy on the validation texts counts.
Labels are used in steps 2 and 3 only. The same command resumes interrupted runs, and keeps the results.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks import atomic_write
from benchmarks.learning import results
from benchmarks.learning.program import make_parser
from benchmarks.learning.report import PRETRAINING
from benchmarks.learning.train import train_model, train_table
from regard.models.masked_language_model import MaskedLanguageModel

MOST_TOKENS = 96
SIZES = {"layers": 4, "width": 128, "heads": 4}
STARTS = {"encoder": "pre-trained by masked language modelling", "untrained": "the same model with random weights"}
"""What classifiers start from: part of the name of a folder, and how it is called in the table."""
ENCODER: dict[str, Any] = {
    "model": "modernbert",
    "vocabulary": 8000,
    "block": MOST_TOKENS,
    "batch": 32,
    "rate": 2e-3,
    "validate-every": 500,
    "patience": 0,
}
"""A BERT stays at the loss of frequent tokens for a thousand steps. A ModernBERT does not: after 1,500 steps its loss
is below that of a BERT after 4,000. AdamW and Muon lead to the same loss."""


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_pretraining", __doc__, "trained/pretraining", "dtype")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of sst2_train.tsv.gz, ..")
    parser.add_argument("--mlm-steps", type=int, default=5000, help="steps of masked language modelling")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of each classifier")
    parser.add_argument("--rates", default="1e-4,3e-4,1e-3", metavar="RATES", help="peak learning rates of classifiers")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--seed", type=int, default=1, help="of masked language modelling")
    parser.add_argument("--seeds", default="1,2,3", metavar="SEEDS", help="of classifiers")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> int:
    """Train the encoder and the classifiers; write results.json and print the table."""
    asked = parse_options()
    asked.out.mkdir(parents=True, exist_ok=True)
    encoder = train_encoder(asked)
    rates, seeds = asked.rates.split(","), asked.seeds.split(",")
    for seed in seeds:
        write_untrained(asked.out / "encoder", start_folder(asked.out, "untrained", seed), seed=int(seed))
    common = ["--data", str(asked.data / "sst2_train.tsv.gz"), "--valid", str(asked.data / "sst2_dev.tsv.gz")]
    common += ["--most-tokens", str(MOST_TOKENS), "--truncate", "--dtype", asked.dtype]
    common += ["--epochs", str(asked.epochs), "--pooling", asked.pooling, "--device", asked.device]
    runs = {
        run_name(start, rate, seed): ["--from", str(folder), "--rate", rate, "--seed", seed, *common]
        for start in STARTS
        for rate in rates
        for seed, folder in ((seed, start_folder(asked.out, start, seed)) for seed in seeds)
    }
    found = train_table(asked.out, runs, ["--data", str(asked.data / "sst2_test.tsv.gz"), "--truncate"])
    summary = choose_rates(found, rates, seeds)
    for seed in seeds:
        summary[f"{STARTS['encoder']}, seed {seed}"]["encoder"] = encoder
    if asked.publish:
        results.publish(PRETRAINING.path, summary)
    print(PRETRAINING.table(summary))
    return 0


def start_folder(out: Path, start: str, seed: str) -> Path:
    """The folder that a classifier starts from: one encoder for all seeds, or random weights of each seed."""
    return out / (start if start == "encoder" else f"{start}-{seed}")


def run_name(start: str, rate: str, seed: str) -> str:
    """The name of a training."""
    return f"{start}, {rate}, seed-{seed}"


def choose_rates(found: dict[str, Any], rates: list[str], seeds: list[str]) -> dict[str, Any]:
    """The results with the rate that has the best mean accuracy on the validation texts, for each start and seed."""

    def mean_accuracy(trained: list[dict[str, Any]]) -> float:
        return statistics.mean(one["training"]["validation"]["accuracy"] for one in trained)

    chosen: dict[str, Any] = {}
    for start, title in STARTS.items():
        tried = {rate: [found[run_name(start, rate, seed)] for seed in seeds] for rate in rates}
        best = max(rates, key=lambda rate: mean_accuracy(tried[rate]))
        chosen |= {f"{title}, seed {seed}": one | {"rate": best} for seed, one in zip(seeds, tried[best], strict=True)}
    return chosen


def train_encoder(asked: argparse.Namespace) -> dict[str, Any]:
    """Write the texts, one a line, and train an encoder to fill in their masked tokens."""
    lines = []
    for name in ("wikitext2_valid.txt.gz", "wikitext2_test.txt.gz"):
        lines += read_lines(asked.data / name)
    lines += [line.rpartition("\t")[0] for line in read_lines(asked.data / "sst2_train.tsv.gz")]
    atomic_write.write(asked.out / "texts.txt", "".join(f"{line.strip()}\n" for line in lines if line.strip()))
    settings = ENCODER | {"steps": asked.mlm_steps, "seed": asked.seed, "dtype": asked.dtype, "device": asked.device}
    options = ["--data", str(asked.out / "texts.txt"), "--lines", "--lowercase", "--schedule", "cosine"]
    options += [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    options += [part for key, value in SIZES.items() for part in ("--set", f"{key}={value}")]
    return train_model(asked.out / "encoder", "mlm", options)


def read_lines(path: Path) -> list[str]:
    """The lines of a gzipped file."""
    return gzip.decompress(path.read_bytes()).decode("utf-8").splitlines()


def write_untrained(encoder: Path, folder: Path, *, seed: int) -> None:
    """Write the model of a folder with random weights, and with its tokenizer."""
    trained = regard.load(encoder)
    assert isinstance(trained, MaskedLanguageModel)
    torch.manual_seed(seed)
    model = type(trained)(trained.config)
    model.tokenizer = trained.tokenizer
    model.save(folder, overwrite=True)


if __name__ == "__main__":
    sys.exit(main())
