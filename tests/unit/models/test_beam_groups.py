"""Rows that attend to one memory in a batch: the state of a Transformer, for any selection of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from regard import masks
from regard.models import Transformer, TransformerConfig
from regard.models.beam_groups import BeamGroups
from regard.models.layer_mechanism import POSITIONS

NUMBERS = {"vocabulary": 17, "width": 12, "layers": 2, "heads": 3, "inner": 13, "dropout": 0.0}
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0], [4, 4, 3, 0, 0]])
LENGTHS = torch.tensor([5, 2, 3])


def build_model(position="sinusoidal", mechanism="dot_product"):
    torch.manual_seed(3)
    return Transformer(TransformerConfig(**NUMBERS, position=position, mechanism=mechanism)).double().eval()


@settings(max_examples=5, deadline=None)
@given(data=some.data(), parts=some.sampled_from([*((one, "dot_product") for one in POSITIONS), ("none", "additive")]))
def test_each_row_is_decoded_as_if_alone(data, parts):
    """Rows are selected in any order, repeatedly or not at all, and each gets other tokens."""
    model, owner = build_model(*parts), [0, 1, 2]
    written = [[] for _ in owner]
    with torch.no_grad():
        state = model.start(SOURCE, lengths=LENGTHS)
        for place in range(4):
            tokens = [model.start_id if place == 0 else 4 + (5 * row + place) % 13 for row in range(len(owner))]
            written = [[*prefix, token] for prefix, token in zip(written, tokens, strict=True)]
            logits, state, weights = model.step_with_weights(torch.tensor(tokens), state)
            for source in set(owner):
                own, length = [row for row, one in enumerate(owner) if one == source], int(LENGTHS[source])
                alone, target = SOURCE[[source] * len(own), :length], torch.tensor([written[row] for row in own])
                torch.testing.assert_close(logits[own], model(alone, target).logits[:, -1], rtol=0, atol=1e-10)
                attention_weights = model.cross_attention_weights(alone, target)[:, -1]
                torch.testing.assert_close(weights[own, :length], attention_weights, rtol=0, atol=1e-10)
                assert not weights[own, length:].any()
            rows = data.draw(some.lists(some.integers(0, len(owner) - 1), min_size=1, max_size=7))
            state = state.reordered(torch.tensor(rows))
            owner, written = [owner[row] for row in rows], [written[row] for row in rows]


@given(groups_of_rows=some.lists(some.integers(0, 4), min_size=1, max_size=11))
def test_rows_to_queries_is_inverted_by_queries_to_rows(groups_of_rows):
    groups, remaining = BeamGroups.one_per_row(5, torch.device("cpu")).select(torch.tensor(groups_of_rows))
    assert groups.count == len(set(groups_of_rows))
    assert sorted(set(groups_of_rows)) == (list(range(5)) if remaining is None else remaining.tolist())
    rows = torch.arange(len(groups_of_rows) * 3.0).view(len(groups_of_rows), 1, 3) + 1
    queries = groups.rows_to_queries(rows)
    most = max(groups_of_rows.count(one) for one in groups_of_rows)
    assert queries.shape == (groups.count, most, 3)
    assert torch.equal(groups.queries_to_rows(queries), rows)
    for number, group in enumerate(sorted(set(groups_of_rows))):
        own = [row for row, other in zip(rows[:, 0], groups_of_rows, strict=True) if other == group]
        assert torch.equal(queries[number, : len(own)], torch.stack(own))
        assert not queries[number, len(own) :].any()


@pytest.mark.parametrize(
    ("position", "shares_own_tokens"), [("sinusoidal", True), ("learned", True), ("rotary", False)]
)
def test_states_share_the_memory_of_their_sources(position, shares_own_tokens):
    model = build_model(position)
    with torch.no_grad():
        first = model.start(SOURCE, lengths=LENGTHS)
        many = first.reordered(torch.tensor([2, 0, 1, 1, 0, 2, 2]))
        _, next_state = model.step(torch.arange(4, 11), many)
        other = next_state.reordered(torch.tensor([3, 3, 0, 4, 6]))
        states = (first, many, next_state, other)
        fewer = other.reordered(torch.tensor([2, 4]))
    for number in range(2):
        assert len({id(state.caches[number].memory) for state in states}) == 1
        assert (other.caches[number].own is next_state.caches[number].own) == shares_own_tokens
    assert [cache.memory.key.shape[0] for cache in fewer.caches] == [1, 1]
    assert [cache.own.key.shape[0] for cache in fewer.caches] == ([1, 1] if shares_own_tokens else [2, 2])
    assert fewer.lengths.tolist() == [3]


@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_gradients_of_steps_equal_those_of_the_whole_sequence(position):
    """Two rows of one source and one of another, which are reordered between the steps."""
    model, targets = build_model(position), torch.tensor([[2, 4, 5], [2, 6, 7], [2, 8, 9]])
    source, lengths, order = SOURCE[[1, 1, 2]], LENGTHS[[1, 1, 2]], torch.tensor([2, 0, 1])
    whole = model(source, targets, mask=masks.padding(lengths)).logits[:, -1].square().sum()
    expected = torch.autograd.grad(whole, list(model.parameters()))
    state = model.start(SOURCE[1:], lengths=LENGTHS[1:]).reordered(torch.tensor([0, 0, 1]))
    for place in range(3):
        logits, state = model.step(targets[:, place], state)
        targets, state = targets[order], state.reordered(order)
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    for mine, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)
