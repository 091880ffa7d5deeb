"""Sounds with texts made in a test: a tone of its own pitch for each letter, one after the other, in noise."""

from pathlib import Path

import numpy as np
import soundfile

from sound_files import tone

HERTZ = {"a": 500.0, "b": 900.0, "c": 1600.0, "d": 2500.0}


def spell(text: str, numbers: np.random.Generator) -> np.ndarray:
    """The tones of the letters of a text, of 0.12 seconds each with 0.08 seconds of silence behind, at 8,000 Hz."""
    parts = []
    for letter in text:
        seconds, hertz = 0.12, HERTZ[letter] * float(numbers.uniform(0.95, 1.05))
        parts += [tone(seconds, hertz=hertz, loudness=0.3), np.zeros(640)]
    samples = np.concatenate(parts)
    return samples + 0.02 * numbers.normal(size=len(samples))


def write_spelled(folder: Path, count: int, *, letters: str = "abc", longest: int = 5) -> list[str]:
    """Write ``count`` sounds with random texts beside them, 00.wav and 00.txt and so on, and return the texts."""
    numbers = np.random.default_rng(3)
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for index in range(count):
        text = "".join(numbers.choice(list(letters), size=numbers.integers(1, longest + 1)))
        soundfile.write(folder / f"{index:02d}.wav", spell(text, numbers), 8000)
        (folder / f"{index:02d}.txt").write_text(text + "\n")
        texts.append(text)
    return texts
