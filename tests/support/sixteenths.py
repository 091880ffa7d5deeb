"""Random multiples of 1/16 below 8, which every dtype represents exactly, so that all dtypes share one oracle."""

import numpy as np


def sixteenths(*shape: int, seed: int = 0, size: float = 1.0) -> np.ndarray:
    drawn = np.random.default_rng([*shape, seed]).standard_normal(shape)
    return np.clip(np.round(drawn * 16 * size) / 16, -7.9375, 7.9375)
