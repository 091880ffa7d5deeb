"""Animations of episodes: GIF, PNG (APNG) or WebP, written by Pillow.

    .gif    opened by everything; 1/100 s is its unit of time
    .png    an animated PNG: the same pixels, opened by browsers
    .webp   the smallest, without loss here

Frames are shown at the speed of the environment, the last one for a second. Of more than ``MAX_FRAMES`` every k-th is
kept, for k times as long.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from regard.atomic_write import atomic_write
from regard.errors import DataError, OptionError, check_parent_folder, write_error
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
        pictures: list[Image.Image] = [opened.enter_context(Image.open(io.BytesIO(one))) for one in kept]
        if form != "gif":  # one palette would hold for all frames
            pictures = [one.convert("RGB") for one in pictures]
        try:
            with atomic_write(path) as aside, aside.open("wb") as file:
                pictures[0].save(
                    file, form, save_all=True, append_images=pictures[1:], duration=durations, loop=0, **options
                )
        except OSError as error:
            raise write_error(f"{path} cannot be written", error) from error
