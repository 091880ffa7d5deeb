"""A command of one's own: one file with its options and its function, and a line in ``cli/app.py``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from regard.cli import app as application
from regard.cli.option_group import expand_option_groups
from regard.cli.verb import Verb
from regard.errors import DataError, OptionError, check_count
from regard.fields import option_field
from regard.log import log
from shell_command import shell_message


@dataclass(frozen=True)
class Counting:
    """What is counted."""

    data: Path = option_field(Path("-"), "File of texts.", option="--data", metavar="FILE")
    least_words: int = option_field(
        1, "Words that a text has at least; with `every=True` no text is left out.", minimum=1
    )
    every: bool = option_field(False, "Count texts of any length.")


def register(app: typer.Typer) -> None:
    app.command("count", cls=Verb, epilog="[bold]Examples[/bold]\n\n  regard count --data texts.txt\n")(count)


@expand_option_groups()
def count(
    *, counting: Counting, as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False
) -> None:
    """Count the texts of a file."""
    check_count("least_words", counting.least_words)
    texts = counting.data.read_text(encoding="utf-8").splitlines()
    kept = [text for text in texts if counting.every or len(text.split()) >= counting.least_words]
    if not kept:
        raise DataError("no text is long enough", got=str(counting.data), do="`every=True`, or `least_words=1`")
    if len(kept) < len(texts):
        log.info(f"left out {len(texts) - len(kept)}; `every=True` counts them, too")
    print(json.dumps({"texts": len(kept)}) if as_json else len(kept))


@pytest.fixture
def run(tmp_path):
    """Run ``regard count`` beside a verb of regard."""
    app = typer.Typer(cls=application.VerbGroup, no_args_is_help=True, rich_markup_mode="rich")
    application.list_verb.register(app)
    register(app)
    file = tmp_path / "texts.txt"
    file.write_text("one\ntwo words\nnow three words\n", encoding="utf-8")
    return lambda *words: CliRunner().invoke(app, ["count", "--data", str(file), *words])


def test_its_options_reach_the_function_and_its_notes_the_reader(run):
    assert run("--json").stdout == '{"texts": 3}\n'
    some = run("--least-words", "2")
    assert (some.stdout, some.stderr) == ("2\n", "left out 1; --every counts them, too\n")
    assert (run("--least-words", "2", "--every").stdout, some.exit_code) == ("3\n", 0)


def test_its_errors_name_its_options(run):
    refused = run("--least-words", "9")
    assert isinstance(refused.exception, DataError)
    assert "to do:    --every, or --least-words 1" in shell_message(refused.exception)
    assert str(refused.exception).endswith("to do:    every=True, or least_words=1")
    assert isinstance(run("stray").exception, OptionError)
    assert run("--least-words", "0").exit_code == 2


def test_its_help_lists_options_and_examples(run):
    help_text = " ".join(run("--help").stdout.replace("│", " ").split())
    assert "Count the texts of a file." in help_text
    assert "Words that a text has at least; with --every no text is left out." in help_text
    assert "regard count --data texts.txt" in help_text
    for option in ("--data FILE", "--least-words", "--every", "--json"):
        assert option in help_text
