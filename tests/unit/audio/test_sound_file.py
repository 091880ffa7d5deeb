"""Sound files: what is read, and what is refused in words."""

import os
import struct

import numpy as np
import pytest

from regard.audio import read_sound, sound_file
from regard.errors import DataError, OptionError
from sound_files import sound_bytes, tone


@pytest.mark.parametrize(
    ("kind", "subtype", "error"),
    [("WAV", "PCM_16", 2**-15), ("WAV", "PCM_U8", 2**-7), ("WAV", "FLOAT", 1e-7), ("WAV", "DOUBLE", 1e-7),
     ("WAV", "ULAW", 0.02), ("WAVEX", "PCM_24", 2**-23 + 1e-7), ("RF64", "PCM_16", 2**-15), ("FLAC", "PCM_16", 2**-15),
     ("FLAC", "PCM_24", 2**-23 + 1e-7)],
)  # fmt: skip
def test_formats_are_read(kind, subtype, error, tmp_path):
    samples = tone()
    path = tmp_path / "sound"
    path.write_bytes(sound_bytes(samples, kind=kind, subtype=subtype))
    read = read_sound(path, 8000)
    assert read.dtype == np.float32
    np.testing.assert_allclose(read, samples, rtol=0, atol=error)
    assert np.array_equal(read, read_sound(path.read_bytes(), 8000))


def test_channels_are_mixed_and_blocks_joined(monkeypatch):
    monkeypatch.setattr(sound_file, "_BLOCK_SAMPLES", 97)
    channels = np.random.default_rng(5).uniform(-1, 1, (1009, 3))
    read = read_sound(sound_bytes(channels, subtype="DOUBLE"), 8000)
    np.testing.assert_allclose(read, channels.sum(axis=1) / 3, rtol=0, atol=1e-7)


@pytest.mark.parametrize("rate", [8000, 11025, 7919, 44100, 96000])
def test_any_rate_becomes_the_wanted_one(rate):
    read = read_sound(sound_bytes(tone(0.5, rate=rate), rate, subtype="FLOAT"), 16000)
    assert abs(len(read) - 8000) <= 1
    inner = slice(800, 7200)  # the ends ring
    np.testing.assert_allclose(read[inner], tone(0.5, rate=16000)[inner], rtol=0, atol=1e-3)


def flac_of_stated_length(samples):
    """A small FLAC file whose header says another number of samples: 36 bits of STREAMINFO."""
    data = bytearray(sound_bytes(tone(), kind="FLAC"))
    data[21] = (data[21] & 0xF0) | (samples >> 32)
    data[22:26] = struct.pack(">I", samples & 0xFFFFFFFF)
    return bytes(data)


BROKEN = {
    "empty": (b"", "empty file"),
    "text": (b"this is no sound at all", "begins with"),
    "ogg": (b"OggS" + bytes(100), "begins with"),
    "no samples": (sound_bytes(np.zeros(0)), "no samples|broken"),
    "header alone": (sound_bytes(tone())[:20], "broken or truncated"),
    "truncated WAV": (sound_bytes(tone())[:-501], "broken or truncated"),
    "truncated FLAC": (sound_bytes(tone(3), kind="FLAC")[:-2001], "broken or truncated"),
    "FLAC of a day": (flac_of_stated_length(2**36 - 1), "too long"),
    "FLAC with a false length": (flac_of_stated_length(8000 * 3000), "broken or truncated"),
    "low rate": (sound_bytes(tone(), 999), "rate or number of channels"),
    "high rate": (sound_bytes(tone(), 1_000_003), "rate or number of channels"),
    "channels": (sound_bytes(np.zeros((11, 65))), "number of channels"),
    "NaN": (sound_bytes(np.array([0.1, np.nan, 0.2]), subtype="FLOAT"), "no finite numbers"),
    "infinite": (sound_bytes(np.array([0.1, np.inf, 0.2]), subtype="DOUBLE"), "no finite numbers"),
    "beyond float32": (sound_bytes(np.array([0.1, 1e300]), subtype="DOUBLE"), "no finite numbers"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_unusable_files_are_named(case, tmp_path):
    data, message = BROKEN[case]
    path = tmp_path / "sound.wav"
    path.write_bytes(data)
    with pytest.raises(DataError, match=message) as error:
        read_sound(path, 8000)
    assert "sound.wav" in str(error.value)


def test_the_length_is_checked_before_memory_is_taken(monkeypatch):
    def fail(*_, **__):
        raise AssertionError("decoded")

    monkeypatch.setattr(sound_file, "_read_mono", fail)
    with pytest.raises(DataError, match="too long"):
        read_sound(flac_of_stated_length(2**36 - 1), 8000)


@pytest.mark.usefixtures("without_shape_checks")
def test_paths_that_are_no_files_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, message in ((tmp_path, "not a file"), (tmp_path / "none.wav", "cannot read"), ("a\0b", "cannot read"),
                          (tmp_path / "pipe", "not a file")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            read_sound(path, 8000)
    with pytest.raises(DataError, match="not a sound"):
        read_sound(None, 8000)
    with pytest.raises(OptionError, match="rate"):
        read_sound(sound_bytes(tone()), 0)


@pytest.mark.parametrize("seed", range(23))
def test_damaged_bytes_give_samples_or_a_named_error(seed):
    random = np.random.default_rng(seed)
    data = bytearray(sound_bytes(tone(), kind=("WAV", "FLAC")[seed % 2]))
    for at in random.integers(0, 120, 5):
        data[at] = random.integers(256)
    try:
        read = read_sound(bytes(data), 8000)
    except DataError:
        return
    assert np.isfinite(read).all()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), 1e9])
def test_limits_of_sounds_are_positive_and_finite(seconds):
    with pytest.raises(OptionError, match="max_seconds"):
        read_sound(sound_bytes(tone(0.1)), 8000, max_seconds=seconds)


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(OptionError, match="wrong name"):
        sound_file.read_sampling_rate(b"RIFF", name=3)
