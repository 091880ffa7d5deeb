"""``regard train`` and ``regard evaluate`` with bad options and bad data: what is said, and that nothing is left."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import DataError, OptionError, OutputExistsError

TRAIN = ["train", "translate", "--data", "pairs.tsv", "--out", "m", "--steps", "1"]


def run(*arguments):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, [str(argument) for argument in arguments])


def said(kind, *arguments):
    """What is said of the one error of this kind that the arguments deserve."""
    result = run(*arguments)
    assert isinstance(result.exception, kind), result.exception
    return str(result.exception)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = {"hund": "dog", "katze": "cat", "haus": "house"}
    rows = [(one, other) for one in words for other in words if one != other] * 7
    lines = [f"{one} {other}\t{words[one]} {words[other]}\n" for one, other in rows]
    (tmp_path / "pairs.tsv").write_text("".join(lines), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--model", "huge"], OptionError, "tiny"),
        (["--subwords", "wordpiece"], OptionError, "bpe"),
        (["--sharing", "both"], OptionError, "joint"),
        (["--schedule", "linear"], OptionError, "cosine"),
        (["--schedule", "cosine"], OptionError, "steps"),
        (["--columns", "0,1"], OptionError, "columns"),
        (["--set", "layers"], OptionError, "name=value"),
        (["--set", "depth=4"], OptionError, "depth"),
        (["--resume"], OptionError, "no run"),
        (["--vocabulary", "17"], OptionError, "vocabulary"),
        (["--most-tokens", "1"], DataError, "too long"),
        (["--columns", "1,3"], DataError, "no pair"),
        (["train.de", "train.en"], OptionError, "no option takes train.de, train.en"),
    ],
)
def test_bad_options_are_named(folder, arguments, kind, words):
    assert words in said(kind, *TRAIN, *arguments)
    assert sorted(path.name for path in folder.iterdir()) == ["pairs.tsv"]


def test_files_of_different_length_are_refused_with_both_counts(folder):
    (folder / "a.de").write_text("eins\nzwei\ndrei\n")
    (folder / "a.en").write_text("one\ntwo\n")
    message = said(DataError, "train", "translate", "--data", "a.de", "--data", "a.en", "--out", "m")
    assert "3" in message
    assert "2" in message


def test_an_output_that_is_there_is_not_touched(folder):
    (folder / "m").mkdir()
    (folder / "m" / "thesis.txt").write_text("years of work")
    for more in ([], ["--overwrite"]):
        said(OutputExistsError, *TRAIN, *more)
    assert (folder / "m" / "thesis.txt").read_text() == "years of work"


def test_evaluate_says_how_two_files_are_given(folder):
    message = said(OptionError, "evaluate", "translate", "--model", "m", "--data", "test.de", "test.en")
    assert "no option takes test.en" in message
    assert "--data train.de --data train.en" in message
