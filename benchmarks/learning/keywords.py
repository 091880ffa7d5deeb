"""``python -m benchmarks.learning.keywords``: spoken keywords, synthesized, as folders of WAV files.

    train/WORD/NUMBER.wav, test/WORD/NUMBER.wav         one second, 16,000 samples per second, 16 bits

The words are the ten commands and the ten digits of Warden 2018, "Speech Commands: a dataset for limited-vocabulary
speech recognition". They are spoken by the program espeak-ng (Debian's package of that name): each sound by one of
eight accents of English and one of its voice variants, at a random rate and pitch. The variants of the test sounds
occur in no training sound, so a model cannot know the voices. A sound is played in a room (Moorer 1979, "About this
reverberation business": its echo is noise with an exponential decay), at a random place of the second, and white or
pink noise is added at 0 to 25 dB. Everything follows from the seed and the version of espeak-ng.

Synthetic speech is easier than that of people: results compare models, and say little about recordings.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from regard.audio import read_sound

WORDS = (
    "yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go",
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
)  # fmt: skip
ACCENTS = (
    "en-gb", "en-us", "en-gb-scotland", "en-gb-x-rp", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-029", "en-us-nyc",
)  # fmt: skip
RATE = 16_000
_TEST_SHARE = 0.2
_SPEEDS, _PITCHES = (120, 240), (15, 85)
"""Words per minute, and espeak-ng's pitch of 0 to 99."""
_DECAYS, _ECHO, _NOISES = (0.05, 0.4), (0.0, 0.5), (0.0, 25.0)
"""Seconds until an echo has decayed by 60 dB, its loudness against the voice, and signal over noise in dB."""
_LOUDNESS = 0.1


@final
@dataclass(frozen=True)
class Utterance:
    """A word as somebody says it: ``voice`` is an accent and a variant, as "en-us+f2"."""

    word: str
    voice: str
    speed: int
    pitch: int


def find_variants() -> list[str]:
    """The voice variants of espeak-ng, in alphabetical order. Ends the program with advice if it is not installed."""
    if shutil.which("espeak-ng") is None:
        sys.exit("espeak-ng is not installed: apt-get install espeak-ng")
    listed = subprocess.run(["espeak-ng", "--voices=variant"], capture_output=True, text=True, check=True).stdout
    names = (word.removeprefix("!v/") for word in listed.split() if word.startswith("!v/"))
    return sorted(set(names))


def split_variants(variants: list[str], seed: int) -> tuple[list[str], list[str]]:
    """The variants of training and of test sounds."""
    order = np.random.default_rng(seed).permutation(len(variants)).tolist()
    count = max(1, round(_TEST_SHARE * len(variants)))
    return [variants[index] for index in order[count:]], [variants[index] for index in order[:count]]


def draw_utterance(word: str, variants: list[str], generator: np.random.Generator) -> Utterance:
    """Draw who says a word, and how."""
    voice = f"{ACCENTS[generator.integers(len(ACCENTS))]}+{variants[generator.integers(len(variants))]}"
    return Utterance(word, voice, int(generator.integers(*_SPEEDS)), int(generator.integers(*_PITCHES)))


def speak(utterance: Utterance) -> np.ndarray[Any, Any]:
    """The samples of an utterance, at ``RATE``, float32."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spoken.wav"
        options = ["-v", utterance.voice, "-s", str(utterance.speed), "-p", str(utterance.pitch), "-w", str(file)]
        subprocess.run(["espeak-ng", *options, utterance.word], check=True, stderr=subprocess.DEVNULL)
        return read_sound(file, RATE)


def record(voice: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """Play a voice in a room with noise: one second, float64, at a loudness (root mean square) of ``_LOUDNESS``."""
    spoken = np.flatnonzero(np.abs(voice) > 0.01 * np.abs(voice).max())
    voice = voice[spoken[0] : spoken[-1] + 1][:RATE].astype(np.float64)
    decay = np.arange(int(generator.uniform(*_DECAYS) * RATE))
    echo = generator.normal(size=len(decay)) * np.exp(-np.log(1000) * decay / len(decay))
    echo *= generator.uniform(*_ECHO) / np.sqrt(np.square(echo).sum())
    room = np.concatenate([[1.0], echo])
    heard = np.fft.irfft(np.fft.rfft(voice, 2 * RATE) * np.fft.rfft(room, 2 * RATE), 2 * RATE)
    begin = generator.integers(0, RATE - len(voice) + 1)
    second = np.concatenate([np.zeros(begin), heard])[:RATE]
    loudness = np.sqrt(np.square(voice).mean())
    noise = _draw_noise(generator) * loudness * 10 ** (-generator.uniform(*_NOISES) / 20)
    mixed = second + noise
    return mixed * _LOUDNESS / np.sqrt(np.square(mixed).mean())


def _draw_noise(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    """One second of white or pink noise, with a mean square of 1."""
    spectrum = np.fft.rfft(generator.normal(size=RATE))
    if generator.random() < 0.5:
        spectrum[1:] /= np.sqrt(np.arange(1, len(spectrum)))
    spectrum[0] = 0
    noise = np.fft.irfft(spectrum, RATE)
    return noise / np.sqrt(np.square(noise).mean())


def write_part(out: Path, variants: list[str], count: int, *, seed: int, words: tuple[str, ...] = WORDS) -> None:
    """Write ``count`` sounds of each word into a folder, by voices of these variants; those that exist are kept."""
    import soundfile

    def write(place: tuple[int, int]) -> None:
        number, index = place
        file = out / words[number] / f"{index:05d}.wav"
        generator = np.random.default_rng([seed, number, index])
        utterance = draw_utterance(words[number], variants, generator)
        if not file.exists():
            aside = file.with_suffix(".part")
            samples = np.clip(record(speak(utterance), generator), -1, 1)
            soundfile.write(aside, samples, RATE, format="WAV", subtype="PCM_16")
            aside.rename(file)

    for word in words:
        (out / word).mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        for _ in pool.map(write, [(number, index) for number in range(len(words)) for index in range(count)]):
            pass


def main() -> int:
    """Write the sounds."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.keywords", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("keywords"), metavar="FOLDER")
    parser.add_argument("--train", type=int, default=800, metavar="N", help="training sounds of each word")
    parser.add_argument("--test", type=int, default=100, metavar="N", help="test sounds of each word")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    training, test = split_variants(find_variants(), asked.seed)
    write_part(asked.out / "train", training, asked.train, seed=asked.seed)
    write_part(asked.out / "test", test, asked.test, seed=asked.seed + 1)
    print(f"{asked.out}: {len(WORDS)} words, {len(training)} voices for training and {len(test)} others for the test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
