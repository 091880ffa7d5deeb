"""Sounds with texts from folders, tables and JSON lines: what is read, what is skipped, and errors."""

import gzip

import pytest

from regard.audio.sound_file import SOUNDS
from regard.errors import DataError, OptionError
from regard.log import notes_to
from regard.media.files_with_texts import normalise_text, read_and_report_files_with_texts


def read(*paths, columns=None):
    said: list[str] = []
    with notes_to(said.append):
        found = read_and_report_files_with_texts(paths, SOUNDS, columns)
    return found, "\n".join(said)


def test_white_space_and_composed_characters():
    """U+0065 U+0301 is canonically equivalent to U+00E9, and white space is any of Unicode's."""
    assert normalise_text("  a\t\n b\u00a0\u3000c ") == "a b c"
    assert normalise_text("cafe\u0301") == "caf\u00e9"
    assert normalise_text("Ab, \u2028 C!") == "Ab, C!"


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("t.csv", 'path,text\na/1.wav,"Yes, two\n  lines"\n', None),
        ("t.csv", "speaker;Sentence;Clip\n7;Yes, two lines;a/1.wav\n", None),
        ("t.csv", 'a/1.wav,"Yes, two lines"\n', None),
        ("t.tsv", "a/1.wav\tYes, two lines\n", None),
        ("t.tsv", "Yes, two lines\t7\ta/1.wav\n", (3, 1)),
        ("t.tsv", "said\tnumber\twhere\nYes, two lines\t7\ta/1.wav\n", ("where", "said")),
        ("t.jsonl", '{"audio": "a/1.wav", "transcript": "Yes, two lines"}\n', None),
        ("t.jsonl", '{"p": "a/1.wav", "q": "Yes, two lines"}\n', ("p", "q")),
    ],
)
def test_tables_of_paths_and_texts(tmp_path, name, content, columns):
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
        ((sound,), said) = read(path, columns=columns)
        assert (sound.content, sound.text, said) == (tmp_path / "a" / "1.wav", "Yes, two lines", "")
        assert sound.place.startswith("a/1.wav (line ")


def test_unusable_rows_are_skipped_and_named(tmp_path):
    """A comma without quotes would cut a text; a number in JSON is no text."""
    (tmp_path / "t.csv").write_text("path,text\na.wav,yes\nb.wav,yes, no\nc.wav, \n,no\nd.wav\n\n")
    sounds, said = read(tmp_path / "t.csv")
    assert [one.text for one in sounds] == ["yes"]
    for fact in (
        "skipped 1 because the row has more cells than the first one: line 3 of",
        "skipped 1 because the text is empty: c.wav (line 4 of",
        "skipped 1 because there is no path: line 5 of",
        "skipped 1 because there is no text: d.wav (line 6 of",
        "skipped 1 because the line is blank: line 7 of",
    ):
        assert fact in said
    (tmp_path / "t.jsonl").write_text('{"path": "a.wav", "text": "yes"}\n{"path": "b.wav", "text": 7}\n[]\n'
                                      '{"path": "c.wav", "text": "\\ud800"}\n')  # fmt: skip
    sounds, said = read(tmp_path / "t.jsonl")
    assert [one.text for one in sounds] == ["yes"]
    assert "there is no text: b.wav" in said
    assert "the line is not a JSON object: line 3" in said
    assert "there is a lone surrogate, which is half a character: c.wav" in said


def test_folder_with_a_text_beside_each_sound(tmp_path):
    (tmp_path / "old").mkdir()
    (tmp_path / ".hidden").mkdir()
    for name, content in (
        ("b.wav", b""), ("b.txt", "\ufeffgood  morning\n".encode()), ("a.FLAC", b""), ("a.txt", b"one"),
        ("old/c.flac", b""), ("old/c.txt", b"two"), ("alone.wav", b""), ("notes.txt", b"x"), ("d.wav", b""),
        ("d.txt", b" \n"), ("e.wav", b""), ("e.txt", b"\xff\xfe"), (".hidden/f.wav", b""), (".hidden/f.txt", b"x"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(content)
    sounds, said = read(tmp_path)
    found = [(str(one.content.relative_to(tmp_path)), one.text) for one in sounds]
    assert found == [("a.FLAC", "one"), ("b.wav", "good morning"), ("old/c.flac", "two")]
    assert f"there is no text beside a sound: {tmp_path / 'alone.wav'}" in said
    assert f"there is no sound beside a text: {tmp_path / 'notes.txt'}" in said
    assert f"the text is empty: {tmp_path / 'd.wav'}" in said
    assert f"a file is not UTF-8: {tmp_path / 'e.txt'}" in said
    assert "hidden" not in said


def test_sources_that_cannot_be_used(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "labels" / "high").mkdir(parents=True)
    (tmp_path / "labels" / "high" / "1.wav").write_bytes(b"")
    (tmp_path / "a.zip").write_bytes(b"x")
    (tmp_path / "labels.csv").write_text("path,label\na.wav,high\n")
    (tmp_path / "blank.csv").write_text("path,text\na.wav,\n")
    for name, kind, facts in (
        ("empty", DataError, "has no sounds with texts(.|\n)*got: *no sounds"),
        ("labels", DataError, "1 sound, and none with a text"),
        ("a.zip", OptionError, r"sounds with texts cannot be read from \.zip"),
        ("labels.csv", DataError, 'ambiguous(.|\n)*columns named "path" and "text"'),
        ("blank.csv", DataError, "the data has no sounds"),
        ("none", DataError, "cannot read"),
    ):
        with pytest.raises(kind, match=facts):
            read(tmp_path / name)
