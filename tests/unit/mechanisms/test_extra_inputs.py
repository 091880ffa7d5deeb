"""Inputs beside query, key and value: a mechanism with a gate of queries, a shift of keys, and marks by the caller."""

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions
from regard.conformance.oracles.softmax import softmax, visible_keys
from regard.errors import ArgumentError, DtypeError, RefusedError, ShapeError
from regard.layers import PagedCache, PagePool
from regard.mechanisms import ExtraInput, Mechanism, ScoredMechanism
from regard.view.from_recording import layers_of
from regard.view.layer_weights import LayerWeights

HEADS, HEAD_DIM = 2, 6


class Gated(Mechanism):
    """sigmoid(gate) * softmax(q . (k + shift), keys with ``marked`` hidden) v; by default gate = shift = 0."""

    @property
    def extra_inputs(self):
        return (
            ExtraInput("gate", side="query", heads=self.heads, size=1),
            ExtraInput("shift", side="key", heads=self.heads, size=self.head_dim, rotates=True),
            ExtraInput("marked", side="key", heads=1, size=1, projected=False),
        )

    def attend(self, request):
        key = request.repeated_key + request.inputs.get("shift", 0.0)
        value = request.value.repeat_interleave(request.group, dim=1)
        mask = request.mask
        if "marked" in request.inputs:
            unmarked = masks.keep(~request.inputs["marked"].transpose(2, 3))
            mask = unmarked if mask is None else mask & unmarked
        mixed = regard.attention(request.query, key, value, mask=mask, scale=1.0, impl="reference")
        return mixed * request.inputs.get("gate", torch.zeros(1, dtype=mixed.dtype)).sigmoid()


@pytest.fixture
def layer():
    torch.manual_seed(5)
    return regard.MultiHeadAttention(12, HEADS, mechanism=Gated(heads=HEADS, head_dim=HEAD_DIM)).double()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def project(layer, name: str, tokens: np.ndarray) -> np.ndarray:
    linear = getattr(layer, f"{name}_projection", None) or layer.input_projections[name]
    weight, bias = (part.detach().numpy() for part in (linear.weight, linear.bias))
    projected = tokens @ weight.T + bias
    return projected.reshape(*tokens.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)


