"""Models of ``transformers`` that cannot read a text, or show its weights, say so in words."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from regard.errors import RefusedError
from regard.hf.load_checkpoint import load_checkpoint
from regard.view import read, read_pair
from small_checkpoints import make_tokenizer, save_checkpoint

SIZES = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 40}


def save_model(kind: str, folder: Path, **sizes: object) -> Path:
    tokenizer = make_tokenizer("bert")
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, "vocab_size": tokenizer.get_vocab_size(), **sizes})
    transformers.AutoModel.from_config(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.mark.parametrize(
    ("kind", "sizes", "text", "got"),
    [
        (
            "nystromformer",
            {"num_landmarks": 4, "segment_means_seq_len": 16},
            "old keys",
            "NystromformerModel of transformers raised",
        ),
        ("canine", {"downsampling_rate": 8}, "old", "CanineModel of transformers raised RuntimeError"),
    ],
)
def test_an_error_inside_a_model_is_explained(kind, sizes, text, got, tmp_path):
    checkpoint = load_checkpoint(save_model(kind, tmp_path, **sizes))
    with pytest.raises(RefusedError, match=f"(?s)cannot read line 3.*{got}"):
        read(checkpoint, text, name="line 3")


def test_a_model_without_a_table_of_tokens_takes_any_id(tmp_path):
    """CANINE hashes characters; its weights are not those of all pairs."""
    checkpoint = load_checkpoint(save_model("canine", tmp_path))
    assert checkpoint.vocab_size is None
    with pytest.raises(RefusedError, match="cannot be shown"):
        read(checkpoint, "The keys to the old cabinet are on the table.")


def test_an_error_inside_an_encoder_decoder_is_explained(tmp_path, monkeypatch):
    checkpoint = load_checkpoint(save_checkpoint("t5", tmp_path))

    def fail(*_, **__):
        raise IndexError("index out of range in self\nmore")

    monkeypatch.setattr(type(checkpoint.model), "forward", fail)
    for target in (None, "old keys"):
        with pytest.raises(
            RefusedError, match=r"(?s)cannot read the source.*raised IndexError: index out of range in self\n"
        ):
            read_pair(checkpoint, "old", target)


def test_errors_of_regard_and_of_memory_pass(tmp_path):
    checkpoint = load_checkpoint(save_checkpoint("t5", tmp_path))
    for error in (RefusedError("no", expected="a", got="b", do="c"), MemoryError()):
        with pytest.raises(type(error)) as raised, checkpoint.explain_errors("a text"):
            raise error
        assert raised.value is error


BIGBIRD = {"block_size": 4, "num_random_blocks": 1}


@pytest.mark.parametrize(
    ("kind", "sizes", "text"),
    [
        ("longformer", {"attention_window": 4}, "old keys"),
        ("big_bird", BIGBIRD, "old keys"),  # it attends in blocks in longer texts alone
        ("big_bird", BIGBIRD, "old keys " * 20),
    ],
)
def test_bands_and_blocks_are_shown(tmp_path, kind, sizes, text):
    checkpoint = load_checkpoint(save_model(kind, tmp_path, **sizes))
    reading = read(checkpoint, text)
    assert len(reading.layers) == 2
    assert {layer.queries for layer in reading.layers} == {len(reading.tokens)}
