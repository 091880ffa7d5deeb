"""Generated sounds to be told apart: the form of a wave, and whether its pitch rises or falls.

    s(t) = a w(2 pi (f t + r t^2 / 2) + p) + noise         w is a sine, a square or a sawtooth; r > 0 rises, r < 0 falls

Pitch f, its slope r, amplitude a and phase p are drawn for each sound, so a model cannot remember samples. 2,048
samples at 4 kHz, half a second; no sound occurs twice.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

SAMPLES, _RATE = 2048, 4000
_FORMS = ("sine", "square", "sawtooth")
LABELS = tuple(f"{form} {way}" for form in _FORMS for way in ("rising", "falling"))


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
