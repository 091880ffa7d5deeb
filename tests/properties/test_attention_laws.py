"""Laws of attention for any numbers: its invariance and equivariance under permutation, shifts and rotation."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import masks, positions

law_settings = settings(max_examples=25, deadline=None)
PRIMES = st.sampled_from([2, 3, 5, 7, 11, 13])
IMPLS = st.sampled_from(["reference", "native", "sdpa"])


def tensors(seed: int, queries: int, keys: int, heads: int = 3, head_dim: int = 5, value_dim: int = 7):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(2, heads, queries, head_dim), (2, heads, keys, head_dim), (2, heads, keys, value_dim)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


@law_settings
@given(st.integers(0, 99), PRIMES, PRIMES, IMPLS)
def test_permuting_queries_permutes_outputs(seed: int, queries: int, keys: int, impl: str) -> None:
    query, key, value = tensors(seed, queries, keys)
    order = torch.randperm(queries, generator=torch.Generator().manual_seed(seed))
    allowed = torch.rand(queries, keys, generator=torch.Generator().manual_seed(seed)) < 0.6
    one = regard.attention(query[:, :, order], key, value, mask=masks.keep(allowed[order]), impl=impl)
    other = regard.attention(query, key, value, mask=masks.keep(allowed), impl=impl)[:, :, order]
    torch.testing.assert_close(one, other, rtol=0, atol=1e-14)


@law_settings
@given(st.integers(0, 99), PRIMES, PRIMES, IMPLS)
def test_permuting_keys_changes_nothing(seed: int, queries: int, keys: int, impl: str) -> None:
    query, key, value = tensors(seed, queries, keys)
    order = torch.randperm(keys, generator=torch.Generator().manual_seed(seed))
    allowed = torch.rand(queries, keys, generator=torch.Generator().manual_seed(seed)) < 0.6
    mask = masks.keep(allowed[:, order])
    one = regard.attention(query, key[:, :, order], value[:, :, order], mask=mask, impl=impl)
    other = regard.attention(query, key, value, mask=masks.keep(allowed), impl=impl)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-13)


@law_settings
@given(st.integers(0, 99), PRIMES, PRIMES, IMPLS)
def test_outputs_lie_between_the_visible_values(seed: int, queries: int, keys: int, impl: str) -> None:
    query, key, value = tensors(seed, queries, keys)
    allowed = torch.rand(queries, keys, generator=torch.Generator().manual_seed(seed)) < 0.5
    output = regard.attention(4 * query, 4 * key, value, mask=masks.keep(allowed), impl=impl)
    for row in range(queries):
        seen = value[:, :, allowed[row]]
        if seen.shape[2]:
            assert (output[:, :, row] <= seen.amax(2) + 1e-14).all()
            assert (output[:, :, row] >= seen.amin(2) - 1e-14).all()
        else:
            assert not output[:, :, row].any()


@law_settings
@given(st.integers(0, 99), PRIMES, PRIMES, IMPLS, st.floats(-300, 300))
def test_a_shift_of_all_scores_of_a_query_changes_nothing(seed, queries, keys, impl, shift) -> None:
    query, key, value = tensors(seed, queries, keys)
    mask, bias = masks.causal(), torch.full((1, 1, queries, 1), shift, dtype=torch.float64)
    one = regard.attention(query, key, value, mask=mask, bias=bias, impl=impl)
    torch.testing.assert_close(one, regard.attention(query, key, value, mask=mask, impl=impl), rtol=0, atol=1e-11)


@law_settings
@given(st.integers(0, 99), PRIMES, PRIMES)
def test_weights_of_observe_make_the_output(seed: int, queries: int, keys: int) -> None:
    query, key, value = tensors(seed, queries, keys)
    observation = regard.observe(query, key, value, mask=masks.window(3, 1), top=keys, rows=range(queries))
    torch.testing.assert_close(observation.rows @ value, observation.output, rtol=0, atol=1e-14)
    there = (observation.rows.sum(-1) > 0).double()
    torch.testing.assert_close(observation.rows.sum(-1), there, rtol=0, atol=1e-14)
    torch.testing.assert_close(observation.top_weights.sum(-1), there, rtol=0, atol=1e-14)
    torch.testing.assert_close(observation.received, observation.rows.sum(2), rtol=0, atol=1e-13)


@law_settings
@given(
    st.integers(0, 99),
    st.integers(0, 2000),
    st.sampled_from(["halves", "pairs"]),
    st.sampled_from(
        [None, positions.LinearScaling(3.0), positions.YarnScaling(5.0, 64), positions.Llama3Scaling(7.0, 64)]
    ),
)
def test_rotary_scores_depend_on_distance_alone(seed: int, shift: int, layout: str, scaling) -> None:
    rotary = positions.Rotary(10, layout=layout, scaling=scaling)
    query, key, _ = tensors(seed, 7, 11, head_dim=10)
    here = rotary(query, offset=4) @ rotary(key).mT
    there = rotary(query, offset=4 + shift) @ rotary(key, offset=shift).mT
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)
    if scaling is None:
        torch.testing.assert_close(rotary(query, offset=shift).norm(dim=-1), query.norm(dim=-1))


@law_settings
@given(st.integers(0, 99), st.sampled_from([1, 3, 8]), PRIMES, PRIMES)
def test_distance_biases_depend_on_distance_alone(seed: int, heads: int, queries: int, keys: int) -> None:
    torch.manual_seed(seed)
    query = torch.zeros(1, heads, queries, 5)
    frame = regard.contract.Frame(queries, keys)
    for bias in (positions.ALiBi(heads), positions.T5Buckets(heads, buckets=8, max_distance=9)):
        scores = bias.scores(query, frame, frame.all_rows(), 1.0).expand(1, heads, queries, keys)
        for diagonal in range(-queries + 1, keys):
            values = scores[0].diagonal(diagonal, dim1=1, dim2=2)
            assert (values == values[:, :1]).all()
