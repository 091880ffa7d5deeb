"""Parquet is read as a table; other files that hold no plain text are refused with the way out; paths as strings."""

from __future__ import annotations

import io
import zipfile
from contextlib import closing

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from pair_files import write
from regard.errors import ArgumentError, DataError, MissingPackageError
from regard.text.documents import Document, read_documents
from regard.text.labelled import LabelFormat, LabelledText, read_labelled
from regard.text.line_reader import LineReader
from regard.text.pairs import Pair, PairFormat, read_pairs

ROWS = 523  # more than a batch


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "data.parquet"
    columns = {
        "__index_level_0__": pa.array(range(ROWS)),
        "translation": pa.array([{"en": f"Text {row}, here.", "fr": f"Texte {row}\nici."} for row in range(ROWS)]),
        "text": pa.array([f"Text {row}" if row != 300 else None for row in range(ROWS)]),
        "label": pa.array([row % 3 for row in range(ROWS)]),
        "score": pa.array([row / 7 for row in range(ROWS)]),
        "image": pa.array([{"bytes": b"\xff\xd8\0"} for _ in range(ROWS)]),
    }
    parquet.write_table(pa.table(columns), path, row_group_size=100)
    return path


def test_pairs_of_parquet(table):
    for where in ({}, {"source": "en", "target": "fr"}, {"columns": ("translation.en", "translation.fr")}):
        pairs = [one for one in read_pairs(table, PairFormat(**where)) if isinstance(one, Pair)]
        assert [(one.source, one.target) for one in pairs] == [
            (f"Text {row}, here.", f"Texte {row} ici.") for row in range(ROWS)
        ]
    assert pairs[7].place == f"row 8 of {table}"


def test_labels_and_documents_of_parquet(table):
    for columns in (None, ("text", "label"), (4, 5)):
        found = list(read_labelled([table], LabelFormat(columns, "one")))
        texts = [(one.text, one.labels[0]) for one in found if isinstance(one, LabelledText)]
        assert texts == [(f"Text {row}", str(row % 3)) for row in range(ROWS) if row != 300]
        assert [one.reason for one in found if not isinstance(one, LabelledText)] == ["the text is empty"]
    documents = [one.text for one in read_documents(str(table)) if isinstance(one, Document)]
    assert documents == [text for text, _ in texts]


@pytest.mark.parametrize("field", [None, "text", "TEXT", "4"])
def test_lines_of_parquet(table, field):
    with closing(LineReader(table, field=field)) as lines:
        lines.choose_field()
        found = list(lines)
    assert [line.text for line in found] == [f"Text {row}" if row != 300 else "" for row in range(ROWS)]
    assert len({line.raw for line in found}) == ROWS


def test_parquet_that_cannot_be_read(table, tmp_path, monkeypatch):
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(table.read_bytes()[:-100])
    with pytest.raises(DataError, match="cannot be read to its end"):
        list(read_documents([broken]))
    broken.write_bytes(b"id,text\n1,one\n")
    with pytest.raises(DataError, match=r"cannot be read as Parquet(.|\n)*suffix of its format"):
        list(read_documents([broken]))
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingPackageError, match=r"regard\[parquet\]"):
        list(read_documents([table]))


def workbook():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "format_name", "advice"),
    [
        (b"PAR1\x15\x04", "Parquet", "parquet"),
        (b"%PDF-1.7\n%\xe2\xe3", "PDF", "pdftotext"),
        (workbook(), "xlsx", "CSV UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + b"\0" * 99, "xls", "CSV UTF-8"),
        (b"{\\rtf1\\ansi", "RTF", "plain text"),
        (b"\x28\xb5\x2f\xfd\x04", "zstd", "gzip"),
        (b"SQLite format 3\0", "SQLite", "CSV"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a", "a.jsonl", "a.xlsx"])
def test_files_that_hold_no_text_are_named_with_the_way_out(tmp_path, content, format_name, advice, name):
    """No advice on encodings, which is what a decoder would complain about."""
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=rf"not plain text(.|\n)*{format_name}(.|\n)*{advice}") as refused:
        LineReader(path)
    assert "iconv" not in str(refused.value)
    if name in ("a.txt", "a"):
        with pytest.raises(DataError, match="not plain text"):
            list(read_documents([path]))


@pytest.mark.parametrize("content", ["PARIS is a city.\n", "%PDF is a suffix.\n", "PK\n", "{\\it one}\n"])
def test_texts_that_begin_alike_are_read(tmp_path, content):
    with closing(LineReader(write(tmp_path / "a.txt", content))) as lines:
        assert [line.text + "\n" for line in lines] == [content]


class HomePath:
    """A path of another library."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


@pytest.mark.parametrize("as_path", [str, HomePath, lambda path: [str(path)], lambda path: (path,)])
def test_paths_may_be_strings(tmp_path, as_path):
    pairs = write(tmp_path / "a.tsv", "Go.\tVa !\n")
    assert [one.target for one in read_pairs(as_path(pairs))] == ["Va !"]
    assert [one.labels for one in read_labelled(as_path(pairs))] == [("Va !",)]
    assert [one.text for one in read_documents(as_path(write(tmp_path / "a.txt", "Go.")))] == ["Go."]


@pytest.mark.parametrize("read", [read_pairs, read_labelled, read_documents])
@pytest.mark.parametrize("paths", [None, 3, [None], [3, "a.tsv"], b"a.tsv", {"a.tsv"}])
def test_what_is_no_path_is_refused(read, paths):
    with pytest.raises(ArgumentError, match="paths must be strings or Path objects"):
        list(read(paths))
