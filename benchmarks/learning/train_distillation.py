"""``python -m benchmarks.learning.train_distillation``: a DeiT with its distillation token, and without a teacher.

A CCT, whose convolutions know that neighbouring pixels belong together, is trained first and is the teacher. Students
of the same layers then train on Fashion-MNIST for the same steps, batches and augmentation: a ViT by the labels
alone, and a DeiT whose distillation token learns the answers of the teacher beside them (Touvron et al. 2021, "Training
data-efficient image transformers & distillation through attention", equation 3), each with several seeds. The same
command resumes interrupted runs, and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from benchmarks.learning import results, train_pictures
from benchmarks.learning.experiment import Experiment, Trainings, model_folder, option_list, set_options
from benchmarks.learning.report import Report, describe_machine, markdown_table, percent

TEACHER, WITHOUT, WITH = "teacher", "without a teacher", "with the distillation token"


def _table(found: dict[str, Any]) -> str:
    """A table in Markdown: the accuracy of each kind of student, the mean over its seeds and their range."""
    rows = []
    for name, members in results.group_seeds(found).items():
        accuracies = [one["accuracy"] for one in members]
        spread = f"{100 * min(accuracies):.1f} to {percent(max(accuracies))}" if len(members) > 1 else ""
        steps = statistics.mean(one["steps"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        mean = percent(statistics.mean(accuracies))
        rows.append(f"{name} | {mean} | {spread} | {len(members)} | {steps:,.0f} | {minutes:.0f}")
    return markdown_table("model | accuracy | lowest and highest | trainings | steps | minutes", rows)


def _note(found: dict[str, Any]) -> str:
    return (
        f"Accuracy on the 10,000 test pictures; the standard error of one training's is 0.3 percentage points. On "
        f"{describe_machine(list(found.values())[-1])}. Published, on ImageNet: DeiT-Ti 72.2 % without a "
        f"teacher and 74.5 % with its distillation token (Touvron et al. 2021, table 5).\n"
    )


REPORT = Report(
    "distillation",
    """\
## Distillation

Students of 6 layers of width 96 on Fashion-MNIST: a ViT that learns from the labels alone, and a [DeiT](images.md)
whose distillation token learns from the answers of a teacher beside them, by equation 3 of Touvron et al. 2021 (hard
distillation). The teacher is a CCT. As in the paper all students take the same steps; those of the DeiT take longer,
by the time of the teacher's answers.

```console
pip install -e '.[train,vision,bench]'
python -m benchmarks.learning.train_distillation --publish
```
""",
    _table,
    _note,
    counts=-1,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--data", type=Path, default=train_pictures.DATA, metavar="FOLDER", help="of the IDX files")
    parser.add_argument("--teacher-minutes", type=float, default=15.0, help="of the teacher's training")
    parser.add_argument("--steps", type=int, default=1500, help="of the training of each student")
    parser.add_argument("--seeds", type=int, default=3, help="students of each kind")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """The teacher, and students of both kinds with each seed."""
    common = option_list(data=asked.data, augment="light", crop=1, batch=128, schedule="cosine", patience=0)
    common += option_list(dtype=asked.dtype, device=asked.device)
    teacher = set_options(train_pictures.RECIPES["cct-tiny"].hyperparameters)
    teacher += option_list(model="cct-tiny", minutes=asked.teacher_minutes, seed=1)
    trainings = {TEACHER: [*common, *teacher]}
    taught = option_list(model="deit-tiny", teacher=model_folder(asked, TEACHER), distill="hard")
    for seed in range(1, asked.seeds + 1):
        student = [*common, *option_list(steps=asked.steps, seed=seed)]
        trainings[f"{WITHOUT}, seed {seed}"] = [*student, *option_list(model="vit-tiny")]
        trainings[f"{WITH}, seed {seed}"] = [*student, *taught]
    return trainings


EXPERIMENT = Experiment(
    "train_distillation",
    __doc__,
    REPORT,
    add_options,
    make_trainings,
    train_pictures.measure,
    shared=("dtype", "device"),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
