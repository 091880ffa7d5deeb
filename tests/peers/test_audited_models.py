"""``regard.audit`` of models from other packages: sound ones hold, and one fault in each is found."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard
from script_process import run_script

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other packages


@pytest.mark.parametrize("fault", [False, True])
def test_x_transformers(fault):
    from x_transformers import Decoder, Encoder, TransformerWrapper

    layers = (Encoder if fault else Decoder)(dim=32, depth=2, heads=4, attn_dim_head=8, rotary_pos_emb=True)
    model = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers).eval()
    report = regard.audit(model, torch.randint(0, 50, (1, 13)), causal=True, only=["causal", "batch", "random"])
    assert (report["causal"].verdict, report["batch"].verdict) == ("leaks" if fault else "holds", "holds"), str(report)
    assert not fault or report["causal"].leak.module == "attn_layers.layers.0.1.attend"


@pytest.mark.parametrize("fault", [False, True])
def test_diffusers(fault):
    from diffusers.models.attention import BasicTransformerBlock

    block = BasicTransformerBlock(32, 4, 8, cross_attention_dim=32).eval()
    if fault:
        block.attn2.to_out[1] = nn.BatchNorm1d(13, track_running_stats=False)
    inputs = {"hidden_states": torch.randn(1, 13, 32), "encoder_hidden_states": torch.randn(1, 5, 32)}
    report = regard.audit(block, inputs, causal=False, only=["batch", "random"])
    assert report["batch"].verdict == ("leaks" if fault else "holds"), str(report)
    assert not fault or "batch norm" in report["batch"].leak.cause


TIMM = """
import torch, regard
from torchvision_stand_in import stand_in
stand_in()
import timm
model = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32, depth=2).eval()
if {fault}:
    model.blocks[1].norm1 = torch.nn.BatchNorm1d(5, track_running_stats=False)
report = regard.audit(model, torch.randn(1, 3, 32, 32), only=["batch", "random"])
assert report["batch"].verdict == ("leaks" if {fault} else "holds"), str(report)
assert not {fault} or report["batch"].leak.module == "blocks.1.norm1"
"""


@pytest.mark.parametrize("fault", [False, True])
def test_timm(fault):
    """In a process of its own: see torchvision_stand_in.py."""
    result = run_script(TIMM.format(fault=fault))
    assert result.returncode == 0, result.stderr[-2000:]
