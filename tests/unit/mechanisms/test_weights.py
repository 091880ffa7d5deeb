"""Weights of mechanisms that never form them: in every mode of torch, differentiable, and invalid options."""

import pytest
import torch

import regard
from regard import masks
from regard.errors import DtypeError, OptionError, RefusedError
from regard.mechanism_catalogue import BUILT_IN_NAMES

OPTIONS = {
    "linear": {},
    "linformer": {"length": 11, "projected": 3},
    "performer": {"features": 9},
    "nystromformer": {"landmarks": 3, "convolution": 3},
    "gated_delta": {},
}
NAMES = pytest.mark.parametrize("name", OPTIONS)


def build_mechanism(name, head_dim=5):
    torch.manual_seed(5)
    return regard.mechanism(name, heads=2, head_dim=head_dim, **OPTIONS[name])


@NAMES
@pytest.mark.parametrize("rows", [None, [0, -1], []])
def test_weights_in_inference_mode_are_the_same(name, rows):
    # Two tensors, not two slices of one: matrix products may round another way at another alignment.
    mechanism, query, key, mask = (
        build_mechanism(name),
        torch.randn(1, 2, 7, 5),
        torch.randn(1, 2, 7, 5),
        masks.padding([6]),
    )
    with torch.no_grad():
        exact = mechanism.weights(query, key, mask=mask, rows=rows)
    with torch.inference_mode():
        assert torch.equal(mechanism.weights(query.clone(), key.clone(), mask=mask, rows=rows), exact)
        assert mechanism.observe(query, key, key, mask, rows=rows).received.shape == (1, 2, 7)


@NAMES
def test_gradients_flow_through_weights(name):
    mechanism, key = build_mechanism(name, head_dim=2).double(), torch.randn(1, 2, 4, 2, dtype=torch.float64)
    query = torch.randn(1, 2, 4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda query: mechanism.weights(query, key, rows=[1, 3]), query)


@NAMES
def test_weights_without_anything_to_differentiate_have_no_graph(name):
    mechanism, tokens = build_mechanism(name), torch.randn(1, 2, 7, 5)
    for parameter in mechanism.parameters():
        parameter.requires_grad_(False)
    assert not mechanism.weights(tokens, tokens).requires_grad
    assert mechanism.weights(tokens.clone().requires_grad_(), tokens).requires_grad


def test_state_refuses_tokens_of_another_dtype():
    mechanism, tokens = build_mechanism("linear"), torch.randn(1, 2, 3, 5)
    _, state = mechanism.step(tokens, tokens, tokens, mechanism.empty_state())
    with pytest.raises(DtypeError, match="do not fit the state"):
        mechanism.step(*[tokens.double()] * 3, state)


@pytest.mark.parametrize("options", [{"heads": 3}, {"dropout": 0.2}, {1: 3}])
@pytest.mark.usefixtures("without_shape_checks")
def test_mechanism_options_that_the_layer_sets_are_refused(options):
    with pytest.raises(OptionError, match="mechanism_options contains"):
        regard.MultiHeadAttention(8, 2, dropout=0.1, mechanism_options=options)


@NAMES
def test_weights_under_torch_func_transforms(name):
    mechanism, (query, key) = build_mechanism(name), torch.randn(2, 3, 1, 2, 7, 5)
    rows, mask = [0, 4], masks.padding([6])
    separate = torch.stack(
        [mechanism.weights(one, other, mask=mask, rows=rows) for one, other in zip(query, key, strict=True)]
    )
    batched = torch.vmap(lambda query, key: mechanism.weights(query, key, mask=mask, rows=rows))(query, key)
    torch.testing.assert_close(batched, separate)

    def total(query):
        return mechanism.weights(query, key[0], mask=mask, rows=rows).square().sum()

    trained = query[0].clone().requires_grad_()
    total(trained).backward()
    torch.testing.assert_close(torch.func.grad(total)(query[0]), trained.grad)


def test_dropout_without_explicit_weights_is_refused():
    with pytest.raises(RefusedError, match="'linear' does not support dropout of weights"):
        regard.MultiHeadAttention(10, 2, mechanism="linear", dropout=0.1)


def test_options_that_change_what_weights_are():
    assert regard.mechanism("performer", heads=2, head_dim=5).approximates == "dot_product"
    assert regard.mechanism("performer", heads=2, head_dim=5, kernel="relu").approximates is None
    assert regard.mechanism("dot_product", heads=2, head_dim=5).weights_are == "distribution"
    sink = regard.mechanism("dot_product", heads=2, head_dim=5, sinks=True)
    assert sink.weights_are == "non-negative"
    assert (sink.weights(torch.randn(1, 2, 3, 5), torch.randn(1, 2, 7, 5)).sum(-1) < 1.0).all()


@pytest.mark.parametrize("name", sorted(BUILT_IN_NAMES))
def test_which_mechanisms_hide_later_keys(name):
    torch.manual_seed(3)
    options = {"linformer": {"length": 5, "projected": 2}, "nystromformer": {"landmarks": 2}}.get(name, {})
    mechanism = regard.mechanism(name, heads=2, head_dim=8, **options)
    later = torch.ones(5, 5).triu(1).bool()
    weights = mechanism.weights(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
    assert mechanism.traits.hides_later_keys == bool((weights[..., later] == 0).all())
