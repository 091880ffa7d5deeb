"""Sounds that a program wrote to a pipe: their headers do not state the length, and they are read to the end."""

import io
import struct

import numpy as np
import pytest

from regard.audio import read_sound
from regard.audio.unstated_length import PatchedFile
from regard.errors import DataError
from sound_files import sound_bytes, tone

PLACEHOLDERS = {
    "sox": (0x7FFFF024, 0x7FFFF000),
    "arecord": (0x80000024, 0x80000000),
    "ffmpeg": (0xFFFFFFFF, 0xFFFFFFFF),
    "lame, which adds to the number": (0x00000023, 0xFFFFFFFF),
    "largest signed": (0x7FFFFFFF, 0x7FFFFFFF - 36),
    "flac -d -c": (0, 0),
    "only the samples": (None, 0),
    "only the file": (0xFFFFFFFF, None),
}
"""Sizes of the file and of its samples, as programs write them; None is the true size."""


def wav_of_stated_sizes(file, samples, data):
    """The bytes of a WAV file with other sizes in its header; None keeps the true one."""
    place = data.index(b"data") + 4
    data = bytearray(data)
    if file is not None:
        data[4:8] = struct.pack("<I", file)
    if samples is not None:
        data[place : place + 4] = struct.pack("<I", samples)
    return bytes(data)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_U8", "FLOAT", "ULAW", "MS_ADPCM", "GSM610"])
@pytest.mark.parametrize("program", PLACEHOLDERS)
def test_wav_is_read_to_the_end(program, subtype, tmp_path):
    data = sound_bytes(tone(), subtype=subtype)
    path = tmp_path / "sound.wav"
    path.write_bytes(wav_of_stated_sizes(*PLACEHOLDERS[program], data))
    np.testing.assert_array_equal(read_sound(path, 8000), read_sound(data, 8000))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("stated", [0, 2**63 - 1, 2**64 - 1])
def test_rf64_is_read_to_the_end(stated, channels):
    data = sound_bytes(np.stack([tone()] * channels, axis=1), kind="RF64")
    assert data[12:16] == b"ds64"
    unstated = data[:20] + struct.pack("<QQ", stated, stated) + data[36:]
    np.testing.assert_array_equal(read_sound(unstated, 8000), read_sound(data, 8000))


def test_a_sample_cut_at_the_end_of_the_pipe_is_left_out():
    data = sound_bytes(tone())
    unstated = wav_of_stated_sizes(0xFFFFFFFF, 0xFFFFFFFF, data)
    np.testing.assert_array_equal(read_sound(unstated + b"\x7f", 8000), read_sound(data, 8000))


@pytest.mark.parametrize("kind", ["WAV", "RF64"])
def test_a_file_shorter_than_it_states_is_truncated(kind):
    data = sound_bytes(tone(), kind=kind)
    for missing in (2, 3, 501):
        with pytest.raises(DataError, match="broken or truncated"):
            read_sound(data[:-missing], 8000)
    unstated_file = wav_of_stated_sizes(0xFFFFFFFF, None, sound_bytes(tone()))
    with pytest.raises(DataError, match="broken or truncated"):
        read_sound(unstated_file[:-501], 8000)


def test_an_empty_chunk_of_samples_before_another_chunk_is_empty():
    """A chunk behind the samples is not read as samples."""
    empty = sound_bytes(np.zeros(0))
    assert empty[-8:] == b"data\0\0\0\0"
    with pytest.raises(DataError, match="no samples"):
        read_sound(empty + b"LIST\x06\0\0\0INFOAB", 8000)
    assert len(read_sound(empty + struct.pack("<5h", 0, 1, -2, 3, 0), 8000)) == 5
    assert len(read_sound(empty + bytes(64), 8000)) == 32  # silence


