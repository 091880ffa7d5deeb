"""Files of episodes: corrupted ones are refused by name, sizes are checked before memory is taken, two writers."""

from __future__ import annotations

import io
import itertools
import tracemalloc
import zipfile

import numpy as np
import pytest

from regard.control import Episode, read_episodes, write_episodes
from regard.errors import DataError

NAMES = ("environment.npy", "lengths.npy", "actions.npy", "rewards.npy", "observations/text.npy", "observations/x.npy")


def make_episodes(first=0.0):
    episodes = []
    for length in (3, 7):
        states = [np.arange(5, dtype=np.float32) + step + first for step in range(length)]
        observations = [{"x": state, "text": f"go to {step} \u00e9"} for step, state in enumerate(states)]
        actions = [np.int64(step % 3) for step in range(length)]
        episodes.append(Episode(observations, actions, [0.5 * step for step in range(length)]))
    return episodes


@pytest.fixture
def file(tmp_path):
    write_episodes(tmp_path / "good.npz", "CartPole-v1", make_episodes())
    return tmp_path / "good.npz"


def same(found, name, episodes):
    """Whether what was read is what was written."""
    read_name, read = found
    return read_name == name and all(
        one.rewards == other.rewards
        and np.array_equal(one.actions, other.actions)
        and all(
            np.array_equal(a["x"], b["x"]) and a["text"] == b["text"]
            for a, b in zip(one.observations, other.observations, strict=True)
        )
        for one, other in zip(read, episodes, strict=True)
    )


def corrupt(content, generator):
    """Change the bytes of a file: flip some, cut or drop a part, fill a part with zeros, insert or repeat bytes."""
    data = bytearray(content)
    first, last = sorted(generator.integers(0, len(data) + 1, 2).tolist())
    kind = generator.integers(7)
    if kind <= 2:
        for place in generator.integers(0, len(data), 1 + 2 * kind).tolist():
            data[place] ^= int(generator.integers(1, 256))
    elif kind == 3:
        data = data[:first]
    elif kind == 4:
        last = min(last, first + 40)
        data[first:last] = bytes(last - first)
    elif kind == 5:
        data[first:first] = generator.integers(0, 256, 9, dtype=np.uint8).tobytes()
    else:
        del data[first : min(last, first + 40)]
    return bytes(data)


def test_corrupted_files_are_refused_by_name(file, tmp_path):
    """Bytes that a zip does not use, such as a date, may change: then the episodes are the same."""
    generator, content = np.random.default_rng(7), file.read_bytes()
    refused = read = 0
    for number in range(600):
        path = tmp_path / f"{number}.npz"
        path.write_bytes(corrupt(content, generator))
        try:
            found = read_episodes(path)
        except DataError as error:
            refused += path.name in error.what
        else:
            read += same(found, "CartPole-v1", make_episodes())
        path.unlink()
    assert refused + read == 600
    assert refused > 300


def rewrite(file, path, change, *, method=zipfile.ZIP_DEFLATED):
    """Write the file again with valid checksums, and ``change(name, bytes)`` for the bytes of each array."""
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(path, "w", method) as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))


def test_corrupted_headers_behind_valid_checksums_are_refused_by_name(file, tmp_path):
    """Another header may be a valid one, such as the other byte order; anything else is refused."""
    generator, path = np.random.default_rng(8), tmp_path / "bad.npz"
    refused = read = 0

    def damage(content):
        data = bytearray(content)
        for place in generator.integers(0, 128, int(generator.integers(1, 4))).tolist():
            data[place] = int(generator.choice(np.frombuffer(b"(){}[],:'\"\\\n0123456789 <>|OUfisV\xff\x00", np.uint8)))
        return bytes(data)

    for number in range(400):
        chosen = NAMES[number % len(NAMES)]
        rewrite(file, path, lambda name, content, chosen=chosen: damage(content) if name == chosen else content)
        try:
            found = read_episodes(path)
        except DataError as error:
            refused += path.name in error.what
        else:
            read += [len(one) for one in found[1]] == [3, 7]
    assert refused + read == 400
    assert refused > 200


def header(text, version=1):
    text = text.ljust(117) + "\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(2 if version == 1 else 4, "little") + text.encode()


ARRAY = "{{'descr': {}, 'fortran_order': False, 'shape': {}, }}"
LARGE = "(1000000000000,)"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header(ARRAY.format("'<f8'", LARGE)), "its header says 8,000,000,000,"),
        (header(ARRAY.format("'<f8'", "(10,)")), "its header says 208"),
        (header(ARRAY.format("'<f8'", "(10,)")) + bytes(81), "its header says 208"),
        (header(ARRAY.format("'<f8'", "(True,)")) + bytes(8), "has the shape"),
        (header(ARRAY.format("'<f8'", "(-1,)")), "has the shape"),
        (header(ARRAY.format("'<f8'", "(0, 1000000000000000000000000000000)")), "got"),
        (header(ARRAY.format("'|O'", "(10,)")) + bytes(80), "neither numbers nor texts"),
        (header(ARRAY.format("[('a', '<f4'), ('b', '<f4')]", "(10,)")) + bytes(80), "neither numbers nor texts"),
        (header(ARRAY.format("'<U1'", "(10,)")) + b"\xff" * 40, "no characters"),
        (header(ARRAY.format("'<U1'", "(10,)")) + b"\x00\xd8\x00\x00" * 10, "no characters"),
        (header("(" * 90), "got"),  # TokenError of Python's tokenizer
        (header("'''"), "got"),
        (header(ARRAY.format("'<f8'", "(10,)"), version=9) + bytes(80), "version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "got"),
        (b"", "got"),
    ],
)
def test_headers_are_checked_before_memory_is_taken(file, tmp_path, content, words):
    path = tmp_path / "bad.npz"
    rewrite(file, path, lambda name, old: content if name == "observations/x.npy" else old)
    assert words in refuse(path)


