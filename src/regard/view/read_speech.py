"""Reading of speech: what a model with cross-attention wrote for a sound, and when each word was said.

Layer n has the cross-attention of layer n of the decoder: a query for each step that wrote a token of the text, and the
frames of the encoder as keys, over the spectrogram. Of a model that makes all sounds equally long, frames after the end
of the sound are left out. Times come from the heads that follow the sound: see ``transcription.attention_times``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float32
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from regard.audio import AudioProcessor
from regard.errors import DataError
from regard.language import abbreviate_names
from regard.models.audio_encoder import draw_spectrogram, find_marks
from regard.models.media_encoder import TimeAxis, TokenGrid
from regard.transcription.attention_times import FollowingHead, find_attention_times
from regard.view.layer_weights import LayerWeights
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.reading import Tokens
from regard.view.sound_track import HeardWord, SoundTrack, join_word
from regard.view.words_from_tokens import words_of

MAX_WEIGHTS = 2**22
"""The most weights of a sound on a page, some 10 MB; of more, those of neighbouring frames are added."""
MAX_MERGED = 25
"""The most frames that are added, half a second of a Whisper."""
MAX_SPEECH_SECONDS = 60.0
"""The longest sound of a model that does not limit it."""
_ALONE = "Each step of the decoder attends to the frames of the encoder, which are many."
_LOW_SCORE = 0.1
"""Times by heads with a lower score say little; a head that moves on over 100 frames, and looks at ten, has 0.45."""
_SHOWN_HEADS = 4
"""Heads that a sentence names."""


@final
@dataclass(frozen=True, eq=False)
class WrittenSpeech:
    """The text that a model wrote for a sound, and the weights of its cross-attention.

    Args:
        tokens: what the steps wrote; special tokens, such as the end, have no characters.
        layers: by name, (heads, steps, frames): the weights of cross-attention.
        seconds_per_frame: the time from one frame of the encoder to the next.
        heads: pairs of a layer and a head that the model names for times; None if it names none.
        is_complete: whether the model ended the text, or it reached the longest text.
    """

    tokens: Tokens
    layers: dict[str, Float32[Tensor, "heads steps frames"]]
    seconds_per_frame: float
    heads: Sequence[tuple[int, int]] | None
    is_complete: bool


class SpeechModel(ABC):
    """A model of another library that writes the text of a sound, with attention from its steps to the sound."""

    @property
    @abstractmethod
    def rate(self) -> int:
        """Samples per second."""

    @property
    @abstractmethod
    def max_seconds(self) -> float:
        """The longest sound that the model reads."""

    @abstractmethod
    def write(self, samples: Float32[ndarray, " samples"], *, name: str) -> WrittenSpeech:
        """Write the text of a sound of one channel, which messages call ``name``, greedily."""


def read_speech(model: SpeechModel, file: Any, *, name: str = "") -> PictureReading:
    """Let a model write the text of a sound, and capture its cross-attention. Raises as ``view.read_file``."""
    name = name or (str(file) if isinstance(file, str | Path) else "the sound")
    processor = AudioProcessor(rate=model.rate, normalise=False, max_seconds=model.max_seconds)
    samples = processor.read_samples(file, name=name)
    written = model.write(samples, name=name)
    seconds = len(samples) / model.rate
    frames = max(1, math.ceil(seconds / written.seconds_per_frame - 1e-6))
    layers = {layer: weights[:, :, :frames] for layer, weights in written.layers.items()}
    frames = next(iter(layers.values())).shape[2]
    if not written.tokens.text.strip():
        raise DataError(
            f"the model wrote no words for {name}",
            expected="a sound with speech",
            got="an empty text",
            do="listen to it, or try another model",
        )
    merged = _count_merged(name, layers)
    step, columns = merged * written.seconds_per_frame, -(-frames // merged)
    pixels = draw_spectrogram(processor.to_features(samples))
    cell = (pixels.shape[1], pixels.shape[2] * step / seconds)
    steps = TokenGrid(0, 0, tuple(map(written.tokens.surface, range(len(written.tokens)))))
    grid = TokenGrid(1, columns, names=tuple(f"{column * step:.2f} s" for column in range(columns)))
    return PictureReading(
        name,
        pixels,
        tuple(
            PictureLayer(steps, LayerWeights(layer, _merge_frames(weights, merged), "non-negative", _ALONE),
                         (pixels.shape[1], pixels.shape[2]), key_grid=grid, key_cell=cell)
            for layer, weights in layers.items()
        ),
        no_rollout_reason="The weights are of cross-attention, from the text to the sound, layer by layer.",
        noun="time",
        note=f"A cell of the map has {1000 * step:.0f} ms.",
        axis=TimeAxis(step, seconds, find_marks(processor)),
        track=_make_track(written, layers, samples, model.rate, seconds),
    )  # fmt: skip


def _count_merged(name: str, layers: dict[str, Float32[Tensor, "heads steps frames"]]) -> int:
    """The number of frames that a cell of the map has, so that a page stays small. Raises DataError for too many."""
    size = sum(weights.numel() for weights in layers.values())
    if size > MAX_MERGED * MAX_WEIGHTS:
        raise DataError(
            f"{name} is too long to show with this model",
            expected=f"at most {MAX_MERGED * MAX_WEIGHTS:,} weights of cross-attention",
            got=f"{size:,}",
            do="cut it into parts",
        )
    return max(1, -(-size // MAX_WEIGHTS))


def _merge_frames(weights: Float32[Tensor, "heads steps frames"], count: int) -> Float32[Tensor, "heads steps columns"]:
    """The weights of each ``count`` frames together: their sum."""
    padded = functional.pad(weights, (0, -weights.shape[2] % count))
    return padded.unflatten(2, (-1, count)).sum(dim=3)


def _make_track(
    written: WrittenSpeech,
    layers: dict[str, Float32[Tensor, "heads steps frames"]],
    samples: Float32[ndarray, " samples"],
    rate: int,
    seconds: float,
) -> SoundTrack:
    """The words with their times. Punctuation belongs to the word before it."""
    tokens = written.tokens
    found = find_attention_times([weights.double().numpy() for weights in layers.values()], written.heads)
    times = torch.from_numpy(found.frames * written.seconds_per_frame).clamp(max=seconds).tolist()
    labels = {
        step: HeardWord(tokens.surface(step), start, end, range(step, step + 1))
        for step, (start, end) in enumerate(times)
        if not tokens.special[step]
    }
    groups: list[list[int]] = []
    for word in words_of(tokens):
        follows = bool(groups) and not word.is_word
        groups = [*groups[:-1], [*groups[-1], *word.pieces]] if follows else [*groups, list(word.pieces)]
    words = [join_word(tokens.surface_of(group[0], group[-1]), [labels[step] for step in group])
             for group in groups]  # fmt: skip
    end = "" if written.is_complete else f" The text ends after {len(tokens)} tokens, the most that the model writes."
    return SoundTrack(
        samples,
        rate,
        tuple(labels.values()),
        tuple(words),
        tokens.text.strip(),
        _explain(found.heads, is_given=written.heads is not None) + end,
        (found.heads[0].layer, found.heads[0].head),
    )


def _explain(heads: Sequence[FollowingHead], *, is_given: bool) -> str:
    """A sentence about the heads that the times come from."""
    named = [f"layer {head.layer} head {head.head} ({head.score:.2f})" for head in heads]
    doubt = " No head follows it well, so these times say little." if heads[0].score < _LOW_SCORE else ""
    source = "which the model names for it" if is_given else "the best at following the sound"
    return (
        f"Times come from cross-attention by dynamic time warping: {abbreviate_names(named, _SHOWN_HEADS)}, {source}. "
        f"In brackets, how well a head follows the sound, from 0 to 1.{doubt}"
    )
