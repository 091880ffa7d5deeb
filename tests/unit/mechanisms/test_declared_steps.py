"""The steps that a mechanism declares give the weights of its oracle: one softmax or sigmoid, or a sum of softmaxes."""

import numpy as np
import pytest
import torch

from own_step_cases import OPTIONS, causal_weights, make_case
from regard import masks


@torch.no_grad()
@pytest.mark.parametrize("name", OPTIONS)
def test_declared_steps_give_the_weights_of_the_equation(name: str) -> None:
    tokens = 19
    mechanism, inputs = make_case(name, heads=4, head_dim=6, tokens=tokens, dtype=torch.float64)
    extra = {part: tensor for part, tensor in inputs.items() if part not in ("query", "key", "value")}
    call = inputs["query"], inputs["key"], inputs["value"], masks.causal(), None, extra
    request = mechanism.make_request(*call)
    steps, softmaxes = mechanism.steps(request), mechanism.softmaxes(request)
    assert (steps is None) != (softmaxes is None)
    weights = softmaxes.weights(tokens) if steps is None else steps.weights()
    np.testing.assert_allclose(weights[0], causal_weights(name, mechanism, inputs), atol=1e-12)
    if steps is not None:
        some = torch.tensor([3, 17])
        of_heads = steps.of_heads(slice(1, 3), "cpu", torch.float64)
        torch.testing.assert_close(of_heads.weights(rows=some), weights[:, 1:3, some])
