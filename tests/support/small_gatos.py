"""Gatos small enough to build in a test, and a small environment of everything that they read."""

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from regard.models import Gato, GatoConfig
from regard.text import byte_tokenizer

TOY, DRAWN_TOY = "RegardToy-v0", "RegardDrawnToy-v0"
TOY_STEPS = 5


def small_gato(*, texts: bool = False, channels: int = 3, **options) -> Gato:
    """Build a Gato with large random weights, so that its attention is far from uniform."""
    torch.manual_seed(3)
    tokenizer = byte_tokenizer() if texts else None
    sizes = {"width": 12, "layers": 2, "heads": 3, "inner": 13, "patch_channels": 2, "groups": 1, "dropout": 0.0}
    sizes |= {"text": tokenizer.vocabulary if tokenizer else 0, "bins": 101, "discrete": 7, "deviation": 0.4}
    model = Gato(GatoConfig(**(sizes | {"max_length": 61, "channels": channels} | options))).eval()
    model.tokenizer = tokenizer
    return model


class ToyEnvironment(gymnasium.Env):
    """A picture, a text, a grid and a number are observed; an action is two numbers. Rewards are 0, 1, 2 ..."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (32, 48, 1), np.uint8),
            "words": spaces.Text(9),
            "board": spaces.MultiDiscrete(np.full((2, 3), 7)),
            "speed": spaces.Box(-np.inf, np.inf, ()),
        }
    )
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def __init__(self, *, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action):
        self._step += 1
        return self._observe(), float(self._step - 1), self._step == TOY_STEPS, False, {}

    def render(self):
        return np.full((10, 20, 3), 40 * self._step, dtype=np.uint8)

    def _observe(self):
        camera = self.np_random.integers(0, 256, (32, 48, 1), dtype=np.uint8)
        board = self.np_random.integers(0, 7, (2, 3))
        return {"camera": camera, "words": "<b>hi", "board": board, "speed": np.float32(self._step / 2)}


class UndrawnToyEnvironment(ToyEnvironment):
    """The same without a way to draw it."""

    metadata = {"render_modes": []}  # noqa: RUF012


def register_toys() -> None:
    """Register the environments, once."""
    for name, kind in ((TOY, UndrawnToyEnvironment), (DRAWN_TOY, ToyEnvironment)):
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=kind, disable_env_checker=True)