def refuse(path):
    """The message of the refused file, which takes less than 1 MB."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=path.name) as raised:
            read_episodes(path)
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()
    return str(raised.value)


def patch_directory(content, name, offset, value, size=4):
    """Change a number in the directory of a zip, at ``offset`` of the entry ``name``."""
    data = bytearray(content)
    place = data.rindex(name.encode()) - 46  # an entry has 46 bytes before its name
    assert data[place : place + 4] == b"PK\x01\x02"
    data[place + offset : place + offset + size] = value.to_bytes(size, "little")
    return bytes(data)


METHOD, STORED, WHOLE, FLAGS = 10, 20, 24, 8


@pytest.mark.parametrize(
    ("offset", "value", "size", "words"),
    [
        (WHOLE, 2**32 - 2, 4, "cannot have 4,294,967,294 bytes"),
        (STORED, 2**32 - 2, 4, "take more than"),
        (METHOD, 14, 2, "compressed by method 14"),
        (METHOD, 99, 2, "compressed by method 99"),
        (FLAGS, 1, 2, "encrypted"),
        (FLAGS, 1 << 5, 2, "patched"),
    ],
)
def test_directories_are_checked_before_memory_is_taken(file, tmp_path, offset, value, size, words):
    path = tmp_path / "bad.npz"
    path.write_bytes(patch_directory(file.read_bytes(), "observations/x.npy", offset, value, size))
    assert words in refuse(path)


def test_the_memory_of_all_arrays_is_bounded(file, tmp_path, monkeypatch):
    """Zeros take a thousandth of their memory on a disk."""
    path, zeros = tmp_path / "zeros.npz", io.BytesIO()
    np.save(zeros, np.zeros((10, 200_000)))
    rewrite(file, path, lambda name, old: zeros.getvalue() if name == "observations/x.npy" else old)
    assert len(read_episodes(path)[1]) == 2
    monkeypatch.setattr("regard.control.episode_files.MAX_BYTES", 10**7)
    assert "more than 10,000,000" in refuse(path)


def test_a_file_does_not_claim_more_time_steps_than_it_has(file, tmp_path):
    """Arrays without numbers take no bytes, however many time steps they are for."""
    path = tmp_path / "bad.npz"

    def empty(name, old):
        return old if name in ("environment.npy", "lengths.npy") else header(ARRAY.format("'<f8'", "(1000000000, 0)"))

    rewrite(file, path, empty)
    assert "rewards" in refuse(path)
    rewrite(
        file,
        path,
        lambda name, old: (
            header(ARRAY.format("'<i8'", "(2,)")) + (2**63 - 1).to_bytes(8, "little") * 2
            if name == "lengths.npy"
            else old
        ),
    )
    assert "do not add up to 10 time steps" in refuse(path)


def test_names_that_occur_twice_are_refused(file, tmp_path):
    path = tmp_path / "bad.npz"
    path.write_bytes(file.read_bytes())
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("rewards.npy", b"")
    assert "the same name" in refuse(path)


@pytest.mark.parametrize("value", [{}, b"bytes", 1j, "\ud800"])
def test_values_that_are_not_read_are_not_written(tmp_path, value):
    with pytest.raises(DataError, match="neither numbers nor texts"):
        write_episodes(tmp_path / "a.npz", "CartPole-v1", [Episode([{"x": value}], [0], [0.0])])
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_too_large_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.control.episode_files.MAX_BYTES", 2**20 + 400)
    with pytest.raises(DataError, match="too large for one file"):
        write_episodes(tmp_path / "a.npz", "CartPole-v1", make_episodes())
    assert list(tmp_path.iterdir()) == []


def test_of_two_writers_at_the_same_time_the_last_one_wins(tmp_path, monkeypatch):
    """While the first one writes, the second one begins and ends."""
    path, save, calls = tmp_path / "a.npz", np.savez_compressed, itertools.count()

    def save_after_another(file, **arrays):
        if next(calls) == 0:
            write_episodes(path, "CartPole-v1", make_episodes(first=9.0))
            assert same(read_episodes(path), "CartPole-v1", make_episodes(first=9.0))
        save(file, **arrays)

    monkeypatch.setattr(np, "savez_compressed", save_after_another)
    write_episodes(path, "CartPole-v1", make_episodes())
    assert same(read_episodes(path), "CartPole-v1", make_episodes())
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]
