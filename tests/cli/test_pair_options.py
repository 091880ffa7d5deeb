"""Command-line options for sentence pairs: the target column, and the language of gettext catalogues."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from pair_files import write
from regard.cli.app import app

GERMAN = "Das ist ein kleiner Hund.\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "mine.de", GERMAN)
    return tmp_path


def chrf(*arguments):
    """Return the chrF of the German hypothesis against the target of the pairs."""
    words = ["evaluate", "translate", "--hypotheses", "mine.de", "--format", "json", *arguments]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.exception
    return json.loads(result.stdout)["chrf"]


def test_header_names_the_target_column(folder):
    write(folder / "test.tsv", f"de\ten\n{GERMAN.strip()}\tIt is so.\n")
    languages = ["--data", "test.tsv", "--source", "en", "--target", "de"]
    assert chrf(*languages) == chrf(*languages, "--columns", "2,1") == 100
    assert chrf(*languages, "--columns", "1,2") < 100


def test_folder_of_gettext_catalogues_is_filtered_by_target_language(folder):
    for language, text in (("de", GERMAN.strip()), ("fr", "C'est comme \u00e7a.")):
        write(folder / "locale" / language / "LC_MESSAGES" / "a.po", f'msgid "It is so."\nmsgstr "{text}"\n')
    # The other file was skipped, so the hypotheses belong to these pairs only.
    assert chrf("--data", "locale", "--target", "de") == 100
