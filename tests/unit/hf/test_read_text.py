"""Views of checkpoint folders of ``transformers``: weights equal those of "eager", and what a folder may not have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from regard.errors import CheckpointError, DataError, RefusedError
from regard.hf.checkpoint import Checkpoint
from regard.hf.load_checkpoint import load_checkpoint
from regard.models import load
from regard.view import LayerReading, LayerWeights, read, read_pair
from regard.view.layer_weights import weights_alone
from small_checkpoints import SIZES, change_config, save_checkpoint

TEXT = "The keys to the old cabinet are on the table, because it was small."
Folder = Callable[[str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return lambda kind: save_checkpoint(kind, tmp_path / kind)


def eager(checkpoint: Checkpoint, **inputs: torch.Tensor) -> object:
    """What the model returns with "eager", loaded by the class that transformers chooses."""
    auto = transformers.AutoModelForSeq2SeqLM if checkpoint.is_encoder_decoder else transformers.AutoModel
    model = auto.from_pretrained(checkpoint.folder, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        return model(**inputs, output_attentions=True, output_hidden_states=True, use_cache=False)


@pytest.mark.parametrize("kind", [name for name, (auto, _) in SIZES.items() if "Seq2Seq" not in auto])
def test_weights_equal_eager(kind: str, folder: Folder) -> None:
    checkpoint = load_checkpoint(folder(kind))
    reading = read(checkpoint, TEXT)
    (tokenized,) = checkpoint.tokenizer.tokenize([TEXT])
    output = eager(checkpoint, input_ids=torch.tensor([tokenized.ids]))
    assert len(reading.layers) == len(output.attentions) == 2
    assert len({layer.name for layer in reading.layers}) == 2
    for layer, weights in zip(reading.layers, output.attentions, strict=True):
        np.testing.assert_allclose(layer.weights(), weights[0].double().numpy(), atol=1e-5)
    assert (reading.hidden is None) == (kind == "gemma3n_text")  # it has several for each token
    if reading.hidden is not None:
        np.testing.assert_allclose(reading.hidden[0], output.hidden_states[0][0].numpy(), atol=1e-5)
    is_decoder = SIZES[kind][0] == "AutoModelForCausalLM"
    assert reading.sink == (0 if is_decoder else None)
    expected = LayerWeights if kind in ("bloom", "gpt_neo") else LayerReading  # the former have code of their own
    assert all(isinstance(layer, expected) for layer in reading.layers)
    known = {layer.projections is not None for layer in reading.layers if isinstance(layer, LayerReading)}
    if kind in ("bert", "llama"):  # two projections, and no norm after them
        assert known == {True}
    weights_are = "non-negative" if kind == "gpt_oss" else "distribution"
    assert {weights_alone(layer, "").weights_are for layer in reading.layers} == {weights_are}
    surfaces = [reading.tokens.surface(at) for at in range(len(reading.tokens)) if not reading.tokens.special[at]]
    if kind != "bert":
        assert "".join(surfaces) == TEXT.replace(" ", "")


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "gpt_oss", "roberta", "bert"])
def test_the_model_of_regard_is_read_alike(kind: str, folder: Folder) -> None:
    """One reader: the same tokens, kinds of layers and numbers, whichever library computes."""
    place = folder(kind)
    ours, theirs = read(load(place), TEXT), read(load_checkpoint(place), TEXT)
    assert (ours.tokens, ours.sink, ours.dropped) == (theirs.tokens, theirs.sink, theirs.dropped)
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        assert type(one) is type(other)
        assert getattr(one, "reason", "") == getattr(other, "reason", "")
        np.testing.assert_allclose(one.weights(), other.weights(), atol=1e-5)
    np.testing.assert_allclose(ours.hidden, theirs.hidden, atol=1e-4)


TARGET = "A dog runs through the snow."


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        ("t5", TARGET),
        ("bart", None),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in [("t5", None), ("bart", TARGET)]),
    ],
)
def test_a_pair_equals_eager(kind: str, target: str | None, folder: Folder) -> None:
    checkpoint = load_checkpoint(folder(kind))
    source = "Ein Hund läuft durch den Schnee."
    pair = read_pair(checkpoint, source, target)
    assert pair.forced == (target is not None)
    ids, end = torch.tensor([checkpoint.tokenizer.tokenize([source])[0].ids]), 2
    start = SIZES[kind][1]["decoder_start_token_id"]
    if target is None:
        with torch.no_grad():
            (row,) = checkpoint.model.generate(
                ids, do_sample=False, num_beams=1, max_new_tokens=256 if kind == "t5" else 127
            )
        written = row[1:].tolist()
    else:
        written = list(checkpoint.tokenizer.tokenize([target])[0].ids)
        assert written[-1] == end
        assert pair.alignment.tokens.text == target
    output = eager(checkpoint, input_ids=ids, decoder_input_ids=torch.tensor([[start, *written[:-1]]]))
    readings = pair.attentions
    for name, expected in (
        ("source", output.encoder_attentions),
        ("target", output.decoder_attentions),
        ("alignment", output.cross_attentions),
    ):
        assert len(readings[name].layers) == len(expected) == 2
        for layer, weights in zip(readings[name].layers, expected, strict=True):
            assert isinstance(layer, LayerReading)
            np.testing.assert_allclose(layer.weights(), weights[0].double().numpy(), atol=1e-5)
    assert len(pair.alignment.tokens) == len(pair.target.tokens) == len(written)
    assert pair.target.tokens.special[0]
    assert "encoder." in pair.source.layers[0].name


def test_a_long_text(folder: Folder) -> None:
    checkpoint = load_checkpoint(folder("roberta"))
    long = "The animal did not cross the street. " * 9
    with pytest.raises(DataError, match="at most 39 tokens"):
        read(checkpoint, long, name="text 1")
    reading = read(checkpoint, long, truncate=True)
    assert len(reading.tokens) == 39
    assert reading.dropped > 0


def test_a_text_without_tokens(folder: Folder) -> None:
    with pytest.raises(DataError, match="has no tokens"):
        read(load_checkpoint(folder("gpt2")), "")


def test_one_token_has_no_sink(folder: Folder) -> None:
    reading = read(load_checkpoint(folder("gpt2")), "T")
    assert len(reading.tokens) == 1
    assert reading.sink is None


def test_pickles_are_refused(folder: Folder) -> None:
    place = folder("gpt2")
    torch.save({}, place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"(?s)only as a pickle.*can run code"):
        load_checkpoint(place)


def test_code_of_a_folder_is_not_run(folder: Folder) -> None:
    place = folder("llama")
    (place / "trap.py").write_text(f"open({str(place / 'sprung')!r}, 'w')\nclass Trap: pass\n")
    change_config(place, auto_map={"AutoConfig": "trap.Trap", "AutoModel": "trap.Trap"})
    assert read(load_checkpoint(place), TEXT).layers  # by transformers' own class
    change_config(place, model_type="trap")
    with pytest.raises(CheckpointError, match=r"(?s)'trap'; its code is in the folder.*never runs"):
        load_checkpoint(place)
    assert not (place / "sprung").exists()


def remove(name: str) -> Callable[[Path], None]:
    return lambda place: (place / name).unlink()


def drop_a_layer(place: Path) -> None:
    change_config(place, n_layer=3)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("model.safetensors"), "has no weights"),
        (remove("tokenizer.json"), "has no tokenizer.json"),
        (lambda place: (place / "tokenizer.json").write_text("{"), "not a readable tokenizer"),
        (lambda place: (place / "model.safetensors").write_bytes(b"nothing"), "model.safetensors"),
        (lambda place: (place / "adapter_config.json").write_text("{}"), "has an adapter"),
        (drop_a_layer, r"(?s)lacks weights of the model.*h\.2\."),
        (lambda place: change_config(place, n_embd=28), r"(?s)have other shapes than.*\(84,\).*got: +\(96,\)"),
        (lambda place: change_config(place, n_layer=1), r"(?s)different numbers of layers.*h\.1\."),
        (lambda place: change_config(place, n_embd="many"), "cannot be loaded by transformers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damaged_folders(damage: Callable[[Path], object], message: str, folder: Folder) -> None:
    place = folder("gpt2")
    damage(place)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(place)


def test_a_tokenizer_of_another_model(folder: Folder) -> None:
    place, other = folder("gpt2"), folder("llama")
    (other / "tokenizer.json").write_bytes((place / "tokenizer.json").read_bytes())
    with pytest.raises(CheckpointError, match="do not belong together"):
        read(load_checkpoint(other), "The old keys are läuft.")


def test_models_that_do_not_read_text(tmp_path: Path, folder: Folder) -> None:
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=40, image_size=24, patch_size=8
    )
    transformers.ViTModel(config).save_pretrained(tmp_path / "vit")
    (tmp_path / "vit" / "tokenizer.json").write_bytes((folder("gpt2") / "tokenizer.json").read_bytes())
    with pytest.raises(RefusedError, match=r"(?s)does not read text.*pixel_values"):
        load_checkpoint(tmp_path / "vit")