def expected(layer, query: np.ndarray, memory: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The layer in NumPy, from its weights."""
    shifted = project(layer, "key", memory) + project(layer, "shift", memory)
    scores = project(layer, "query", query) @ shifted.swapaxes(2, 3)
    weights = softmax(scores, visible_keys(allowed, scores.shape))
    mixed = weights @ project(layer, "value", memory) / (1 + np.exp(-project(layer, "gate", query)))
    weight, bias = (part.detach().numpy() for part in (layer.output_projection.weight, layer.output_projection.bias))
    return mixed.transpose(0, 2, 1, 3).reshape(*query.shape) @ weight.T + bias


def test_layer_projects_extra_inputs_from_the_tokens_of_their_side(layer) -> None:
    query, memory = tokens(2, 3, 12), tokens(2, 5, 12)
    np.testing.assert_allclose(
        layer(query, memory).detach().numpy(),
        expected(layer, query.numpy(), memory.numpy(), np.ones((3, 5), dtype=bool)),
        rtol=1e-10,
    )
    assert set(layer.state_dict()) >= {"input_projections.gate.weight", "input_projections.shift.bias"}


def test_caller_passes_inputs_that_are_not_projected(layer) -> None:
    text = tokens(2, 5, 12)
    marked = torch.tensor([False, True, False, False, True])
    output = layer(text, marked=marked[None, None, :, None])
    np.testing.assert_allclose(
        output.detach().numpy(),
        expected(layer, text.numpy(), text.numpy(), np.tile(~marked.numpy(), (5, 1))),
        rtol=1e-10,
    )


def test_gradients_of_extra_inputs(layer) -> None:
    text = tokens(1, 5, 12).requires_grad_()
    assert torch.autograd.gradcheck(lambda one: layer(one, mask=masks.causal()), (text,))
    layer(text).sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in layer.input_projections.gate.parameters())


@pytest.mark.parametrize("grad", [True, False])
def test_cache_keeps_extra_inputs_of_keys(layer, grad: bool) -> None:
    text = tokens(2, 7, 12)
    whole, parts, cache = layer(text, mask=masks.causal()), [], layer.empty_cache()
    with torch.set_grad_enabled(grad):
        for part in text.split((3, 1, 1, 2), dim=1):
            output, cache = layer(part, mask=masks.causal(), cache=cache)
            parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)
    assert cache.inputs["shift"].shape == (2, HEADS, 7, HEAD_DIM)
    assert set(cache.inputs) == {"shift"}
    assert cache.reordered(torch.tensor([1])).inputs["shift"].shape[0] == 1


def test_memory_is_projected_once(layer) -> None:
    query, memory = tokens(2, 3, 12), tokens(2, 5, 12)
    projected = layer.project_memory(memory)
    torch.testing.assert_close(layer.attend_memory(query, projected), layer(query, memory))


def test_rotary_positions_rotate_inputs_that_declare_it() -> None:
    torch.manual_seed(5)
    mechanism = Gated(heads=HEADS, head_dim=HEAD_DIM)
    layer = regard.MultiHeadAttention(12, HEADS, mechanism=mechanism, position=positions.Rotary(HEAD_DIM)).double()
    text = tokens(1, 5, 12)
    with regard.record(layer) as recording:
        layer(text)
    plain = layer._project_heads(text, layer.input_projections["shift"], "key")
    torch.testing.assert_close(recording[0].inputs["shift"], layer.position(plain).detach())


def test_record_observe_and_the_page_use_extra_inputs(layer) -> None:
    text = tokens(1, 5, 12)
    with regard.record(layer) as recording:
        layer(text, mask=masks.causal())
    call = recording[0]
    gate = call.inputs["gate"].sigmoid()
    torch.testing.assert_close(call.weights().sum(-1, keepdim=True), gate.float().double())
    torch.testing.assert_close(call.observe(rows=[1]).rows[:, :, 0], call.weights()[:, :, 1])
    (read,) = layers_of(recording)
    assert isinstance(read, LayerWeights)
    np.testing.assert_allclose(read.weights(), call.weights()[0], rtol=1e-6)


def test_steps_of_a_layer_are_joined(layer) -> None:
    text, memory = tokens(1, 3, 12), layer.project_memory(tokens(1, 5, 12))
    with regard.record(layer) as steps:
        for part in text.split(1, dim=1):
            layer.attend_memory(part, memory)
    with regard.record(layer) as whole:
        layer.attend_memory(text, memory)
    np.testing.assert_allclose(layers_of(steps)[0].weights(), layers_of(whole)[0].weights(), rtol=1e-6)


def test_half_precision_weights_are_float32() -> None:
    mechanism = Gated(heads=HEADS, head_dim=HEAD_DIM)
    query = torch.randn(1, HEADS, 3, HEAD_DIM, dtype=torch.bfloat16)
    gate = torch.randn(1, HEADS, 3, 1, dtype=torch.bfloat16)
    assert mechanism.weights(query, query, gate=gate).dtype == torch.float32


@pytest.mark.usefixtures("without_shape_checks")
def test_mismatched_inputs_are_refused() -> None:
    mechanism = Gated(heads=HEADS, head_dim=HEAD_DIM)
    query, key = torch.randn(2, HEADS, 3, HEAD_DIM), torch.randn(2, HEADS, 5, HEAD_DIM)
    gate = torch.randn(2, HEADS, 3, 1)
    with pytest.raises(ShapeError, match="gate does not fit the call"):
        mechanism(query, key, key, gate=torch.randn(2, HEADS, 5, 1))
    with pytest.raises(ShapeError, match="gate does not fit the call"):
        mechanism(query, key, key, gate=gate[:1])
    with pytest.raises(DtypeError, match="gate has another dtype"):
        mechanism(query, key, key, gate=gate.double())
    with pytest.raises(ArgumentError, match="Gated has no argument 'gates'") as caught:
        mechanism(query, key, key, gates=gate)
    assert "did you mean 'gate'?" in str(caught.value)
    with pytest.raises(ArgumentError, match="has no argument 'attn_mask'"):
        regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM)(query, key, key, attn_mask=None)
    with pytest.raises(ArgumentError, match="MultiHeadAttention has no argument 'marks'"):
        regard.MultiHeadAttention(12, HEADS)(torch.randn(1, 5, 12), marks=gate)


@pytest.mark.usefixtures("without_shape_checks")
def test_layer_refuses_inputs_that_it_projects_itself(layer) -> None:
    with pytest.raises(ArgumentError, match="MultiHeadAttention has no argument 'gate'") as caught:
        layer(tokens(1, 5, 12), gate=torch.zeros(1, HEADS, 5, 1))
    assert "marked" in caught.value.expected


@pytest.mark.usefixtures("without_shape_checks")
def test_cache_requires_the_same_inputs_at_every_step() -> None:
    mechanism = Gated(heads=HEADS, head_dim=HEAD_DIM)
    one, shift = torch.randn(1, HEADS, 1, HEAD_DIM), torch.randn(1, HEADS, 1, HEAD_DIM)
    _, state = mechanism.step(one, one, one, mechanism.empty_state(), shift=shift)
    with pytest.raises(ShapeError, match="new tokens do not fit the cache"):
        mechanism.step(one, one, one, state)


def test_paged_cache_refuses_extra_inputs_of_keys() -> None:
    mechanism = Gated(heads=HEADS, head_dim=HEAD_DIM)
    pool = PagePool(HEADS, HEAD_DIM)
    one = torch.randn(1, HEADS, 1, HEAD_DIM)
    with torch.no_grad():
        output, _ = mechanism.step(one, one, one, PagedCache.empty(pool, batch=1), gate=torch.zeros(1, HEADS, 1, 1))
        torch.testing.assert_close(output, one / 2)
        with pytest.raises(RefusedError, match="cannot decode with a PagedCache"):
            mechanism.step(one, one, one, PagedCache.empty(pool, batch=1), shift=one)


def test_scored_mechanism_declares_no_extra_inputs() -> None:
    class Plain(ScoredMechanism):
        def score(self, query, key):
            return query @ key.mT

    assert Plain(heads=HEADS, head_dim=HEAD_DIM).extra_inputs == ()
