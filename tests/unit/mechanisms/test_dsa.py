"""DeepSeek sparse attention beside the conformance suite: the indexer, its loss, NaN, decoding."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import dsa as oracle
from regard.errors import RefusedError
from regard.kernels.support import MAX_HEAD_DIM

HEADS, KEY_HEADS, HEAD_DIM, KEYS, INDEX = 4, 2, 5, 6, ("index_query", "index_key", "index_weight")


@pytest.fixture
def mechanism() -> regard.mechanisms.DeepSeekSparseAttention:
    return regard.mechanism("dsa", heads=HEADS, head_dim=HEAD_DIM, keys=KEYS, index_heads=3, index_dim=4)


def make_inputs(queries: int, keys: int) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(queries + keys)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(2, *shape, dtype=torch.float64, generator=generator)

    tokens = [random(HEADS, queries, HEAD_DIM), random(KEY_HEADS, keys, HEAD_DIM), random(KEY_HEADS, keys, 3)]
    index = random(3, queries, 4), random(1, keys, 4), random(3, queries, 1)
    return tokens, dict(zip(INDEX, index, strict=True))


@pytest.mark.parametrize("chosen", [False, True])
def test_loss_agrees_with_the_oracle(mechanism, chosen: bool) -> None:
    (query, key, _), inputs = make_inputs(11, 17)
    lengths = torch.tensor([17, 9])
    found = mechanism.indexer_loss(query, key, masks.causal() & masks.padding(lengths), chosen=chosen, **inputs)
    allowed = (np.arange(17) <= np.arange(11)[:, None] + 6) & (np.arange(17) < lengths.numpy()[:, None, None])
    arrays = [part.numpy() for part in (query, key, *inputs.values())]
    expected = oracle.loss(*arrays, allowed, KEYS if chosen else None)
    np.testing.assert_allclose(found.item(), expected, rtol=1e-9)


@pytest.mark.parametrize("chosen", [False, True])
def test_loss_has_gradients_for_the_indexer_alone(mechanism, chosen: bool) -> None:
    (query, key, _), inputs = make_inputs(9, 9)
    leaves = tuple(part.requires_grad_() for part in inputs.values())

    def loss(*index: torch.Tensor) -> torch.Tensor:
        named = dict(zip(INDEX, index, strict=True))
        return mechanism.indexer_loss(
            query.requires_grad_(), key.requires_grad_(), masks.causal(), chosen=chosen, **named
        )

    assert torch.autograd.gradcheck(loss, leaves, fast_mode=True)
    loss(*leaves).backward()
    assert query.grad is None
    assert key.grad is None


def test_indexer_learns_what_exact_attention_looks_at(mechanism) -> None:
    (query, key, _), inputs = make_inputs(23, 23)
    inputs = {name: one.requires_grad_() for name, one in inputs.items()}
    kept = mechanism.kept_mass(query, key, masks.causal(), **inputs).mean()
    first = mechanism.indexer_loss(query, key, masks.causal(), **inputs).item()
    optimizer = torch.optim.Adam(inputs.values(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        mechanism.indexer_loss(query, key, masks.causal(), **inputs).backward()
        optimizer.step()
    best = regard.mechanism("top_k", heads=HEADS, head_dim=HEAD_DIM, keys=KEYS).kept_mass(query, key, masks.causal())
    after = mechanism.kept_mass(query, key, masks.causal(), **inputs).mean()
    assert kept < after <= best.mean()
    assert mechanism.indexer_loss(query, key, masks.causal(), **inputs) < first / 2


def test_without_an_indexer_it_is_exact_attention(mechanism) -> None:
    (query, key, value), _ = make_inputs(9, 13)
    exact = regard.attention(query, key, value, mask=masks.causal())
    torch.testing.assert_close(mechanism(query, key, value, masks.causal()), exact)
    with pytest.raises(RefusedError, match="no loss without an indexer"):
        mechanism.indexer_loss(query, key)


def test_part_of_an_indexer_is_refused(mechanism) -> None:
    tokens, inputs = make_inputs(9, 9)
    with pytest.raises(RefusedError, match="its indexer needs index_query and index_key, and got only index_key"):
        mechanism(*tokens, index_key=inputs["index_key"])


def test_nan_in_the_indexer_reaches_every_query_that_may_see_it(mechanism) -> None:
    tokens, inputs = make_inputs(13, 13)
    exact = mechanism(*tokens, masks.causal(), **inputs)
    inputs["index_key"][0, 0, 4, 1] = torch.nan
    output = mechanism(*tokens, masks.causal(), **inputs)
    assert output[0, :, 4:].isnan().all()
    assert torch.equal(output[0, :, :4], exact[0, :, :4])
    assert torch.equal(output[1], exact[1])
    inputs["index_query"][1, 0, 7, 0] = torch.inf
    output = mechanism(*tokens, masks.causal(), **inputs)
    assert output[1].isnan().any(-1).any(0).nonzero().flatten().tolist() == [7]
    assert mechanism.indexer_loss(*tokens[:2], masks.causal(), **inputs).isfinite()


def test_layer_projects_the_inputs_of_the_indexer() -> None:
    options = {"keys": 4, "index_heads": 3, "index_dim": 2}
    layer = regard.MultiHeadAttention(20, HEADS, mechanism="dsa", mechanism_options=options)
    assert [one.weight.shape[0] for one in layer.input_projections.values()] == [6, 2, 3]
    assert layer(torch.randn(2, 13, 20), mask=masks.causal()).shape == (2, 13, 20)


@pytest.mark.parametrize("batch", [1, 2])
def test_heads_with_masks_of_their_own_choose_apart(mechanism, batch: int) -> None:
    """Computed by the kernel in float32, and by plain torch in float64, which the kernel does not take."""
    tokens, inputs = make_inputs(11, 17)
    tokens, inputs = [part[:batch] for part in tokens], {name: part[:batch] for name, part in inputs.items()}
    keep = torch.rand(batch, HEADS, 11, 17, generator=torch.Generator().manual_seed(1)) < 0.6
    expected = mechanism(*tokens, mask=masks.keep(keep), **inputs)
    single = [part.float() for part in tokens], {name: part.float() for name, part in inputs.items()}
    actual = mechanism(*single[0], mask=masks.keep(keep), **single[1])
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-4)


def test_an_indexer_too_wide_for_the_kernel_is_computed_by_torch() -> None:
    width = MAX_HEAD_DIM + 1
    mechanism = regard.mechanism("dsa", heads=HEADS, head_dim=HEAD_DIM, keys=KEYS, index_heads=3, index_dim=width)
    (tokens, inputs), generator = make_inputs(11, 17), torch.Generator().manual_seed(1)
    inputs |= {
        name: torch.randn(*inputs[name].shape[:3], width, dtype=torch.float64, generator=generator)
        for name in INDEX[:2]
    }
    expected = mechanism(*tokens, mask=masks.causal(), **inputs)
    single = [part.float() for part in tokens], {name: part.float() for name, part in inputs.items()}
    actual = mechanism(*single[0], mask=masks.causal(), **single[1])
    torch.testing.assert_close(actual.double(), expected, atol=1e-5, rtol=1e-4)
