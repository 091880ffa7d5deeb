"""The command as a process, and a model small enough for a shell test to load in no time."""

import os
from functools import cache

import pytest
import tokenizers
import torch
import typer.testing

from cli_process import START_COMMAND, fork_command

# regard is imported late here: whatever is imported before pytest is configured goes without shape checks.


@pytest.fixture(autouse=True, scope="session")
def cache_typer_commands():
    """Typer's runner makes the commands of ``app`` anew for each call, which takes longer than most calls do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(autouse=True)
def restore_variables(monkeypatch):
    """A run that goes on sets these for its process, which here is that of all tests."""
    for name in ("REGARD_ISA", "REGARD_LINEAR"):
        before = os.environ.get(name)
        monkeypatch.setenv(name, "")
        if before is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, before)


@pytest.fixture(params=["fork", pytest.param("start", marks=pytest.mark.slow)])
def regard_command(request):
    """Begins the command: a fork by day, and by night a start of its own, whose imports may not warn either."""
    return (
        fork_command(warnings="error")
        if request.param == "fork"
        else [START_COMMAND[0], "-W", "error", *START_COMMAND[1:]]
    )


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a random model that reads letters, 31 tokens at most."""
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
