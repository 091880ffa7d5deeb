"""Latent attention: the equation, both forms, the cache, recording, and transformers' DeepSeek layers."""

import numpy as np
import pytest
import torch
from transformers import DeepseekV2Config, DeepseekV3Config
from transformers.cache_utils import DynamicCache
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RotaryEmbedding
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RotaryEmbedding

import regard
from regard import masks, positions
from regard.conformance.oracles import latent as oracle
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.layers import LatentAttention, LatentCache, latent_attention_from_deepseek
from regard.mechanisms import KeyValueCache

WIDTH, HEADS, LATENT, ROTARY, HEAD_DIM, VALUE_DIM, LENGTH = 33, 3, 13, 6, 7, 5, 11
SIZES = {"latent_dim": LATENT, "rotary_dim": ROTARY, "head_dim": HEAD_DIM, "value_dim": VALUE_DIM}
MASKS = {"none": None, "causal": masks.causal(), "padding": masks.causal() & masks.padding([LENGTH, 6])}


def build(**options) -> LatentAttention:
    torch.manual_seed(4)
    layer = LatentAttention(WIDTH, HEADS, **{**SIZES, **options}).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return layer


def make_tokens(length: int = LENGTH) -> torch.Tensor:
    return torch.randn(2, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def oracle_weights(layer: LatentAttention) -> oracle.Weights:
    numbers = {name: parameter.detach().numpy() for name, parameter in layer.named_parameters()}
    latent_up = numbers["latent_up.weight"].reshape(HEADS, HEAD_DIM + VALUE_DIM, LATENT)
    query = numbers["query_projection.weight"].reshape(HEADS, HEAD_DIM + ROTARY, -1)
    return oracle.Weights(
        latent_down=numbers["latent_down.weight"][:LATENT],
        rotary_key=numbers["latent_down.weight"][LATENT:],
        latent_norm=numbers["latent_norm.weight"],
        key=latent_up[:, :HEAD_DIM],
        value=latent_up[:, HEAD_DIM:],
        query=query[:, :HEAD_DIM],
        rotary_query=query[:, HEAD_DIM:],
        output=numbers["output_projection.weight"],
        query_down=numbers.get("query_down.weight"),
        query_norm=numbers.get("query_norm.weight"),
    )


@pytest.mark.parametrize("absorb", [False, True])
@pytest.mark.parametrize("query_latent_dim", [None, 17])
@pytest.mark.parametrize("mask", MASKS)
def test_agrees_with_the_equation(mask, query_latent_dim, absorb) -> None:
    layer, tokens = build(query_latent_dim=query_latent_dim), make_tokens()
    allowed = np.ones((1, LENGTH, LENGTH), dtype=bool)
    if mask != "none":
        allowed = np.tril(allowed)
    if mask == "padding":
        allowed = allowed & (np.arange(LENGTH) < np.array([LENGTH, 6])[:, None, None])
    expected = oracle.attention(tokens.numpy(), oracle_weights(layer), allowed)
    actual = layer(tokens, mask=MASKS[mask], absorb=absorb).detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("mask", MASKS)
def test_gradients_of_both_forms(mask) -> None:
    layer, results = build(query_latent_dim=17, bias=True), []
    upstream = make_tokens()
    for absorb in (False, True):
        tokens = make_tokens().requires_grad_()
        output = layer(tokens, mask=MASKS[mask], absorb=absorb)
        results.append(torch.autograd.grad(output, [tokens, *layer.parameters()], upstream))
    for expanded, absorbed in zip(*results, strict=True):
        torch.testing.assert_close(absorbed, expanded, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("absorb", [None, False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_cache_equals_the_whole_sequence(absorb, gradients) -> None:
    layer, tokens = build(), make_tokens()
    mask, state, parts = MASKS["padding"], layer.empty_cache(), []
    with torch.set_grad_enabled(gradients):
        whole = layer(tokens, mask=mask)
        for start, end in ((0, 4), (4, 5), (5, 9), (9, LENGTH)):
            part, state = layer(
                tokens[:, start:end],
                mask=masks.causal() & masks.keep(MASKS["padding"].dense(LENGTH, LENGTH)[:, :, -1:, :end]),
                cache=state,
                absorb=absorb,
            )
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert state.length == LENGTH


def test_a_cache_is_a_value() -> None:
    layer, tokens = build(), make_tokens()
    with torch.no_grad():
        _, first = layer(tokens[:, :4], mask=masks.causal(), cache=layer.empty_cache())
        before = first.tokens.clone()
        branches = [layer(token, mask=masks.causal(), cache=first) for token in (tokens[:, 4:5], tokens[:, 7:8])]
        again = layer(tokens[:, 4:5], mask=masks.causal(), cache=first)
        assert torch.equal(first.tokens, before)
        assert torch.equal(branches[0][0], again[0])
        swapped = branches[0][1].reordered(torch.tensor([1, 0]))
        expected, _ = layer(tokens[:, 5:6].flip(0), mask=masks.causal(), cache=swapped)
        actual, _ = layer(tokens[:, 5:6], mask=masks.causal(), cache=branches[0][1])
        torch.testing.assert_close(actual.flip(0), expected)


def test_cache_holds_one_latent_and_one_rotary_key() -> None:
    layer = build().float()
    with torch.no_grad():
        _, cache = layer(make_tokens().float(), cache=layer.empty_cache())
    assert cache.latent.shape == (2, LENGTH, LATENT)
    assert cache.rotary_key.shape == (2, LENGTH, ROTARY)
    assert cache.bytes_per_token == layer.cache_bytes_per_token == 4 * (LATENT + ROTARY)
    keys = KeyValueCache.empty().extended(torch.zeros(2, HEADS, 1, HEAD_DIM), torch.zeros(2, HEADS, 1, VALUE_DIM))
    assert keys.bytes_per_token == 4 * HEADS * (HEAD_DIM + VALUE_DIM)
    with torch.device("meta"):
        published = LatentAttention(7168, 128, query_latent_dim=1536, impl="reference").bfloat16()
    assert published.cache_bytes_per_token == 1152  # DeepSeek-V3: 576 numbers of 2 bytes for each layer
    assert published.absorbed_mechanism.head_dim == 576


def test_recorded_weights_of_both_forms() -> None:
    layer, tokens = build(), make_tokens()
    calls = []
    for absorb in (False, True):
        with regard.record(layer) as seen:
            layer(tokens, mask=masks.causal(), absorb=absorb)
        calls.append(seen[0])
    expanded, absorbed = calls
    assert expanded.key.shape == (2, HEADS, LENGTH, HEAD_DIM + ROTARY)
    assert absorbed.key.shape == (2, 1, LENGTH, LATENT + ROTARY)
    torch.testing.assert_close(absorbed.weights(), expanded.weights())
    torch.testing.assert_close(absorbed.observe().entropy, expanded.observe().entropy)


@pytest.mark.parametrize("absorb", [False, True])
def test_hidden_tokens_have_no_influence(absorb) -> None:
    layer, tokens = build(), make_tokens()
    moved = tokens.clone()
    moved[1, 6:] = torch.nan
    before, after = (layer(one, mask=MASKS["padding"], absorb=absorb) for one in (tokens, moved))
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1, :6], after[1, :6])
    moved = tokens.clone()
    moved[0, 4] = torch.nan
    after = layer(moved, mask=masks.causal(), absorb=absorb)
    assert after[0, 4:].isnan().all()
    assert torch.equal(after[0, :4], layer(tokens, mask=masks.causal(), absorb=absorb)[0, :4])


def test_form_with_fewer_multiplications() -> None:
    with torch.device("meta"):
        layer = LatentAttention(64, 16)
    counts = {}
    for queries, keys in ((1, 4096), (128, 4096), (4096, 4096), (1, 1)):
        tokens = torch.empty(1, queries, 64, device="meta")
        cache = layer.empty_cache()
        if keys > queries:
            cache = cache.extended(torch.empty(1, 1, keys - queries, 576, device="meta"))
        with regard.record(layer) as seen, torch.no_grad():
            layer(tokens, cache=cache)
        counts[queries, keys] = seen[0].key.shape[1]
    assert counts == {(1, 4096): 1, (128, 4096): 1, (4096, 4096): 16, (1, 1): 16}


@pytest.mark.parametrize("rotary_dim", [0, ROTARY])
def test_positions(rotary_dim) -> None:
    """Scores depend on distances alone; without a rotary part, on no position."""
    layer, tokens = build(rotary_dim=rotary_dim), make_tokens()
    shuffled = torch.randperm(LENGTH)
    is_equal = torch.allclose(layer(tokens)[:, shuffled], layer(tokens[:, shuffled]))
    assert is_equal == (rotary_dim == 0)


@pytest.mark.filterwarnings("ignore")  # warnings of torch.compile, which differ between releases
def test_half_precision_and_autocast() -> None:
    layer, tokens = build(bias=True).float(), make_tokens().float()
    exact = layer(tokens, mask=masks.causal())
    bound = 8 * 2**-8 * float(exact.detach().abs().max())
    for absorb in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = layer(tokens, mask=masks.causal(), absorb=absorb)
        torch.testing.assert_close(output.float(), exact, rtol=0, atol=bound)
        half = build(bias=True).bfloat16()(tokens.bfloat16(), mask=masks.causal(), absorb=absorb)
        torch.testing.assert_close(half.float(), exact, rtol=0, atol=2 * bound)


def test_refusals() -> None:
    layer, tokens = build(), make_tokens()
    with pytest.raises(OptionError, match=r"(?s)not a state of LatentAttention.*LatentCache.*got: .*KeyValueCache"):
        layer(tokens, cache=KeyValueCache.empty())
    with pytest.raises(ShapeError, match=r"(?s)input tokens do not fit.*\(batch, length, 33\).*\(2, 11, 32\)"):
        layer(tokens[..., :-1])
    with pytest.raises(DtypeError, match=r"(?s)different dtypes.*float64.*float32"):
        layer(tokens.float())
    with pytest.raises(ShapeError, match=r"(?s)new tokens do not fit the cache"):
        layer(tokens[:1], cache=layer(tokens, cache=layer.empty_cache())[1])
    with pytest.raises(ShapeError, match="the cache is empty"):
        _ = layer.empty_cache().bytes_per_token
    with pytest.raises(OptionError, match=r"(?s)position does not fit.*rotation of 5 dimensions.*even rotary_dim"):
        build(rotary_dim=5)
    with pytest.raises(OptionError, match=r"(?s)position does not fit.*Rotary\(6\).*head_dim=8"):
        build(position=positions.Rotary(8))
    with pytest.raises(OptionError, match=r"(?s)position does not fit"):
        build(position=positions.ALiBi(3))
    with pytest.raises(OptionError, match=r"(?s)not an attention layer of DeepSeek.*got: +Linear"):
        latent_attention_from_deepseek(torch.nn.Linear(3, 3))
    assert isinstance(layer.empty_cache(), LatentCache)


# ---- parity with transformers ----

YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 8.0, "original_max_position_embeddings": 16}
ROPES = {
    "default": {"rope_type": "default", "rope_theta": 10000.0},
    "linear": {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    "yarn": YARN,
    "yarn, mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn, equal mscale": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
    "yarn, factor": YARN | {"attention_factor": 1.3},
}


def build_deepseek(rope: str = "default", *, version: int = 3, **options):
    """Build an attention layer of transformers with random weights, and a function for its rotations."""
    torch.manual_seed(7)
    numbers = {
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "kv_lora_rank": LATENT,
        "q_lora_rank": None,
        "qk_rope_head_dim": ROTARY,
        "qk_nope_head_dim": HEAD_DIM,
        "v_head_dim": VALUE_DIM,
        "rope_parameters": dict(ROPES[rope]),
        "attn_implementation": "eager",
        "max_position_embeddings": 128,
    }
    config_class, attention, rotary = (
        (DeepseekV3Config, DeepseekV3Attention, DeepseekV3RotaryEmbedding)
        if version == 3
        else (DeepseekV2Config, DeepseekV2Attention, DeepseekV2RotaryEmbedding)
    )
    config = config_class(**{**numbers, **options})
    layer, rotations = attention(config, layer_idx=0), rotary(config)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)

    def call(tokens, mask, start=0, cache=None):
        places = torch.arange(start, start + tokens.shape[1])[None]
        inputs = {"position_embeddings": rotations(tokens, places), "attention_mask": mask, "past_key_values": cache}
        return layer(tokens, **inputs)[0]

    return layer, call


def additive_mask(mask: masks.Mask | None, queries: int, keys: int) -> torch.Tensor | None:
    if mask is None:
        return None
    allowed = mask.dense(queries, keys)
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


def assert_agrees(layer, call, mask: masks.Mask | None, absorb: bool) -> None:
    """Compare output and gradients with those of transformers."""
    ours = latent_attention_from_deepseek(layer)
    layer.zero_grad()
    first = make_tokens().float().requires_grad_()
    second = first.detach().clone().requires_grad_()
    upstream = torch.randn(2, LENGTH, WIDTH)
    expected = call(first, additive_mask(mask, LENGTH, LENGTH))
    actual = ours(second, mask=mask, absorb=absorb)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    expected.backward(upstream)
    actual.backward(upstream)
    torch.testing.assert_close(second.grad, first.grad, rtol=1e-4, atol=1e-4)
    theirs = dict(layer.named_parameters())
    pairs = {
        "q_b_proj" if "q_b_proj.weight" in theirs else "q_proj": ours.query_projection,
        "kv_a_proj_with_mqa": ours.latent_down,
        "kv_a_layernorm": ours.latent_norm,
        "kv_b_proj": ours.latent_up,
        "o_proj": ours.output_projection,
    }
    for name, module in pairs.items():
        torch.testing.assert_close(module.weight.grad, theirs[f"{name}.weight"].grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("absorb", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", [{}, {"q_lora_rank": 17, "attention_bias": True}], ids=["plain", "query latent"])
def test_agrees_with_deepseek_v3(options, mask, absorb) -> None:
    assert_agrees(*build_deepseek(**options), MASKS[mask], absorb)


@pytest.mark.parametrize("interleave", [True, False])
@pytest.mark.parametrize("rope", ROPES)
def test_rotations_agree_with_deepseek_v3(rope, interleave) -> None:
    assert_agrees(*build_deepseek(rope, rope_interleave=interleave), masks.causal(), absorb=interleave)


@pytest.mark.parametrize("rope", ["default", "yarn, mscale"])
def test_agrees_with_deepseek_v2(rope) -> None:
    """It rotates complex numbers, for which the sizes of all parts must be even."""
    sizes = {"q_lora_rank": 17, "kv_lora_rank": 14, "qk_nope_head_dim": 8}
    assert_agrees(*build_deepseek(rope, version=2, **sizes), masks.causal(), absorb=False)


@pytest.mark.parametrize("absorb", [None, False, True])
def test_decoding_agrees_with_deepseek_v3(absorb) -> None:
    layer, call = build_deepseek("yarn, equal mscale", q_lora_rank=17)
    ours, cache = latent_attention_from_deepseek(layer), DynamicCache(config=layer.config)
    tokens, state = make_tokens().float(), ours.empty_cache()
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 9), (9, LENGTH)):
            part = tokens[:, start:end]
            expected = call(part, additive_mask(masks.causal(), end - start, end), start, cache)
            actual, state = ours(part, mask=masks.causal(), cache=state, absorb=absorb)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)


def test_other_rotary_scalings_are_refused() -> None:
    layer, _ = build_deepseek()
    layer.config.rope_parameters = {"rope_type": "longrope", "factor": 4.0}
    with pytest.raises(RefusedError, match=r"(?s)'longrope'.*yarn.*load its weights by name"):
        latent_attention_from_deepseek(layer)
