"""``python -m benchmarks.learning.train_keywords``: spoken keywords, by a Conformer and by a convolution of its size.

The data are those of ``benchmarks.learning.keywords``. Both models have as many weights, train for the same minutes on
the same batches and augmentation, and end with the same head; the validation sounds are held out of the training
sounds, and the test sounds have other voices. The same command resumes interrupted runs, and keeps the results that are
there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from benchmarks.learning import results
from benchmarks.learning.classification_report import KEYWORDS
from benchmarks.learning.program import make_parser, report_classifiers
from benchmarks.learning.sound_convolution import SoundConvolution, build_of_size
from benchmarks.learning.train import measure_training
from regard.audio.sound_file import SOUNDS
from regard.classification import MediaClassifier, score_probabilities
from regard.media import label_matrix, read_and_report_labelled
from regard.models import AudioEncoder, Conformer
from regard.models.model_folder import ModelFolder
from regard.tasks.new_conformer import build_conformer
from regard.tasks.presets import Size
from regard.tasks.sound_classification import SoundClassificationRecipe, SoundClassificationTask
from regard.train import Settings, run

_TRAIN = "--train-one"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_keywords", __doc__, "trained/keywords", "seed", "dtype", "device")
    parser.add_argument("--data", type=Path, default=Path("keywords"), metavar="FOLDER", help="folder of the sounds")
    parser.add_argument("--model", default="conformer,convolution", metavar="NAMES", help="conformer,convolution")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of each training")
    parser.add_argument("--steps", type=int, help="most steps of each training; default: no limit")
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"), help="of the Conformer")
    parser.add_argument("--augment", default="light", choices=("none", "light", "strong"))
    parser.add_argument("--batch", type=int, default=64, help="sounds of a batch")
    parser.add_argument(_TRAIN, metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def build_convolution(
    recipe: SoundClassificationRecipe, size: Size, *, bands: int, labels: tuple[str, ...]
) -> AudioEncoder:
    """Build the convolution that has as many weights as the Conformer of this recipe."""
    with torch.device("meta"):
        conformer = build_conformer(recipe, size, bands=bands, labels=labels)
    return build_of_size(sum(one.numel() for one in conformer.parameters()), bands=bands, labels=labels)


def train_one(asked: argparse.Namespace) -> int:
    """Train one model in this process."""
    recipe = SoundClassificationRecipe(
        (asked.data / "train",), model=asked.size, augment=asked.augment, batch=asked.batch
    )
    build = build_convolution if asked.model == "convolution" else build_conformer
    limits = {"minutes": asked.minutes, "steps": asked.steps, "patience": 0}
    settings = Settings(seed=asked.seed, precision=asked.dtype, **limits)
    run(
        SoundClassificationTask(recipe, build=build),
        settings,
        asked.train_one,
        resume=asked.resume,
        device=asked.device,
    )
    return 0


def train_and_evaluate(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train a model in a process of its own, and score it on the test sounds."""
    folder = asked.out / name
    options = options_of(asked, name)
    command = [sys.executable, "-m", "benchmarks.learning.train_keywords", *options, _TRAIN, str(folder)]
    measured = measure_training(folder, command)
    kind: type[AudioEncoder] = SoundConvolution if name == "convolution" else Conformer
    model = kind.from_folder(ModelFolder.open(folder), dtype=torch.float32)
    classifier = MediaClassifier(model)
    sounds = read_and_report_labelled([asked.data / "test"], SOUNDS, None)
    probabilities = classifier.probabilities([one.content for one in sounds]).numpy()
    scores = score_probabilities(
        probabilities, label_matrix(sounds, classifier.labels, "the model", SOUNDS), classifier.labels
    )
    found = {one: getattr(scores, one) for one in ("accuracy", "baseline", "macro_f1", "loss", "calibration_error")}
    weights = sum(one.numel() for one in model.parameters())
    return {
        "options": " ".join(options_of(asked, name)),
        "sounds": scores.texts,
        "weights": weights,
        **found,
        **measured,
    }


def options_of(asked: argparse.Namespace, name: str) -> list[str]:
    """The options that decide a result."""
    options = ["--data", str(asked.data), "--model", name, "--minutes", str(asked.minutes), "--size", asked.size]
    options += [
        "--augment",
        asked.augment,
        "--batch",
        str(asked.batch),
        "--seed",
        str(asked.seed),
        "--dtype",
        asked.dtype,
    ]
    options += [] if asked.steps is None else ["--steps", str(asked.steps)]
    return options + ([] if asked.device is None else ["--device", asked.device])


def main() -> int:
    """Train and evaluate all models; write results.json and print the table."""
    asked = parse_options()
    if asked.train_one is not None:
        return train_one(asked)
    path = asked.out / "results.json"
    found = results.read(path)
    for name in asked.model.split(","):
        if found.get(name, {}).get("options") == " ".join(options_of(asked, name)):
            print(f"{name}: measured already, in {path}", file=sys.stderr)
            continue
        print(name, file=sys.stderr)
        found = results.add(path, name, train_and_evaluate(asked, name))
    return report_classifiers(KEYWORDS, found, asked)


if __name__ == "__main__":
    sys.exit(main())
