"""``python -m benchmarks.learning.train_sst2``: sentiment of sentences, with each mechanism and fine-tuned.

The data are sst2_train.tsv.gz, sst2_dev.tsv.gz and sst2_test.tsv.gz, with a sentence and 0 or 1 in each line: Socher et
al. 2013, "Recursive deep models for semantic compositionality over a sentiment treebank". Every mechanism trains the
same encoder from scratch, on the same batches; then MiniLM is fine-tuned. The same command resumes interrupted runs,
and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.learning.classification_report import SST2
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options
from benchmarks.learning.program import make_parser, report_classifiers
from benchmarks.learning.train import train_table

MOST_TOKENS = 96
MOST_BYTES = 288
"""Bytes of the longest text for a Perceiver: a sentence of SST-2 has at most 271, and two special tokens."""
SIZES = {"layers": 2, "width": 128, "heads": 4, "inner": 256, "dropout": 0.2}


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_sst2", __doc__, "trained/sst2", "seed", "dtype", "minutes", "device")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of sst2_train.tsv.gz, ..")
    parser.add_argument("--mechanism", default="all", metavar="NAMES", help="dot_product,linear,.., all, or none")
    parser.add_argument("--option", action="append", default=[], metavar="NAME.OPTION=VALUE", help="of a mechanism")
    parser.add_argument(
        "--from", dest="start", default="minilm", metavar="NAMES", help="encoders to fine-tune: minilm,.., or none"
    )
    parser.add_argument("--perceiver", action="store_true", help="train a Perceiver on the bytes of the texts, too")
    parser.add_argument("--epochs", type=int, default=10, help="epochs from scratch")
    parser.add_argument("--fine-tuning-epochs", type=int, default=3)
    return parser.parse_args()


def main() -> int:
    """Train and evaluate all models; write results.json and print the table."""
    asked = parse_options()
    common = ["--data", str(asked.data / "sst2_train.tsv.gz"), "--valid", str(asked.data / "sst2_dev.tsv.gz")]
    common += ["--most-tokens", str(MOST_TOKENS), "--truncate", "--seed", str(asked.seed), "--dtype", asked.dtype]
    common += [] if asked.minutes is None else ["--minutes", str(asked.minutes)]
    common += [] if asked.device is None else ["--device", asked.device]
    scratch = ["--model", "tiny", "--epochs", str(asked.epochs)]
    scratch += [part for name, value in SIZES.items() for part in ("--set", f"{name}={value}")]
    runs = {}
    for name in [] if asked.mechanism == "none" else choose_mechanisms(asked.mechanism):
        runs[name] = [*common, *scratch, *mechanism_options(name, MOST_TOKENS, asked.option)]
    if asked.perceiver:
        bytes_model = ["--model", "perceiver-tiny", "--pooling", "cls", "--most-tokens", str(MOST_BYTES)]
        runs["perceiver, bytes"] = [*common, *bytes_model, "--epochs", str(asked.epochs)]
    for name in [] if asked.start == "none" else asked.start.split(","):
        tuned = ["--from", name, "--epochs", str(asked.fine_tuning_epochs)]
        runs[f"{Path(name).name}, fine-tuned"] = [*common, *tuned]
    found = train_table(asked.out, runs, ["--data", str(asked.data / "sst2_test.tsv.gz"), "--truncate"])
    return report_classifiers(SST2, found, asked)


if __name__ == "__main__":
    sys.exit(main())
