"""Mechanisms of the scan family beside the conformance suite: padding, decoding, decays, derivatives, transforms."""

import math

import numpy as np
import pytest
import torch
from torch.func import vmap

import regard
from regard import masks
from regard.conformance.oracles import retention as retention_oracle
from regard.conformance.oracles import state_space
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.mechanisms import LinearState, Retention

BATCH, HEADS, HEAD_DIM, VALUE_DIM = 2, 3, 5, 7
NAMES = pytest.mark.parametrize("name", ["retention", "gated_linear", "mamba2", "gated_delta", "kda"])
SUMS = pytest.mark.parametrize("name", ["linear", "performer"])
IMPLS = pytest.mark.parametrize("impl", ["native", "reference"])


def build(name, **options):
    torch.manual_seed(5)
    extra = {"features": 11} if name == "performer" else {}
    return regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **extra, **options).double()


def make_inputs(mechanism, length, batch=BATCH, dtype=torch.float64):
    """Random query, key, value and extra inputs, by name."""
    generator = torch.Generator().manual_seed(length)
    sizes = {"query": HEAD_DIM, "key": HEAD_DIM, "value": VALUE_DIM}
    sizes |= {one.name: one.size for one in mechanism.extra_inputs}
    shapes = {name: (batch, HEADS, length, size) for name, size in sizes.items()}
    return {name: torch.randn(shape, generator=generator, dtype=dtype) for name, shape in shapes.items()}


def select_tokens(inputs, chosen):
    return {name: tensor[:, :, chosen] for name, tensor in inputs.items()}


@IMPLS
def test_several_chunks_agree_with_the_papers(impl):
    """Longer than two chunks of the kernels."""
    length = 131
    for name in ("mamba2", "gated_delta", "kda"):
        mechanism = build(name, impl=impl)
        inputs = make_inputs(mechanism, length, batch=1)
        allowed = np.arange(length) % 5 != 3
        output = mechanism(**inputs, mask=masks.keep(torch.from_numpy(allowed)[None]))
        last = np.zeros((length, length), dtype=bool)  # the oracle starts each row anew, so a few are compared
        rows = [0, 63, 64, 65, 130]
        last[rows] = allowed
        weights = [weight.detach().numpy() for weight in mechanism.parameters()]
        arrays = {key: tensor.numpy() for key, tensor in inputs.items()}
        expected = (state_space.mamba2 if name == "mamba2" else state_space.gated_delta)(
            *arrays.values(), *weights, last
        )
        np.testing.assert_allclose(output.detach().numpy()[:, :, rows], expected[:, :, rows], rtol=0, atol=1e-11)


@IMPLS
def test_retention_with_other_decays(impl):
    decays = (0.5, 1.0, 0.9375)
    mechanism = build("retention", decays=decays, impl=impl)
    inputs = make_inputs(mechanism, 17)
    expected = retention_oracle.attention(*(one.numpy() for one in inputs.values()), np.array(decays))
    np.testing.assert_allclose(mechanism(**inputs).numpy(), expected, rtol=0, atol=1e-12)


def test_default_decays_of_retention_are_those_of_the_paper():
    assert Retention(heads=4, head_dim=3).decays == (31 / 32, 63 / 64, 127 / 128, 255 / 256)


@pytest.mark.parametrize(
    "decays", [(0.5, 1.5, 0.5), (0.5, 0.0, 0.5), (0.5, math.nan, 0.5), (0.5, "1", 0.5), (0.5,), 0.5, "abc"]
)
def test_decays_above_1_and_other_wrong_decays_are_refused(decays):
    with pytest.raises(OptionError, match=r"(?s)decay.*expected: .*got: .*to do: "):
        Retention(heads=HEADS, head_dim=HEAD_DIM, decays=decays)


@pytest.mark.parametrize("limit", [(1.0, 0.5), (-1.0, 2.0), (1.0,), "ab", None, (math.nan, 1.0)])
def test_wrong_time_step_limits_are_refused(limit):
    with pytest.raises(OptionError, match=r"(?s)time_step_limit.*expected: two numbers"):
        build("mamba2", time_step_limit=limit)


