"""Transcription of sounds with a trained model.

sound -> log-mel spectrogram -> logits of each token -> the labels of the most likely path, and their times -> text
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.audio.sound_file import SOUNDS, Sound
from regard.classification.media_classifier import check_list
from regard.errors import CheckpointError, check_count, check_kind
from regard.models import AudioEncoder
from regard.models.ctc import LabelSpan, decode_ctc_spans
from regard.transcription.text_labels import TextLabels


@final
@explain_arguments
@dataclass(frozen=True)
class TimedLabel:
    """A character or a word of a sound, and when the model wrote it: from ``start`` to ``end``, in seconds.

    Connectionist temporal classification writes a label once it is sure of it, often for a single token, so these are
    times within the spoken label or soon after it, and not its bounds.
    """

    text: str
    start: float
    end: float


@final
@explain_arguments
@dataclass(frozen=True)
class Transcription:
    """The text of a sound. ``name`` is its path, or "sound 1" and so on; ``labels`` are its characters or words."""

    name: str
    text: str
    labels: tuple[TimedLabel, ...]


@final
@explain_arguments
class Transcriber:
    """Writes the texts of sounds with ``model``, an audio encoder with a ctc head; ``batch`` is the sounds at a time.

    Raises CheckpointError for a model without a ctc head, or without a processor.
    """

    def __init__(self, model: AudioEncoder, *, batch: int = SOUNDS.batch) -> None:
        check_kind("model", model, AudioEncoder, do="Transcriber.load(folder), or regard.load(folder)")
        check_count("batch", batch)
        if not model.labels or model.classifies:
            raise CheckpointError(
                "the model has no ctc head, so it cannot write texts",
                expected="a model that `regard train transcribe` wrote",
                got="a head that classifies sounds" if model.labels else "a model without a head",
                do="use regard classify" if model.labels else "train a head: regard train transcribe --from FOLDER",
            )
        self.model, self.batch, self.processor = model, batch, model.require_processor()
        self.labels = TextLabels(model.labels)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        batch: int = SOUNDS.batch,
    ) -> Transcriber:
        """Load a model folder; ``device``, ``dtype`` and ``weights`` are those of ``regard.load``.

        Raises CheckpointError if it holds no model that writes texts.
        """
        return cls(AudioEncoder.load(folder, device=device, dtype=dtype, weights=weights), batch=batch)

    def read(self, sound: Sound | np.ndarray[Any, Any], *, name: str | None = None) -> Float[Tensor, "frames bands"]:
        """The features of a sound. Raises DataError for one that cannot be read."""
        return self.model.make_input(sound, name=name)

    def transcribe(self, sounds: Sequence[Sound | np.ndarray[Any, Any]]) -> list[Transcription]:
        """Write the texts of sounds: paths, bytes of files, or float arrays (samples,) at ``processor.rate``.

        Raises DataError for a sound that cannot be read, OptionError if ``sounds`` is not a list.
        """
        check_list(sounds, SOUNDS)
        names = [
            str(source) if isinstance(source, str | Path) else f"sound {n}" for n, source in enumerate(sounds, start=1)
        ]
        found: list[Transcription] = []
        for begin in range(0, len(sounds), self.batch):
            features = [self.read(sound) for sound in sounds[begin : begin + self.batch]]
            found += self.transcribe_features(features, names[begin : begin + self.batch])
        return found

    def transcribe_features(
        self, features: Sequence[Float[Tensor, "_ bands"]], names: Sequence[str]
    ) -> list[Transcription]:
        """Write the texts of what ``read`` returned, for sounds with these names."""
        outputs = self.model.run_inputs(features, batch=self.batch)
        spans = [span for output in outputs for span in decode_ctc_spans(output)]
        return [
            self._make_transcription(name, own, frames=len(feature))
            for name, own, feature in zip(names, spans, features, strict=True)
        ]

    def _make_transcription(self, name: str, spans: Sequence[LabelSpan], *, frames: int) -> Transcription:
        stride, seconds = self.model.frames_per_token, self.processor.hop / self.processor.rate
        labels = tuple(
            TimedLabel(
                self.model.labels[span.label].removeprefix(" ") or " ",
                span.begin * stride * seconds,
                min(span.end * stride, frames) * seconds,
            )
            for span in spans
        )
        return Transcription(name, self.labels.decode([span.label for span in spans]), labels)
