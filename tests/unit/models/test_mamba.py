"""Mamba-2 against transformers: outputs, gradients, steps, prompts, and folders in both directions."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

import regard
from causal_parity import (
    assert_same_gradients,
    assert_same_prompts,
    assert_same_steps,
    assert_same_with_padding,
    reload,
)
from regard.errors import CheckpointError, OptionError
from regard.generation import Generator
from regard.models import Mamba, MambaConfig
from regard.search import Beam, Greedy

LENGTH = 13
SMALL = MambaConfig(vocabulary=31, width=16, layers=2, heads=4, head_dim=8, state_size=6, groups=2, end_ids=(2,))


def make_peer(seed=0, **fields):
    """A small Mamba-2 of transformers, with random weights, biases and norms included."""
    sizes = {
        "vocab_size": 31,
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_heads": 4,
        "head_dim": 8,
        "state_size": 6,
    }
    torch.manual_seed(seed)
    config = transformers.Mamba2Config(**{**sizes, "n_groups": 2, "chunk_size": 4, **fields})
    peer = transformers.Mamba2ForCausalLM(config)
    with torch.no_grad():
        for weight in peer.parameters():
            weight += 0.2 * torch.randn_like(weight)
    return peer.eval()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tie_word_embeddings": True, "use_bias": True, "use_conv_bias": False, "n_groups": 1},
        {"time_step_limit": (0.3, 0.9), "conv_kernel": 3, "state_size": 5, "expand": 1, "num_heads": 2},
    ],
)
def test_equals_transformers(fields, tmp_path):
    peer = make_peer(**fields)
    model = reload(peer, tmp_path / "model")
    assert isinstance(model, Mamba)
    assert_same_gradients(model, peer, length=LENGTH)
    if "time_step_limit" in fields:  # in steps, transformers does not apply the limits
        return
    if not model.config.bias:  # transformers adds biases to padding, which its convolution mixes into the text
        assert_same_with_padding(model, peer, length=LENGTH)
    assert_same_steps(model, peer, length=LENGTH)
    assert_same_prompts(model, peer, length=LENGTH)


@torch.no_grad()
@pytest.mark.parametrize("beams", [1, 3])
def test_generate_equals_transformers(beams, tmp_path):
    peer = make_peer(eos_token_id=None, pad_token_id=None)
    model = reload(peer, tmp_path / "model")
    ids = torch.randint(0, 31, (3, 7))
    expected = peer.generate(ids, max_new_tokens=9, do_sample=False, num_beams=beams, length_penalty=0.0)
    search = Greedy() if beams == 1 else Beam(beams, length_penalty=0.0)
    found = search.search(model, ids, torch.full((3,), 7), max_tokens=9)
    assert [best.ids for best, *_ in found] == [tuple(row) for row in expected[:, 7:].tolist()]


def test_folder_is_read_by_transformers(tmp_path):
    torch.manual_seed(1)
    model = Mamba(replace(SMALL, bias=True)).eval()
    model.save(tmp_path / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert isinstance(peer, transformers.Mamba2ForCausalLM)
    ids = torch.randint(0, 31, (2, LENGTH))
    torch.testing.assert_close(model(ids).logits, peer(ids).logits, atol=1e-5, rtol=1e-5)
    again = regard.load(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_a_state_of_constant_size():
    model = Mamba(SMALL).eval()
    with torch.no_grad():
        state = model.prefill(torch.randint(0, 31, (2, 50)))[1]
    assert [(cache.own.recent.shape, cache.own.state.sums.shape) for cache in state.caches] == [
        ((2, 3, 32 + 2 * 12), (2, 4, 6, 8))
    ] * 2
    assert (model.max_tokens, state.length) == (None, 49)


def test_what_needs_keys_is_refused():
    model = Mamba(SMALL).eval()
    assert model.pages_refusal == "Mamba2Mixer has a state of constant size, and no keys"
    assert not model.reads_packed
    with pytest.raises(OptionError, match="the memory of the cache has no bound here: Mamba2Mixer has a state"):
        Generator(model, cache_bytes=1000)


def test_wrong_configs(tmp_path):
    with pytest.raises(OptionError, match="the heads of a Mamba-2 do not fit its width"):
        MambaConfig(width=16, heads=3, head_dim=8)
    Mamba(SMALL).save(tmp_path / "model")
    fields = json.loads((tmp_path / "model" / "config.json").read_text())
    for name, value in (("hidden_act", "gelu"), ("time_step_limit", [0.1, "long"]), ("n_groups", 3)):
        (tmp_path / "model" / "config.json").write_text(json.dumps(fields | {name: value}))
        with pytest.raises(CheckpointError):
            regard.load(tmp_path / "model")
