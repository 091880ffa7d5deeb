"""Luong's local-p: the window, the Gaussian after the softmax, and masks."""

import numpy as np
import pytest
import torch

from oracles import recurrent as oracle
from regard import masks
from regard.errors import OptionError, ShapeError
from regard.mechanisms.local_p import LocalPredictive

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM, WINDOW = 2, 3, 5, 11, 7, 5, 2
LENGTHS = [KEYS, 4]


def build_mechanism(**options):
    mechanism = LocalPredictive(**{"heads": HEADS, "head_dim": HEAD_DIM, "window": WINDOW, **options}).double()
    torch.nn.init.normal_(mechanism.position_vector, std=2.0)  # positions in the whole source, not only in its middle
    return mechanism


def make_inputs(key_heads=HEADS):
    return (
        torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM, dtype=torch.float64),
        torch.randn(BATCH, key_heads, KEYS, HEAD_DIM, dtype=torch.float64),
        torch.randn(BATCH, key_heads, KEYS, VALUE_DIM, dtype=torch.float64),
    )


def expected_output(mechanism, query, key):
    """Compute the output query by query."""
    weights = np.zeros((BATCH, HEADS, QUERIES, KEYS))
    numbers = {name: one.detach().numpy() for name, one in mechanism.named_parameters()}
    for batch, head, row in np.ndindex(BATCH, HEADS, QUERIES):
        parts = (numbers[name][head] for name in ("align.weight", "position_weight", "position_vector"))
        weigh, length = oracle.local_p(*parts, mechanism.window), LENGTHS[batch]
        keys = key[batch, head, :length].numpy()
        weights[batch, head, row, :length] = weigh(query[batch, head, row].numpy(), keys)
    return torch.from_numpy(weights)


