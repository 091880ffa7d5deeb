"""Differential attention: lambda, the normalisation, positions of both parts, and transformers' DiffLlama."""

import numpy as np
import pytest
import torch
from transformers import DiffLlamaConfig
from transformers.cache_utils import DynamicCache
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention, DiffLlamaRotaryEmbedding

import regard
from regard import masks, positions
from regard.conformance.oracles import differential as oracle
from regard.errors import OptionError, RefusedError
from regard.mechanisms.differential import Differential, pair_heads
from regard.models import Transformer, TransformerConfig, TransformerEncoder, TransformerEncoderConfig

HEADS, HEAD_DIM, KEYS, WIDTH, PART = 2, 6, 11, 28, 10


def make_inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(2, HEADS, KEYS, HEAD_DIM, dtype=dtype, generator=generator) for _ in range(3))


@pytest.fixture
def mechanism() -> Differential:
    torch.manual_seed(1)
    return Differential(heads=HEADS, head_dim=HEAD_DIM, depth=2).double()


def test_lambda(mechanism) -> None:
    query, key = mechanism.lambda_query.detach().numpy(), mechanism.lambda_key.detach().numpy()
    expected = np.exp(query[0] @ key[0]) - np.exp(query[1] @ key[1]) + oracle.lambda_init(3)
    np.testing.assert_allclose(mechanism.compute_lambda().item(), expected, rtol=1e-14)


def test_weights_agree_with_the_equation(mechanism) -> None:
    query, key, value = make_inputs()
    allowed = np.tril(np.ones((KEYS, KEYS), dtype=bool))
    parameters = (mechanism.lambda_query.detach().numpy(), mechanism.lambda_key.detach().numpy())
    _, weights = oracle.attention(*(one.numpy() for one in (query, key, value)), *parameters, 2, allowed)
    actual = mechanism.weights(query, key, mask=masks.causal()).detach().numpy()
    np.testing.assert_allclose(actual, weights, rtol=0, atol=1e-14)
    assert (actual < 0).any()


def test_normalisation_follows_in_a_layer() -> None:
    layer = regard.MultiHeadAttention(WIDTH, 2, mechanism="differential", mechanism_options={"depth": 4}).double()
    tokens = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    with regard.record(layer) as seen:
        output = layer(tokens, mask=masks.causal())
    mixed = seen[0].weights() @ seen[0].value
    heads = torch.from_numpy(oracle.normalize(mixed.numpy(), 4, 1e-5))
    torch.testing.assert_close(output, layer.output_projection(heads.transpose(1, 2).flatten(2)))


def test_derivatives(mechanism) -> None:
    inputs = tuple(one[:1, :, :4].requires_grad_() for one in make_inputs())
    parameters = tuple(mechanism.parameters())

    def compute(*parts: torch.Tensor) -> torch.Tensor:
        return mechanism.normalize_heads(mechanism(*parts[:3], masks.causal()))

    assert torch.autograd.gradcheck(compute, (*inputs, *parameters))


def test_visible_nan_reaches_no_gradient(mechanism) -> None:
    inputs = make_inputs()
    inputs[1][0, 0, 3, HEAD_DIM - 1] = torch.nan  # in the second part of a key
    leaves = [one.requires_grad_() for one in inputs]
    output = mechanism(*leaves, masks.causal())
    assert output[0, 0, 3:].isnan().all()
    assert output.isnan().sum() == (KEYS - 3) * HEAD_DIM
    output.nan_to_num().sum().backward()
    assert all(one.grad.isfinite().all() for one in (*leaves, *mechanism.parameters()))


def test_half_precision_is_rounded_once() -> None:
    """Rounding both softmaxes would leave an error of each in their difference."""
    mechanism = Differential(heads=HEADS, head_dim=HEAD_DIM)
    inputs = make_inputs(torch.bfloat16)
    with torch.no_grad():
        exact = mechanism(*(one.float() for one in inputs))
        torch.testing.assert_close(mechanism(*inputs), exact.bfloat16(), rtol=0, atol=0)


def test_rotation_of_each_part() -> None:
    """Scores of both parts depend on distances alone, so shifting all positions changes nothing."""
    layer = regard.MultiHeadAttention(WIDTH, 2, mechanism="differential", position=positions.Rotary(6), head_dim=12)
    tokens = torch.randn(1, 5, WIDTH)
    with regard.record(layer) as seen:
        layer(tokens)
    plain = layer.query_projection(tokens).unflatten(-1, (2, 2, 6)).permute(0, 2, 3, 1, 4)
    rotated = positions.Rotary(6)(plain)
    torch.testing.assert_close(seen[0].query, torch.cat([rotated[:, :, 0], rotated[:, :, 1]], dim=-1))


def test_refusals() -> None:
    with pytest.raises(OptionError, match=r"(?s)two halves.*even head_dim.*head_dim=5.*half as many heads"):
        regard.mechanism("differential", heads=2, head_dim=5)
    mechanism = regard.mechanism("differential", heads=HEADS, head_dim=HEAD_DIM)
    inputs = make_inputs(torch.float32)
    with pytest.raises(RefusedError, match=r"(?s)ShawRelative computes a bias from queries.*to do: "):
        mechanism(*inputs, bias=positions.ShawRelative(HEAD_DIM, 3))
    with pytest.raises(OptionError, match=r"(?s)do not form pairs of heads.*multiple of 8 rows.*\(12, 3\)"):
        pair_heads(torch.zeros(12, 3), 4)


