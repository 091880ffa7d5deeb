"""``compare``: sampled queries against the whole matrices, for every kind of mechanism."""

import math

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks
from regard.comparison import compare, mass_kept, sample_rows, top_agreement
from regard.errors import OptionError, RefusedError

HEADS, DIM, LENGTH = 3, 5, 67


def tokens(heads=HEADS, length=LENGTH, size=DIM, seed=0):
    return torch.randn(2, heads, length, size, generator=torch.Generator().manual_seed(seed))


def make(name, **options):
    return regard.mechanism(name, heads=HEADS, head_dim=DIM, **options)


OTHERS = {
    "longformer": {"window": 10},
    "bigbird": {"block": 7},
    "linformer": {"projected": 13},
    "performer": {"features": 11, "seed": 0},
    "nystromformer": {"landmarks": 7},
    "linear": {},
}


@pytest.mark.parametrize("name", OTHERS)
def test_agrees_with_whole_matrices(name):
    torch.manual_seed(0)
    exact, other = make("dot_product"), make(name, **OTHERS[name])
    query, key, value = tokens(seed=1), tokens(seed=2), tokens(size=11, seed=3)
    mask = masks.padding([LENGTH, 41])
    found = compare(exact, other, query, key, value, mask, rows=[3, 0, -1], top=5)
    whole, others = exact.weights(query, key, mask=mask), other.weights(query, key, mask=mask).detach()
    rows = [3, 0, LENGTH - 1]
    assert found.rows.tolist() == rows
    assert_close(found.mass_kept, mass_kept(whole, others)[:, :, rows])
    assert_close(found.top_agreement, top_agreement(whole, others, 5)[:, :, rows])
    difference = (other(query, key, value, mask) - exact(query, key, value, mask)).detach()[:, :, rows]
    assert_close(found.difference, difference.norm(dim=-1), rtol=1e-4, atol=1e-5)
    assert_close(found.exact_norm, exact(query, key, value, mask)[:, :, rows].norm(dim=-1))
    assert_close(
        torch.tensor(found.summary().output_error),
        found.difference.norm() / found.exact_norm.norm(),
        rtol=1e-5,
        atol=1e-6,
    )


def test_a_mechanism_compared_with_itself_loses_nothing():
    exact = make("dot_product")
    found = compare(exact, exact, tokens(), tokens(), tokens(), masks.causal())
    assert_close(found.mass_kept, torch.ones(2, HEADS, LENGTH))
    summary = found.summary()
    assert summary.top_agreement == 1
    assert summary.output_error < 1e-6
    assert found.summary(head=1).mass_kept == pytest.approx(1)


def test_grouped_keys_and_extra_inputs():
    """A forgetting gate that forgets everything leaves each token its own key."""
    key, value = tokens(heads=1, seed=1), tokens(heads=1, seed=2)
    exact, other = make("dot_product"), make("forgetting")
    gates = torch.full((2, HEADS, LENGTH, 1), -200.0)
    found = compare(exact, other, tokens(), key, value, masks.causal(), inputs={"forget": gates})
    own = exact.weights(tokens(), key, mask=masks.causal()).diagonal(dim1=2, dim2=3)
    assert_close(found.mass_kept, own)
    assert_close(found.mass_covered, own)


def test_rows_that_see_nothing_are_left_out_of_the_summary():
    exact, mask = make("dot_product"), masks.padding([LENGTH, 0])
    found = compare(exact, exact, tokens(), tokens(), tokens(), mask, rows=[0, 5])
    assert found.mass_kept[1].isnan().all()
    assert found.summary().mass_kept == pytest.approx(1)
    nothing = compare(exact, exact, tokens(), tokens(), tokens(), masks.padding([0, 0]), rows=[0])
    assert math.isnan(nothing.summary().output_error)


def test_hidden_values_that_are_not_finite_have_no_influence():
    exact, other, mask = make("dot_product"), make("longformer", window=10), masks.padding([LENGTH, 41])
    value = tokens(seed=2)
    clean = compare(exact, other, tokens(), tokens(), value, mask, rows=[0, 7])
    value[1, :, 50:] = torch.nan
    assert torch.equal(compare(exact, other, tokens(), tokens(), value, mask, rows=[0, 7]).difference, clean.difference)
    value[1, :, 3] = torch.nan
    assert compare(exact, other, tokens(), tokens(), value, mask, rows=[0, 7]).exact_norm[1].isnan().all()


@pytest.mark.usefixtures("without_shape_checks")
def test_refusals():
    query = tokens()
    with pytest.raises(RefusedError, match="no causal mask"):
        compare(make("dot_product"), make("linformer"), query, query, query, masks.causal())
    with pytest.raises(OptionError, match="not a distribution"):
        compare(make("linformer"), make("dot_product"), query, query, query)
    with pytest.raises(OptionError, match="wrong other"):
        compare(make("dot_product"), "linformer", query, query, query)


def test_sampled_rows_are_spread_and_repeatable():
    rows = sample_rows(100_003, 16)
    assert torch.equal(rows, sample_rows(100_003, 16))
    assert not torch.equal(rows, sample_rows(100_003, 16, seed=1))
    assert (rows // (100_003 / 16)).long().tolist() == list(range(16))
    assert sample_rows(5).tolist() == [0, 1, 2, 3, 4]
    assert sample_rows(0).tolist() == []


def test_long_texts():
    """20,011 tokens, whose matrix of weights would take 1.6 GB."""
    torch.manual_seed(0)
    exact = regard.mechanism("dot_product", heads=1, head_dim=8)
    other = regard.mechanism("longformer", heads=1, head_dim=8, window=64)
    side = torch.randn(1, 1, 20_011, 8)
    found = compare(exact, other, side, side, side, rows=sample_rows(20_011, 4))
    weights = exact.weights(side, side, rows=found.rows)
    near = (torch.arange(20_011) - found.rows[:, None]).abs() <= 32
    near[:, 0] = True
    assert_close(found.mass_covered, (weights * near).sum(-1), rtol=1e-4, atol=1e-5)
