"""Errors of positions, and their messages."""

import re

import pytest
import torch

import regard
from regard import positions
from regard.errors import OptionError, ShapeError


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda: positions.Sinusoidal(0), r"in pairs.*an even width.*got: +0"),
        (lambda: positions.Sinusoidal(7), r"in pairs.*an even width.*got: +7"),
        (lambda: positions.Learned(0, 3), r"wrong max_length.*1 or more.*got: +0"),
        (lambda: positions.Learned(3, -1), r"wrong width.*1 or more.*got: +-1"),
        (lambda: positions.LearnedGrid(2**20, 2**20, 2**10), r"too large for any memory"),
        (lambda: positions.LearnedGrid(2, 2, 2**20, prefix=2**24), r"too large for any memory"),
        (lambda: positions.Rotary(0), r"wrong head_dim.*got: +0"),
        (lambda: positions.Rotary(8.0), r"wrong head_dim.*got: +8\.0"),
        (lambda: positions.Rotary(7), r"pairs of dimensions.*even number.*head_dim = 7.*got: +7"),
        (lambda: positions.Rotary(8, rotated=3), r"at most head_dim = 8.*got: +3.*rotated="),
        (lambda: positions.Rotary(8, rotated=10), r"at most head_dim = 8.*got: +10"),
        (lambda: positions.Rotary(8, rotated=0), r"at most head_dim = 8.*got: +0"),
        (lambda: positions.Rotary(8, layout="half"), r"unknown rotary layout 'half'.*halves, pairs.*mean 'halves'"),
        (lambda: positions.ALiBi(0), r"wrong heads.*1 or more.*got: +0"),
        (lambda: positions.T5Buckets(0), r"wrong heads.*got: +0"),
        (lambda: positions.T5Buckets(2, buckets=3), r"do not fit.*at least 4.*buckets=3, max_distance=128.*buckets=32"),
        (lambda: positions.T5Buckets(2, max_distance=8), r"do not fit.*buckets=32, max_distance=8"),
        (lambda: positions.T5Buckets(2, max_distance=16, bidirectional=False), r"do not fit.*max_distance=16"),
        (
            lambda: positions.T5Buckets(2, buckets=1, bidirectional=False),
            r"do not fit.*2 with bidirectional.*buckets=1",
        ),
        (lambda: positions.T5Buckets(2, buckets=32.0), r"wrong buckets.*got: +32\.0"),
        (lambda: positions.ShawRelative(0), r"wrong head_dim.*got: +0"),
        (lambda: positions.ShawRelative(3, value_dim=0), r"wrong value_dim.*got: +0"),
        (lambda: positions.ShawRelative(3, -1), r"wrong max_distance.*0 or more.*got: +-1"),
    ],
)
def test_constructor_options(make, facts):
    with pytest.raises(OptionError, match=f"(?s){facts}"):
        make()


@pytest.mark.parametrize(("buckets", "bidirectional"), [(4, True), (2, False)])
def test_the_fewest_buckets_of_t5(buckets, bidirectional):
    """One for each direction that is exact, and one for all longer distances."""
    position = positions.T5Buckets(2, buckets=buckets, max_distance=2, bidirectional=bidirectional)
    assert position.bucket(torch.tensor([0, -1, -2, -9])).tolist() == [0, 1, 1, 1]


@pytest.mark.parametrize("base", [float("nan"), float("inf"), -1, 0, 10**400])
def test_base_must_be_finite_and_positive(base, without_shape_checks):
    for make in (positions.Rotary, positions.Sinusoidal):
        with pytest.raises(OptionError, match=r"(?s)wrong base.*finite number of 1 or more.*got.*leave base out"):
            make(4, base=base)


def test_yarn_needs_a_base_larger_than_1(without_shape_checks):
    with pytest.raises(OptionError, match=r"(?s)YarnScaling.*larger than 1.*base=1"):
        positions.Rotary(4, base=1, scaling=positions.YarnScaling(2.0, 512))


@pytest.mark.parametrize("position", [positions.Learned(8, 4), positions.Sinusoidal(4)])
def test_negative_lengths_are_refused(position):
    with pytest.raises(OptionError, match=r"(?s)wrong length.*0 or more.*got: +-1"):
        position(-1)


@pytest.mark.parametrize(("length", "offset"), [(8, 0), (1, 7), (1, -1)])
def test_positions_beyond_the_learned_ones_are_refused(length, offset):
    with pytest.raises(ShapeError, match=rf"(?s)at most 7 tokens.*{length} tokens from position {offset}.*shorten"):
        positions.Learned(7, 2)(length, offset=offset)


def test_rotary_of_another_head_dim():
    with pytest.raises(ShapeError, match=r"(?s)another head_dim.*\(\.\.\., length, 8\).*\(3, 6\).*width / heads"):
        positions.Rotary(8)(torch.zeros(3, 6))


@pytest.mark.parametrize(
    ("bias", "facts"),
    [
        (positions.ALiBi(3), r"ALiBi.*2 heads, as the query.*got: +3 heads"),
        (positions.T5Buckets(3), r"T5Buckets.*2 heads, as the query.*got: +3 heads"),
        (positions.ShawRelative(4), r"ShawRelative.*another head_dim.*head_dim 5.*head_dim 4.*head_dim=5"),
        (positions.ShawRelative(5), r"ShawRelative.*another value_dim.*value_dim 7.*value_dim 5.*value_dim=7"),
    ],
    ids=repr,
)
def test_biases_of_another_number_of_heads_or_width(bias, facts):
    query, value = torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 7)
    for call in (regard.attention, regard.observe):
        with pytest.raises(ShapeError, match=f"(?s){facts}"):
            call(query, query, value, bias=bias)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("position", [positions.Rotary(4), positions.Sinusoidal(4)], ids=repr)
def test_positions_that_are_no_bias_are_refused(position):
    tokens = torch.zeros(1, 2, 3, 4)
    facts = rf"(?s)neither a tensor nor a position.*got: +{re.escape(type(position).__name__)}.*before attention"
    with pytest.raises(OptionError, match=facts):
        regard.attention(tokens, tokens, tokens, bias=position)
