"""What queries read from the states that a mechanism declares is its output, by the oracle of every such mechanism."""

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.mechanism_oracles import ORACLES
from regard.mechanisms.linear_state_mechanism import LinearStateMechanism

HEADS, HEAD_DIM, VALUE_DIM, TOKENS, HIDDEN = 3, 5, 7, 11, 4
NAMES = [row.name for row in regard.catalogue() if issubclass(row.mechanism, LinearStateMechanism)]


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_states_give_the_output_and_the_weights_of_the_equation(name: str) -> None:
    oracle = ORACLES[name]
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **oracle.options).double()
    torch.manual_seed(1)
    query, key = (torch.randn(1, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64) for _ in range(2))
    value = torch.randn(1, HEADS, TOKENS, VALUE_DIM, dtype=torch.float64)
    inputs = {one.name: torch.randn(1, HEADS, TOKENS, one.size).double() for one in mechanism.extra_inputs}
    visible = torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
    visible[:, HIDDEN] = False
    mask = masks.causal() & masks.keep(torch.arange(TOKENS)[None, None, None] != HIDDEN)
    states = mechanism.states(mechanism.make_request(query, key, value, mask, None, inputs))
    assert states is not None
    read = states.outputs(states.value)
    output = read[..., :-1] / read[..., -1:] if states.is_divided else read
    parameters = mechanism.state_dict() | inputs
    arrays = [one.numpy() for one in (query, key, value, visible[None, None])]
    expected = oracle.forward(*arrays, {part: tensor.numpy() for part, tensor in parameters.items()})
    np.testing.assert_allclose(output, expected, atol=1e-11)
    np.testing.assert_allclose(states.weights() @ value, expected, atol=1e-11)


def test_there_are_no_states_where_queries_see_later_tokens() -> None:
    tokens = torch.randn(1, HEADS, TOKENS, HEAD_DIM)
    linear = regard.mechanism("linear", heads=HEADS, head_dim=HEAD_DIM)
    assert linear.states(linear.make_request(tokens, tokens, tokens, None, None, {})) is None
    dot_product = regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)
    assert dot_product.states(dot_product.make_request(tokens, tokens, tokens, masks.causal(), None, {})) is None
