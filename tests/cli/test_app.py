"""The ``regard`` command as a process: closed and full streams, messages, the version."""

import os
import shlex
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from cli_process import ENVIRONMENT
from regard.errors import OptionError
from regard.models import load


@pytest.fixture
def shell(regard_command, tmp_path):
    """Run a shell line in which REGARD is the command; return the exit code, output and messages."""

    def run(line):
        line = line.replace("REGARD", shlex.join(regard_command))
        result = subprocess.run(
            line, shell=True, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120
        )
        return result.returncode, result.stdout, result.stderr

    return run


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("REGARD view 'a b c' > /dev/full", 5, "got:      No space left on device"),
        ("REGARD list > /dev/full", 5, "got:      No space left on device"),
        ("REGARD --help > /dev/full", 5, "got:      No space left on device"),
        ("REGARD embed a >&-", 5, "standard output is closed"),
        ("REGARD embed <&-", 3, "standard input is closed"),
        ("REGARD view --data - <&-", 3, "standard input is closed"),
    ],
)
def test_closed_or_full_standard_streams(command, code, message, shell):
    got, _, error = shell(command)
    assert got == code
    assert error.startswith("regard: ")
    assert message in error
    assert "Traceback" not in error
    assert "Exception ignored" not in error


def test_closed_or_full_stderr_keeps_the_exit_code(shell):
    assert shell("REGARD embed a -o none/out.npy 2> /dev/full") == (5, "", "")
    assert shell("REGARD embed a -o none/out.npy 2>&-") == (5, "", "")


def test_control_characters_in_file_names_are_escaped(shell):
    code, _, error = shell("REGARD embed --data \"$(printf 'a\\033[31mb')\"")
    assert code == 3
    assert "cannot read a⟨U+001B⟩[31mb" in error
    assert "\x1b" not in error


def test_out_of_memory_is_reported(shell, tmp_path):
    (tmp_path / "pairs.tsv").write_text("ein Hund\ta dog\nzwei Hunde\ttwo dogs\n", encoding="utf-8")
    wide = f"--set width={2**10} --set inner={2**22} --set heads=1 --steps 1"  # 16 GiB per weight, of 12 available
    code, _, error = shell(f"ulimit -v 12000000; REGARD train translate --data pairs.tsv --out m {wide}")
    assert code == 2
    assert "regard: there is not enough memory" in error
    assert "Traceback" not in error
    assert not (tmp_path / "m.run").exists()


def test_version_option(tmp_path):
    """Test the installed program, in a new process."""
    program = Path(sys.executable).with_name("regard")
    command = [sys.executable, "-W", "error", str(program), "--version"]
    result = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, f"regard {version('regard')}\n", "")


def test_ctrl_c_ends_view_with_exit_code_130(regard_command, tmp_path):
    os.mkfifo(tmp_path / "slow")
    process = subprocess.Popen(
        [*regard_command, "view", "--data", "slow"],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with (tmp_path / "slow").open("w"):  # opens when the command opens it and waits for a line
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (130, "", "regard: interrupted\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [("minlm", "did you mean 'minilm'?"), ("MiniLM", "did you mean 'minilm'?"), ("", "an empty name")],
)
def test_unknown_model_names_are_refused(name, message, shell):
    code, _, error = shell(f"REGARD embed a --model '{name}'")
    assert code == 4
    assert message in error


@pytest.mark.parametrize("name", [None, 3])
@pytest.mark.usefixtures("without_shape_checks")
def test_load_refuses_anything_but_a_name_or_path(name):
    with pytest.raises(OptionError, match="the name of a model is a string or a path"):
        load(name)