def test_time_steps_are_limited():
    mechanism, limited = build("mamba2"), build("mamba2", time_step_limit=(0.5, 0.5))
    inputs = make_inputs(mechanism, 7)
    with torch.no_grad():
        mechanism.step_bias.zero_()
    inputs["time_step"] = torch.full_like(inputs["time_step"], math.log(math.exp(0.5) - 1.0))
    torch.testing.assert_close(limited(**make_inputs(mechanism, 7)), mechanism(**inputs))


@NAMES
@IMPLS
def test_without_extra_inputs(name, impl):
    """Nothing decays, and with the delta rule the value of a key is replaced: a key finds its own value again."""
    mechanism = build(name, impl=impl)
    inputs = make_inputs(mechanism, 7)
    query, key, value = inputs["query"], inputs["key"], inputs["value"]
    output = mechanism(query, key, value)
    assert output.isfinite().all()
    if name in ("gated_delta", "kda"):
        found = mechanism(key, key, value) * HEAD_DIM**0.5
        torch.testing.assert_close(found, value, rtol=0, atol=1e-4)  # up to the epsilon of the norm
    if name == "gated_linear":
        expected = regard.mechanism("retention", heads=HEADS, head_dim=HEAD_DIM, decays=[1.0] * HEADS)
        torch.testing.assert_close(output, expected(query, key, value))


@NAMES
@IMPLS
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_equals_its_absence(name, impl, side):
    mechanism = build(name, impl=impl)
    inputs = make_inputs(mechanism, 71)
    hidden = {"left": torch.arange(71) < 5, "right": torch.arange(71) >= 66, "between": torch.arange(71) % 3 == 1}[side]
    shown = torch.where(~hidden)[0]
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    output = mechanism(**leaves, mask=masks.keep(~hidden[None]))[:, :, shown]
    others = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    expected = mechanism(**select_tokens(others, shown))
    torch.testing.assert_close(output, expected, rtol=0, atol=1e-11)
    upstream = torch.randn(output.shape, dtype=output.dtype)
    gradients = torch.autograd.grad(output, list(leaves.values()), upstream)
    wanted = torch.autograd.grad(expected, list(others.values()), upstream)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
        assert not one[:, :, hidden].any()


@NAMES
@IMPLS
def test_nonfinite_tokens_affect_only_later_rows(name, impl):
    mechanism = build(name, impl=impl)
    inputs = make_inputs(mechanism, 71)
    exact = mechanism(**inputs)
    for changed in inputs:
        for number in (torch.nan, torch.inf, -torch.inf):
            broken = inputs | {changed: inputs[changed].clone()}
            broken[changed][1, 2, 66, 0] = number
            output = mechanism(**broken)
            others = torch.ones(BATCH, HEADS, 71, dtype=torch.bool)
            others[1, 2, 66 : 67 if changed == "query" else None] = False
            assert torch.equal(output[others], exact[others]), (changed, number)
            assert output[~others].isnan().all()


@NAMES
def test_steps_equal_the_whole_sequence(name):
    mechanism = build(name)
    inputs = make_inputs(mechanism, 9)
    mask = masks.causal() & masks.padding([9, 7], side="left")
    whole, parts, state = mechanism(**inputs, mask=mask), [], mechanism.empty_state()
    for first, stop in ((0, 3), (3, 4), (4, 5), (5, 9)):
        shown = masks.causal() & masks.keep((torch.arange(stop) >= torch.tensor([[0], [2]]))[:, None, None])
        part, state = mechanism.step(**select_tokens(inputs, slice(first, stop)), state=state, mask=shown)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=0, atol=1e-12)
    assert isinstance(state, LinearState)
    assert tuple(state.sums.shape) == (BATCH, HEADS, HEAD_DIM, VALUE_DIM)
    assert state.length == 9


@NAMES
def test_a_reordered_state_continues_other_sequences(name):
    mechanism = build(name)
    inputs, more = make_inputs(mechanism, 5), make_inputs(mechanism, 3)
    _, state = mechanism.step(**inputs, state=mechanism.empty_state())
    output, _ = mechanism.step(**more, state=state.reordered(torch.tensor([1, 0])))
    joined = {key: torch.cat([tensor.flip(0), more[key]], dim=2) for key, tensor in inputs.items()}
    torch.testing.assert_close(output, mechanism(**joined)[:, :, 5:], rtol=0, atol=1e-12)


