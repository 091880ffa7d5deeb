"""``python -m benchmarks.learning.train_pictures``: Fashion-MNIST, with each image model from scratch.

The data are the IDX files train-images-idx3-ubyte, .. t10k-labels-idx1-ubyte, gzipped or not: Xiao et al. 2017,
"Fashion-MNIST: a novel image dataset for benchmarking machine learning algorithms"; Debian's package
dataset-fashion-mnist has them in /usr/share/datasets/fashion-mnist. Every model trains for the same minutes, on the
same batches; the validation pictures are held out of the training pictures. ``RECIPES`` are the shapes, rates and crops
that learn most in 15 minutes on two cores: few and wide layers, no dropout, and weaker augmentation than for hours. All
shoes face one way: mirrored pictures help the ViT, and not the other two. The same command resumes interrupted runs,
and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from benchmarks.learning.classification_report import PICTURES
from benchmarks.learning.program import make_parser, report_classifiers
from benchmarks.learning.train import train_table

DATA = Path("/usr/share/datasets/fashion-mnist")
_TEST = "t10k-images-idx3-ubyte"


@final
@dataclass(frozen=True)
class Recipe:
    """The options of a model that the command line leaves open; those that are None are of `regard train classify`."""

    crop: str | None = None
    rate: str | None = None
    optimizer: str | None = None
    augmentation: tuple[str, ...] = ()
    hyperparameters: tuple[str, ...] = ()


RECIPES = {
    "cct-tiny": Recipe(
        "2",
        "2e-3",
        augmentation=("--no-flip", "--erase", "0.25"),
        hyperparameters=(
            "stochastic_depth=0",
            "attention_dropout=0",
            "width=128",
            "layers=2",
            "inner=256",
            "heads=4",
            "tokenizer_width=64",
        ),
    ),
    "vit-tiny": Recipe("1", "2e-3", "muon", hyperparameters=("width=128", "layers=3", "inner=256", "heads=4")),
    "swin-tiny": Recipe(
        "1",
        "3e-3",
        augmentation=("--no-flip", "--erase", "0.25"),
        hyperparameters=("stochastic_depth=0", "patch_size=4", "width=80", "depths=[2,1]", "heads=[4,8]", "window=4"),
    ),
}


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_pictures", __doc__, "trained/pictures", "seed", "dtype", "device")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="folder of the IDX files")
    parser.add_argument("--model", default=",".join(RECIPES), metavar="NAMES", help="vit-tiny,deit-tiny,..")
    parser.add_argument("--minutes", type=float, default=15.0, help="minutes of each training")
    parser.add_argument("--steps", type=int, help="most steps of each training; default: no limit")
    parser.add_argument("--augment", default="light", choices=("none", "light", "strong"))
    parser.add_argument("--crop", help="pixels of padding before a random crop; default: the recipe's")
    parser.add_argument("--schedule", default="cosine", help="of the learning rate; cosine ends with the minutes")
    parser.add_argument("--optimizer", help="adamw or muon; default: the recipe's")
    parser.add_argument("--rate", help="peak learning rate; default: the recipe's")
    parser.add_argument("--batch", type=int, default=128, help="pictures of a batch")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the models' configs")
    return parser.parse_args()


def find_test_pictures(folder: Path) -> Path:
    """The file of the test pictures, gzipped or not."""
    plain = folder / _TEST
    return plain if plain.exists() else plain.with_name(f"{_TEST}.gz")


def make_options(asked: argparse.Namespace, name: str) -> list[str]:
    """The options of `regard train classify` for a model."""
    recipe = RECIPES.get(name, Recipe())
    made = ["--data", str(asked.data), "--minutes", str(asked.minutes), "--augment", asked.augment]
    for option, value in (
        ("--crop", asked.crop or recipe.crop),
        ("--rate", asked.rate or recipe.rate),
        ("--optimizer", asked.optimizer or recipe.optimizer),
    ):
        made += [] if value is None else [option, value]
    made += [*recipe.augmentation, "--schedule", asked.schedule]
    made += ["--batch", str(asked.batch), "--seed", str(asked.seed), "--dtype", asked.dtype, "--patience", "0"]
    made += [part for one in (*recipe.hyperparameters, *asked.set) for part in ("--set", one)]
    made += [] if asked.steps is None else ["--steps", str(asked.steps)]
    made += [] if asked.device is None else ["--device", asked.device]
    return [*made, "--model", name]


def main() -> int:
    """Train and evaluate all models; write results.json and print the table."""
    asked = parse_options()
    runs = {name: make_options(asked, name) for name in asked.model.split(",")}
    found = train_table(asked.out, runs, ["--data", str(find_test_pictures(asked.data))])
    return report_classifiers(PICTURES, found, asked)


if __name__ == "__main__":
    sys.exit(main())
