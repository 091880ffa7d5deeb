"""JSON data of the page of episodes: frames as PNG in data URIs, observations as texts, weights in fixed point.

A page holds at most ``MAX_CHARACTERS`` of pictures and weights; the last steps of episodes that need more are left out,
each episode of several has the same share. Weights are rounded to 13 bits of the largest in their row.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

import numpy as np

from regard.escape_text import direction_of, escape_text
from regard.language import translate
from regard.view.episode_reading import ChosenToken, EpisodeReading, ObservedPart, ReadStep
from regard.view.pack import ALPHABET, Json, pack_fixed
from regard.vision.picture_file import load_pillow

MAX_CHARACTERS = 6_000_000
LETTERS = 2


def build_episodes_data(readings: Sequence[EpisodeReading], model: str, room: int = MAX_CHARACTERS) -> Json:
    """Build all data that the page's script reads; ``room``, for the vectors of other pages, is no limit here."""
    del room
    return {
        "model": escape_text(model),
        "letters": LETTERS,
        "alphabet": ALPHABET,
        "texts": [_episode(reading, MAX_CHARACTERS // len(readings)) for reading in readings],
    }


def _episode(reading: EpisodeReading, room: int) -> Json:
    steps: list[Json] = []
    for step in reading.steps:
        packed = _step(step)
        room -= _size(packed)
        if room < 0 and steps:
            break
        steps.append(packed)
    first = reading.steps[0]
    title = translate(
        "{environment}, seed {seed}: return {total}",
        environment=reading.environment,
        seed=reading.seed,
        total=f"{reading.total:.4g}",
    )
    return {
        "title": escape_text(title),
        "direction": direction_of(title),
        "environment": escape_text(reading.environment),
        "all_steps": len(reading.steps),
        "total": reading.total,
        "layers": first.action[0].weights.shape[0],
        "heads": first.action[0].weights.shape[1],
        "parts": [_part(part) for part in first.parts],
        "components": [escape_text(action.name) for action in first.action],
        "alternatives": [[escape_text(name) for name, _ in action.alternatives] for action in first.action],
        "steps": steps,
    }


def _part(part: ObservedPart) -> Json:
    """The facts that are the same in all steps."""
    return {
        "key": escape_text(part.key),
        "names": [escape_text(name) for name in part.names],
        "grid": None if part.grid is None else list(part.grid),
        "cells": list(part.cells),
    }


def _step(step: ReadStep) -> Json:
    return {
        "frame": None if step.frame is None else _data_uri(step.frame),
        "values": [[escape_text(value) for value in part.values] for part in step.parts],
        "pictures": [None if part.picture is None else _encode_picture(part.picture) for part in step.parts],
        "reward": step.reward,
        "action": [_chosen(action) for action in step.action],
    }


def _chosen(token: ChosenToken) -> Json:
    return {
        "choice": escape_text(token.choice),
        "probability": round(token.probability, 6),
        "shares": [round(share, 6) for _, share in token.alternatives],
        "chosen": token.chosen,
        "first": token.first,
        "sources": token.weights.shape[-1],
        "weights": pack_fixed(token.weights.reshape(-1, token.weights.shape[-1]), LETTERS),
    }


def _size(step: Json) -> int:
    """The characters of the pictures and weights of a step."""
    pictures = [step["frame"], *step["pictures"]]
    return sum(len(picture) for picture in pictures if picture) + sum(
        len(action["weights"]) for action in step["action"]
    )


def _encode_picture(picture: np.ndarray) -> str:
    load_pillow()
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture[..., 0] if picture.shape[2] == 1 else picture).save(file, "png", optimize=True)
    return _data_uri(file.getvalue())


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
