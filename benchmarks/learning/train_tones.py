"""``python -m benchmarks.learning.train_tones``: Perceiver IO on samples of sound, drawn anew in each step.

Generated sounds to be told apart: the form of a wave, and whether its pitch rises or falls.

    s(t) = a w(2 pi (f t + r t^2 / 2) + p) + noise         w is a sine, a square or a sawtooth; r > 0 rises, r < 0 falls

Pitch f, its slope r, amplitude a and phase p are drawn for each sound, so a model cannot remember samples. 2,048
samples at 4 kHz, half a second; no sound occurs twice.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from benchmarks.learning.classifier_report import classifier_report
from benchmarks.learning.experiment import Experiment, Trainings, option_list, where
from regard.classification import majority_answer, score_probabilities
from regard.models import AudioInput, Perceiver

SAMPLES, _RATE = 2048, 4000
_FORMS = ("sine", "square", "sawtooth")
LABELS = tuple(f"{form} {way}" for form in _FORMS for way in ("rising", "falling"))
_TEST_SEED = 2**31
_TEST_BATCH = 50
REPORT = classifier_report(
    "tones",
    """\
## Sounds

Half a second of sound as 2,048 samples: a sine, a square wave or a sawtooth whose pitch rises or falls, with noise, and
pitch, slope, amplitude and phase at random. A Perceiver reads the samples in patches of 16, without a spectrogram. No
sound occurs twice.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_tones --publish
```
""",
    rows="model",
    examples="sounds",
)


def draw_sounds(count: int, generator: torch.Generator) -> tuple[Float[Tensor, "count samples"], Int[Tensor, " count"]]:
    """Draw sounds and the numbers of their labels."""
    labels = torch.randint(len(LABELS), (count,), generator=generator)

    def uniform(low: float, high: float) -> Float[Tensor, "count 1"]:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    time = torch.arange(SAMPLES) / _RATE
    way = 1 - 2 * (labels[:, None] % 2)
    # A rising sound begins where a falling one of the same numbers would end: pitches alone tell nothing.
    slope, middle = uniform(200, 400) * way, uniform(250, 450)
    cycles = (middle - slope * time[-1] / 2) * time + slope * time.square() / 2 + uniform(0, 1)
    sine = torch.sin(2 * math.pi * cycles)
    waves = torch.stack([sine, sine.sign(), 2 * (cycles % 1) - 1])
    chosen = waves[labels // 2, torch.arange(count)]
    return uniform(0.3, 1) * chosen + 0.1 * torch.randn(count, SAMPLES, generator=generator), labels


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this experiment."""
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--tests", type=int, default=1000, help="sounds of the test")


def make_trainings(asked: argparse.Namespace) -> Trainings:
    """One training."""
    options = option_list(steps=asked.steps, batch=asked.batch, rate=asked.rate, seed=asked.seed, dtype=asked.dtype)
    return {"perceiver, samples": options}


def measure(asked: argparse.Namespace, folder: Path, options: list[str]) -> dict[str, Any]:
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
        **where(),
    }


EXPERIMENT = Experiment("train_tones", __doc__, REPORT, add_options, make_trainings, measure, shared=("seed", "dtype"))

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main())
