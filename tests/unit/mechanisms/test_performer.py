"""Performer: the distribution of the features, convergence, numbers of any size, decoding, redrawing, both kernels."""

import math

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import performer as oracle
from regard.errors import OptionError, ShapeError
from regard.mechanisms import Performer
from regard.mechanisms.performer import draw_features

BATCH, HEADS, HEAD_DIM = 2, 3, 8


def make_inputs(queries, keys=None, *, size=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(queries)
    lengths = (queries, *[queries if keys is None else keys] * 2)
    return [size * torch.randn(BATCH, HEADS, n, HEAD_DIM, generator=generator, dtype=dtype) for n in lengths]


def build(**options):
    return Performer(**{"heads": HEADS, "head_dim": HEAD_DIM, "features": 29, "seed": 3, **options}).double()


def softmax_attention(query, key, value):
    return (query @ key.mT * HEAD_DIM**-0.5).softmax(-1) @ value


def exact_weights(query, key, projection, causal):
    """Compute the weights in float64 from logarithms, which are right for numbers of any size."""
    query, key, projection = (one.double() for one in (query, key, projection))
    scale = HEAD_DIM**-0.25
    products = [scale * one @ projection.mT for one in (query, key)]
    of_key = products[1] - scale**2 * key.square().sum(-1, keepdim=True) / 2
    kernel = (products[0][:, :, :, None] + of_key[:, :, None]).logsumexp(-1)
    if causal:
        kernel = kernel.masked_fill(~torch.ones(kernel.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return kernel.softmax(-1)


def draw_many(count):
    """Draw ``count`` blocks of orthogonal features."""
    generator = torch.Generator().manual_seed(11)
    return draw_features(count * HEAD_DIM, HEAD_DIM, generator).unflatten(0, (count, HEAD_DIM))


def kernel_estimates(draws, query, key):
    """The estimates of exp(q . k / sqrt(head_dim)) by each draw."""
    of_query, of_key = (oracle.softmax_features(one, draws.flatten(0, 1).numpy()) for one in (query, key))
    return (of_query * of_key).reshape(draws.shape[:2]).sum(1) * len(draws)


def test_blocks_are_orthogonal_and_each_vector_is_normal():
    drawn = draw_features(3 * HEAD_DIM + 3, HEAD_DIM, torch.Generator().manual_seed(1))
    for block in drawn.split(HEAD_DIM):
        products = block @ block.mT
        assert (products - products.diagonal().diag()).abs().max() < 1e-12
    draws = draw_many(4000)
    for vectors in draws.unbind(1):  # the mean of n squares of normal numbers has a standard deviation of sqrt(2/n)
        covariance = vectors.mT @ vectors / len(vectors)
        assert (covariance - torch.eye(HEAD_DIM)).abs().max() < 5 * math.sqrt(2 / len(vectors))
        assert vectors.mean(0).abs().max() < 5 * math.sqrt(1 / len(vectors))
    lengths = draws.square().sum(-1).flatten()  # chi squared, with variance 2 head_dim
    assert abs(float(lengths.var()) / (2 * HEAD_DIM) - 1) < 0.1


def test_kernel_estimates_are_unbiased():
    query, key = 0.5 * np.random.default_rng(5).normal(size=(2, HEAD_DIM))
    estimates = kernel_estimates(draw_many(40_000), query, key)
    exact, error = np.exp(query @ key / np.sqrt(HEAD_DIM)), estimates.std() / np.sqrt(len(estimates))
    assert abs(estimates.mean() - exact) < 4 * error
    assert error < 0.01 * exact


def test_orthogonal_features_have_less_variance_than_independent_ones():
    """By at least the difference that theorem 2 of the paper states."""
    query = 0.5 * np.random.default_rng(6).normal(size=HEAD_DIM)
    query *= 0.5 * HEAD_DIM**0.25 / np.linalg.norm(query)  # |x + y|^2 = 1 after scaling by head_dim^(-1/4)
    shape, generator = (40_000, HEAD_DIM, HEAD_DIM), torch.Generator().manual_seed(2)
    independent = torch.randn(shape, dtype=torch.float64, generator=generator)
    apart, together = (kernel_estimates(one, query, query).var() for one in (independent, draw_many(40_000)))
    exact, norms = np.exp(0.25), 0.25  # exp(x . y), and (|x|^2 + |y|^2) / 2
    least = 2 * (HEAD_DIM - 1) / (HEAD_DIM * (HEAD_DIM + 2)) * (exact - np.exp(-norms)) ** 2
    noise = 0.05 * apart
    assert apart == pytest.approx(exact**2 * (np.exp(1) - 1) / HEAD_DIM, abs=noise)
    assert together < apart - least + noise
    assert together < 0.95 * apart


def test_error_decreases_with_the_root_of_the_number_of_features():
    """Against exact attention, as the standard deviation of a mean of ``features`` independent numbers does."""
    query, key, value = make_inputs(23, size=0.5)
    exact, counts = softmax_attention(query, key, value), (64, 256, 1024, 4096)
    errors = [
        np.mean([(build(features=n, seed=seed)(query, key, value) - exact).square().mean() for seed in range(24)])
        ** 0.5
        for n in counts
    ]
    slope = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    assert -0.6 < slope < -0.4, errors
    assert errors[-1] < 0.05


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kernel", ["softmax", "relu"])
def test_several_chunks_agree_with_the_paper(kernel, causal):
    mechanism, (query, key, value) = build(kernel=kernel), make_inputs(131)
    allowed = np.tri(131, dtype=bool) if causal else None
    features = {"softmax": oracle.softmax_features, "relu": oracle.relu_features}[kernel]
    inputs = (one.numpy() for one in (query, key, value, mechanism.projection))
    expected = oracle.attention(*inputs, allowed, features)[0]
    output = mechanism(query, key, value, masks.causal() if causal else None)
    np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("size", [1.0, 4.0, 12.0])
def test_large_tokens_neither_overflow_nor_vanish(size, causal):
    """The exponentials of the last size range over e^800, and float32 over e^176."""
    mechanism, (query, key, value) = build().float(), make_inputs(150, size=size, dtype=torch.float32)
    key[:, :, :70] *= 3.0  # the first keys weigh next to nothing, until a causal query sees nothing else
    expected = exact_weights(query, key, mechanism.projection, causal) @ value.double()
    leaves = [one.requires_grad_() for one in (query, key, value)]
    output = mechanism(*leaves, masks.causal() if causal else None)
    # An exponent x of float32 is known to x * 2^-24; the quotient of two sums of positive numbers has their error.
    exponents = float((key.detach().norm(dim=-1) * mechanism.projection.norm(dim=-1).max()).max()) * 2
    allowed = 4 * exponents * 2.0**-24 * float(value.detach().abs().max())
    far = torch.zeros_like(output[..., :1], dtype=torch.bool)
    if size > 1:  # the floor decides where all keys are e^41 away from a query
        far = _is_near_the_floor(query.detach(), key.detach(), mechanism.projection, causal)[..., None]
    assert output.isfinite().all()
    assert ((output - expected).abs().masked_fill(far, 0.0)).max() < allowed
    assert far.float().mean() < 0.5
    output.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def _is_near_the_floor(query, key, projection, causal):
    """Queries all of whose products with the key of largest weight are within 2^20 of the floor."""
    scale = HEAD_DIM**-0.25
    of_query, of_key = (scale * one.double() @ projection.double().mT for one in (query, key))
    log_weight = of_key.amax(-1) - scale**2 * key.double().square().sum(-1) / 2
    pairs = (of_query.log_softmax(-1)[:, :, :, None] + (of_key - of_key.amax(-1, keepdim=True))[:, :, None]).logsumexp(
        -1
    )
    weighed = pairs + log_weight[:, :, None]
    hidden = torch.zeros(weighed.shape[-2:], dtype=torch.bool)
    if causal:
        hidden = ~torch.ones_like(hidden).tril()
    weighed = weighed.masked_fill(hidden, -torch.inf)
    floors = log_weight[:, :, None].expand_as(weighed).masked_fill(hidden, -torch.inf).amax(-1) - 60 * math.log(2)
    return weighed.amax(-1) < floors + 20 * math.log(2)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("poison", [torch.nan, torch.inf, 3e38, 30.0])
def test_later_keys_change_no_bit_of_earlier_causal_rows(kernel, poison):
    mechanism, (query, key, value) = build(kernel=kernel).float(), make_inputs(200, dtype=torch.float32)
    before = mechanism(query, key, value, masks.causal())
    for place in (65, 150):
        changed = [one.clone() for one in (query, key, value)]
        for one in changed:
            one[:, :, place:] = poison
        after = mechanism(*changed, masks.causal())
        assert torch.equal(after[:, :, :place], before[:, :, :place])
        assert after[:, :, place:].isnan().all() == (poison != 30.0)


@pytest.mark.parametrize("kernel", ["softmax", "relu"])
@pytest.mark.parametrize("size", [1.0, 5.0])
def test_steps_equal_the_whole_sequence(kernel, size):
    mechanism, (query, key, value) = build(kernel=kernel), make_inputs(90, size=size)
    mask = masks.causal() & masks.padding([90, 80])
    whole, state, parts = mechanism(query, key, value, mask), mechanism.empty_state(), []
    for start, end in ((0, 70), (70, 71), (71, 72), (72, 90)):
        seen = masks.causal() & masks.padding([min(end, 90), min(end, 80)])
        new = (one[:, :, start:end] for one in (query, key, value))
        part, state = mechanism.step(*new, state, seen)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)
    assert state.sums.shape == (BATCH, HEADS, 29, HEAD_DIM + 1)
    swapped = state.reordered(torch.tensor([1, 0]))
    last = [one[[1, 0], :, -1:] for one in (query, key, value)]
    expected = mechanism.step(*(one[:, :, -1:] for one in (query, key, value)), state)[0]
    torch.testing.assert_close(mechanism.step(*last, swapped)[0], expected[[1, 0]], rtol=0, atol=1e-13)


def test_state_of_other_features_is_refused():
    tokens = torch.randn(1, HEADS, 2, HEAD_DIM, dtype=torch.float64)
    _, state = build().step(tokens, tokens, tokens, build().empty_state())
    with pytest.raises(ShapeError, match="do not fit the state"):
        build(features=31).step(tokens, tokens, tokens, state)


def test_features_come_from_the_seed_and_are_saved():
    assert torch.equal(build(seed=5).projection, build(seed=5).projection)
    assert not torch.equal(build(seed=5).projection, build(seed=6).projection)
    torch.manual_seed(1)
    first = build(seed=None)
    second = build(seed=None)
    assert not torch.equal(first.projection, second.projection)
    second.load_state_dict(first.state_dict())
    tokens = make_inputs(7)
    assert torch.equal(first(*tokens), second(*tokens))
    torch.manual_seed(1)
    assert torch.equal(build(seed=None).projection, first.projection)


def test_redrawing_features():
    mechanism, tokens = build(), [one.requires_grad_() for one in make_inputs(7)]
    before = mechanism(*tokens)
    mechanism.redraw(9)
    before.sum().backward()  # with the features of its forward pass
    redrawn = mechanism.projection
    torch.testing.assert_close(redrawn, build(seed=9).projection, rtol=0, atol=1e-6)  # those were rounded to float32
    assert not torch.equal(mechanism(*tokens), before)
    mechanism.redraw()
    assert not torch.equal(mechanism.projection, redrawn)
    mechanism.redraw(9)
    assert torch.equal(mechanism.projection, redrawn)
    assert mechanism.projection.dtype == torch.float64


@pytest.mark.parametrize(("head_dim", "features"), [(1, 1), (2, 1), (7, 13), (64, 266)])
def test_default_number_of_features_is_d_log_d(head_dim, features):
    mechanism = Performer(heads=1, head_dim=head_dim)
    assert mechanism.projection.shape == (features, head_dim)
    tokens = torch.randn(1, 1, 5, head_dim)
    assert mechanism(tokens, tokens, tokens).isfinite().all()


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options", [{"features": 0}, {"features": 2.5}, {"kernel": "elu"}, {"seed": -1}, {"seed": "a"}]
)
def test_invalid_options_are_refused(options):
    with pytest.raises(OptionError):
        build(**options)


def test_weights_sum_to_1():
    mechanism, (query, key, _) = build(), make_inputs(9)
    weights = mechanism.weights(query, key, mask=masks.causal())
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, 9, dtype=torch.float64))
    torch.testing.assert_close(weights, exact_weights(query, key, mechanism.projection, True), rtol=0, atol=1e-12)


def test_saved_layer_is_loaded_with_its_features(tmp_path):
    config = regard.models.TransformerConfig(
        vocabulary=11, width=12, layers=1, heads=3, inner=7, mechanism="performer", mechanism_options={"features": 5}
    )
    model = regard.models.Transformer(config).eval()
    model.save(tmp_path / "model")
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    again = regard.load(tmp_path / "model")
    assert torch.equal(again(source, target).logits, model(source, target).logits)
    state, logits = again.start(source), []
    for place in range(4):
        part, state = again.step(target[:, place], state)
        logits.append(part)
    torch.testing.assert_close(torch.stack(logits, 1), model(source, target).logits, rtol=0, atol=1e-5)


def test_gradients_of_keys_are_mapped_by_torch_func():
    mechanism, (query, _, value) = build(impl="reference"), make_inputs(9)
    keys = torch.randn(3, BATCH, HEADS, 9, HEAD_DIM, dtype=torch.float64)

    def total(key):
        return mechanism(query, key, value, masks.causal()).square().sum()

    mapped = torch.func.vmap(torch.func.grad(total))(keys)
    torch.testing.assert_close(mapped, torch.stack([torch.func.grad(total)(key) for key in keys]))
