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
from typing import Any

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, option_list, set_options, train_and_evaluate
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options

MOST_TOKENS = 96
MOST_BYTES = 288
"""Bytes of the longest text for a Perceiver: a sentence of SST-2 has at most 271, and two special tokens."""
SIZES = {"layers": 2, "width": 128, "heads": 4, "inner": 256, "dropout": 0.2}
REPORT = classifier_report(
    "sst2",
    """\
## Sentiment of sentences

Sentences of movie reviews, positive or negative (Socher et al. 2013, SST-2): an encoder of 2 layers of width 128 with 4
heads and a feed-forward layer of 256, trained from scratch for 10 epochs with each [mechanism](mechanisms.md) on the
same batches, and MiniLM fine-tuned for 3 epochs. The sentences are short, so mechanisms for long texts save no time
here: the table shows how much accuracy each of them loses. A mechanism whose defaults leave nothing out of so short a
text, such as top_k, bigbird or nystromformer, is exact attention here, with the row of dot_product. *perceiver, bytes*
is a [Perceiver](perceiver.md) that reads the bytes of a sentence, for the same epochs: 6,920 sentences are few to learn
words from letters. Each row is one training; with 1,821 test texts the standard error of an accuracy of 79 % is 1.0
percentage points.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_sst2 --data sst2/ --perceiver --publish
```
""",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of sst2_train.tsv.gz, ..")
    parser.add_argument("--mechanism", default="all", metavar="NAMES", help="dot_product,linear,.., all, or none")
    parser.add_argument("--option", action="append", default=[], metavar="NAME.OPTION=VALUE", help="of a mechanism")
    parser.add_argument(
        "--from", dest="start", default="minilm", metavar="NAMES", help="encoders to fine-tune: minilm,.., or none"
    )
    parser.add_argument("--perceiver", action="store_true", help="train a Perceiver on the bytes of the texts, too")
    parser.add_argument("--epochs", type=int, default=10, help="epochs from scratch")
    parser.add_argument("--fine-tuning-epochs", type=int, default=3)


def sentence_options(asked: argparse.Namespace) -> list[str]:
    """The options of `regard train classify` for the sentences."""
    options = option_list(data=asked.data / "sst2_train.tsv.gz", valid=asked.data / "sst2_dev.tsv.gz")
    return [*options, *option_list(most_tokens=MOST_TOKENS), "--truncate"]


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training from scratch for each mechanism, and one for each encoder that is fine-tuned."""
    common = [*sentence_options(asked), *option_list(seed=asked.seed, dtype=asked.dtype)]
    common += option_list(minutes=asked.minutes, device=asked.device)
    scratch = [*option_list(model="tiny", epochs=asked.epochs), *set_options(SIZES)]
    trainings = {}
    for name in [] if asked.mechanism == "none" else choose_mechanisms(asked.mechanism):
        trainings[name] = [*common, *scratch, *mechanism_options(name, MOST_TOKENS, asked.option)]
    if asked.perceiver:
        bytes_model = option_list(model="perceiver-tiny", pooling="cls", most_tokens=MOST_BYTES, epochs=asked.epochs)
        trainings["perceiver, bytes"] = [*common, *bytes_model]
    for name in [] if asked.start == "none" else asked.start.split(","):
        tuned = ["--from", name, *option_list(epochs=asked.fine_tuning_epochs)]
        trainings[f"{Path(name).name}, fine-tuned"] = [*common, *tuned]
    return trainings


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a model, and evaluate it on the test sentences."""
    test = ["--data", str(asked.data / "sst2_test.tsv.gz"), "--truncate"]
    return train_and_evaluate(model, options, test)


EXPERIMENT = Experiment(
    "train_sst2",
    __doc__,
    REPORT,
    add_options,
    make_trainings,
    measure,
    shared=("seed", "dtype", "minutes", "device"),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
