"""Labelled texts from tables, JSON lines and folders: columns, labels, and what is skipped or refused."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from regard.errors import DataError, OptionError
from regard.log import notes_to
from regard.media import TEXTS, check_labels, label_matrix
from regard.text.labelled import (
    LabelFormat,
    LabelledText,
    read_and_report_labelled,
    read_labelled,
)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def read(*paths, columns=None, labels="auto"):
    """The usable texts with their labels, and the reasons and places of the skipped entries."""
    result = list(read_labelled(paths, LabelFormat(columns, labels)))
    texts = [(one.text, one.labels) for one in result if isinstance(one, LabelledText)]
    return texts, [(one.reason, one.place) for one in result if not isinstance(one, LabelledText)]


ROWS = [("good film", ("pos",)), ("bad film", ("neg",))]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("text,label\ngood film,pos\nbad film,neg\n", None),
        ("label,text\npos,good film\nneg,bad film\n", None),
        ("id,Sentence,Sentiment\n1,good film,pos\n2,bad film,neg\n", None),
        ("good film,pos\nbad film,neg\n", None),
        ("good film,pos\r\nbad film,neg", None),
        ("stars,id,review\npos,1,good film\nneg,2,bad film\n", ("review", "stars")),
        ("Stars,id,Review\npos,1,good film\nneg,2,bad film\n", ("review", "stars")),
        ("pos,1,good film\nneg,2,bad film\n", (3, 1)),
        ("label,id,text\npos,1,good film\nneg,2,bad film\n", (3, 1)),
        ("what,said\npos,good film\nneg,bad film\n", ("said", 1)),
        ("text;label\ngood film;pos\nbad film;neg\n", None),
        ('text,label\n"good film","pos"\n"bad film",neg\n', None),
        ("\ufefftext,label\ngood film,pos\nbad film,neg\n", None),
    ],
)
def test_columns_of_csv(tmp_path, content, columns):
    assert read(write(tmp_path / "a.csv", content), columns=columns) == (ROWS, [])


def test_csv_with_quotes_commas_and_line_breaks(tmp_path):
    path = write(tmp_path / "a.csv", 'text,label\n"a ""b"", c\nand d",x\ne,"y, z"\n')
    assert read(path) == ([('a "b", c\nand d', ("x",)), ("e", ("y, z",))], [])


def test_damaged_csv_rows_are_skipped(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\na,x\n"b"c,y\n\xff\xfe,z\n,w\nd,\n\ne\nf,x\n"g,x\nh,y\n')
    texts, skipped = read(path)
    assert texts == [("a", ("x",)), ("f", ("x",)), ("h", ("y",))]
    reasons = {place.split(" of ")[0]: reason for reason, place in skipped}
    assert reasons.keys() == {"line 3", "line 4", "line 5", "line 6", "line 7", "line 8", "line 10"}
    assert "quotes" in reasons["line 3"]
    assert "UTF-8" in reasons["line 4"]
    assert reasons["line 5"] == "the text is empty"
    assert reasons["line 6"] == "there is no label"
    assert reasons["line 7"] == "the line is blank"
    assert reasons["line 8"] == "there are fewer than 2 columns"
    assert "quotes" in reasons["line 10"]


def test_long_csv_cells(tmp_path):
    text = "word " * 100_000
    assert read(write(tmp_path / "a.csv", f"text,label\n{text},x\n"))[0] == [(text, ("x",))]


def test_tsv_has_no_quotes(tmp_path):
    path = write(tmp_path / "a.tsv", 'text\tlabel\n"good" film\tpos\nbad "film\tneg\n')
    assert read(path)[0] == [('"good" film', ("pos",)), ('bad "film', ("neg",))]


def test_several_and_compressed_files(tmp_path):
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"good film\tpos\n"))
    other = write(tmp_path / "b.csv", "bad film,neg\n")
    assert read(tmp_path / "a.tsv.gz", other) == (ROWS, [])


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        ("pos", ("pos",)),
        (3, ("3",)),
        (3.0, ("3",)),
        (2.5, ("2.5",)),
        (True, ("true",)),
        (["a", "b"], ("a", "b")),
        (["a", 1, "a"], ("a", "1")),
        ([], ()),
        ("a|b", ("a", "b")),
    ],
)
def test_labels_of_json(tmp_path, value, labels):
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "t", "label": value}) + "\n")
    assert read(path) == ([("t", labels)], [])


@pytest.mark.parametrize("name", ["a.jsonl", "a.tsv"])
def test_several_labels_where_each_text_gets_one_are_skipped(tmp_path, name):
    row = json.dumps({"text": "t", "label": ["a", "b"]}) if name.endswith("jsonl") else 'text\tlabel\nt\t["a", "b"]'
    texts, ((reason, _),) = read(write(tmp_path / name, row + "\n"), labels="one")
    assert texts == []
    assert "several labels" in reason


@pytest.mark.parametrize("value", [None, "", " ", {}, [None], [["a"]], float("nan")])
def test_json_without_a_label_is_skipped(tmp_path, value):
    path = write(tmp_path / "a.jsonl", json.dumps({"text": "t", "label": value}) + "\n")
    assert read(path) == ([], [("there is no label", f"line 1 of {path}")])


def test_fields_of_json(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"id": 1, "body": "good film", "stars": "pos"}\n')
    assert read(path, columns=("body", "stars"))[0] == ROWS[:1]
    with pytest.raises(DataError, match="lacks the fields"):
        read(path, columns=("body", "label"))
    odd = '{"text": "a", "label": 1}\n[1]\nno\n\n{"text": 3, "label": 1}\n{"text": "\\ud800", "label": 1}\n'
    texts, skipped = read(write(tmp_path / "b.jsonl", odd))
    assert texts == [("a", ("1",))]
    assert [reason for reason, _ in skipped] == [
        "the line is not a JSON object",
        "the line is not a JSON object",
        "the line is blank",
        "there is no text in 'text'",
        "there is a lone surrogate, which is half a character",
    ]


@pytest.mark.parametrize(
    ("cell", "auto", "one"),
    [
        ("a|b", ("a", "b"), ("a|b",)),
        (" a | b | a ", ("a", "b"), ("a | b | a",)),
        ('["a"; "b"]', ('["a"; "b"]',), ('["a"; "b"]',)),
        ("[]", (), ("[]",)),
        ("[1]", ("1",), ("1",)),
        ('["a b"]', ("a b",), ("a b",)),
        ("|", None, ("|",)),
    ],
)
def test_labels_of_a_cell(tmp_path, cell, auto, one):
    path = write(tmp_path / "a.tsv", f"t\t{cell}\n")
    assert read(path)[0] == ([] if auto is None else [("t", auto)])
    assert read(path, labels="one")[0] == [("t", one)]


def test_folders(tmp_path):
    for name, text in (("pos/b.txt", "good\nfilm"), ("pos/a.txt", "fine"), ("neg/x/1", "bad"), ("neg/.hidden", "no")):
        write(tmp_path / "data" / name, text)
    (tmp_path / "data" / "neg" / "2.txt.gz").write_bytes(gzip.compress(b"worse"))
    (tmp_path / "data" / "neg" / "3.txt").write_bytes(b"\xff\xff")
    write(tmp_path / "data" / "neg" / "4.txt", "")
    write(tmp_path / "data" / "neg" / "5.pdf", "%PDF")
    write(tmp_path / "data" / "readme.txt", "ignored")
    texts, skipped = read(tmp_path / "data")
    assert texts == [
        ("worse", ("neg",)), ("bad", ("neg",)), ("fine", ("pos",)), ("good\nfilm", ("pos",))
    ]  # fmt: skip
    assert [reason for reason, _ in skipped] == [
        "a file is not UTF-8", "the text is empty", "a file is not named .txt"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "columns", "error", "words"),
    [
        ("a.csv", "a,b,c\n1,2,3\n", None, DataError, "columns="),
        ("a.csv", "text,b\n1,2\n", None, DataError, "ambiguous"),
        ("a.csv", "text,label\na,b\n", ("review", "label"), DataError, "no column 'review'"),
        ("a.csv", "", None, DataError, "is empty"),
        ("a.xlsx", "", None, OptionError, "save it as comma-separated values"),
        ("a.json", '{\n"a": 1}', None, DataError, "no list of records"),
        ("a", "x", None, OptionError, "suffix"),
        ("a.jsonl", '{"body": 1}\n', None, DataError, "lacks the fields"),
    ],
)
def test_unreadable_files_are_refused(tmp_path, name, content, columns, error, words):
    with pytest.raises(error) as raised:
        read(write(tmp_path / name, content), columns=columns)
    assert words in str(raised.value)


def test_a_missing_file_and_a_folder_without_folders(tmp_path):
    with pytest.raises(DataError, match="cannot read"):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, match="no folders of texts"):
        read(tmp_path)


@pytest.mark.parametrize("columns", [("a",), ("a", "a"), (0, 1), (1, 1), ("a", ""), "ab", (True, 2), (1.5, 2)])
def test_invalid_columns_are_refused(columns, without_shape_checks):
    with pytest.raises(OptionError, match="columns"):
        LabelFormat(columns)


def test_skipped_entries_are_counted_by_reason(tmp_path):
    path = write(tmp_path / "a.tsv", "a\tx\n" + "\ty\n" * 7 + "b\t\n")
    said = []
    with notes_to(said.append):
        assert len(read_and_report_labelled([path], LabelFormat())) == 1
    assert said.pop(0) == f"{path}: text from column 1, label from column 2; the first row is a text"
    assert said[0].startswith("skipped 7 because the text is empty: line 2 of ")
    assert said[0].endswith("and 2 more")
    assert said[1] == f"skipped 1 because there is no label: line 9 of {path}"
    with pytest.raises(DataError, match="no usable text"), notes_to(said.append):
        read_and_report_labelled([write(tmp_path / "b.tsv", "\ty\n")], LabelFormat((1, 2)))


def test_matrix_of_labels():
    texts = [LabelledText("a", ("x", "z"), "line 1"), LabelledText("b", (), "line 2")]
    assert np.array_equal(label_matrix(texts, ("x", "y", "z"), "the model", TEXTS), [[1, 0, 1], [0, 0, 0]])
    with pytest.raises(DataError, match="labels that the model lacks") as raised:
        check_labels(texts, ("x", "y"), "the model", TEXTS)
    assert "'z' in line 1" in str(raised.value)


@pytest.mark.parametrize("text", ["a\rb", "x" * 200_000], ids=["return", "long"])
def test_a_first_row_that_is_no_path_of_a_picture(tmp_path, text):
    """Tables are tried as lists of files first, by their first two rows."""
    from regard.audio.sound_file import SOUNDS
    from regard.media.tables import names_files

    path = write(tmp_path / "a.csv", f"text,label\n{text},x\nb,y\n")
    assert not names_files(path, SOUNDS)
    rows, skipped = read(path)
    assert rows[-1] == ("b", ("y",))
    assert [reason for reason, _ in skipped] == (
        ["the row is not valid CSV: a carriage return is outside of quotes"] if "\r" in text else []
    )
