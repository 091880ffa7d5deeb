"""The whole catalogue in the kit: mechanisms, masks and positions have oracles, and cases with gradients and states."""

import inspect

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks, positions
from regard.conformance import cases_of
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import masks as mask_oracles
from regard.conformance.oracles import positions as position_oracles
from regard.conformance.oracles import rotary as rotary_oracles
from regard.conformance.oracles import windows as window_oracles
from regard.conformance.other_cases import SCANS
from regard.contract import Frame
from regard.mechanisms.linear_state_mechanism import LinearStateMechanism

HEADS, HEAD_DIM, QUERIES, KEYS = 3, 6, 5, 7
TWO_SUMS = "its state is two sums of features, for which kernels have no common argument"
WITHOUT_STATES = {"linear": TWO_SUMS, "performer": TWO_SUMS}


@pytest.mark.parametrize("row", regard.catalogue(), ids=lambda row: row.name)
def test_each_mechanism_has_cases_of_all_gradients_and_states(row):
    cases = cases_of(row.name)
    assert len(cases) >= 5
    gates = {entry.partition(" ")[0] for entry in SCANS.get(row.name, ())} - set(cases[-1].equation.fixed)
    parameters = gates if row.name in SCANS else ORACLES[row.name].shapes(cases[0].layout)
    assert {"query", "key", "value", *parameters} <= {name for case in cases for name in case.inputs}
    mechanism = regard.mechanism(row.name, heads=HEADS, head_dim=HEAD_DIM, **ORACLES[row.name].options)
    with_states = [case for case in cases if "state" in case.arguments]
    if isinstance(mechanism, LinearStateMechanism) and row.name not in WITHOUT_STATES:
        assert any("cu_seqlens_q" in case.arguments for case in with_states)
        assert all(case.expected.state.shape == case.arguments["state"].shape for case in with_states[:2])
    else:
        assert not with_states


def test_retention_is_a_scan_with_the_decays_of_its_heads():
    case = next(case for case in cases_of("retention") if case.name == "17 tokens")
    tensors = [case.arguments[name] for name in ("query", "key", "value")]
    causal = mask_oracles.causal(17, 17)
    parallel = ORACLES["retention"].forward(*tensors, causal, {}) * case.layout.head_dim**0.5
    np.testing.assert_allclose(case.expected.output, case.arguments["scale"] * parallel, atol=1e-12)


DRAWN_OR_CONVERTED = {
    "random_blocks",
    "padding_of",
    "from_sdpa",
    "from_transformers",
    "from_multihead_attention",
    "from_cu_seqlens",
}
"""Masks that an oracle cannot know (drawn blocks), and converters to the others, which have tests of their own."""


def test_each_mask_has_an_oracle():
    makers = {name for name in masks.__all__ if inspect.isfunction(getattr(masks, name))}
    assert {name for name in makers if not hasattr(mask_oracles, name)} == DRAWN_OR_CONVERTED


def bias_of(position, query=None):
    """What a position adds to the scores of (1, heads, queries, head_dim) queries, in float64."""
    query = torch.zeros(1, HEADS, QUERIES, HEAD_DIM, dtype=torch.float64) if query is None else query
    return position.double().scores(query, Frame(QUERIES, KEYS), torch.arange(QUERIES), 1.0)


def numbers(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))


def filled(module):
    """The module with random weights."""
    for weight in module.double().parameters():
        weight.data = numbers(*weight.shape)
    return module


def compare_relative_sinusoidal():
    position, query = filled(positions.RelativeSinusoidal(HEADS, HEAD_DIM, 8)), numbers(1, HEADS, QUERIES, HEAD_DIM)
    weights = (part.detach().numpy() for part in (position.weight, position.query_bias))
    return bias_of(position, query), position_oracles.relative_sinusoidal(query.numpy(), *weights, KEYS, 1.0)


def compare_t5():
    position = filled(positions.T5Buckets(HEADS))
    buckets = position_oracles.t5_buckets(QUERIES, KEYS)
    return bias_of(position)[0], np.moveaxis(position.weight.detach().numpy()[buckets], -1, 0)


