"""Nystromformer: parity with transformers, segments, short texts, the pseudo-inverse, the convolution, NaN."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import NystromformerConfig
from transformers.models.nystromformer.modeling_nystromformer import NystromformerSelfAttention

import regard
from regard import masks
from regard.conformance.oracles import nystromformer as oracle
from regard.errors import OptionError, RefusedError
from regard.mechanisms import Nystromformer
from regard.mechanisms.nystromformer import Segments

BATCH, HEADS, HEAD_DIM, LANDMARKS = 2, 3, 5, 4
WIDTH = HEADS * HEAD_DIM


def build(**options):
    sizes = {"heads": HEADS, "head_dim": HEAD_DIM, "landmarks": LANDMARKS}
    return Nystromformer(**{**sizes, **options}).double()


def make_inputs(queries, keys=None, batch=BATCH):
    generator = torch.Generator().manual_seed(queries)
    lengths = (queries, *[queries if keys is None else keys] * 2)
    return [torch.randn(batch, HEADS, n, HEAD_DIM, generator=generator, dtype=torch.float64) for n in lengths]


def make_peer(length, *, heads=HEADS, head_dim=HEAD_DIM, landmarks=LANDMARKS, convolution=None):
    torch.manual_seed(length)
    config = NystromformerConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        num_landmarks=landmarks,
        segment_means_seq_len=length,
        conv_kernel_size=convolution or 1,
        attention_probs_dropout_prob=0.0,
    )
    peer = NystromformerSelfAttention(config).eval()
    if convolution is None:  # which the layer supports and its config does not
        peer.conv_kernel_size, peer.conv = None, None
    return peer


def make_layer(peer, convolution=None):
    """Return a layer with the peer's weights, whose last projection is the identity."""
    heads, head_dim = peer.num_attention_heads, peer.attention_head_size
    width = heads * head_dim
    options = {"landmarks": peer.num_landmarks, "convolution": convolution, "initial_norm": "batch"}
    layer = regard.MultiHeadAttention(width, heads, mechanism="nystromformer", mechanism_options=options)
    state = {
        f"{ours}_projection.{kind}": getattr(getattr(peer, ours), kind)
        for ours in ("query", "key", "value")
        for kind in ("weight", "bias")
    }
    state |= {"output_projection.weight": torch.eye(width), "output_projection.bias": torch.zeros(width)}
    if convolution is not None:
        state["mechanism.convolution"] = peer.conv.weight[:, 0, :, 0]
    layer.load_state_dict(state)
    return layer


@pytest.mark.parametrize("convolution", [None, 3, 65])
@pytest.mark.parametrize(
    ("length", "heads", "head_dim", "landmarks"),
    [(20, 3, 5, 4), (64, 2, 16, 8), (63, 4, 7, 21), (8, 2, 4, 8), (96, 1, 9, 1)],
)
def test_parity_with_transformers(length, heads, head_dim, landmarks, convolution):
    """Output and gradients of all weights and of the tokens; with 8 tokens for 8 landmarks both are exact attention."""
    sizes = {"heads": heads, "head_dim": head_dim, "landmarks": landmarks}
    peer = make_peer(length, convolution=convolution, **sizes)
    layer = make_layer(peer, convolution)
    ours, theirs = (
        torch.randn(BATCH, length, heads * head_dim, generator=torch.Generator().manual_seed(1)) for _ in "12"
    )
    upstream = torch.randn(ours.shape, generator=torch.Generator().manual_seed(2))
    output, expected = layer(ours.requires_grad_()), peer(theirs.requires_grad_())[0]
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-4)
    output.backward(upstream)
    expected.backward(upstream)
    pairs = {"tokens": (ours.grad, theirs.grad)}
    for name in ("query", "key", "value"):
        for kind in ("weight", "bias"):
            mine, other = getattr(layer, f"{name}_projection"), getattr(peer, name)
            pairs[f"{name} {kind}"] = (getattr(mine, kind).grad, getattr(other, kind).grad)
    if convolution is not None:
        pairs["convolution"] = (layer.mechanism.convolution.grad, peer.conv.weight.grad[:, 0, :, 0])
    for name, (mine, other) in pairs.items():
        largest = max(1.0, float(other.abs().max()))
        torch.testing.assert_close(mine / largest, other / largest, rtol=0, atol=1e-4, msg=name)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("convolution", [None, 5])
