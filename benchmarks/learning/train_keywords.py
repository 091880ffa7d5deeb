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

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, measure_training, option_list
from benchmarks.learning.sound_convolution import SoundConvolution, build_of_size
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
REPORT = classifier_report(
    "keywords",
    """\
## Spoken keywords

Twenty spoken words, the commands and digits of Speech Commands (Warden 2018), synthesized by espeak-ng in eight accents
of English and a hundred voices, with echoes and noise; a fifth of the voices speak in the test only. A Conformer of
half a million weights, and a convolution with as many (time-channel separable, as MatchboxNet), each for the same
minutes on the same batches and augmentation. Synthetic speech compares models, and says little about recordings.

```console
apt-get install espeak-ng
pip install -e '.[train,audio,bench]'
python -m benchmarks.learning.keywords --out keywords/
python -m benchmarks.learning.train_keywords --data keywords/ --publish
```
""",
    rows="model",
    examples="sounds",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, default=Path("keywords"), metavar="FOLDER", help="folder of the sounds")
    parser.add_argument("--model", default="conformer,convolution", metavar="NAMES", help="conformer,convolution")
    parser.add_argument("--minutes", type=float, default=30.0, help="minutes of each training")
    parser.add_argument("--steps", type=int, help="most steps of each training; default: no limit")
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"), help="of the Conformer")
    parser.add_argument("--augment", default="light", choices=("none", "light", "strong"))
    parser.add_argument("--batch", type=int, default=64, help="sounds of a batch")
    parser.add_argument(_TRAIN, metavar="FOLDER", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", action="store_true", help=argparse.SUPPRESS)


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training for each model."""
    common = option_list(
        minutes=asked.minutes, size=asked.size, augment=asked.augment, batch=asked.batch, seed=asked.seed,
        dtype=asked.dtype, steps=asked.steps, device=asked.device,
    )  # fmt: skip
    return {name: [*option_list(data=asked.data, model=name), *common] for name in asked.model.split(",")}


def measure(asked: argparse.Namespace, model: Path, options: list[str]) -> dict[str, Any]:
    """Train a model in a process of its own, and score it on the test sounds."""
    command = [sys.executable, "-m", "benchmarks.learning.train_keywords", *options, _TRAIN, str(model)]
    measured = measure_training(model, command)
    kind: type[AudioEncoder] = SoundConvolution if model.name == "convolution" else Conformer
    trained = kind.from_folder(ModelFolder.open(model), dtype=torch.float32)
    classifier = MediaClassifier(trained)
    sounds = read_and_report_labelled([asked.data / "test"], SOUNDS, None)
    truth = label_matrix(sounds, classifier.labels, "the model", SOUNDS)
    probabilities = classifier.probabilities([sound.content for sound in sounds]).numpy()
    scores = score_probabilities(probabilities, truth, classifier.labels)
    names = ("accuracy", "baseline", "macro_f1", "loss", "calibration_error")
    return {
        "sounds": scores.texts,
        "weights": sum(parameter.numel() for parameter in trained.parameters()),
        **{name: getattr(scores, name) for name in names},
        **measured,
    }


EXPERIMENT = Experiment(
    "train_keywords", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed", "dtype", "device")
)


def train_one(asked: argparse.Namespace) -> int:
    """Train one model in this process."""
    recipe = SoundClassificationRecipe(
        (asked.data / "train",), model=asked.size, augment=asked.augment, batch=asked.batch
    )
    build = build_convolution if asked.model == "convolution" else build_conformer
    limits = {"minutes": asked.minutes, "steps": asked.steps, "patience": 0}
    settings = Settings(seed=asked.seed, precision=asked.dtype, **limits)
    task = SoundClassificationTask(recipe, build=build)
    run(task, settings, asked.train_one, resume=asked.resume, device=asked.device)
    return 0


def build_convolution(
    recipe: SoundClassificationRecipe, size: Size, *, bands: int, labels: tuple[str, ...]
) -> AudioEncoder:
    """Build the convolution that has as many weights as the Conformer of this recipe."""
    with torch.device("meta"):
        conformer = build_conformer(recipe, size, bands=bands, labels=labels)
    return build_of_size(sum(one.numel() for one in conformer.parameters()), bands=bands, labels=labels)


if __name__ == "__main__":
    asked = EXPERIMENT.parse_options()
    sys.exit(EXPERIMENT.main() if asked.train_one is None else train_one(asked))
