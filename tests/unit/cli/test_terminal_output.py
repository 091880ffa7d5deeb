"""Answers on a terminal: without a progress bar between them, and without control characters that take effect."""

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.output_file import open_output_file
from regard.cli.progress import line_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_control_characters_are_escaped_on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Terminal())
    with open_output_file(None) as file:
        file.write("a\t\x1b[31mred\x07\nb 👩‍👩‍👧 é 葛\U000e0100 🏴\U000e0067\U000e0062\U000e007f \U000e0041\n")
        file.flush()
    assert sys.stdout.getvalue() == (
        "a\t⟨U+001B⟩[31mred⟨U+0007⟩\nb 👩‍👩‍👧 é 葛\U000e0100 🏴\U000e0067\U000e0062\U000e007f ⟨U+E0041⟩\n"
    )


def test_text_is_written_as_it_is_elsewhere(monkeypatch):
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    with open_output_file(None) as file:
        file.write("\x1b[31m")
    assert sys.stdout.getvalue() == "\x1b[31m"


@pytest.mark.parametrize(("out", "shows"), [(None, False), (Path("out.txt"), True)])
def test_the_bar_is_hidden_where_answers_are_printed(monkeypatch, out, shows):
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with line_progress([], out) as advance:
        advance(0)
    assert bool(sys.stderr.getvalue()) == shows


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="pseudo terminals")
def test_a_real_terminal(tmp_path):
    from small_language_models import language_model

    language_model().save(tmp_path / "m")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "regard", "generate", "--model", "m", "the cat", "a", "--max-tokens", "3"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    os.close(ours)
    assert said.startswith(b"the cat"), said
    assert "━".encode() not in said
