"""Frames of an environment as PNG files of at most 256 colours: small in memory, in animations and in pages.

Rendered environments are drawings of few colours, so most frames keep each pixel; in others the nearest of 256 colours
is taken. A frame is reduced to at most ``MAX_SIDE`` pixels a side.
"""

from __future__ import annotations

import io
import os
from typing import Any, final

import numpy as np

from regard.control import Episode
from regard.errors import MissingPackageError, RefusedError, short_repr
from regard.tasks.control.collect import run_episode
from regard.tasks.control.environments import make_environment
from regard.tasks.control.experts import Expert
from regard.vision.picture_file import load_pillow

MAX_SIDE = 480
_MODE = "rgb_array"


@final
class FrameRecorder:
    """An expert that keeps a frame of the environment before each action of another one, in ``frames``."""

    def __init__(self, act: Expert) -> None:
        self.act = act
        self.frames: list[bytes] = []

    def __call__(self, environment: Any, observation: Any) -> Any:
        """Render a frame, and return the action of the other expert."""
        self.frames.append(render_frame(environment))
        return self.act(environment, observation)


def run_with_frames(environment: Any, seed: int, act: Expert) -> tuple[Episode, list[bytes]]:
    """Run an episode; return it with its frames, one before each action and one after the last."""
    recorder = FrameRecorder(act)
    episode = run_episode(environment, seed, recorder)
    return episode, [*recorder.frames, render_frame(environment)]


def make_rendered(name: str) -> Any:
    """Make an environment that can be rendered to pixels.

    Raises RefusedError for one that cannot, MissingPackageError without Pillow, and as ``make_environment``.
    """
    load_pillow()
    environment = make_environment(name)
    modes = list(environment.metadata.get("render_modes") or ())
    environment.close()
    if _MODE not in modes:
        raise RefusedError(
            f"the environment {short_repr(name)} cannot be rendered to pixels",
            expected=f"a render mode {_MODE!r}",
            got=f"render modes {', '.join(map(repr, modes)) or 'none'}",
            do="record another environment; its returns can be measured without a recording (--record)",
        )
    # pygame would look for a screen, and complain without one; the pixels are drawn in memory.
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    return make_environment(name, render_mode=_MODE)


def render_frame(environment: Any) -> bytes:
    """Render an environment to a PNG file. Raises MissingPackageError if its drawing needs another package."""
    try:
        pixels = environment.render()
    except Exception as error:
        if not isinstance(error, ImportError) and type(error).__name__ != "DependencyNotInstalled":
            raise
        raise MissingPackageError(
            "drawing this environment needs a package that is not installed",
            expected="pygame-ce for classic control, box2d, mujoco or ale-py for others",
            got=str(error)[:200],
            do="pip install pygame-ce, or the extra of gymnasium that the environment belongs to",
        ) from error
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise RefusedError(
            "the environment was rendered to something else than a picture",
            expected="pixels (height, width, 3)",
            got=short_repr(pixels),
            do="record another environment",
        )
    return encode_png(pixels.astype(np.uint8))


def encode_png(pixels: np.ndarray) -> bytes:
    """Encode pixels (height, width, 3) as a PNG of at most 256 colours and ``MAX_SIDE`` pixels in height and width."""
    from PIL import Image

    picture = Image.fromarray(pixels)
    if max(picture.size) > MAX_SIDE:
        scale = MAX_SIDE / max(picture.size)
        smaller = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(smaller, Image.Resampling.LANCZOS)
    file = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return file.getvalue()
