"""``python -m benchmarks.learning.train_distillation``: a DeiT with its distillation token, and without a teacher.

A CCT, whose convolutions know that neighbouring pixels belong together, is trained first and is the teacher. Students
of the same layers then train on Fashion-MNIST for the same steps, batches and augmentation: a ViT by the labels
alone, and a DeiT whose distillation token learns the answers of the teacher beside them (Touvron et al. 2021, "Training
data-efficient image transformers & distillation through attention", equation 3), each with several seeds. The same
command resumes interrupted runs, and keeps the results that are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.learning import results
from benchmarks.learning.program import make_parser
from benchmarks.learning.report import DISTILLATION
from benchmarks.learning.train import train_table
from benchmarks.learning.train_pictures import DATA, RECIPES, find_test_pictures

TEACHER, WITHOUT, WITH = "teacher", "without a teacher", "with the distillation token"


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_distillation", __doc__, "trained/distillation", "dtype", "device")
    parser.add_argument("--data", type=Path, default=DATA, metavar="FOLDER", help="folder of the IDX files")
    parser.add_argument("--teacher-minutes", type=float, default=15.0, help="of the teacher's training")
    parser.add_argument("--steps", type=int, default=1500, help="of the training of each student")
    parser.add_argument("--seeds", type=int, default=3, help="students of each kind")
    return parser.parse_args()


def main() -> int:
    """Train the teacher and all students; write results.json and print the table."""
    asked = parse_options()
    common = ["--data", str(asked.data), "--augment", "light", "--crop", "1", "--batch", "128", "--schedule", "cosine"]
    common += ["--patience", "0", "--dtype", asked.dtype, *([] if asked.device is None else ["--device", asked.device])]
    teacher = [part for one in RECIPES["cct-tiny"].hyperparameters for part in ("--set", one)]
    teacher += ["--model", "cct-tiny", "--minutes", str(asked.teacher_minutes), "--seed", "1"]
    runs = {TEACHER: [*common, *teacher]}
    for seed in range(1, asked.seeds + 1):
        student = [*common, "--steps", str(asked.steps), "--seed", str(seed)]
        runs[f"{WITHOUT}, seed {seed}"] = [*student, "--model", "vit-tiny"]
        taught = ["--model", "deit-tiny", "--teacher", str(asked.out / TEACHER), "--distill", "hard"]
        runs[f"{WITH}, seed {seed}"] = [*student, *taught]
    found = train_table(asked.out, runs, ["--data", str(find_test_pictures(asked.data))])
    if asked.publish:
        results.publish(DISTILLATION.path, found)
    print(DISTILLATION.table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