def compare_fourier():
    features, grid = positions.FourierFeatures((3, 5), 4), positions.grid_positions((3, 5))
    rows = [position_oracles.fourier_features(position, (3, 5), 4) for position in grid.double().numpy()]
    return features(grid).double(), np.stack(rows)


def compare_table():
    biases = numbers(HEADS, QUERIES + KEYS)
    rows = position_oracles.distances(QUERIES, KEYS) + KEYS
    return bias_of(positions.DistanceTable(biases, -KEYS))[0], biases.numpy()[:, rows]


def compare_window():
    position = filled(positions.Relative2d(HEADS, 2))
    table = position.weight.detach().numpy().reshape(3, 3, HEADS)
    return position.dense(Frame(4, 4))[0], window_oracles.relative_bias(table, 2)


def compare_shaw():
    position, query = filled(positions.ShawRelative(HEAD_DIM, 3, values=False)), numbers(1, HEADS, QUERIES, HEAD_DIM)
    rows = position_oracles.shaw_rows(next(position.parameters()).detach().numpy(), QUERIES, KEYS)
    return bias_of(position, query), np.einsum("bhqd,qkd->bhqk", query.numpy(), rows)


def compare_rotary():
    tokens = numbers(1, HEADS, QUERIES, HEAD_DIM)
    expected = rotary_oracles.rotate(tokens.numpy(), rotary_oracles.frequencies(HEAD_DIM), offset=3)
    return positions.Rotary(HEAD_DIM)(tokens, offset=3), expected


def frequencies(scaling, length=64):
    return scaling.frequencies(10_000.0, HEAD_DIM, length)


LONG = positions.LongRopeScaling((1.0, 2.0, 3.0), (2.0, 3.0, 5.0), 4.0, 32)
COMPARED = {
    "ALiBi": lambda: (bias_of(positions.ALiBi(HEADS))[0], position_oracles.alibi(HEADS, QUERIES, KEYS)),
    "DistanceTable": compare_table,
    "DynamicScaling": lambda: (
        frequencies(positions.DynamicScaling(3.5, 32)),
        rotary_oracles.dynamic_ntk(HEAD_DIM, 3.5, 32, 64),
    ),
    "FourierFeatures": compare_fourier,
    "LinearScaling": lambda: (frequencies(positions.LinearScaling(3.5)), rotary_oracles.linear(HEAD_DIM, 3.5)),
    "Llama3Scaling": lambda: (
        frequencies(positions.Llama3Scaling(3.5, 32)),
        rotary_oracles.llama3(HEAD_DIM, 3.5, 32, 10_000.0),
    ),
    "LongRopeScaling": lambda: (frequencies(LONG), rotary_oracles.long_rope(HEAD_DIM, LONG.long_factors)),
    "Relative2d": compare_window,
    "RelativeSinusoidal": compare_relative_sinusoidal,
    "Rotary": compare_rotary,
    "ShawRelative": compare_shaw,
    "Sinusoidal": lambda: (positions.Sinusoidal(8).double()(QUERIES), position_oracles.sinusoidal(QUERIES, 8)),
    "T5Buckets": compare_t5,
    "YarnScaling": lambda: (frequencies(positions.YarnScaling(3.5, 32)), rotary_oracles.yarn(HEAD_DIM, 3.5, 32)),
}
"""Each position beside its oracle."""
WITHOUT_EQUATION = {"Learned", "LearnedGrid"}
"""Rows of a trained table, which are added as they are."""


def test_each_position_has_an_oracle():
    classes = {name for name in positions.__all__ if inspect.isclass(getattr(positions, name))}
    concrete = {name for name in classes if not inspect.isabstract(getattr(positions, name))}
    assert concrete == COMPARED.keys() | WITHOUT_EQUATION


@pytest.mark.parametrize("name", COMPARED)
def test_position_agrees_with_its_oracle(name):
    actual, expected = COMPARED[name]()
    tolerance = 1e-5 if name == "FourierFeatures" else 1e-12  # it computes in float32
    assert_close(actual.detach(), torch.from_numpy(np.asarray(expected)), rtol=0, atol=tolerance)


def test_magnitude_of_long_rope():
    assert LONG.magnitude == pytest.approx(rotary_oracles.long_rope_magnitude(4.0, 32), rel=1e-15)
