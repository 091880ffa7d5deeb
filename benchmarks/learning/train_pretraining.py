"""``python -m benchmarks.learning.train_pretraining``: masked language modelling before classifying, and without it.

    1. regard train mlm              on WikiText-2 (validation and test set) and the sentences of SST-2's training set
    2. regard train classify --from  that encoder, on SST-2
    3. the same                      from the same model with random weights: same tokenizer, epochs and rates

The data are wikitext2_valid.txt.gz, wikitext2_test.txt.gz and sst2_train.tsv.gz, sst2_dev.tsv.gz, sst2_test.tsv.gz.
Steps 2 and 3 take each of ``--rates``; the rate with the best accuracy on the validation texts is measured on the test
texts. Labels are used in steps 2 and 3 only. The same command resumes interrupted runs, and keeps the results.
"""

from __future__ import annotations

import argparse
import gzip
import sys
from pathlib import Path
from typing import Any

import torch

import regard
from benchmarks import atomic_write
from benchmarks.learning import language_report, results
from benchmarks.learning.train import train_model, train_table
from regard.models import Bert

MOST_TOKENS = 96
SIZES = {"layers": 4, "width": 128, "heads": 4}
STARTS = ("encoder", "untrained")
"""The folders that classifiers start from."""
ENCODER = {"vocabulary": 8000, "block": MOST_TOKENS, "batch": 32, "rate": 1e-3, "validate-every": 500, "patience": 0}


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.train_pretraining", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of sst2_train.tsv.gz, ..")
    parser.add_argument("--out", type=Path, default=Path("trained/pretraining"), metavar="FOLDER")
    parser.add_argument("--mlm-steps", type=int, default=4000, help="steps of masked language modelling")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of each classifier")
    parser.add_argument("--rates", default="1e-4,3e-4,1e-3", metavar="RATES", help="peak learning rates of classifiers")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of matrix products")
    parser.add_argument("--publish", action="store_true", help="write results to this repository too")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


def main() -> int:
    """Train the encoder and the classifiers; write results.json and print the table."""
    asked = parse_options()
    asked.out.mkdir(parents=True, exist_ok=True)
    encoder = train_encoder(asked)
    write_untrained(asked.out / "encoder", asked.out / "untrained", seed=asked.seed)
    common = ["--data", str(asked.data / "sst2_train.tsv.gz"), "--valid", str(asked.data / "sst2_dev.tsv.gz")]
    common += ["--most-tokens", str(MOST_TOKENS), "--truncate", "--seed", str(asked.seed), "--dtype", asked.dtype]
    common += ["--epochs", str(asked.epochs), "--pooling", asked.pooling, "--device", asked.device]
    runs = {
        f"{name}, {rate}": ["--from", str(asked.out / name), "--rate", rate, *common]
        for name in STARTS
        for rate in asked.rates.split(",")
    }
    found = train_table(asked.out, runs, ["--data", str(asked.data / "sst2_test.tsv.gz"), "--truncate"])
    pretrained, random = (choose_best(found, [run for run in runs if run.startswith(name)]) for name in STARTS)
    summary = {
        "pre-trained by masked language modelling": pretrained | {"encoder": encoder},
        "the same model with random weights": random,
    }
    if asked.publish:
        for name, result in summary.items():
            results.add(language_report.PRETRAINING, name, result)
    print(language_report.pretraining_table(summary))
    return 0


def train_encoder(asked: argparse.Namespace) -> dict[str, Any]:
    """Write the texts, one a line, and train a BERT to fill in their masked tokens."""
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
    assert isinstance(trained, Bert)
    torch.manual_seed(seed)
    model = Bert(trained.config)
    model.tokenizer = trained.tokenizer
    model.save(folder, overwrite=True)


def choose_best(found: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The result with the best accuracy on the validation texts, with its name and that accuracy."""
    accuracies = {name: found[name]["training"]["validation"]["accuracy"] for name in names}
    best = max(names, key=lambda name: (accuracies[name], name))
    return found[best] | {"run": best, "validation accuracy": accuracies[best]}


if __name__ == "__main__":
    sys.exit(main())
