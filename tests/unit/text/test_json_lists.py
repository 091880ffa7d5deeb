"""A list of records in a .json file is read as JSON lines are, by every reader."""

from __future__ import annotations

import gzip
import json
from contextlib import closing
from pathlib import Path

import pytest

from regard.columns import LabelFormat, PairFormat
from regard.errors import DataError
from regard.media import read_labelled as read_labelled_files
from regard.text import line_reader
from regard.text.documents import Document, read_documents
from regard.text.labelled.read import read_labelled
from regard.text.line_reader import LineReader
from regard.text.pairs import read_pairs
from regard.vision.picture_file import PICTURES

RECORDS = [
    {"text": "one", "label": "a", "path": "1.png", "source": "Yes.", "target": "Oui."},
    {"text": "two\nlines", "label": "b", "path": "2.png", "source": "No.", "target": "Non."},
]
FORMS = {
    "compact": lambda records: json.dumps(records, separators=(",", ":")),
    "indented": lambda records: "\ufeff" + json.dumps(records, indent=2) + "\n",
    "lines": lambda records: "".join(json.dumps(record) + "\n" for record in records),
}


def write(folder: Path, text: str, *, zipped: bool = False) -> Path:
    path = folder / ("data.json.gz" if zipped else "data.json")
    content = text.encode()
    path.write_bytes(gzip.compress(content) if zipped else content)
    return path


def lines_of(path: Path, field: str | None = None):
    with closing(LineReader(path, field=field)) as reader:
        return list(reader)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_every_reader_reads_the_records(tmp_path, form, zipped):
    path = write(tmp_path, FORMS[form](RECORDS), zipped=zipped)
    assert [text.text for text in read_labelled(path, LabelFormat())] == ["one", "two\nlines"]
    assert [pair.target for pair in read_pairs(path, PairFormat())] == ["Oui.", "Non."]
    assert [found.text for found in read_documents(path) if isinstance(found, Document)] == ["one", "two\nlines"]
    assert [file.labels for file in read_labelled_files([path], PICTURES)] == [("a",), ("b",)]
    with closing(LineReader(path)) as reader:
        assert reader.choose_field() == f"{path}: the field of the text is 'text'"
        assert [line.text for line in reader] == ["one", "two\nlines"]


def test_strings_are_texts(tmp_path):
    with closing(LineReader(write(tmp_path, '["one", "two", "\\ud800"]'))) as reader:
        assert reader.choose_field() is None
        *good, bad = reader
    assert [(line.number, line.text) for line in good] == [(1, "one"), (2, "two")]
    assert "lone surrogate" in str(bad.problem)


def test_a_record_without_the_field_is_a_problem_of_its_own(tmp_path):
    path = write(tmp_path, '[{"text": "one"}, {"body": "two"}, 3]')
    first, second, third = lines_of(path, "text")
    assert first.text == "one"
    assert str(second.problem).startswith("record 2 of")
    assert "has no field 'text'" in str(second.problem)
    assert "int" in str(third.problem)


@pytest.mark.parametrize("text", ['{\n"data": []}', '[{"text": "one"}', "[1] [2]", "[" * 100_000])
def test_a_file_of_something_else_is_refused(tmp_path, text):
    path = write(tmp_path, text)
    for read in (lambda: lines_of(path), lambda: list(read_labelled(path)), lambda: list(read_pairs(path))):
        with pytest.raises(DataError, match="is no list of records"):
            read()


def test_the_size_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(line_reader, "MAX_JSON_BYTES", 100)
    path = write(tmp_path, FORMS["indented"]([{"text": "x"}] * 5))
    with pytest.raises(DataError, match="more than 100 bytes"):
        lines_of(path)


def test_an_empty_list_has_no_files(tmp_path):
    assert list(read_labelled_files([write(tmp_path, "[]")], PICTURES)) == []
