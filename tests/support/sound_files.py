"""Sound files made in a test: tones whose samples are known."""

import io

import numpy as np
import soundfile


def tone(seconds: float = 0.31, *, rate: int = 8000, hertz: float = 440.0, loudness: float = 0.5) -> np.ndarray:
    """A sine of one frequency, float64 (samples,)."""
    return loudness * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate)) / rate)


def sound_bytes(samples: np.ndarray, rate: int = 8000, *, kind: str = "WAV", subtype: str = "PCM_16") -> bytes:
    """The bytes of a file of samples (samples,) or (samples, channels)."""
    buffer = io.BytesIO()
    soundfile.write(buffer, samples, rate, format=kind, subtype=subtype)
    return buffer.getvalue()