def test_padded_sequence_agrees_with_transformers_without_padding(convolution, side):
    """transformers itself lets padding into the means of segments, so its result with a mask is another one."""
    lengths, longest = [24, 12, 4], 24
    tokens, peer = torch.randn(3, longest, WIDTH), make_peer(longest, convolution=convolution)
    layer = make_layer(peer, convolution)
    layer.mechanism.initial_norm = "matrix"
    padded = layer(tokens, mask=masks.padding(lengths, side=side))
    for entry, length in enumerate(lengths):
        part = slice(0, length) if side == "right" else slice(longest - length, longest)
        text = tokens[entry : entry + 1, part]
        layer.mechanism.initial_norm = "matrix"
        torch.testing.assert_close(padded[entry : entry + 1, part], layer(text), rtol=0, atol=1e-5)
        layer.mechanism.initial_norm = "batch"
        alone = make_peer(length, convolution=convolution)
        alone.load_state_dict(peer.state_dict())
        torch.testing.assert_close(layer(text), alone(text)[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(("queries", "keys"), [(19, 19), (5, 17), (23, 6), (18, 30)])
@pytest.mark.parametrize("key_heads", [HEADS, 1])
def test_lengths_that_are_no_multiple_of_the_landmarks(queries, keys, key_heads):
    mechanism, (query, key, value) = build(), make_inputs(queries, keys)
    key, value = key[:, :key_heads], value[:, :key_heads]
    numbers = [one.numpy() for one in (query, key, value)]
    hidden = np.random.default_rng(queries).random((BATCH, 1, 1, keys)) < 0.3
    for mask, allowed in ((None, None), (masks.keep(torch.from_numpy(~hidden)), ~hidden)):
        expected = oracle.attention(*numbers, LANDMARKS, 6, allowed)
        np.testing.assert_allclose(mechanism(query, key, value, mask).numpy(), expected, rtol=0, atol=1e-10)


def test_sizes_of_segments_differ_by_at_most_one():
    means = oracle.segment_means(np.arange(10.0)[:, None], 4)[:, 0]
    assert means.tolist() == [1.0, 3.5, 6.0, 8.5]  # 3, 2, 3 and 2 tokens
    tokens = torch.arange(10.0)[None, None, :, None]
    assert Segments.of(10, 4, None, tokens).means(tokens).flatten().tolist() == means.tolist()


@pytest.mark.parametrize("length", [1, 3, LANDMARKS])
def test_no_more_tokens_than_landmarks_is_exact_attention(length):
    query, key, value = make_inputs(length)
    exact = regard.attention(query, key, value)
    torch.testing.assert_close(build()(query, key, value), exact, rtol=0, atol=1e-12)
    longer = [
        torch.cat([one, torch.full_like(one[:, :, :1], torch.nan).expand(-1, -1, 20, -1)], 2)
        for one in (query, key, value)
    ]
    padded = build()(*longer, masks.padding([length] * BATCH))
    torch.testing.assert_close(padded[:, :, :length], exact, rtol=0, atol=1e-12)


def test_pseudo_inverse_converges_with_third_order():
    """The logarithm of the error is three times as large after each step, until rounding (Razavi et al. 2014)."""
    matrix = oracle.softmax_rows(2 * np.random.default_rng(3).normal(size=(6, 6)))
    errors = []
    for count in range(1, 20):
        inverse = build(iterations=count)._invert(torch.from_numpy(matrix)[None, None])[0, 0].numpy()
        errors.append(np.abs(np.eye(6) - matrix @ inverse).max())
    near = [(before, after) for before, after in pairwise(errors) if before < 0.1 and after > 1e-12]
    orders = [np.log(after) / np.log(before) for before, after in near]
    assert len(orders) > 0
    assert all(2.5 < order < 4.5 for order in orders), errors
    assert errors[-1] < 1e-9


def test_error_decreases_with_the_number_of_landmarks():
    """For tokens that change slowly along the text, as the means of segments come nearer to them."""
    place = torch.linspace(0, 6, 256, dtype=torch.float64)
    waves = torch.stack([torch.sin(place * (one + 1) / 2) for one in range(HEAD_DIM)], -1).expand(1, HEADS, -1, -1)
    exact = regard.attention(waves, waves, waves)
    outputs = [build(landmarks=count, iterations=30)(waves, waves, waves) for count in (4, 8, 16, 32)]
    errors = [float((output - exact).abs().max()) for output in outputs]
    assert all(after < before / 2 for before, after in pairwise(errors)), errors


def test_visible_nan_affects_only_its_sequence_and_head():
    mechanism, exact = build(), build()(*make_inputs(20))
    for side in range(2):
        inputs = make_inputs(20)
        inputs[side][1, 2, 3, 0] = torch.nan
        output = mechanism(*inputs)
        assert output[1, 2].isnan().all()
        output[1, 2] = exact[1, 2]
        assert torch.equal(output, exact)


def test_query_of_a_masked_token_has_no_influence():
    mask, inputs = masks.padding([20, 13]), make_inputs(20)
    exact = build()(*inputs, mask)
    for one in inputs:
        one[1, :, 13:] = torch.nan
    output = build()(*inputs, mask)
    assert torch.equal(output[0], exact[0])
    assert torch.equal(output[1, :, :13], exact[1, :, :13])


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options",
    [
        {"landmarks": 0},
        {"iterations": 0},
        {"iterations": 10**9},
        {"convolution": 4},
        {"convolution": 0},
        {"initial_norm": "all"},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(OptionError):
        build(**options)


def test_causal_masks_are_refused():
    with pytest.raises(RefusedError, match="means of all tokens"):
        build()(*make_inputs(20), masks.causal())
    assert build().refuses_mask(masks.causal()) is not None


def test_dropout_without_explicit_weights_is_refused():
    with pytest.raises(RefusedError, match="'nystromformer' does not support dropout"):
        regard.MultiHeadAttention(WIDTH, HEADS, mechanism="nystromformer", dropout=0.1)


def test_rows_of_weights():
    mechanism, (query, key, value) = build(convolution=3), make_inputs(20)
    weights = mechanism.weights(query, key, mask=masks.padding([20, 13]))
    torch.testing.assert_close(
        weights @ value, mechanism(query, key, value, masks.padding([20, 13])), rtol=0, atol=1e-12
    )
    assert not weights[1, :, :, 13:].any()
