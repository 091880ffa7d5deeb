"""One listing of folders for all readers: hidden files and folders are left out, at any depth."""

import os

import pytest

import regard.list_files as listing
from captioned_files import write_captioned
from picture_files import write_folders
from regard.errors import DataError
from regard.list_files import is_hidden, list_entries, list_files, list_folders
from regard.log import notes_to
from regard.media import read_and_report_labelled
from regard.media.files_with_texts import read_and_report_files_with_texts
from regard.media.read import has_files
from regard.text.documents import read_documents
from regard.text.embedding_files import find_files
from regard.text.labelled import LabelledText, read_labelled
from regard.text.pairs import PairFormat
from regard.text.pairs.read import read_and_report
from regard.text.text_file import TextFolder
from regard.vision.picture_file import PICTURES

HIDDEN = ("._0.png", "._0.txt", ".ipynb_checkpoints/0-checkpoint.txt", ".ipynb_checkpoints/deep/0.png",
          "__MACOSX/a/._0.txt", "__MACOSX/0.txt", "__MACOSX/0.png", ".DS_Store", "Thumbs.db", "desktop.ini",
          ".git/a/0.txt", ".git/a/0.png")  # fmt: skip


def write(folder, names, content="one\n"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def test_files_in_order_and_hidden_ones_left_out(tmp_path):
    names = ["_DSC0001.png", "a/0.txt", "a/b/1.txt", "a.txt", "b..txt", "de/2.txt"]
    write(tmp_path, (*names, *HIDDEN))
    assert list_files(tmp_path) == sorted(tmp_path / name for name in names)
    assert [one.name for one in list_folders(tmp_path)] == ["a", "de"]


def test_links_and_pipes(tmp_path):
    write(tmp_path, ["a/0.txt", "b/1.txt"])
    (tmp_path / "a" / "file").symlink_to(tmp_path / "b" / "1.txt")
    (tmp_path / "a" / "folder").symlink_to(tmp_path)
    (tmp_path / "a" / "nothing").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "a" / "pipe")
    assert [one.name for one in list_files(tmp_path / "a")] == ["0.txt", "file"]
    reasons = [listing.why_no_file(one) for one in list_entries(tmp_path / "a") if not one.is_file()]
    assert [reason.split()[-2:] for reason in reasons] == [["not", "followed"], ["no", "file"], ["not", "read"]]
    (tmp_path / "link").symlink_to(tmp_path / "b")
    assert [one.name for one in list_folders(tmp_path)] == ["a", "b", "link"]
    assert list_files(tmp_path / "link") == [tmp_path / "link" / "1.txt"]


def test_an_unreadable_folder_is_no_empty_one(tmp_path, monkeypatch):
    write(tmp_path, ["a/0.txt"])
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("a"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot read the folder .*a"):
        list_files(tmp_path)


@pytest.fixture
def texts(tmp_path):
    write(tmp_path / "good", ["0.txt", "deep/1.txt"])
    write(tmp_path / "poor", ["0.txt"])
    for folder in ("", "good", "poor"):
        write(tmp_path / folder, HIDDEN)
    return tmp_path


def test_readers_of_texts(texts):
    expected = [texts / name for name in ("good/0.txt", "good/deep/1.txt", "poor/0.txt")]
    labelled = list(read_labelled([texts]))
    assert all(isinstance(one, LabelledText) for one in labelled)
    assert [(one.place, one.labels) for one in labelled] == [
        (str(path), (label,)) for path, label in zip(expected, ("good", "good", "poor"), strict=True)
    ]
    assert [one.place for one in read_documents([texts])] == [str(path) for path in expected]
    assert find_files(str(texts)) == expected
    folder = TextFolder(texts)
    assert [line.name for line in folder] == [str(path) for path in expected]
    assert [line.name for line in folder[1:]] == [str(path) for path in expected[1:]]
    assert (folder[-1].number, folder[-1].text, folder.skipped) == (3, "one\n", [])


def test_readers_of_pictures(tmp_path):
    write_folders(tmp_path, count=2, labels=("rows", "plain"))
    for folder in ("", "rows", "plain"):
        write(tmp_path / folder, HIDDEN)
    said = []
    with notes_to(said.append):
        files = read_and_report_labelled([tmp_path], PICTURES, None)
    assert [(one.content.parent.name, one.content.name) for one in files] == [
        (label, f"00{number}.png") for label in ("plain", "rows") for number in range(2)
    ]
    assert [one for one in said if "skipped" in one] == []
    write(tmp_path / "hidden" / "label", HIDDEN)
    assert not has_files(tmp_path / "hidden", PICTURES)


def test_readers_of_pictures_with_texts(tmp_path):
    write_captioned(tmp_path / "a", 2)
    write(tmp_path / "a", HIDDEN)
    said = []
    with notes_to(said.append):
        found = read_and_report_files_with_texts([tmp_path], PICTURES, None)
    assert [one.content.name for one in found] == ["00.png", "01.png"]
    assert said == []


def test_readers_of_catalogues(tmp_path):
    po = 'msgid ""\nmsgstr "Language: de\\n"\n\nmsgid "one"\nmsgstr "eins"\n'
    write(tmp_path, ["de/app.po"], po)
    write(tmp_path, [".git/app.po", "__MACOSX/de/._app.po"], "broken")
    said = []
    with notes_to(said.append):
        pairs = read_and_report([tmp_path], PairFormat())
    assert [(one.source, one.target) for one in pairs] == [("one", "eins")]
    assert not any("broken" in one or "catalogue" in one for one in said if "skipped" in one)


@pytest.mark.parametrize(("name", "hidden"), [(".a", True), ("._a", True), ("_a", False), ("a.", False),
                                              ("__MACOSX", True), ("THUMBS.DB", True), ("MACOSX", False)])  # fmt: skip
def test_hidden_names(name, hidden):
    assert is_hidden(name) == hidden


def test_a_folder_without_texts_is_refused(tmp_path):
    write(tmp_path, ["a.png", ".hidden.txt"])
    with pytest.raises(DataError, match=r"has no texts(.|\n)*1 other files"):
        TextFolder(tmp_path)


def test_unusable_texts_of_a_folder_have_a_problem(tmp_path):
    write(tmp_path, ["a.txt", "c.pdf"])
    (tmp_path / "b.txt").write_bytes(b"\xff")
    folder = TextFolder(tmp_path)
    assert [line.problem is None for line in folder] == [True, False]
    assert "b.txt cannot be used" in str(folder[1].problem)
    assert "c.pdf" in folder.skipped[0]