def test_a_state_remembers_what_was_not_finite():
    mechanism = build("gated_delta")
    inputs = make_inputs(mechanism, 5)
    inputs["beta"][0, 1, 2] = torch.nan
    _, state = mechanism.step(**inputs, state=mechanism.empty_state())
    output, _ = mechanism.step(**make_inputs(mechanism, 1), state=state)
    assert output[0, 1].isnan().all()
    output[0, 1] = 0.0
    assert output.isfinite().all()


def test_steps_that_do_not_fit_are_refused():
    mechanism = build("kda")
    inputs = make_inputs(mechanism, 5)
    _, state = mechanism.step(**inputs, state=mechanism.empty_state())
    more = make_inputs(mechanism, 2)
    with pytest.raises(RefusedError, match="each new query needs a new key"):
        mechanism.step(**more | {"query": inputs["query"]}, state=state)
    with pytest.raises(RefusedError, match="each new query needs a new key"):
        mechanism.step(**more, state=state, mask=masks.causal(align="start"))
    with pytest.raises(ShapeError, match="do not fit the state"):
        mechanism.step(**make_inputs(mechanism, 2, batch=1), state=state)
    with pytest.raises(OptionError, match="not a state of KimiDelta"):
        mechanism.step(**more, state=regard.mechanism("dot_product", heads=HEADS, head_dim=HEAD_DIM).empty_state())


def test_the_state_is_all_that_a_layer_caches():
    torch.manual_seed(3)
    layer = regard.MultiHeadAttention(12, HEADS, mechanism="kda").double()
    text = torch.randn(BATCH, 7, 12, dtype=torch.float64)
    whole, parts, cache = layer(text), [], layer.empty_cache()
    for part in text.split(1, dim=1):
        output, cache = layer(part, mask=masks.causal(), cache=cache)
        parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-12)
    assert tuple(cache.sums.shape) == (BATCH, HEADS, 4, 4)


@NAMES
def test_a_model_decodes_with_it(name):
    from regard.models import Transformer, TransformerConfig

    torch.manual_seed(3)
    config = TransformerConfig(
        vocabulary=11, width=12, layers=1, heads=3, inner=7, mechanism="dot_product", decoder_mechanism=name
    )
    model = Transformer(config).eval()
    source, target = torch.randint(3, 11, (2, 5)), torch.randint(3, 11, (2, 4))
    exact, state = model(source, target).logits, model.start(source)
    for place in range(4):
        logits, state = model.step(target[:, place], state)
        torch.testing.assert_close(logits, exact[:, place], rtol=0, atol=1e-5)


@NAMES
def test_weights_are_differentiable(name):
    mechanism = build(name)
    inputs = {key: one.requires_grad_() for key, one in make_inputs(mechanism, 4, batch=1).items() if key != "value"}
    assert torch.autograd.gradcheck(
        lambda *tensors: mechanism.weights(**dict(zip(inputs, tensors, strict=True))),
        tuple(inputs.values()),
        fast_mode=True,
    )


@pytest.mark.parametrize("name", ["retention", "gated_linear", "mamba2", "gated_delta", "kda", "linear", "performer"])
def test_second_derivatives(name, without_shape_checks):
    """Plain torch has them; the kernels refuse, and "auto" takes the kernels."""
    mechanism = build(name, impl="reference")
    inputs = {key: one.requires_grad_() for key, one in make_inputs(mechanism, 3, batch=1).items()}

    def output(*tensors):
        return mechanism(**dict(zip(inputs, tensors, strict=True)), mask=masks.causal())

    assert torch.autograd.gradgradcheck(output, tuple(inputs.values()), fast_mode=True)
    for impl in ("native", "auto"):
        mechanism.impl = impl
        (first,) = torch.autograd.grad(output(*inputs.values()).square().sum(), inputs["value"], create_graph=True)
        with pytest.raises(RefusedError, match=r'(?s)no second derivatives.*use impl="reference"'):
            first.sum().backward()


