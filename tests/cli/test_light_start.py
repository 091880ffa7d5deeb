"""What the ``regard`` command imports before it has work to do: importing torch takes seconds, so help has none."""

import subprocess
import sys

import pytest

from cli_process import ENVIRONMENT

PROGRAM = """
import sys

sys.argv = ["regard", *sys.argv[1:]]
from regard.cli.app import main

try:
    main()
finally:
    heavy = {"torch", "numpy", "regard.mechanisms", "regard.text"} & set(sys.modules)
    if heavy:
        print("imported:", *sorted(heavy), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--help"], 0, "embed"),
        (["train", "translate", "--help"], 0, "--minutes"),
        (["embed", "--resume", "--overwrite"], 2, "contradict each other"),
        *(  # other commands, and errors that are found before an option is checked
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                (["--version"], 0, "regard"),
                (["view", "--help"], 0, "--mechanism"),
                (["evaluate", "transcribe", "--help"], 0, "--worst"),
                (["paint"], 2, "No such command"),
                (["embed", "--wrong"], 2, "No such option"),
                (
                    ["train", "classify", "--data", "a", "--out", "b", "--resume", "--overwrite"],
                    2,
                    "contradict each other",
                ),
                (["classify", "--data", "a", "--data", "b"], 2, "--data is given twice"),
            ]
        ),
    ],
)
def test_help_and_errors_of_usage_do_not_import_torch(arguments, code, text, tmp_path):
    result = run(arguments, {}, tmp_path)
    assert result.returncode == code
    assert text in result.stdout + result.stderr
    assert "imported:" not in result.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [pytest.param("regard train ", "translate", marks=pytest.mark.slow), ("regard embed --dtype ", "bfloat16")],
)
def test_completions_do_not_import_torch(line, words, tmp_path):
    environment = {"_REGARD_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()))}
    result = run([], environment, tmp_path)
    assert words in result.stdout.split()
    assert "imported:" not in result.stderr


def run(arguments, environment, folder):
    command = [sys.executable, "-W", "error", "-c", PROGRAM, *arguments]
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT | environment, capture_output=True, text=True, timeout=120
    )
