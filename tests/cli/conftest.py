"""Fixtures of the shell tests: the command as a process, and a model that loads fast."""

import io
import os
import subprocess
import sys
from functools import cache

import pytest
import tokenizers
import torch
import typer.testing

from cli_process import START_COMMAND, fork_command

# regard is imported late here: modules that are imported before pytest is configured get no shape checks.


@pytest.fixture(autouse=True, scope="session")
def cache_typer_commands():
    """Cache the commands of ``app``: Typer's runner rebuilds them for each call, which takes longer than most calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def restore_variables(monkeypatch):
    """Restore the variables that a resumed run sets in its process, since all tests share this process."""
    for name in ("REGARD_ISA", "REGARD_LINEAR"):
        before = os.environ.get(name)
        monkeypatch.setenv(name, "")
        if before is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, before)


@pytest.fixture(params=["fork", pytest.param("start", marks=pytest.mark.slow)])
def regard_command(request):
    """Return the command that starts regard: in a fork, or (slow) in a new process, whose imports may not warn."""
    return (
        fork_command(warnings="error")
        if request.param == "fork"
        else [START_COMMAND[0], "-W", "error", *START_COMMAND[1:]]
    )


@pytest.fixture
def run_here(monkeypatch, capsys, tmp_path):
    """Return a function that runs the command in this process, in an empty folder, with an empty standard input.

    It is ten times as fast as a fork, for the many refusals whose exit codes and messages other tests see as processes.
    """
    from regard.cli.app import main

    def run(*arguments):
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.setattr(sys, "argv", ["regard", *map(str, arguments)])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patch.setenv("COLUMNS", "100")
            patch.setenv("NO_COLOR", "1")
            with pytest.raises(SystemExit) as ended:
                main()
        return subprocess.CompletedProcess(arguments, ended.value.code or 0, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Path of a folder with a random model whose tokens are letters; at most 31 tokens."""
    from regard.models import Bert, BertConfig
    from regard.text import Tokenizer

    letters = "abcdefghijklmnopqrstuvwxyz"
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters)]
    backend = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({name: index for index, name in enumerate(names)}, unk_token="[UNK]")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    torch.manual_seed(11)
    model = Bert(BertConfig(vocabulary=len(names), width=22, layers=2, heads=2, inner=13, max_length=31))
    model.tokenizer = Tokenizer(backend, pad_id=0, limit=31)
    folder = tmp_path_factory.mktemp("models") / "tiny"
    model.save(folder)
    return str(folder)
