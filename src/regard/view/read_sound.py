"""Reading of a sound: run a model on it and capture its attention layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from regard.arguments import explain_arguments
from regard.audio import pad_features
from regard.audio.sound_file import Sound
from regard.errors import DataError, check_kind
from regard.layers.eval_mode import eval_mode
from regard.models import AudioEncoder
from regard.recording import record
from regard.view.from_recording import layers_of
from regard.view.sound_reading import SoundReading

SoundOrSamples: TypeAlias = "Sound | np.ndarray[Any, Any]"
MAX_TOKENS = 2048
"""Maximum number of tokens of a sound, 82 seconds of a Conformer."""


@explain_arguments
def read_sound_attention(model: AudioEncoder, sound: SoundOrSamples, *, name: str = "") -> SoundReading:
    """Capture every attention layer of ``model`` for a sound; with a classification head also its labels.

    Args:
        model: an audio encoder, from ``regard.load``: a Conformer.
        sound: a path, the bytes of a file, or float samples at the rate of the model's processor.
        name: the sound's name on the page and in messages; "" is its path.

    Raises DataError for a sound that cannot be read or is too long, CheckpointError for a model without a processor.
    """
    check_kind("model", model, AudioEncoder, do='model = regard.models.AudioEncoder.load("conformer/")')
    check_kind("name", name, str, do="the sound's name on the page")
    name = name or (str(sound) if isinstance(sound, str | Path) else "the sound")
    processor = model.require_processor()
    features = processor.to_features(sound, name=name)
    tokens = model.count_tokens(len(features))
    if tokens > MAX_TOKENS:
        raise DataError(
            f"{name} is too long to show",
            expected=f"at most {MAX_TOKENS:,} tokens",
            got=f"{tokens:,}",
            do="cut it into parts",
        )
    padded, mask = pad_features([features])
    with torch.no_grad(), eval_mode(model), record(model) as seen:
        output = model(padded.to(model.device, next(model.parameters()).dtype), mask=mask)
    probabilities: tuple[tuple[str, float], ...] = ()
    if output.logits is not None and model.classifies:
        shares = output.logits[0].double().softmax(0).tolist()
        probabilities = tuple(sorted(zip(model.labels, shares, strict=True), key=lambda one: -one[1]))
    return SoundReading(name, features.numpy(), processor, model.frames_per_token, layers_of(seen), probabilities)
