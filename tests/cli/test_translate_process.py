"""``regard translate`` as a process that communicates with another process."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from cli_process import ENVIRONMENT, START_COMMAND
from small_translators import GERMAN, transformer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "m"
    transformer().model.save(folder)
    return folder


def test_each_piped_line_is_translated_before_the_next_arrives(regard_command, model):
    command = [*regard_command, "translate", "--model", str(model), "--format", "jsonl", "--beam", "2"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for some in (GERMAN[:1], GERMAN[1:3], [""], GERMAN[:3]):
            process.stdin.write("".join(f"{text}\n" for text in some).encode())
            process.stdin.flush()
            for text in some:
                assert json.loads(process.stdout.readline())["source"] == text
        process.stdin.close()
        assert process.stdout.read() == b""
    assert process.returncode == 0


def test_pipe_and_file_give_the_same_translations(regard_command, model, tmp_path):
    text = "".join(f"{one}\n" for one in GERMAN * 20).encode()
    command = [*regard_command, "translate", "--model", str(model), "--beam", "1"]
    (tmp_path / "in.txt").write_bytes(text)
    whole = subprocess.run([*command, "--data", str(tmp_path / "in.txt")], env=ENVIRONMENT, capture_output=True)
    piped = subprocess.run(command, env=ENVIRONMENT, input=text, capture_output=True)
    assert whole.returncode == piped.returncode == 0, piped.stderr
    assert whole.stdout == piped.stdout
    assert whole.stdout.count(b"\n") == len(GERMAN) * 20


def test_named_pipe_is_translated_line_by_line(regard_command, model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    command = [*regard_command, "translate", "--model", str(model), "--data", str(tmp_path / "pipe"), "--beam", "1"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with (tmp_path / "pipe").open("w", encoding="utf-8") as pipe:
            for text in GERMAN[:3]:
                pipe.write(f"{text}\n")
                pipe.flush()
                assert process.stdout.readline().endswith(b"\n")
    assert process.returncode == 0


def test_overlong_line_is_refused_before_it_ends(regard_command, model):
    """A line of 16 MiB and a byte: the rest is not read, otherwise the test would not end."""
    command = [*regard_command, "translate", "--model", str(model)]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"y" * (2**24 + 1))
        process.stdin.flush()
        assert b"too long to be a text" in process.stderr.readline()
    assert process.returncode == 3


OTHER_LOCALE = {**ENVIRONMENT, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}


def test_piped_help_is_utf_8_in_any_locale():
    """In a new process, which is fast where it does not import torch."""
    result = subprocess.run([*START_COMMAND, "translate", "--help"], env=OTHER_LOCALE, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert not result.stdout.decode("utf-8").isascii()


@pytest.mark.slow  # the streams are prepared in one place, as the test above proves for help
def test_piped_output_is_utf_8_in_any_locale(model, tmp_path):
    (tmp_path / "in.txt").write_text("Ein kleiner Hund läuft.\n", encoding="utf-8")
    options = ["--format", "jsonl", "--beam", "1", "--data", "in.txt"]
    command = [*START_COMMAND, "translate", "--model", str(model), *options]
    result = subprocess.run(command, cwd=tmp_path, env=OTHER_LOCALE, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout.decode("utf-8"))["source"] == "Ein kleiner Hund läuft."
