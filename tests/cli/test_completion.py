"""Shell completions for incomplete command lines."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from regard.cli import translation_formats
from regard.cli.app import app
from regard.tasks.translation.recipe import SIZES
from regard.text import vector_files


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "minutes").mkdir()
    return tmp_path


def complete(line):
    """Return bash's completions of the last word of the line, or of a new word if the line ends with a space."""
    words = line.split()
    environment = {
        "_REGARD_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - (not line.endswith(" "))),
    }
    result = CliRunner(env=environment).invoke(app, [], prog_name="regard")
    assert result.exit_code == 0, result.output
    return result.stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("regard e", ["embed", "export", "evaluate"]),
        ("regard train ", ["translate", "classify", "clip", "gato", "lm", "mlm", "transcribe"]),
        ("regard tran", ["translate", "transcribe"]),
        ("regard transcribe --model ./m", ["./model"]),
        ("regard transcribe --format ", ["text", "tsv", "jsonl"]),
        ("regard train transcribe --metric ", ["cer", "wer", "loss"]),
        ("regard embed --form", ["--format"]),
        ("regard embed --format ", ["npy", "jsonl", "parquet"]),
        ("regard embed --dtype b", ["bfloat16"]),
        ("regard embed --model m", ["minilm", "model"]),
        ("regard view --model ./m", ["./model"]),
        ("regard translate --model ", ["model"]),
        ("regard translate --format j", ["jsonl"]),
        ("regard export m", ["model"]),
        ("regard export model --format mar", ["marian"]),
        ("regard train translate --model ", ["tiny", "small", "base", "big", "gru", "lstm", "t5", "model"]),
        ("regard train translate --attention luong_", ["luong_dot", "luong_general", "luong_concat"]),
        ("regard train translate --dtype ", ["float32", "bfloat16", "auto"]),
        ("regard evaluate translate --format ", ["text", "json"]),
        ("regard view --data ", []),  # bash then offers files
        ("regard view --model none/such/", []),
    ],
)
def test_bash_completions(line, expected):
    assert complete(line) == expected


def test_completions_are_the_supported_values():
    assert set(complete("regard embed --format ")) == set(vector_files._FORMATS)
    assert set(complete("regard translate --model m --format ")) == set(translation_formats.FORMATS)
    assert {*SIZES, "gru", "lstm", "t5", "model"} == set(complete("regard train translate --model "))


def test_completion_after_a_repeated_option():
    assert complete("regard embed --data a --data b --format p") == ["parquet"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(shell, monkeypatch):
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    result = CliRunner(env={"_REGARD_COMPLETE": f"source_{shell}"}).invoke(app, [], prog_name="regard")
    assert result.exit_code == 0, result.output
    assert "_REGARD_COMPLETE" in result.stdout
    assert "regard" in result.stdout
