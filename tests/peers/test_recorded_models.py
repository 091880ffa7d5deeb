"""``regard.record`` of models from other packages, unchanged: the weights that they themselves compute or return."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import regard
from peers.timm_models import MODELS
from script_process import run_script

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # warnings of other packages

IDS = torch.randint(4, 24, (2, 13), generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    torch.manual_seed(5)
    with torch.no_grad():
        yield


def record_twice(model: nn.Module, *arguments: object, **named: object) -> regard.recording.Recording:
    """Record a call, whose output has to keep its bits."""
    model.eval()
    plain = first_tensor(model(*arguments, **named))
    with regard.record(model) as seen:
        assert torch.equal(first_tensor(model(*arguments, **named)), plain)
    return seen


def first_tensor(output: object) -> Tensor:
    if isinstance(output, Tensor):
        return output
    return first_tensor(output[0] if isinstance(output, tuple | list) else next(iter(dict(output).values())))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_timm(name, fused):
    """In a process of its own: see timm_models.py."""
    result = run_script(f"from peers import timm_models\ntimm_models.check({name!r}, fused={fused})")
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize("fused", [False, True])
def test_diffusers(fused):
    from diffusers import UNet2DConditionModel
    from diffusers.models.attention_processor import Attention, AttnProcessor, AttnProcessor2_0

    model = UNet2DConditionModel(
        sample_size=16,
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()
    arguments = torch.randn(2, 4, 16, 16), torch.tensor(3), torch.randn(2, 5, 32)
    expected, compute = [], Attention.get_attention_scores

    def keep(self, *sides):
        expected.append(compute(self, *sides))
        return expected[-1]

    model.set_attn_processor(AttnProcessor())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Attention, "get_attention_scores", keep)
        model(*arguments)
    model.set_attn_processor(AttnProcessor2_0() if fused else AttnProcessor())
    seen = record_twice(model, *arguments)
    assert len(seen) == len(expected) == 8
    assert {call.name.rpartition(".")[2] for call in seen} == {"attn1", "attn2"}
    for call, weights in zip(seen, expected, strict=True):
        assert_close(call.weights(), weights.reshape(call.weights().shape), atol=1e-5, rtol=0)


X_TRANSFORMERS = {
    "plain": {},
    "fused": {"attn_flash": True, "rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True, "alibi_num_heads": 2},
    "grouped": {"attn_kv_heads": 2},
    "sandwich": {"rel_pos_bias": True, "attn_qk_norm": True},
    "cross": {"cross_attend": True},
}


@pytest.mark.parametrize("name", X_TRANSFORMERS)
def test_x_transformers(name):
    from x_transformers import Decoder, TransformerWrapper

    options = X_TRANSFORMERS[name]
    layers = Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
    model = TransformerWrapper(num_tokens=50, max_seq_len=64, attn_layers=layers).eval()
    named = {"context": torch.randn(2, 5, 32)} if name == "cross" else {}
    seen = record_twice(model, IDS, **named)
    assert len(seen) == (4 if name == "cross" else 2)
    _, intermediates = model(IDS, return_intermediates=True, **named)
    for call, found in zip(seen, intermediates.attn_intermediates, strict=True):
        weights = call.weights()
        if found.post_softmax_attn is not None:
            assert_close(weights, found.post_softmax_attn, atol=1e-6, rtol=0)
        assert_close(weights.sum(-1), torch.ones(weights.shape[:3]), atol=1e-5, rtol=0)


def test_esm():
    """The encoder of proteins; its attention is that of fairseq, with heads joined to the batch."""
    from esm.model.esm2 import ESM2

    model = ESM2(num_layers=2, embed_dim=32, attention_heads=4).eval()
    ids = IDS.clone()
    ids[1, 10:] = model.padding_idx
    expected = model(ids, need_head_weights=True)["attentions"].transpose(0, 1)
    seen = record_twice(model, ids)
    assert [call.name for call in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    tokens = (ids != model.padding_idx)[:, None, :, None] & (ids != model.padding_idx)[:, None, None]
    for call, weights in zip(seen, expected, strict=True):
        assert_close(call.weights() * tokens, weights * tokens, atol=1e-6, rtol=0)


@pytest.mark.parametrize("fast", [False, True])
def test_multi_head_attention_of_fairseq(fast):
    from esm.multihead_attention import MultiheadAttention

    layer = MultiheadAttention(32, 4, kdim=16, vdim=16).eval()
    query, key = torch.randn(7, 2, 32), torch.randn(5, 2, 16)
    hidden = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    expected = layer(query, key, key, key_padding_mask=hidden, need_head_weights=True)[1].transpose(0, 1)
    layer.enable_torch_version = fast
    seen = record_twice(layer, query, key, key, key_padding_mask=hidden)
    assert_close(seen[0].weights(), expected, atol=1e-6, rtol=0)
