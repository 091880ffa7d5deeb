"""Qwen3-Next against transformers: outputs, gradients, steps, prompts, and folders in both directions."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

import regard
from causal_parity import assert_same_model, assert_same_prompts, reload
from regard.errors import CheckpointError, OptionError
from regard.models import Qwen3Next, Qwen3NextConfig, RotaryConfig
from regard.search import Beam, Greedy

LENGTH = 13
SMALL = Qwen3NextConfig(
    vocabulary=31, width=16, layers=4, heads=4, key_value_heads=2, head_dim=8, delta_heads=4, delta_key_heads=2,
    delta_head_dim=6, delta_value_dim=5, inner=20, experts=4, chosen_experts=2, expert_inner=8, shared_inner=9,
    max_length=41, rotary=RotaryConfig(rotated=2), dense_layers=(1,), end_ids=(2,),
)  # fmt: skip


def make_peer(seed=0, **fields):
    """A small Qwen3-Next of transformers, with random weights, biases and norms included."""
    sizes = {
        "vocab_size": 31, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "linear_key_head_dim": 6, "linear_value_head_dim": 5,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 9, "max_position_embeddings": 41,
    }  # fmt: skip
    torch.manual_seed(seed)
    peer = transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**{**sizes, **fields}))
    with torch.no_grad():
        for weight in peer.parameters():
            weight += 0.1 * torch.randn_like(weight)  # with larger weights rounding grows from layer to layer
    return peer.eval()


@pytest.mark.parametrize(
    "fields",
    [
        {"mlp_only_layers": [1]},
        {"attention_bias": True, "tie_word_embeddings": True, "decoder_sparse_step": 2, "num_hidden_layers": 3,
         "layer_types": ["full_attention", "linear_attention", "full_attention"]},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0, "partial_rotary_factor": 1.0},
         "linear_num_key_heads": 4, "linear_conv_kernel_dim": 3, "num_experts_per_tok": 4},
        {"norm_topk_prob": False, "num_experts_per_tok": 3, "mlp_only_layers": [2]},
    ],
)  # fmt: skip
def test_equals_transformers(fields, tmp_path):
    peer = make_peer(**fields)
    model = assert_same_model(peer, tmp_path / "model", length=LENGTH)
    assert isinstance(model, Qwen3Next)
    assert_same_prompts(model, peer, length=LENGTH)


@torch.no_grad()
@pytest.mark.parametrize(("beams", "fields"), [(1, {}), (3, {}), (3, {"norm_topk_prob": False})])
def test_generate_equals_transformers(beams, fields, tmp_path):
    peer = make_peer(**fields)
    model = reload(peer, tmp_path / "model")
    ids = torch.randint(0, 31, (3, 7))
    expected = peer.generate(ids, max_new_tokens=9, do_sample=False, num_beams=beams, length_penalty=0.0)
    search = Greedy() if beams == 1 else Beam(beams, length_penalty=0.0)
    found = search.search(model, ids, torch.full((3,), 7), max_tokens=9)
    assert [best.ids for best, *_ in found] == [tuple(row) for row in expected[:, 7:].tolist()]


def test_folder_is_read_by_transformers(tmp_path):
    torch.manual_seed(1)
    model = Qwen3Next(replace(SMALL, attention_bias=True, normalized_shares=False)).eval()
    model.save(tmp_path / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert isinstance(peer, transformers.Qwen3NextForCausalLM)
    ids = torch.randint(0, 31, (2, LENGTH))
    torch.testing.assert_close(model(ids).logits, peer(ids).logits, atol=1e-5, rtol=1e-5)
    again = regard.load(tmp_path / "model")
    assert again.config == model.config
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_fields_that_files_may_leave_out(tmp_path):
    Qwen3Next(SMALL).save(tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps({**fields, "layer_types": None, "rope_parameters": None}))
    assert regard.load(tmp_path / "model").config == SMALL, "every fourth layer attends, and a quarter is rotated"
    for name, value in (
        ("hidden_act", "gelu"),
        ("full_attention_interval", 2),
        ("mlp_only_layers", [7]),
        ("linear_num_key_heads", 3),
    ):
        file.write_text(json.dumps({**fields, "layer_types": None, name: value}))
        with pytest.raises(CheckpointError):
            regard.load(tmp_path / "model")


def test_wrong_configs():
    with pytest.raises(OptionError, match="attention_layers names layers that the model does not have"):
        replace(SMALL, attention_layers=(4,))
    assert not Qwen3Next(SMALL).reads_packed
    assert Qwen3Next(SMALL).pages_refusal == "GatedDeltaNet has a state of constant size, and no keys"
