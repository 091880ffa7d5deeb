"""Words that were heard in a sound, with times, and the sound itself, which a page plays.

A page holds the sound as WAV with one channel and 16,000 samples per second of 16 bits, 43 kB of the page per second.
FLAC would be smaller, but browsers do not find every place in a file without a table of places (Chromium: "demuxer seek
failed"), and libsndfile writes none.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float32

from regard.arguments import explain_arguments
from regard.escape_text import escape_text
from regard.fields import repr_of_fields
from regard.language import translate_message
from regard.view.pack import Json

PLAYED_RATE = 16_000
"""Samples per second of the sound in a page."""
MAX_PLAYED_SECONDS = 60
"""The longest sound that a page plays."""


@final
@explain_arguments
@dataclass(frozen=True)
class HeardWord:
    """A word, or a part of one, that was heard from ``start`` to ``end``, in seconds.

    ``queries`` are the numbers of its queries in the layers of attention: the tokens of a Conformer at this time, or
    the steps of a decoder that wrote the word.
    """

    text: str
    start: float
    end: float
    queries: range


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class SoundTrack:
    """A sound, and what a model heard in it.

    Args:
        samples: (samples,), one channel, at ``rate`` samples per second.
        rate: the sampling rate of ``samples``.
        labels: what the model wrote, with times: characters or parts of words; () for a model that writes nothing.
        words: the same, joined to words.
        text: what was written.
        timing: a sentence that says where the times come from.
        best_head: the layer and the head whose weights the times follow most closely; None if weights give no times.
    """

    __repr__ = repr_of_fields

    samples: Float32[np.ndarray, " samples"]
    rate: int
    labels: tuple[HeardWord, ...] = ()
    words: tuple[HeardWord, ...] = ()
    text: str = ""
    timing: str = ""
    best_head: tuple[int, int] | None = None

    def pack(self) -> Json:
        """Encode the sound and the words for a page."""
        return {
            "audio": encode_sound(self.samples, self.rate),
            "labels": _pack_words(self.labels),
            "words": _pack_words(self.words),
            "timing": translate_message(self.timing),
        } | ({} if self.best_head is None else {"best_head": list(self.best_head)})


def join_labels(labels: Iterable[HeardWord]) -> tuple[HeardWord, ...]:
    """Join characters to words, between which there is white space."""
    words: list[list[HeardWord]] = [[]]
    for label in labels:
        if label.text.isspace():
            words.append([])
        else:
            words[-1].append(label)
    return tuple(join_word("".join(part.text for part in parts), parts) for parts in words if parts)


def join_word(text: str, parts: Sequence[HeardWord]) -> HeardWord:
    """The word of these parts, one after the other."""
    queries = range(parts[0].queries.start, parts[-1].queries.stop)
    return HeardWord(text, parts[0].start, parts[-1].end, queries)


def encode_sound(samples: Float32[np.ndarray, " samples"], rate: int) -> str:
    """Encode a sound as a data URI of WAV; "" for one of more than ``MAX_PLAYED_SECONDS``.

    Samples beyond -1 to 1, which 16 bits do not hold, make the whole sound quieter.
    """
    import soundfile
    import soxr

    if len(samples) > MAX_PLAYED_SECONDS * rate:
        return ""
    played = samples if rate == PLAYED_RATE else soxr.resample(samples, rate, PLAYED_RATE, quality="HQ")
    file = io.BytesIO()
    soundfile.write(
        file, played / max(1.0, float(np.abs(played).max(initial=0.0))), PLAYED_RATE, format="WAV", subtype="PCM_16"
    )
    return f"data:audio/wav;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _pack_words(words: Sequence[HeardWord]) -> list[list[str | float | int]]:
    """Rows of the text, the start, the end, the first query, and the query after the last; spaces are left out."""
    return [
        [escape_text(word.text.strip()), round(word.start, 3), round(word.end, 3), word.queries.start,
         word.queries.stop]
        for word in words
        if word.text.strip()
    ]  # fmt: skip