@pytest.mark.parametrize("position", ["rotary", "alibi", "sinusoidal"])
def test_models_pass_the_depth_of_each_layer(position) -> None:
    numbers = {"vocabulary": 11, "width": 12, "layers": 3, "heads": 3, "inner": 7, "mechanism": "differential"}
    encoder = TransformerEncoder(TransformerEncoderConfig(**numbers, position=position))
    assert [layer.attention.mechanism.depth for layer in encoder.layers] == [0, 1, 2]
    model = Transformer(TransformerConfig(**numbers, position=position)).eval()
    assert [block.attention.mechanism.depth for block in model.decoder] == [0, 1, 2]
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    exact, state = model(source, target).logits, model.start(source)
    for place in range(4):
        logits, state = model.step(target[:, place], state)
        torch.testing.assert_close(logits, exact[:, place], rtol=0, atol=1e-5)


# ---- parity with transformers ----


def build_pair(heads: int, key_value_heads: int, bias: bool) -> tuple[DiffLlamaAttention, regard.MultiHeadAttention]:
    """Build an attention layer of DiffLlama, and ours with its weights."""
    torch.manual_seed(heads)
    config = DiffLlamaConfig(
        hidden_size=WIDTH,
        num_attention_heads=heads,
        num_key_value_heads=key_value_heads,
        head_dim=PART,
        attention_bias=bias,
        attn_implementation="eager",
    )
    theirs = DiffLlamaAttention(config, layer_idx=1)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.4)

    ours = regard.MultiHeadAttention(
        WIDTH,
        heads // 2,
        key_value_heads=key_value_heads // 2,
        head_dim=2 * PART,
        mechanism="differential",
        mechanism_options={"depth": 1, "epsilon": config.rms_norm_eps},
        position=positions.Rotary(PART),
        bias=bias,
    )
    state = {
        "mechanism.lambda_query": torch.stack([theirs.lambda_q1, theirs.lambda_q2]),
        "mechanism.lambda_key": torch.stack([theirs.lambda_k1, theirs.lambda_k2]),
    }
    for name, side in (("query", theirs.q_proj), ("key", theirs.k_proj), ("value", theirs.v_proj)):
        for kind, parameter in side.named_parameters():
            state[f"{name}_projection.{kind}"] = pair_heads(parameter, PART)
    state |= {f"output_projection.{kind}": parameter for kind, parameter in theirs.o_proj.named_parameters()}
    ours.load_state_dict(state)
    return theirs, ours


def additive_mask(mask: masks.Mask, queries: int, keys: int) -> torch.Tensor:
    allowed = mask.dense(queries, keys)
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


def angles(theirs: DiffLlamaAttention, tokens: torch.Tensor, start: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    places = torch.arange(start, start + tokens.shape[1])[None]
    return DiffLlamaRotaryEmbedding(theirs.config)(tokens, places)


@pytest.mark.parametrize("mask", [masks.causal(), masks.causal() & masks.padding([13, 9])], ids=["causal", "padding"])
@pytest.mark.parametrize(("heads", "key_value_heads", "bias"), [(4, 4, False), (8, 4, True), (6, 2, False)])
def test_agrees_with_diffllama(heads, key_value_heads, bias, mask) -> None:
    theirs, ours = build_pair(heads, key_value_heads, bias)
    tokens = [torch.randn(2, 13, WIDTH).requires_grad_()]
    tokens.append(tokens[0].detach().clone().requires_grad_())
    upstream = torch.randn(2, 13, WIDTH)
    expected, _ = theirs(tokens[0], angles(theirs, tokens[0]), additive_mask(mask, 13, 13))
    actual = ours(tokens[1], mask=mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    for output in (expected, actual):
        output.backward(upstream)
    torch.testing.assert_close(tokens[1].grad, tokens[0].grad, rtol=1e-4, atol=1e-4)
    pairs = [
        (ours.query_projection.weight.grad, pair_heads(theirs.q_proj.weight.grad, PART)),
        (ours.key_projection.weight.grad, pair_heads(theirs.k_proj.weight.grad, PART)),
        (ours.value_projection.weight.grad, pair_heads(theirs.v_proj.weight.grad, PART)),
        (ours.output_projection.weight.grad, theirs.o_proj.weight.grad),
        (ours.mechanism.lambda_query.grad, torch.stack([theirs.lambda_q1.grad, theirs.lambda_q2.grad])),
        (ours.mechanism.lambda_key.grad, torch.stack([theirs.lambda_k1.grad, theirs.lambda_k2.grad])),
    ]
    for mine, its in pairs:
        torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)


def test_decoding_agrees_with_diffllama() -> None:
    theirs, ours = build_pair(4, 4, False)
    tokens, cache, state = torch.randn(2, 9, WIDTH), DynamicCache(config=theirs.config), ours.empty_cache()
    with torch.no_grad():
        for start, end in ((0, 5), (5, 6), (6, 9)):
            part = tokens[:, start:end]
            mask = additive_mask(masks.causal(), end - start, end)
            expected, _ = theirs(part, angles(theirs, part, start), mask, past_key_values=cache)
            actual, state = ours(part, mask=masks.causal(), cache=state)
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