@pytest.mark.parametrize("name", ["gated_delta", "mamba2", "linear", "performer"])
def test_vmap_agrees(name, without_shape_checks):
    mechanism = build(name)
    inputs = make_inputs(mechanism, 7)

    def output(tensors):
        return mechanism(**{key: one[None] for key, one in tensors.items()}, mask=masks.causal())[0]

    torch.testing.assert_close(vmap(output)(inputs), mechanism(**inputs, mask=masks.causal()), rtol=0, atol=1e-12)


@SUMS
def test_implementations_of_feature_sums_agree(name):
    """Over several chunks, with keys that are left out, and from a state."""
    results = []
    for impl in ("native", "reference"):
        mechanism = build(name, impl=impl)
        inputs = make_inputs(mechanism, 131)
        leaves = {key: one.clone().requires_grad_() for key, one in inputs.items()}
        mask = masks.causal() & masks.padding([131, 90])
        output = mechanism(**leaves, mask=mask)
        gradients = torch.autograd.grad(output, list(leaves.values()), inputs["value"])
        _, state = mechanism.step(**inputs, state=mechanism.empty_state(), mask=mask)
        step, _ = mechanism.step(**make_inputs(mechanism, 67), state=state, mask=masks.causal())
        results.append((output.detach(), *gradients, step))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@SUMS
def test_blocks_of_features_agree(name, monkeypatch):
    from regard.mechanisms import feature_mechanism

    mechanism = build(name)
    inputs = {key: one.requires_grad_() for key, one in make_inputs(mechanism, 150).items()}
    results = []
    for size in (2**20, 1):
        monkeypatch.setattr(feature_mechanism, "_BLOCK", size)
        for mask in (masks.causal(), None):
            output = mechanism(**inputs, mask=mask)
            results.append((output, *torch.autograd.grad(output.sum(), list(inputs.values()))))
    for one, other in zip(results[:2], results[2:], strict=True):
        for part, expected in zip(one, other, strict=True):
            torch.testing.assert_close(part, expected, rtol=0, atol=1e-11)


def test_small_features_of_linear_attention_differ_in_double_precision():
    """phi(x) = exp(x) below 0: keys far below 0 keep their ratio."""
    mechanism = regard.mechanism("linear", heads=1, head_dim=1)
    key = torch.tensor([-80.0, -70.0], dtype=torch.float64).view(1, 1, 2, 1).requires_grad_()
    weights = mechanism.weights(torch.ones(1, 1, 1, 1, dtype=torch.float64), key)
    expected = torch.tensor([1 / (1 + math.exp(10)), 1 / (1 + math.exp(-10))], dtype=torch.float64)
    torch.testing.assert_close(weights[0, 0, 0], expected)
    torch.testing.assert_close(
        torch.autograd.grad(weights[0, 0, 0, 0], key)[0].flatten(), expected.prod() * torch.tensor([1.0, -1.0]).double()
    )


@pytest.mark.parametrize("channels", [1, HEAD_DIM])
@IMPLS
def test_a_decay_of_0_has_a_gradient_of_0(impl, channels):
    """The decay's rate is multiplied by its logarithm, however large that is: rounding must not be left of the sum."""
    from regard.kernels.implementations.scan import NATIVE, REFERENCE
    from regard.kernels.reference.scan import ScanRequest

    torch.manual_seed(7)
    query, key, value, weight = (torch.randn(1, 2, 131, HEAD_DIM) for _ in range(4))
    log_decay = torch.full((1, 2, 131, channels), -0.01)
    log_decay[:, :, ::8] = -1e4
    log_decay.requires_grad_()
    computed = {"native": NATIVE, "reference": REFERENCE}[impl].compute(ScanRequest(query, key, value, log_decay))
    (computed.output * weight).sum().backward()
    assert (log_decay.grad[:, :, ::8] == 0).all()
    assert (log_decay.grad[:, :, 1::8] != 0).any()


