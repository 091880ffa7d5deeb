"""Vectors of pictures and sounds: how an encoder reads files of a kind, and makes a vector of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.audio.sound_file import SOUNDS
from regard.classification.picture_classifier import embed_pixels, get_processor
from regard.classification.sound_classifier import embed_features, get_sound_processor
from regard.media import MediaKind
from regard.models import AudioEncoder, ImageEncoder
from regard.models.model_folder import FolderOrName
from regard.vision.picture_file import PICTURES


@final
@dataclass(frozen=True)
class MediaEmbedder:
    """Makes vectors of files of a ``kind``.

    Args:
        kind: pictures or sounds.
        width: number of components of a vector.
        read: makes the model input of a file, by its path and its name in messages; raises DataError.
        embed: makes the vectors (files, width), float32, of what ``read`` returned.
    """

    kind: MediaKind
    width: int
    read: Callable[[Path, str], Any]
    embed: Callable[[Sequence[Any]], Float[Tensor, "files width"]]

    @classmethod
    def load(cls, kind: MediaKind, folder: FolderOrName, *, dtype: torch.dtype, batch: int) -> MediaEmbedder:
        """Load the encoder of a folder, which reads ``batch`` files at a time. Raises CheckpointError."""
        if kind is PICTURES:
            pictures = ImageEncoder.load(folder, dtype=dtype)
            pixels = get_processor(pictures)
            return cls(
                kind,
                pictures.vector_width,
                lambda path, name: pixels.to_pixels(path, name=name),
                partial(embed_pixels, pictures, batch=batch),
            )
        assert kind is SOUNDS
        sounds = AudioEncoder.load(folder, dtype=dtype)
        features = get_sound_processor(sounds)
        return cls(
            kind,
            sounds.width,
            lambda path, name: features.to_features(path, name=name),
            partial(embed_features, sounds, batch=batch),
        )
