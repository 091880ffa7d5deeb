"""Frames of an environment as PNG files of at most 256 colours: small in memory, in animations and in pages.

Rendered environments are drawings of few colours, so most frames keep each pixel; in others the nearest of 256 colours
is taken. A frame is reduced to at most ``MAX_SIDE`` pixels a side.

Animations of episodes: GIF, PNG (APNG) or WebP, written by Pillow.

    .gif    opened by everything; 1/100 s is its unit of time
    .png    an animated PNG: the same pixels, opened by browsers
    .webp   the smallest, without loss here

Frames are shown at the speed of the environment, the last one for a second. Of more than ``MAX_FRAMES`` every k-th is
kept, for k times as long.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

import numpy as np

from regard.atomic_write import atomic_write
from regard.control import Episode
from regard.control.collect import run_episode
from regard.control.environments import make_environment
from regard.control.experts import Expert
from regard.errors import (
    DataError,
    MissingPackageError,
    OptionError,
    RefusedError,
    check_parent_folder,
    short_repr,
    write_error,
)
from regard.vision.picture_file import load_pillow

SUFFIXES = (".gif", ".png", ".apng", ".webp")
MAX_FRAMES = 1000
_LEAST_MILLISECONDS, _LAST_MILLISECONDS = 20, 1000
"""Browsers slow down frames of less than 20 ms."""


def check_animation_path(path: Path) -> None:
    """Raise OptionError for a name whose ending is no format of an animation, OutputError for a missing folder."""
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(
            "an episode is recorded as an animated picture",
            expected=f"a name that ends in {', '.join(SUFFIXES)}",
            got=str(path),
            do=f"name it {path.with_suffix('.gif').name}; other programs convert it: ffmpeg -i episode.gif episode.mp4",
        )
    check_parent_folder(path)


def write_animation(path: Path, frames: Sequence[bytes], *, frames_per_second: float) -> None:
    """Write frames, each a PNG file, as an animation; the file appears complete or not at all.

    Raises DataError without frames, OptionError for another ending, OutputError for a path that cannot be written.
    """
    check_animation_path(path)
    if not frames:
        raise DataError("there are no frames", expected="1 or more", got="none", do="render an episode first")
    load_pillow()
    from PIL import Image

    every = math.ceil(len(frames) / MAX_FRAMES)
    kept = list(frames[::every])
    each = max(_LEAST_MILLISECONDS, round(1000 * every / frames_per_second))
    durations = [each] * (len(kept) - 1) + [max(each, _LAST_MILLISECONDS)]
    form = {".gif": "gif", ".webp": "webp"}.get(path.suffix.lower(), "png")
    options = {"lossless": True} if form == "webp" else {}
    with ExitStack() as opened:
        pictures: list[Image.Image] = [opened.enter_context(Image.open(io.BytesIO(frame))) for frame in kept]
        if form != "gif":  # one palette would hold for all frames
            pictures = [picture.convert("RGB") for picture in pictures]
        try:
            with atomic_write(path) as temporary, temporary.open("wb") as file:
                pictures[0].save(
                    file, form, save_all=True, append_images=pictures[1:], duration=durations, loop=0, **options
                )
        except OSError as error:
            raise write_error(f"{path} cannot be written", error) from error


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
            do="record another environment; its returns can be measured without a recording (`record=...`)",
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
