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
from typing import Any, final

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, option_list, set_options, train_and_evaluate

DATA = Path("/usr/share/datasets/fashion-mnist")
_TEST = "t10k-images-idx3-ubyte"
REPORT = classifier_report(
    "pictures",
    """\
## Fashion-MNIST

Fashion-MNIST (Xiao et al. 2017): 60,000 grey pictures of 28 x 28 for training, 10,000 for the test, ten kinds of
clothing. Models of less than half a million weights from scratch, for the same minutes: a CCT of two convolutions and
two layers of width 128, a ViT of three layers of 128, and a Swin of two layers of 80 and one of 160, both on patches of
4 x 4. Pictures are shifted by one pixel, for the CCT by two. For the ViT half of them are mirrored; for the CCT and the
Swin a rectangle is erased in a quarter of them. AdamW trains the CCT and the Swin, [Muon](training.md#settings) the
ViT. Augmentation, rates and optimizers were compared on training pictures. 2,000 of them are held out to choose the
best weights.

```console
pip install -e '.[train,vision,bench]'
python -m benchmarks.learning.train_pictures --dtype bfloat16 --publish
```
""",
    source="In 15 minutes on two cores each model sees the training pictures 17 to 30 times. With AdamW the ViT does "
    "not fit them in that time: it was right for 91 % of those and 89.7 % of the test pictures, after 13,950 steps on "
    "the same processor as the CCT.",
    rows="model",
    examples="pictures",
)


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
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


def find_test_pictures(folder: Path) -> Path:
    """The file of the test pictures, gzipped or not."""
    plain = folder / _TEST
    return plain if plain.exists() else plain.with_name(f"{_TEST}.gz")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each model."""
    return {name: make_options(asked, name) for name in asked.model.split(",")}


def make_options(asked: argparse.Namespace, name: str) -> list[str]:
    """The options of `regard train classify` for a model."""
    recipe = RECIPES.get(name, Recipe())
    made = option_list(data=asked.data, minutes=asked.minutes, augment=asked.augment, crop=asked.crop or recipe.crop)
    made += option_list(rate=asked.rate or recipe.rate, optimizer=asked.optimizer or recipe.optimizer)
    made += [*recipe.augmentation, *option_list(schedule=asked.schedule, batch=asked.batch, seed=asked.seed)]
    made += option_list(dtype=asked.dtype, patience=0)
    made += set_options((*recipe.hyperparameters, *asked.set))
    return made + option_list(steps=asked.steps, device=asked.device, model=name)


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a model, and evaluate it on the test pictures."""
    return train_and_evaluate(model, options, ["--data", str(find_test_pictures(asked.data))])


EXPERIMENT = Experiment(
    "train_pictures", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed", "dtype", "device")
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
