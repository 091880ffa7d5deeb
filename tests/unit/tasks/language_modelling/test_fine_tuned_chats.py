"""A fine-tuned chat model keeps its chat template and its special tokens, with adapters too."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer
from typer.testing import CliRunner

from regard.cli.app import app
from regard.generation import Generator
from small_language_models import language_model, write_documents

TEMPLATE = "{% for one in messages %}{{ one.role }}: {{ one.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize(
    "more",
    [[], pytest.param(["--lora", "2"], marks=pytest.mark.slow), ["--lora", "2", "--keep-adapters"]],
    ids=" ".join,
)
def test_a_fine_tuned_chat_model_chats(tmp_path, more):
    start, tuned = tmp_path / "start", tmp_path / "tuned"
    write_documents(tmp_path / "texts")
    language_model("llama").save(start)
    path = start / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pad_token": "<|endoftext|>"}))
    (start / "chat_template.jinja").write_text(TEMPLATE)
    command = ["train", "lm", "--data", str(tmp_path / "texts"), "--from", str(start), "--out", str(tuned)]
    result = CliRunner().invoke(app, [*command, "--steps", "2", "--batch", "3", *more])
    assert result.exit_code == 0, result.output
    assert Generator.load(tuned).chat_prompt("Hi") == "user: Hi<|endoftext|>"
    result = CliRunner().invoke(
        app, ["generate", "--model", str(tuned), "--chat", "Hi", "--greedy", "--max-tokens", "3"]
    )
    assert result.exit_code == 0, result.output
    if "--keep-adapters" not in more:
        found = AutoTokenizer.from_pretrained(tuned)
        assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (0, 0, 0)
        assert found.chat_template == TEMPLATE
