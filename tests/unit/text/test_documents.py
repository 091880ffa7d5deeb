"""Documents from plain text, JSON lines and folders, and what is skipped or refused."""

import gzip
import json

import pytest

from regard.errors import DataError, OptionError
from regard.log import notes_to
from regard.text.documents import Document, read_and_report_documents, read_documents
from regard.text.skip_counts import Skipped


def texts(*paths, **options):
    return [one.text for one in read_documents(paths, **options) if isinstance(one, Document)]


def reasons(*paths, **options):
    return [one.reason for one in read_documents(paths, **options) if isinstance(one, Skipped)]


def test_a_plain_file_is_one_document_as_it_is(tmp_path):
    text = "one\r\n\n two \nthree"
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "b.gz").write_bytes(gzip.compress(text.encode()))
    assert texts(tmp_path / "a.txt", tmp_path / "b.gz") == [text, text]


def test_lines(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n", encoding="utf-8")
    assert texts(tmp_path / "a.txt", lines=True) == ["one", "two"]
    assert reasons(tmp_path / "a.txt", lines=True) == ["the text is blank"]


def test_json_lines(tmp_path):
    lines = [json.dumps({"text": "one\ntwo", "body": "three"}), "nonsense", json.dumps({"text": 3})]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert texts(tmp_path / "a.jsonl") == ["one\ntwo"]
    assert texts(tmp_path / "a.jsonl", field="body") == ["three"]
    assert reasons(tmp_path / "a.jsonl") == ["the line is not JSON", "the line has no text in 'text'"]


def test_tables(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,"one,\ntwo"\n2\n3,\n', encoding="utf-8")
    (tmp_path / "b.tsv").write_text("text\tbody\none\tthree\n", encoding="utf-8")
    assert texts(tmp_path / "a.csv") == ["one,\ntwo"]
    assert reasons(tmp_path / "a.csv") == ["the line has fewer than 2 columns", "the text is blank"]
    assert texts(tmp_path / "b.tsv", field="body") == ["three"]
    with pytest.raises(DataError, match=r"a\.csv has no column 'body'(.|\n)*'id', 'text'"):
        texts(tmp_path / "a.csv", field="body")
    assert texts(tmp_path, field="body") == ["three"]
    assert reasons(tmp_path, field="body") == ["a file has no column 'body'"]


def test_folders(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / ".git").mkdir()
    for name, content in {"b.txt": b"two", "a.py": b"one", "in/c": b"three", ".git/x": b"no", "d.bin": b"\xff\xfe\x00",
                          "e.txt": b"  ", "f.zip": b"no"}.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
    (tmp_path / "g.jsonl").write_text('{"text": "four"}\n')
    assert texts(tmp_path) == ["one", "two", "four", "three"]
    assert reasons(tmp_path) == ["a file is not UTF-8", "the text is blank", "a file is not plain text"]


def test_what_cannot_be_read_is_refused(tmp_path):
    for name in ("a.xlsx", "a.zip", "a.arrow", "a.srt", "a.po.gz", "a.tmx"):
        (tmp_path / name).write_text("x")
        with pytest.raises(OptionError, match="documents cannot be read from"):
            texts(tmp_path / name)
    with pytest.raises(DataError, match="No such file"):
        texts(tmp_path / "none.txt")
    (tmp_path / "b.txt").write_bytes(b"a\xff")
    with pytest.raises(DataError, match="not UTF-8"):
        texts(tmp_path / "b.txt")
    (tmp_path / "c.txt").write_bytes(b"a\0b")
    with pytest.raises(DataError, match="zero bytes"):
        texts(tmp_path / "c.txt")
    (tmp_path / "d.jsonl").write_text('{"body": "x"}\n')
    said = []
    with pytest.raises(DataError, match="no usable text"), notes_to(said.append):
        read_and_report_documents([tmp_path / "d.jsonl"])
    assert "has no field 'text'" in said[0]


@pytest.mark.parametrize(("content", "reason"), [(b"", "a file is empty"), (b"\xff\xfea\0", "a file is not UTF-8")])
@pytest.mark.parametrize(("name", "options"), [("b.jsonl", {}), ("b.txt", {"lines": True})])
def test_an_unusable_file_of_lines_is_skipped_in_a_folder_and_refused_alone(tmp_path, content, reason, name, options):
    (tmp_path / "a.jsonl").write_text('{"text": "the cat"}\n')
    (tmp_path / name).write_bytes(content)
    assert reasons(tmp_path, **options) == [reason]
    with pytest.raises(DataError, match=reason.removeprefix("a file ")):
        list(read_documents([tmp_path / name], **options))


def test_the_place_of_a_byte_of_another_encoding_is_named(tmp_path):
    (tmp_path / "latin.txt").write_bytes("a\nb\ncafé".encode("latin1"))
    with pytest.raises(DataError, match="is not UTF-8") as error:
        list(read_documents([tmp_path / "latin.txt"]))
    assert "byte 0xe9 in line 3, byte 8 of its text" in str(error.value)
    assert "iconv" in str(error.value)


def test_other_encodings_are_told_apart(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfab\xff")
    with pytest.raises(DataError, match="byte 6 of its text"):
        list(read_documents([tmp_path / "a.txt"]))
    (tmp_path / "b.txt").write_bytes("ab".encode("utf-16"))
    with pytest.raises(DataError, match="iconv -f UTF-16"):
        list(read_documents([tmp_path / "b.txt"]))
