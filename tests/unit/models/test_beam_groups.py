"""Rows that attend to one memory in a batch: the state of a Transformer, for any selection of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from regard import masks
from regard.models import Transformer, TransformerConfig
from regard.models.beam_groups import BeamGroups
from regard.models.transformer import POSITIONS

NUMBERS = {"vocabulary": 17, "width": 12, "layers": 2, "heads": 3, "inner": 13, "dropout": 0.0}
SOURCE = torch.tensor([[5, 6, 7, 8, 3], [9, 3, 0, 0, 0], [4, 4, 3, 0, 0]])
LENGTHS = torch.tensor([5, 2, 3])


def build_model(position="sinusoidal", mechanism="dot_product"):
    torch.manual_seed(3)
    return Transformer(TransformerConfig(**NUMBERS, position=position, mechanism=mechanism)).double().eval()


@settings(max_examples=5, deadline=None)
@given(data=some.data(), parts=some.sampled_from([*((one, "dot_product") for one in POSITIONS), ("none", "additive")]))
def test_each_row_goes_on_as_if_it_were_alone(data, parts):
    """Rows are selected in any order, repeatedly or not at all, and each gets other tokens."""
    model, owner = build_model(*parts), [0, 1, 2]
    written = [[] for _ in owner]
    with torch.no_grad():
        state = model.start(SOURCE, lengths=LENGTHS)
        for place in range(4):
            tokens = [model.start_id if place == 0 else 4 + (5 * row + place) % 13 for row in range(len(owner))]
            written = [[*those, token] for those, token in zip(written, tokens, strict=True)]
            logits, state, weights = model.step_with_weights(torch.tensor(tokens), state)
            for source in set(owner):
                own, length = [row for row, one in enumerate(owner) if one == source], int(LENGTHS[source])
                alone, target = SOURCE[[source] * len(own), :length], torch.tensor([written[row] for row in own])
                torch.testing.assert_close(logits[own], model(alone, target).logits[:, -1], rtol=0, atol=1e-10)
                looks = model.cross_attention_weights(alone, target)[:, -1]
                torch.testing.assert_close(weights[own, :length], looks, rtol=0, atol=1e-10)
                assert not weights[own, length:].any()
            rows = data.draw(some.lists(some.integers(0, len(owner) - 1), min_size=1, max_size=7))
            state = state.reordered(torch.tensor(rows))
            owner, written = [owner[row] for row in rows], [written[row] for row in rows]


@given(of=some.lists(some.integers(0, 4), min_size=1, max_size=11))
def test_rows_come_back_from_their_queries(of):
    groups, lost = BeamGroups.one_per_row(5, torch.device("cpu")).select(torch.tensor(of))
    assert groups.count == len(set(of))
    assert sorted(set(of)) == (list(range(5)) if lost is None else lost.tolist())
    rows = torch.arange(len(of) * 3.0).view(len(of), 1, 3) + 1
    queries = groups.rows_to_queries(rows)
    most = max(of.count(one) for one in of)
    assert queries.shape == (groups.count, most, 3)
    assert torch.equal(groups.queries_to_rows(queries), rows)
    for number, group in enumerate(sorted(set(of))):
        own = [row for row, other in zip(rows[:, 0], of, strict=True) if other == group]
        assert torch.equal(queries[number, : len(own)], torch.stack(own))
        assert not queries[number, len(own) :].any()


@pytest.mark.parametrize(("position", "together"), [("sinusoidal", True), ("learned", True), ("rotary", False)])
def test_nothing_is_copied_while_its_source_is_written(position, together):
    model = build_model(position)
    with torch.no_grad():
        first = model.start(SOURCE, lengths=LENGTHS)
        many = first.reordered(torch.tensor([2, 0, 1, 1, 0, 2, 2]))
        _, following = model.step(torch.arange(4, 11), many)
        other = following.reordered(torch.tensor([3, 3, 0, 4, 6]))
        states = (first, many, following, other)
        fewer = other.reordered(torch.tensor([2, 4]))
    for number in range(2):
        assert len({id(state.caches[number].memory) for state in states}) == 1
        assert (other.caches[number].own is following.caches[number].own) == together
    assert [cache.memory.key.shape[0] for cache in fewer.caches] == [1, 1]
    assert [cache.own.key.shape[0] for cache in fewer.caches] == ([1, 1] if together else [2, 2])
    assert fewer.lengths.tolist() == [3]


@pytest.mark.parametrize("position", ["sinusoidal", "rotary"])
def test_gradients_of_steps_are_those_of_the_whole(position):
    """Two rows of one source and one of another, which are reordered between the steps."""
    model, targets = build_model(position), torch.tensor([[2, 4, 5], [2, 6, 7], [2, 8, 9]])
    source, lengths, order = SOURCE[[1, 1, 2]], LENGTHS[[1, 1, 2]], torch.tensor([2, 0, 1])
    whole = model(source, targets, mask=masks.padding(lengths)).logits[:, -1].square().sum()
    wanted = torch.autograd.grad(whole, list(model.parameters()))
    state = model.start(SOURCE[1:], lengths=LENGTHS[1:]).reordered(torch.tensor([0, 0, 1]))
    for place in range(3):
        logits, state = model.step(targets[:, place], state)
        targets, state = targets[order], state.reordered(order)
    found = torch.autograd.grad(logits.square().sum(), list(model.parameters()))
    for mine, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=1e-10)