@pytest.mark.parametrize("window", [1, WINDOW, 10])
def test_agrees_with_the_paper(window):
    mechanism, (query, key, value) = build_mechanism(window=window), make_inputs()
    mask = masks.padding(LENGTHS)
    weights = expected_output(mechanism, query, key)
    torch.testing.assert_close(mechanism.weights(query, key, mask=mask), weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(mechanism(query, key, value, mask), weights @ value, rtol=0, atol=1e-12)
    selected = mechanism.weights(query, key, mask=mask, rows=[3, -1])
    torch.testing.assert_close(selected, weights[:, :, [3, 4]], rtol=0, atol=1e-12)


def test_padding_on_either_side_changes_nothing():
    mechanism, (query, key, value) = build_mechanism(), make_inputs()
    length = LENGTHS[1]
    expected = mechanism(query, key[:, :, :length], value[:, :, :length])
    right = mechanism(query, key, value, masks.padding([length] * BATCH))
    moved = [side.roll(KEYS - length, dims=2) for side in (key, value)]
    left = mechanism(query, *moved, masks.padding([length] * BATCH, side="left"))
    torch.testing.assert_close(right, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(left, expected, rtol=0, atol=1e-12)


def test_without_a_mask_the_length_is_that_of_all_keys():
    mechanism, (query, key, value) = build_mechanism(), make_inputs()
    expected = mechanism(query, key, value, masks.padding([KEYS, KEYS]))
    torch.testing.assert_close(mechanism(query, key, value), expected, rtol=0, atol=1e-12)
    places = mechanism.positions(query, key)
    assert ((places > 0) & (places < KEYS)).all()


def test_grouped_queries():
    mechanism, (query, key, value) = build_mechanism(), make_inputs(key_heads=1)
    expected = mechanism(query, key.expand(-1, HEADS, -1, -1), value.expand(-1, HEADS, -1, -1))
    torch.testing.assert_close(mechanism(query, key, value), expected, rtol=0, atol=1e-12)


def test_gradients_agree_with_finite_differences():
    """The window ends at whole keys, so the function is smooth except at its edges."""
    mechanism, tensors = build_mechanism(), [tensor.requires_grad_() for tensor in make_inputs()]
    names, parameters = zip(*mechanism.named_parameters(), strict=True)

    def output(query, key, value, *numbers):
        weights = dict(zip(names, numbers, strict=True))
        return torch.func.functional_call(mechanism, weights, (query, key, value, masks.padding(LENGTHS)))

    assert torch.autograd.gradcheck(output, (*tensors, *parameters), fast_mode=True)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_padding_has_no_influence(bad):
    mechanism, tensors = build_mechanism(), make_inputs()
    mask, outputs = masks.padding(LENGTHS), []
    for fill in (0.0, bad):
        query, key, value = (tensor.clone() for tensor in tensors)
        key[1, :, LENGTHS[1] :] = value[1, :, LENGTHS[1] :] = fill
        leaves = [tensor.requires_grad_() for tensor in (query, key, value)]
        output = mechanism(*leaves, mask)
        outputs.append((output, *torch.autograd.grad(output.sum(), [*leaves, *mechanism.parameters()])))
    assert all(torch.equal(one, other) for one, other in zip(*outputs, strict=True))


def test_nonfinite_query_affects_only_its_row():
    mechanism, (query, key, value) = build_mechanism(), make_inputs()
    clean = mechanism(query, key, value)
    query[0, 1, 2] = torch.nan
    output = mechanism(query.requires_grad_(), key, value)
    affected = torch.zeros_like(output, dtype=torch.bool)
    affected[0, 1, 2] = True
    assert output[affected].isnan().all()
    assert torch.equal(output[~affected], clean[~affected])
    output[~affected].sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in mechanism.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype):
    mechanism, tensors = build_mechanism().to(dtype), [tensor.to(dtype) for tensor in make_inputs()]
    output = mechanism(*tensors)
    assert output.dtype == dtype
    exact = mechanism.double()(*(tensor.double() for tensor in tensors))
    torch.testing.assert_close(output.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_dropout_applies_in_training_only():
    mechanism, tensors = build_mechanism(dropout=0.5), make_inputs()
    assert not torch.equal(mechanism(*tensors), mechanism(*tensors))
    mechanism.eval()
    assert torch.equal(mechanism(*tensors), mechanism(*tensors))


def test_invalid_arguments_are_refused():
    mechanism, (query, key, value) = build_mechanism(), make_inputs()
    with pytest.raises(OptionError, match="window"):
        build_mechanism(window=0)
    with pytest.raises(ShapeError):
        mechanism(query[..., :3], key[..., :3], value)
    assert "window=2" in repr(mechanism)


def test_statistics_of_weights_that_do_not_sum_to_1():
    mechanism, (query, key, value) = build_mechanism(), make_inputs()
    mask = masks.padding(LENGTHS)
    weights = expected_output(mechanism, query, key)
    observation = mechanism.observe(query, key, value, mask, top=2)
    torch.testing.assert_close(observation.output, weights @ value, rtol=0, atol=1e-12)
    torch.testing.assert_close(observation.received, weights.sum(2), rtol=0, atol=1e-12)
    torch.testing.assert_close(observation.top_weights, weights.topk(2).values, rtol=0, atol=1e-12)
    assert observation.entropy is None
    assert observation.lse is None


def test_keys_that_are_hidden_between_others_are_counted():
    """A query can look at the last key that it may see, whatever is hidden before it."""
    mechanism, (query, key, _) = build_mechanism(), make_inputs()
    kept = torch.zeros(KEYS, dtype=torch.bool)
    kept[[1, 2, 9]] = True
    share = mechanism.positions(query, key) / KEYS
    torch.testing.assert_close(mechanism.positions(query, key, masks.keep(kept[None, None, None])), 1 + 9 * share)


def test_initial_positions_vary_as_much_for_any_size():
    """Weights have the deviation 1 / sqrt(head_dim), so hidden components of a position vary as those of a query do."""
    mechanism = LocalPredictive(heads=7, head_dim=64, window=2)
    for parameter in (mechanism.position_weight, mechanism.position_vector):
        assert parameter.std().item() == pytest.approx(1 / 8, rel=0.1)
