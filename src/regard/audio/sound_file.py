"""Read sounds from WAV and FLAC files of unknown origin, by libsndfile (package ``soundfile``).

    recognise   by the first bytes: WAV (RIFF, RF64) or FLAC; no other reader of libsndfile sees the file
    complete    a header without a length, of a file that was written to a pipe, is given one: ``unstated_length``
    check       rate, channels and length are read from the header, before memory is taken: a FLAC file of a few
                kilobytes may hold hours of silence
    decode      in blocks; fewer frames than the header says are an error
    mix         x[n] = (1 / channels) sum_c x_c[n], in float64, block by block: only the mix is kept
    resample    to the wanted rate, by soxr in high quality

Integers are scaled to -1 .. 1; floats are taken as they are, and NaN or infinite ones are refused.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from jaxtyping import Float32

from regard.arguments import explain_arguments
from regard.audio.unstated_length import state_length
from regard.errors import DataError, MissingPackageError, check_count, check_kind, check_number, short_repr
from regard.media import Medium
from regard.text.table_column import TEXT_NAMES

MAX_SECONDS = 3600
"""Longest sound in seconds; at 16,000 samples per second it takes 230 MB."""
RATES = (1_000, 384_000)
"""Lowest and highest sampling rate of a file, in samples per second."""
MAX_CHANNELS = 64
"""Most channels of a file."""
SUFFIXES = (".flac", ".wav", ".wave")
"""Endings of the names of sound files."""
SOUNDS = Medium(
    "sound",
    "sounds",
    SUFFIXES,
    columns=("path", "audio", "sound", "file", "filename", "file_name", "audio_path", "wav", "clip"),
    example="NAME.wav",
    models="a Conformer",
    accepts="paths, bytes, or float arrays (samples,)",
    text_names=("text", "transcript", "transcription", *TEXT_NAMES[1:]),
)
"""The medium of models that read sounds."""

Sound: TypeAlias = "Path | str | bytes"
"""A file, or its bytes."""

_FORMATS = ("WAV", "WAVEX", "RF64", "FLAC")
_BLOCK_SAMPLES = 2**20
_LONGEST_NAME = 512
_UNKNOWN_FRAMES = 2**62
"""libsndfile states a length beyond this for a FLAC file without one."""


@explain_arguments
def read_sound(
    sound: Sound, rate: int, *, name: str | None = None, max_seconds: float = float(MAX_SECONDS)
) -> Float32[np.ndarray, " samples"]:
    """Decode a WAV or FLAC file: one channel, ``rate`` samples per second, usually -1 to 1.

    Args:
        sound: a path, or the bytes of a file.
        rate: the sampling rate of the result, in samples per second.
        name: what messages call the sound; None is its path.
        max_seconds: longer sounds are refused, before they are decoded; at most ``MAX_SECONDS``.

    Raises DataError for a file that is missing, of another format, empty, broken, truncated or longer than
    ``max_seconds``, and for rates and channels out of range; OptionError for a ``rate`` out of range;
    MissingPackageError without soundfile or soxr.
    """
    check_count("rate", rate, minimum=RATES[0], maximum=RATES[1])
    check_number("max_seconds", max_seconds, above=0.0, maximum=float(MAX_SECONDS))
    name = _name_of(sound, name)
    with _open_sound(sound, name, max_seconds) as opened:
        samples, found = _read_mono(opened, name), opened.samplerate
    if found == rate:
        return samples
    import soxr

    return np.asarray(soxr.resample(samples, found, rate, quality="HQ"), np.float32)


def read_sampling_rate(sound: Sound, *, name: str | None = None, max_seconds: float = float(MAX_SECONDS)) -> int:
    """The sampling rate of a file, without decoding it.

    Raises as ``read_sound``, but for samples that cannot be decoded.
    """
    with _open_sound(sound, _name_of(sound, name), max_seconds) as opened:
        return int(opened.samplerate)


def load_soundfile() -> None:
    """Import soundfile and soxr. Raises MissingPackageError if one of them is not installed."""
    try:
        import soundfile  # noqa: F401
        import soxr  # noqa: F401
    except (ImportError, OSError) as error:  # OSError: libsndfile itself is missing
        raise MissingPackageError(
            "reading sounds needs packages",
            expected="soundfile and soxr",
            got=str(error),
            do="pip install 'regard[audio]'",
        ) from None


def _name_of(sound: Sound, name: str | None) -> str:
    """The name of a sound in messages. Raises DataError for an object that is no sound."""
    if name is not None:
        check_kind("name", name, str, do="the name of the sound in messages")
    if not isinstance(sound, str | Path | bytes):
        raise DataError(
            f"{name or 'the sound'} is not a sound",
            expected="a path, or the bytes of a file",
            got=short_repr(sound),
            do="pass the path of a WAV or FLAC file",
        )
    return name or ("the sound" if isinstance(sound, bytes) else _shorten(str(sound)))


@contextmanager
def _open_sound(sound: Sound, name: str, max_seconds: float) -> Iterator[Any]:
    """Open a file whose first bytes and header were checked. Raises DataError, also for what fails while it is read."""
    load_soundfile()
    import soundfile

    with _open_bytes(sound, name) as source:
        _check_begin(source, name)
        try:
            stated = state_length(source)
        except ValueError as error:
            raise _broken_error(name, str(error)) from None
        try:
            with soundfile.SoundFile(stated) as opened:
                _check_header(opened, name, max_seconds)
                yield opened
        except soundfile.LibsndfileError as error:
            raise _broken_error(name, str(error.error_string)) from error


def _shorten(path: str) -> str:
    """A path for messages, which are one line."""
    return path if len(path) <= _LONGEST_NAME and path.isprintable() else short_repr(path)


def _open_bytes(sound: Sound, name: str) -> BinaryIO:
    """Open a regular file: a pipe or a device could block without end."""
    if isinstance(sound, bytes):
        return io.BytesIO(sound)
    try:
        if Path(sound).exists() and not Path(sound).is_file():
            raise DataError(
                f"{name} is not a file", expected="a WAV or FLAC file", got="a folder or device", do="check the path"
            )
        return Path(sound).open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        got = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {name}", expected="a WAV or FLAC file", got=got, do="check the path") from None


def _check_begin(source: BinaryIO, name: str) -> None:
    """Raise DataError unless the file begins as a WAV or FLAC file."""
    begin = source.read(12)
    if begin[:4] == b"fLaC" or (begin[:4] in (b"RIFF", b"RF64") and begin[8:] == b"WAVE"):
        return
    raise DataError(
        f"{name} is not a sound that can be read",
        expected="a WAV or FLAC file",
        got=f"a file that begins with {begin[:8]!r}" if begin else "an empty file",
        do="convert it to WAV or FLAC, or leave it out",
    )


def _check_header(opened: Any, name: str, max_seconds: float) -> None:
    """Raise DataError for a sound whose header has a rate, channels or a length out of range."""
    rate, channels, frames = opened.samplerate, opened.channels, opened.frames
    if opened.format not in _FORMATS:
        raise DataError(f"{name} has another format", expected="WAV or FLAC", got=opened.format, do="convert it")
    if not RATES[0] <= rate <= RATES[1] or not 1 <= channels <= MAX_CHANNELS:
        raise DataError(
            f"{name} has an unusable rate or number of channels",
            expected=f"{RATES[0]:,} to {RATES[1]:,} samples per second, and 1 to {MAX_CHANNELS} channels",
            got=f"{rate:,} samples per second, and {channels} channels",
            do="convert it, or leave it out",
        )
    if frames == 0 or frames >= _UNKNOWN_FRAMES:  # without a length in the header, and without frames
        raise DataError(f"{name} has no samples", expected="a sound", got="a length of 0", do="leave it out")
    if frames > max_seconds * rate:
        raise DataError(
            f"{name} is too long",
            expected=f"at most {max_seconds:,g} seconds",
            got=f"{frames / rate:,.1f} seconds",
            do="cut it into parts",
        )


def _read_mono(opened: Any, name: str) -> Float32[np.ndarray, " samples"]:
    """Decode in blocks, and keep the mean of the channels."""
    mono = np.empty(opened.frames, np.float32)
    block, done = max(1, _BLOCK_SAMPLES // opened.channels), 0
    while done < len(mono):
        read = opened.read(min(block, len(mono) - done), dtype="float64", always_2d=True)
        if len(read) == 0:
            raise _broken_error(name, f"{done:,} of {len(mono):,} samples")
        if not np.isfinite(read).all() or np.abs(read).max() > np.finfo(np.float32).max:
            raise DataError(
                f"{name} has samples that are no finite numbers",
                expected="finite float32 numbers",
                got=f"NaN, or a value out of range, in the block from sample {done:,}",
                do="replace it, or leave it out",
            )
        mono[done : done + len(read)] = read.mean(axis=1)
        done += len(read)
    return mono


def _broken_error(name: str, reason: str) -> DataError:
    return DataError(
        f"{name} is broken or truncated",
        expected="a complete WAV or FLAC file",
        got=reason.strip()[:200],
        do="replace it, or leave it out",
    )
