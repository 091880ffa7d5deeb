"""``regard translate``: options that fit each other, formats, and lines of JSON."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from regard.cli.app import app
from regard.cli.translation_formats import in_one_line
from regard.errors import OptionError
from small_translators import transformer

SENTENCE = "Ein kleiner Hund läuft."


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    transformer().model.save(tmp_path / "m")
    return tmp_path


def translate(*arguments, **options):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["translate", "--model", "m", *arguments], **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "0.5"], "--temperature has no effect without --sample"),
        (["--top-k", "5", "--seed", "3"], "--top-k, --seed has no effect without --sample"),
        (["--sample", "--beam", "9"], "--beam has no effect with --sample"),
        (["--sample", "--coverage-penalty", "1"], "--coverage-penalty has no effect with --sample"),
        (["--beam", "1", "--length-penalty", "nan"], "wrong length_penalty"),
        (["--beam", "1", "--coverage-penalty", "-1"], "wrong coverage_penalty"),
        (["--patience", "0"], "wrong patience"),
        (["--best", "3"], "--format text has one translation a line"),
    ],
)
def test_options_without_effect_are_refused(arguments, words):
    result = translate(SENTENCE, *arguments)
    assert isinstance(result.exception, OptionError), result.exception
    assert words in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sample", "--temperature", "0.5", "--top-k", "5", "--top-p", "0.9", "--seed", "3"],
        ["--beam", "1"],
        ["--beam", "1", "--coverage-penalty", "0.2"],
        ["--beam", "2", "--best", "3", "--format", "tsv"],
        ["--length-penalty", "0", "--patience", "inf"],
    ],
)
def test_options_that_fit_are_taken(arguments):
    result = translate(SENTENCE, *arguments)
    assert result.exit_code == 0, result.exception
    assert result.output.count("\n") == (3 if "--best" in arguments else 1)


def test_lines_of_json(folder):
    (folder / "in.jsonl").write_text('{"id": 1, "text": "Zwei Hunde laufen."}\n{"id": 2, "text": "Der Hund."}\n')
    result = translate("--data", "in.jsonl", "--beam", "1")
    assert isinstance(result.exception, OptionError)
    assert "--field NAME" in str(result.exception)
    named = translate("--data", "in.jsonl", "--field", "text", "--beam", "1")
    assert named.exit_code == 0, named.exception
    both = translate("Zwei Hunde laufen.", "Der Hund.", "--beam", "1")
    assert named.output == both.output


def test_what_a_placeholder_stands_for_breaks_no_line():
    assert in_one_line('see <a\thref="x">\u2028 there\r\n') == 'see <a href="x">  there  '
