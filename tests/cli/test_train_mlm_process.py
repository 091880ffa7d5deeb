"""``regard train mlm`` as processes: two processes, and then a classifier from its folder."""

from __future__ import annotations

import json

import pytest

from cli_process import fork_command
from small_classifiers import write_texts
from small_language_models import write_documents
from training_process import (
    assert_two_processes_have_the_losses_of_one,
    train,
)

SMALL = ["mlm", "--data", "texts", "--set", "layers=1", "--set", "width=32", "--warmup", "10", "--batch", "7",
         "--block", "31", "--vocabulary", "290", "--validate-every", "20", "--dtype", "float32"]  # fmt: skip


@pytest.fixture
def data(tmp_path):
    write_documents(tmp_path / "texts", 211)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_two_processes_have_the_losses_of_one(data, kind):
    no_dropout = ["--set", "dropout=0", "--set", "attention_dropout=0"]
    options = [*SMALL, "--model", kind, *no_dropout, "--steps", 30, "--rate", 1e-3, "--average", 1]
    assert_two_processes_have_the_losses_of_one(data, options)


def test_a_classifier_starts_from_the_encoder(data):
    write_texts(data / "texts.tsv")
    encoder = train(data, "encoder", [*SMALL, "--steps", 20], start=fork_command())
    assert encoder.returncode == 0, encoder.stderr
    assert "nothing learned yet" in encoder.stderr  # in 20 steps
    assert "--overwrite --steps 200" in encoder.stderr
    options = ["classify", "--data", "texts.tsv", "--from", "encoder", "--truncate", "--steps", 3, "--dtype", "float32"]
    classifier = train(data, "classifier", options, start=fork_command())
    assert classifier.returncode == 0, classifier.stderr
    fields = json.loads((data / "classifier" / "config.json").read_text())["encoder"]
    assert (fields["model_type"], fields["hidden_size"], fields["max_position_embeddings"]) == ("bert", 32, 31)
    assert (data / "classifier" / "tokenizer.json").read_text() == (data / "encoder" / "tokenizer.json").read_text()
    assert json.loads((data / "classifier" / "about.json").read_text())["start"] == "encoder"