NSA = {"block": 8, "compressed_block": 8, "stride": 4, "window": 5}
WIDE_CASES = [
    *(
        (name, {"impl": impl})
        for name in ("gated_linear", "mamba2", "gated_delta", "kda")
        for impl in ("native", "reference")
    ),
    ("forgetting", {}),
    ("nsa", NSA),
]
"""Mechanisms with gates and decays of each token."""


@pytest.mark.parametrize(("name", "options"), WIDE_CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_gates_beside_half_precision_are_not_rounded(name, options, dtype):
    """A decay that is rounded to half compounds: the sums are those of the same numbers in float32, rounded once."""
    mechanism = build(name, **options).float()
    inputs = make_inputs(mechanism, 131, dtype=torch.float32)
    narrow = {
        side: tensor.to(dtype) if side in ("query", "key", "value") else tensor for side, tensor in inputs.items()
    }
    wide = {side: tensor.float() for side, tensor in narrow.items()}
    rounded = {side: tensor.to(dtype) for side, tensor in narrow.items()}
    upstream = torch.randn(BATCH, HEADS, 131, VALUE_DIM, generator=torch.Generator().manual_seed(3)).to(dtype)
    outputs, gradients = [], []
    for sides in (narrow, wide, rounded):
        leaves = {side: tensor.clone().requires_grad_() for side, tensor in sides.items()}
        output = mechanism(**leaves, mask=masks.causal())
        outputs.append(output.detach())
        gradients.append(torch.autograd.grad(output, list(leaves.values()), upstream.to(output.dtype)))
    assert outputs[0].dtype == dtype
    assert torch.equal(outputs[0], outputs[1].to(dtype))
    assert not torch.equal(outputs[0], outputs[2])
    for (side, tensor), own, other in zip(narrow.items(), *gradients[:2], strict=True):
        assert own.dtype == tensor.dtype, side
        assert torch.equal(own, other.to(own.dtype)), side


@pytest.mark.parametrize(("name", "options"), WIDE_CASES)
def test_steps_take_float32_gates_beside_half_precision(name, options):
    mechanism = build(name, **options).float()
    inputs = {
        side: tensor.bfloat16() if side in ("query", "key", "value") else tensor
        for side, tensor in make_inputs(mechanism, 13, dtype=torch.float32).items()
    }
    whole, state, parts = mechanism(**inputs, mask=masks.causal()), mechanism.empty_state(), []
    for token in range(13):
        step = select_tokens(inputs, slice(token, token + 1))
        output, state = mechanism.step(**step, state=state, mask=masks.causal())
        parts.append(output)
    torch.testing.assert_close(torch.cat(parts, dim=2), whole, rtol=2**-7, atol=2**-7)
    assert (
        mechanism.weights(**{side: tensor for side, tensor in inputs.items() if side != "value"}).dtype == torch.float32
    )


def test_other_dtypes_of_gates_are_refused():
    mechanism = build("gated_delta").float()
    inputs = make_inputs(mechanism, 5, dtype=torch.float32)
    for tokens, gates in (
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float16),
        (torch.bfloat16, torch.float64),
    ):
        sides = {side: one.to(tokens if side in ("query", "key", "value") else gates) for side, one in inputs.items()}
        with pytest.raises(DtypeError, match=r"(?s)beta.*expected: .*got: .*to do: "):
            mechanism(**sides)


@pytest.mark.parametrize("temperature", [0.25, 1.0, 16.0])
def test_gates_decay_by_the_temperature(temperature):
    """Yang et al. 2024, section 4: alpha = sigmoid(forget)^(1 / temperature)."""
    mechanism = build("gated_linear", temperature=temperature)
    inputs = make_inputs(mechanism, 2, batch=1)
    gate = inputs["forget"].sigmoid() ** (1 / temperature)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    state = (gate[:, :, 1] * key[:, :, 0])[..., None] * value[:, :, 0, None] + key[:, :, 1, :, None] * value[
        :, :, 1, None
    ]
    expected = (query[:, :, 1, None] @ state)[:, :, 0] / HEAD_DIM**0.5
    torch.testing.assert_close(mechanism(**inputs)[:, :, 1], expected)
    with pytest.raises(OptionError, match="temperature"):
        build("gated_linear", temperature=0.0)
