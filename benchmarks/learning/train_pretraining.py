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
from benchmarks.learning import results, train_sst2
from benchmarks.learning.experiment import Experiment, Trainings, option_list, set_options, train_model
from benchmarks.learning.report import Report, markdown_table, percent
from regard.models.masked_language_model import MaskedLanguageModel

SIZES = {"layers": 4, "width": 128, "heads": 4}
STARTS = {"encoder": "pre-trained by masked language modelling", "untrained": "the same model with random weights"}
"""What classifiers start from: part of the name of a folder, and how it is called in the table."""
ENCODER: dict[str, Any] = {
    "model": "modernbert",
    "vocabulary": 8000,
    "block": train_sst2.MOST_TOKENS,
    "batch": 32,
    "rate": 2e-3,
    "validate_every": 500,
    "patience": 0,
}
"""A BERT stays at the loss of frequent tokens for a thousand steps. A ModernBERT does not: after 1,500 steps its loss
is below that of a BERT after 4,000. AdamW and Muon lead to the same loss."""


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each classifier over its seeds, its time and that of its encoder."""
    rows = []
    for name, members in results.group_seeds(found).items():
        accuracies = [one["accuracy"] for one in members]
        validation = statistics.mean(one["training"]["validation"]["accuracy"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        before = f"{members[0]['encoder']['seconds'] / 60:.1f}" if "encoder" in members[0] else ""
        shown = f"{percent(statistics.mean(accuracies))} | {100 * min(accuracies):.1f} to {percent(max(accuracies))}"
        rows.append(f"{name} | {shown} | {percent(validation)} | {members[0]['rate']} | {minutes:.1f} | {before}")
    columns = "test accuracy | lowest and highest | validation accuracy | rate | minutes | minutes before"
    return markdown_table(f"model | {columns}", rows)


REPORT = Report(
    "pretraining",
    """\
## Pre-training

A ModernBERT of 4 layers of width 128 first learns to fill in masked tokens of text without labels, `regard train mlm`,
and then to classify, `regard train classify --from`. It is compared with the same model with random weights: same
tokenizer, data, epochs and learning rates, of which each model takes the one with the best mean accuracy on the
validation texts. Accuracies are means over three seeds, of classifiers that start from one encoder. The texts without
labels are the validation and test set of WikiText-2, and the sentences of the training set of SST-2.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_pretraining --data data/ --publish
```
""",
    _table,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="folder of sst2_train.tsv.gz, ..")
    parser.add_argument("--mlm-steps", type=int, default=5000, help="steps of masked language modelling")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of each classifier")
    parser.add_argument("--rates", default="1e-4,3e-4,1e-3", metavar="RATES", help="peak learning rates of classifiers")
    parser.add_argument("--pooling", default="mean", choices=("mean", "cls"))
    parser.add_argument("--seed", type=int, default=1, help="of masked language modelling")
    parser.add_argument("--seeds", default="1,2,3", metavar="SEEDS", help="of classifiers")
    parser.add_argument("--device", default="cpu")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """The encoder, and classifiers from it and from random weights with each rate and seed."""
    encoder = [*option_list(data=asked.out / "texts.txt"), "--lines", "--lowercase", "--schedule", "cosine"]
    encoder += option_list(**ENCODER, steps=asked.mlm_steps, seed=asked.seed, dtype=asked.dtype, device=asked.device)
    trainings = {"encoder": [*encoder, *set_options(SIZES)]}
    common = [*train_sst2.sentence_options(asked), *option_list(dtype=asked.dtype, epochs=asked.epochs)]
    common += option_list(pooling=asked.pooling, device=asked.device)
    for start in STARTS:
        for rate in asked.rates.split(","):
            for seed in asked.seeds.split(","):
                folder = asked.out / (start if start == "encoder" else f"{start}-{seed}")
                tuned = ["--from", str(folder), *option_list(rate=rate, seed=seed)]
                trainings[run_name(start, rate, seed)] = [*tuned, *common]
    return trainings


def run_name(start: str, rate: str, seed: str) -> str:
    """The name of a training."""
    return f"{start}, {rate}, seed-{seed}"


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train the encoder, or train and evaluate a classifier from it or from random weights."""
    if model.name == "encoder":
        write_texts(asked.data, asked.out / "texts.txt")
        return train_model(model, "mlm", options)
    start = Path(options[options.index("--from") + 1])
    if start.name != "encoder":
        write_untrained(asked.out / "encoder", start, seed=int(options[options.index("--seed") + 1]))
    return train_sst2.measure(asked, model, options)


def choose_rates(asked: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """The results with the rate that has the best mean accuracy on the validation texts, for each start and seed."""
    rates, seeds = asked.rates.split(","), asked.seeds.split(",")

    def mean_accuracy(trained: list[dict[str, Any]]) -> float:
        return statistics.mean(one["training"]["validation"]["accuracy"] for one in trained)

    chosen: dict[str, Any] = {}
    for start, title in STARTS.items():
        tried = {rate: [found[run_name(start, rate, seed)] for seed in seeds] for rate in rates}
        best = max(rates, key=lambda rate: mean_accuracy(tried[rate]))
        before = {"encoder": found["encoder"]} if start == "encoder" else {}
        for seed, one in zip(seeds, tried[best], strict=True):
            chosen[f"{title}, seed {seed}"] = {**one, "rate": best, **before}
    return chosen


def write_texts(data: Path, path: Path) -> None:
    """Write the texts without labels, one a line."""
    lines = []
    for name in ("wikitext2_valid.txt.gz", "wikitext2_test.txt.gz"):
        lines += read_lines(data / name)
    lines += [line.rpartition("\t")[0] for line in read_lines(data / "sst2_train.tsv.gz")]
    atomic_write.write(path, "".join(f"{line.strip()}\n" for line in lines if line.strip()))


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


EXPERIMENT = Experiment(
    "train_pretraining",
    __doc__,
    REPORT,
    add_options,
    make_trainings,
    measure,
    shared=("dtype",),
    choose=choose_rates,
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