def test_too_long_a_sound_of_a_pipe_is_refused():
    unstated = wav_of_stated_sizes(0, 0, sound_bytes(tone()))
    with pytest.raises(DataError, match="too long"):
        read_sound(unstated, 8000, max_seconds=0.3)
    with pytest.raises(DataError, match="too long"):
        read_sound(flac_without_length(tone()), 8000, max_seconds=0.3)


def flac_without_length(samples, subtype="PCM_16"):
    data = bytearray(sound_bytes(samples, kind="FLAC", subtype=subtype))
    data[21] &= 0xF0
    data[22:26] = bytes(4)
    return bytes(data)


@pytest.mark.parametrize("length", [1, 2, 15, 4095, 4096, 4097, 8192, 100_003, 600_011])
@pytest.mark.parametrize("channels", [1, 2, 5])
def test_flac_is_read_to_the_end(length, channels):
    samples = np.random.default_rng(length).uniform(-0.9, 0.9, (length, channels))
    data = sound_bytes(samples, kind="FLAC")
    unstated = flac_without_length(samples)
    assert unstated != data
    np.testing.assert_array_equal(read_sound(unstated, 8000), read_sound(data, 8000))


def test_a_flac_file_without_a_length_that_is_cut_is_truncated():
    unstated = flac_without_length(tone(3))
    for missing in (1, 2, 501, 2001):
        with pytest.raises(DataError, match="broken or truncated"):
            read_sound(unstated[:-missing], 8000)
    header = constant_flac([(4096, 0)], is_variable=False)[:42]
    with pytest.raises(DataError, match="no samples"):
        read_sound(header, 8000)


def crc(data, polynomial, bits):
    """A cyclic redundancy check bit by bit, as a division of polynomials."""
    rest = int.from_bytes(data, "big") << bits
    for place in range(8 * len(data) + bits - 1, bits - 1, -1):
        if rest >> place & 1:
            rest ^= (1 << bits | polynomial) << (place - bits)
    return rest


def constant_flac(blocks, *, is_variable):
    """A mono FLAC file of 16 bits without a length, with a constant in each block: (samples, value)."""
    sizes = [size for size, _ in blocks]
    info = struct.pack(">HH", min(sizes), max(sizes)) + bytes(6)
    info += (8000 << 44 | 0 << 41 | 15 << 36).to_bytes(8, "big") + bytes(16)
    data, first = b"fLaC" + bytes([0x80, 0, 0, 34]) + info, 0
    for number, (size, value) in enumerate(blocks):
        frame = bytes([0xFF, 0xF8 | is_variable, 0x74, 0x08])
        frame += chr(first if is_variable else number).encode() + struct.pack(">H", size - 1)
        frame += bytes([crc(frame, 0x07, 8)]) + b"\0" + struct.pack(">h", value)
        data += frame + struct.pack(">H", crc(frame, 0x8005, 16))
        first += size
    return data


@pytest.mark.parametrize("sizes", [(4096,), (17, 4001, 19, 1), (5000, 5000, 77), (60_000, 60_000, 60_000, 31)])
def test_frames_numbered_by_samples_and_by_blocks(sizes):
    """Frames are written here by hand, from RFC 9639; a value has the bytes of a sync code."""
    blocks = [(size, value) for size, value in zip(sizes, (-8, 1000, 0x7FFF, -3), strict=False)]
    expected = np.concatenate([np.full(size, value / 2**15, np.float32) for size, value in blocks])
    is_fixed = all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]
    for is_variable in (True, False) if is_fixed else (True,):
        np.testing.assert_array_equal(read_sound(constant_flac(blocks, is_variable=is_variable), 8000), expected)


def test_a_patched_file_reads_as_its_copy():
    content = bytes(range(97))
    expected = content[:31] + b"regard" + content[37:]
    file = io.BufferedReader(PatchedFile(io.BytesIO(content), 31, b"regard"))
    assert file.read() == expected
    for place in (0, 30, 31, 33, 36, 37, 90):
        assert file.seek(place) == place
        assert file.read(5) == expected[place : place + 5]
        assert file.tell() == min(place + 5, len(content))
