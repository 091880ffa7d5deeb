"""Native sparse attention beside the conformance suite: trained compression, gates, causality, blocks, decoding."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import nsa as oracle
from regard.errors import OptionError, RefusedError

HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 5
SIZES = {"block": 4, "chosen_blocks": 4, "compressed_block": 4, "stride": 2, "window": 5}


def build(**options) -> regard.mechanisms.NativeSparseAttention:
    mechanism = regard.mechanism("nsa", heads=HEADS, head_dim=HEAD_DIM, **(SIZES | options)).double()
    generator = torch.Generator().manual_seed(5)
    for parameter in mechanism.parameters():
        parameter.data = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
    return mechanism


def make_inputs(queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(queries + keys)
    shapes = ((HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, 3), (HEADS, queries, 3))
    return tuple(torch.randn(2, *shape, dtype=torch.float64, generator=generator) for shape in shapes)


@pytest.mark.parametrize(("queries", "keys"), [(29, 29), (7, 29), (29, 7), (1, 29), (16, 16), (3, 16), (17, 17)])
@pytest.mark.parametrize("padded", [False, True])
def test_trained_compression_agrees_with_the_oracle(queries: int, keys: int, padded: bool) -> None:
    query, key, value, gate = make_inputs(queries, keys)
    mechanism, lengths = build(), torch.tensor([keys, keys - 3])
    mask = masks.padding(lengths) if padded else None
    allowed = np.arange(keys) < lengths.numpy()[:, None, None, None] if padded else None
    logits = (one.detach().numpy() for one in (mechanism.compression.key_logits, mechanism.compression.value_logits))
    arrays = (part.numpy() for part in (query, key, value, gate))
    expected = oracle.attention(*arrays, *logits, **SIZES, allowed=allowed)
    output = mechanism(query, key, value, mask, gate=gate).detach()
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_blocks_of_whole_tiles_agree_with_the_oracle() -> None:
    sizes = {"block": 64, "chosen_blocks": 4, "compressed_block": 32, "stride": 16, "window": 50}
    query, key, value, gate = (part[:1] for part in make_inputs(301, 333))
    mechanism = regard.mechanism("nsa", heads=HEADS, head_dim=HEAD_DIM, **sizes).double()
    zeros = np.zeros((32, HEAD_DIM)), np.zeros(32)
    expected = oracle.attention(*(part.numpy() for part in (query, key, value, gate)), *zeros, **sizes)
    output = mechanism(query, key, value, gate=gate).detach()
    np.testing.assert_allclose(output.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_gates_and_compression_have_gradients() -> None:
    inputs = tuple(part[:1].requires_grad_() for part in make_inputs(13, 13))
    mechanism = build()
    parameters = tuple(mechanism.parameters())
    assert torch.autograd.gradcheck(
        lambda q, k, v, g, *_: mechanism(q, k, v, gate=g), (*inputs, *parameters), fast_mode=True
    )


def test_weights_are_differentiable() -> None:
    query, key, _, gate = (part[:1] for part in make_inputs(9, 9))
    inputs = tuple(part.requires_grad_() for part in (query, key, gate))
    mechanism = build()
    assert torch.autograd.gradcheck(lambda q, k, g: mechanism.weights(q, k, gate=g), inputs, fast_mode=True)


def test_no_later_token_has_an_influence() -> None:
    inputs, mechanism = make_inputs(29, 29), build()
    exact = mechanism(*inputs[:3], gate=inputs[3])
    for at in range(1, 29):
        changed = [part.clone() for part in inputs]
        for part in changed:
            part[:, :, at:] = 1e30 if at % 2 else torch.nan
        assert torch.equal(mechanism(*changed[:3], gate=changed[3])[:, :, :at], exact[:, :, :at])


def test_a_padded_text_has_the_output_that_it_has_alone() -> None:
    inputs, mechanism = make_inputs(29, 29), build()
    inputs = tuple(part.masked_fill(torch.arange(29)[:, None] >= 18, torch.nan) for part in inputs)
    alone = tuple(part[:, :, :18] for part in inputs)
    padded = mechanism(*inputs[:3], masks.padding([18, 18]), gate=inputs[3])
    torch.testing.assert_close(padded[:, :, :18], mechanism(*alone[:3], gate=alone[3]))


def test_nan_in_a_key_reaches_every_query_that_may_see_it() -> None:
    query, key, value, gate = make_inputs(29, 29)
    mechanism = build(window=29)
    exact = mechanism(query, key, value, gate=gate)
    key[0, 1, 9, 2] = torch.nan
    output = mechanism(query, key, value, gate=gate)
    assert output[0, 2:, 9:].isnan().all()
    assert torch.equal(output[0, :, :9], exact[0, :, :9])
    assert torch.equal(output[0, :2], exact[0, :2])
    assert torch.equal(output[1], exact[1])


def test_weights_add_up_to_the_gates() -> None:
    query, key, _, gate = make_inputs(29, 29)
    sums = build().weights(query, key, gate=gate).sum(-1).detach()
    torch.testing.assert_close(sums[:, :, 3:], gate.sigmoid().sum(-1)[:, :, 3:])
    torch.testing.assert_close(sums[:, :, :3], gate.sigmoid()[..., 1:].sum(-1)[:, :, :3])


def test_heads_that_share_keys_choose_alike() -> None:
    query, key, _, _ = make_inputs(29, 29)
    mechanism = build(chosen_blocks=4)
    chosen = mechanism.choose(mechanism.make_request(query, key, key, None, None), torch.arange(29))
    assert torch.equal(chosen[:, 0::2], chosen[:, 1::2])
    assert not torch.equal(chosen[:, 0], chosen[:, 2])
    kept = mechanism.kept_mass(query, key)
    best = regard.mechanism("top_k", heads=HEADS, head_dim=HEAD_DIM, keys=16).kept_mass(query, key, masks.causal())
    assert (kept <= best + 1e-12).all()


def test_layer_projects_the_gates() -> None:
    layer = regard.MultiHeadAttention(20, HEADS, mechanism="nsa", mechanism_options=SIZES)
    assert layer.input_projections["gate"].weight.shape == (3 * HEADS, 20)
    layer(torch.randn(2, 13, 20), mask=masks.causal()).sum().backward()
    assert layer.input_projections["gate"].weight.grad.abs().sum() > 0
    assert layer.mechanism.compression.value_logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "mask", [masks.window(3, 0), masks.padding([7, 5], side="left"), masks.documents([[0] * 7] * 2)]
)
def test_other_masks_are_refused(mask: masks.Mask) -> None:
    query, key, value, _ = make_inputs(7, 7)
    with pytest.raises(RefusedError, match="its blocks begin with the first key"):
        build()(query, key, value, mask)


@pytest.mark.parametrize("options", [{"stride": 3}, {"compressed_block": 8}, {"compressed_block": 3, "stride": 2}])
def test_blocks_that_do_not_fit_together_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="the blocks do not fit together"):
        build(**options)
