"""The scan family: the kernels and plain torch, against the recurrence in float64.

    S_t = D_t S_(t-1) + k_t u_t^T,  o_t = S_t^T q_t,   u_t = v_t or beta_t (v_t - (D_t S_(t-1))^T k_t)

Keys of the delta rule have norm 1 and beta is below 1, so that the state forgets and errors do not grow. An error is
then that of a sum of as many products as a result has: one a channel, and one a token.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from any_threads import assert_same_bits
from kernels.opcheck_cases import parametrize_opcheck
from kernels.scan_inputs import BATCH, HEADS, VARIANTS, Inputs, make_inputs
from regard.conformance.oracles import complex_step
from regard.conformance.oracles import scan as oracle
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.kernels import extension
from regard.kernels.implementations import scan
from regard.kernels.reference import scan as reference_scan
from regard.kernels.reference.scan import ScanRequest, ScanResult
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import explain_choice, select
from sampled_parameters import parametrize_sample

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SIZES = [(1, 3, 5), (2, 1, 1), (5, 7, 13), (17, 64, 64), (63, 16, 33), (64, 64, 31), (65, 5, 97), (131, 37, 64)]
"""length, head_dim, value_dim."""
NAMES = ("query", "key", "value", "log_decay", "beta", "state")


def to_float64(inputs: Inputs) -> Inputs:
    return {name: None if part is None else part.detach().double() for name, part in inputs.items()}


def make_output_gradients(inputs: Inputs):
    """Gradients of the output and of the final state."""
    generator = torch.Generator().manual_seed(7)
    value, state = inputs["value"], inputs["state"]
    return (
        torch.randn(value.shape, generator=generator).to(value.dtype),
        torch.randn(state.shape, generator=generator).to(state.dtype),
    )


def with_gradients(function, inputs: Inputs, dtype: torch.dtype | None = None):
    """Return output, final state, and the gradients by name; computed in ``dtype`` from the numbers of the inputs."""
    leaves = {name: None if part is None else part.detach().to(dtype).requires_grad_() for name, part in inputs.items()}
    output, state = function(**leaves)
    names = [name for name in NAMES if leaves[name] is not None]
    of_output, of_state = (upstream.to(dtype) for upstream in make_output_gradients(inputs))
    gradients = torch.autograd.grad((output, state), [leaves[name] for name in names], (of_output, of_state))
    return output, state, dict(zip(names, gradients, strict=True))


def native(*tokens, **inputs):
    return scan.NATIVE.compute(ScanRequest(*tokens, **inputs))


def scan_tokens(*tokens, **inputs):
    return reference_scan.scan_tokens(ScanRequest(*tokens, **inputs))


def scan_chunks(*tokens, **inputs):
    return reference_scan.scan_chunks(ScanRequest(*tokens, **inputs))


def assert_close(ours: Tensor, expected: Tensor, terms: int, dtype: torch.dtype, largest: float | None = None):
    """Compare with a bound that follows from rounding: ``terms`` in the dtype of sums, and 8 roundings to the dtype."""
    largest = max(1.0, expected.abs().max().item() if expected.numel() else 0.0) if largest is None else largest
    allowed = (terms * torch.finfo(accumulation_dtype(dtype)).eps + 4 * torch.finfo(dtype).eps) * largest
    torch.testing.assert_close(ours.double(), expected.double(), rtol=0, atol=allowed)


def largest_of(gradients) -> float:
    """The largest gradient: those of decays are differences of sums of products of the others."""
    return max(1.0, *(gradient.abs().max().item() for gradient in gradients.values()))


class TestReference:
    @pytest.mark.parametrize("variant", VARIANTS)
    @pytest.mark.parametrize("function", [scan_tokens, scan_chunks])
    def test_agrees_with_the_oracle(self, function, variant):
        inputs = make_inputs(variant)
        output, state = function(**inputs, scale=0.3)
        of_output, of_state = oracle.scan(**numpy_of(inputs), scale=0.3)
        assert_close(output, torch.from_numpy(of_output), 256, torch.float64)
        assert_close(state, torch.from_numpy(of_state), 256, torch.float64)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_gradients_agree_with_the_oracle(self, variant):
        """Along a random direction for each input, by a complex step."""
        inputs = make_inputs(variant, length=13, head_dim=5, value_dim=3)
        *_, gradients = with_gradients(scan_tokens, inputs)
        of_output, of_state = (part.numpy() for part in make_output_gradients(inputs))

        def loss(point):
            output, state = oracle.scan(**point)
            return np.array([(output * of_output).sum() + (state * of_state).sum()])

        point = {name: array for name, array in numpy_of(inputs).items() if array is not None}
        for name, gradient in gradients.items():
            along = np.random.default_rng(3).standard_normal(point[name].shape)
            slope = complex_step.slope(loss, point, name, along)
            actual = float((gradient[..., 0] if name == "beta" else gradient).numpy().ravel() @ along.ravel())
            assert actual == pytest.approx(slope, rel=1e-10, abs=1e-10)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_gradients_of_chunks_equal_those_of_single_tokens(self, variant):
        inputs = make_inputs(variant)
        *_, expected = with_gradients(scan_tokens, inputs)
        *_, actual = with_gradients(scan_chunks, inputs)
        for name in expected:
            assert_close(actual[name], expected[name], 1024, torch.float64, largest_of(expected))

    def test_agrees_with_transformers(self):
        """Which multiplies queries by head_dim^-1/2, and has another order of axes."""
        inputs = make_inputs("gated delta", dtype=torch.float32)
        turned = {name: None if part is None else part.transpose(1, 2) for name, part in inputs.items()}
        output, state = torch_recurrent_gated_delta_rule(
            turned["query"],
            turned["key"],
            turned["value"],
            turned["log_decay"][..., 0],
            turned["beta"][..., 0],
            initial_state=inputs["state"],
            output_final_state=True,
        )
        ours = scan_tokens(**to_float64(inputs), scale=19**-0.5)
        assert_close(output.transpose(1, 2), ours[0], 256, torch.float32)
        assert_close(state, ours[1], 256, torch.float32)


def numpy_of(inputs: Inputs):
    arrays = {name: None if part is None else part.detach().double().numpy() for name, part in inputs.items()}
    if arrays["beta"] is not None:
        arrays["beta"] = arrays["beta"][..., 0]
    return arrays


@pytest.mark.parametrize("variant", VARIANTS)
class TestKernel:
    @parametrize_sample("size, dtype", SIZES, DTYPES, one_in=3)
    @pytest.mark.usefixtures("poison_scratch_memory")
    def test_agrees_with_the_recurrence(self, size, dtype, variant):
        length, head_dim, value_dim = size
        inputs = make_inputs(variant, length, head_dim, value_dim, dtype)
        output, state, gradients = with_gradients(native, inputs)
        of_output, of_state, expected = with_gradients(scan_tokens, inputs, torch.float64)
        terms = length + head_dim + value_dim + 16
        assert output.dtype == dtype
        assert state.dtype == accumulation_dtype(dtype)
        assert_close(output, of_output, terms, dtype)
        assert_close(state, of_state, terms, accumulation_dtype(dtype))
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            assert gradient.dtype == inputs[name].dtype
            assert_close(gradient, expected[name], 2 * terms, gradient.dtype, largest_of(expected))

    def test_default_state_is_0(self, variant):
        inputs = make_inputs(variant, dtype=torch.float32)
        actual = native(**inputs | {"state": None})
        expected = native(**inputs | {"state": torch.zeros_like(inputs["state"])})
        assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))

    @pytest.mark.parametrize("cut", [1, 64, 100])
    def test_the_final_state_continues_a_sequence(self, variant, cut):
        inputs = make_inputs(variant, dtype=torch.float32)
        output, state = native(**inputs)
        parts = []
        carried = inputs["state"]
        for chunk in (slice(0, cut), slice(cut, None)):
            tokens = {name: part if part is None else part[:, :, chunk] for name, part in inputs.items()}
            part, carried = native(**tokens | {"state": carried})
            parts.append(part)
        assert_close(torch.cat(parts, dim=2), output.double(), 256, torch.float32)
        assert_close(carried, state.double(), 256, torch.float32)

    def test_a_scale_multiplies_queries(self, variant):
        inputs = make_inputs(variant)
        actual = with_gradients(partial(native, scale=0.3), inputs)
        expected = with_gradients(partial(scan_tokens, scale=0.3), inputs)
        assert_close(actual[0], expected[0], 256, torch.float64)
        for name, gradient in actual[2].items():
            assert_close(gradient, expected[2][name], 512, torch.float64, largest_of(expected[2]))

    def test_no_tokens(self, variant):
        inputs = make_inputs(variant, length=0, dtype=torch.float32)
        output, state, gradients = with_gradients(native, inputs)
        assert output.shape == (BATCH, HEADS, 0, 37)
        assert torch.equal(state, inputs["state"])
        assert torch.equal(gradients["state"], make_output_gradients(inputs)[1])
        assert all(gradients[name].shape == inputs[name].shape for name in gradients)

    @pytest.mark.parametrize("heads", [1, 3])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_same_bits_with_any_number_of_threads(self, variant, heads, dtype):
        """With fewer heads than threads, value columns are divided among threads, and chunks of the backward pass."""
        inputs = make_inputs(variant, value_dim=67, batch=1, heads=heads, dtype=dtype)

        def compute():
            output, state, gradients = with_gradients(native, inputs)
            return output, state, *gradients.values()

        assert_same_bits(compute, threads=(1, 2, 5, 8))

    def test_same_results_for_any_strides(self, variant):
        inputs = make_inputs(variant, dtype=torch.float32)
        results = []
        for layout in (
            torch.Tensor.contiguous,
            lambda x: x.mT.contiguous().mT,
            lambda x: x.flip(2).contiguous().flip(2),
        ):
            again = {name: None if part is None else layout(part) for name, part in inputs.items()}
            output, state, gradients = with_gradients(native, again)
            results.append((output, state, *gradients.values()))
        spread = {
            name: None if part is None else part.repeat_interleave(2, dim=-1)[..., ::2] for name, part in inputs.items()
        }
        output, state, gradients = with_gradients(native, spread)
        results.append((output, state, *gradients.values()))
        assert all(torch.equal(*pair) for other in results for pair in zip(results[0], other, strict=True))

    def test_gradients_of_some_inputs(self, variant):
        """Upstream gradients of only one result, and inputs without gradients."""
        inputs = make_inputs(variant)
        leaf = inputs["value"].detach().requires_grad_()
        for which in (0, 1):
            upstream = make_output_gradients(inputs)[which]
            (gradient,) = torch.autograd.grad(native(**inputs | {"value": leaf})[which], leaf, upstream)
            (expected,) = torch.autograd.grad(scan_tokens(**inputs | {"value": leaf})[which], leaf, upstream)
            assert_close(gradient, expected, 512, torch.float64)


DECAYS = {
    "of one token": lambda shape: torch.where(torch.arange(shape[2])[:, None] % 29 == 7, -50.0, -0.01),
    "of every token": lambda shape: torch.full((), -50.0),
    "that differ a thousand times": lambda shape: -(10.0 ** torch.linspace(-2, 1.7, shape[2])[:, None].flip(0)),
    "of 0 now and then": lambda shape: torch.where(torch.arange(shape[2])[:, None] % 31 == 3, -math.inf, -0.1),
    "of 1": lambda shape: torch.zeros(()),
    "that hardly differ from 1": lambda shape: torch.full((), -1e-6),
    "of channels": lambda shape: torch.where(torch.arange(shape[3]) % 2 == 0, -30.0, -1e-3),
}


@parametrize_sample(
    "variant, decays, dtype",
    ["decay", "decay of channels", "gated delta", "delta of channels"],
    DECAYS,
    [torch.float32, torch.float64],
)
def test_decays_of_any_size(variant, decays, dtype):
    inputs = make_inputs(variant, dtype=dtype)
    log_decay = inputs["log_decay"]
    inputs["log_decay"] = DECAYS[decays](log_decay.shape).expand(log_decay.shape).to(log_decay.dtype)
    output, state, gradients = with_gradients(native, inputs)
    of_output, of_state, expected = with_gradients(scan_tokens, inputs, torch.float64)
    assert_close(output, of_output, 256, dtype)
    assert_close(state, of_state, 256, dtype)
    for name, gradient in gradients.items():
        assert_close(gradient, expected[name], 512, dtype, largest_of(expected))


@pytest.mark.parametrize("number", [0.1, 0.7])
def test_many_equal_tokens_add_up(number):
    """A sum of n/64 chunks of 64 numbers is rounded once for each chunk and number of one: below (n/64 + 64) 2^-24.

    Added one by one to the state, 16,384 times 0.1 would be off by 1.5e-4, and the gradient likewise.
    """
    length = 16384
    ones = torch.ones(1, 1, length, 1)
    value = torch.full_like(ones, number).requires_grad_()
    output, _ = native(ones, ones, value)
    (gradient,) = torch.autograd.grad(output, value, torch.full_like(ones, number))
    count = torch.arange(1, length + 1, dtype=torch.float64)
    expected = (count * value[0, 0, 0, 0].detach().double()).view(1, 1, -1, 1)
    allowed = (length / 64 + 64) * 2**-24
    assert ((output / expected - 1).abs() <= allowed).all()
    assert ((gradient / expected.flip(2) - 1).abs() <= allowed).all()


@pytest.mark.parametrize("variant", ["decay", "decay of channels"])
def test_strongly_decayed_outputs_are_accurate(variant):
    """The outputs are exp(-t / 4) for a single first token, down to the smallest float32 numbers."""
    length = 257
    log_decay = torch.full((1, 1, length, 1 if variant == "decay" else 4), -0.25)
    key = torch.zeros(1, 1, length, 4)
    key[:, :, 0] = 1.0
    output, _ = native(torch.full_like(key, 0.25), key, torch.ones(1, 1, length, 3), log_decay)
    exact_output = torch.exp(-0.25 * torch.arange(length, dtype=torch.float64))[:, None].expand(-1, 3)
    torch.testing.assert_close(output[0, 0].double(), exact_output, rtol=1e-5, atol=0)


@pytest.mark.parametrize("function", [native, scan_chunks])
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("variant", ["linear", "gated delta", "delta of channels"])
class TestNonfinite:
    """A token with NaN or Inf has no influence on rows before it, and none on other heads."""

    @pytest.mark.parametrize("token", [0, 67, 130])
    def test_has_no_influence_on_earlier_rows(self, function, variant, number, token):
        inputs = make_inputs(variant, dtype=torch.float32)
        cut = {name: part if part is None or name == "state" else part[:, :, :token] for name, part in inputs.items()}
        clean, clean_state = function(**inputs)
        for name in ("key", "value", "beta", "log_decay"):
            if inputs[name] is None or (name == "log_decay" and number == torch.inf):
                continue
            changed = inputs[name].clone()
            changed[0, 1, token, -1] = number
            output, state = function(**inputs | {name: changed})
            assert output[0, 1, token:].isnan().all(), name
            assert state[0, 1].isnan().all()
            before = function(**cut)[0][0, 1]
            torch.testing.assert_close(output[0, 1, :token], before, rtol=1e-5, atol=1e-5)
            assert output[0, 1, :token].isfinite().all()
            for entry, head in ((0, 0), (0, 2), (1, 1)):
                assert torch.equal(output[entry, head], clean[entry, head])
                assert torch.equal(state[entry, head], clean_state[entry, head])

    def test_query_affects_only_its_row(self, function, variant, number):
        inputs = make_inputs(variant, dtype=torch.float32)
        clean, clean_state = function(**inputs)
        query = inputs["query"].clone()
        query[1, 0, 67, 3] = number
        output, state = function(**inputs | {"query": query})
        assert output[1, 0, 67].isnan().all()
        assert torch.equal(state, clean_state)
        output[1, 0, 67] = clean[1, 0, 67]
        assert torch.equal(output, clean)

    def test_gradients_equal_those_of_the_finite_rows(self, function, variant, number):
        inputs, token = make_inputs(variant, dtype=torch.float64), 67
        value = inputs["value"].clone()
        value[0, 1, token, 2] = number
        *_, gradients = with_gradients(function, inputs | {"value": value})
        leaves = {name: part if part is None else part.detach().requires_grad_() for name, part in inputs.items()}
        cut = {name: part if part is None or name == "state" else part[:, :, :token] for name, part in leaves.items()}
        output, _ = scan_tokens(**cut)
        of_output, _ = make_output_gradients(inputs)
        names = list(gradients)
        expected = torch.autograd.grad(output[0, 1], [leaves[name] for name in names], of_output[0, 1, :token])
        for name, gradient in zip(names, expected, strict=True):
            assert_close(gradients[name][0, 1], gradient[0, 1], 512, torch.float64)


class TestOperator:
    @parametrize_opcheck(VARIANTS, default_kinds=("gated delta",))
    def test_passes_opcheck(self, name, utilities, without_shape_checks):
        inputs = make_inputs(name, length=5, head_dim=3, value_dim=2, dtype=torch.float32)
        leaves = [None if part is None else part.requires_grad_() for part in inputs.values()]
        torch.library.opcheck(torch.ops.regard.scan.default, (*leaves, 0.5), test_utils=utilities)

    @parametrize_opcheck(VARIANTS, default_kinds=())
    def test_backward_passes_opcheck(self, name, utilities, without_shape_checks):
        inputs = make_inputs(name, length=5, head_dim=3, value_dim=2, dtype=torch.float32)
        arguments = (*make_output_gradients(inputs), *inputs.values(), 0.5)
        torch.library.opcheck(torch.ops.regard.scan_backward.default, arguments, test_utils=utilities)

    @pytest.mark.parametrize("variant", VARIANTS)
    def test_operator_and_eager_path_give_the_same_bits(self, variant, without_shape_checks):
        inputs = make_inputs(variant, dtype=torch.float32)
        results = []
        for function in (scan.SCAN.torch_op, scan.SCAN.compute_with_grad):
            output, state, gradients = with_gradients(lambda f=function, **parts: f(*parts.values(), 1.0), inputs)
            results.append((output, state, *gradients.values()))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))

    @pytest.mark.parametrize("variant", ["linear", "gated delta", "delta of channels"])
    def test_gradients_agree_with_finite_differences(self, variant, without_shape_checks):
        inputs = make_inputs(variant, length=7, head_dim=3, value_dim=2, batch=1, heads=2)
        names = [name for name, part in inputs.items() if part is not None]
        leaves = [inputs[name].contiguous().requires_grad_() for name in names]
        assert torch.autograd.gradcheck(
            lambda *parts: native(**dict(zip(names, parts, strict=True))), leaves, fast_mode=True
        )

    def test_second_derivatives_are_refused(self, without_shape_checks):
        inputs = make_inputs("gated delta", length=5)
        leaf = inputs["value"].detach().requires_grad_()
        output, _ = native(**inputs | {"value": leaf})
        (first,) = torch.autograd.grad(output.square().sum(), leaf, create_graph=True)
        with pytest.raises(RefusedError, match=r"(?s)no second derivatives.*one backward pass"):
            first.sum().backward()

    def test_sizes_of_0(self):
        for head_dim, value_dim in ((0, 3), (3, 0)):
            inputs = make_inputs("gated delta", 5, head_dim, value_dim, torch.float32)
            output, state, gradients = with_gradients(native, inputs)
            assert output.shape == (BATCH, HEADS, 5, value_dim)
            assert state.shape == (BATCH, HEADS, head_dim, value_dim)
            assert not output.any()
            assert all(not gradient.any() for gradient in gradients.values())
        assert native(*(torch.ones(0, 2, 5, 3) for _ in range(3)))[0].shape == (0, 2, 5, 3)

    def test_no_states_are_saved_for_the_backward_pass(self):
        inputs = make_inputs("gated delta", dtype=torch.float32)
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda same: same):
            native(**inputs | {"value": inputs["value"].requires_grad_()})
        own = {part.data_ptr() for part in inputs.values()}
        assert len(saved) == 6
        assert all(tensor.data_ptr() in own for tensor in saved)


class TestBinding:
    @staticmethod
    def arrays(**change):
        inputs = make_inputs("gated delta", length=5, head_dim=3, value_dim=2, dtype=torch.float32)
        results = {"output": torch.empty_like(inputs["value"]), "final_state": torch.empty_like(inputs["state"])}
        return {**inputs, **results, **change}

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"key": torch.ones(BATCH, HEADS, 5, 4)}, "key: expected shape"),
            ({"value": torch.ones(BATCH, HEADS, 4, 2)}, "value: expected shape"),
            ({"value": torch.ones(BATCH, HEADS, 5, 2).double()}, "value: expected dtype float32, got float64"),
            ({"query": torch.ones(BATCH, HEADS, 5, 3).long()}, "query: expected a floating dtype"),
            ({"log_decay": torch.zeros(BATCH, HEADS, 5, 2)}, "log_decay: expected shape"),
            ({"log_decay": torch.zeros(BATCH, HEADS, 5, 1).double()}, "log_decay: expected dtype float32"),
            ({"beta": torch.zeros(BATCH, HEADS, 5, 3)}, "beta: expected shape"),
            ({"state": torch.zeros(BATCH, HEADS, 2, 3)}, "state: expected shape"),
            ({"output": torch.zeros(BATCH, HEADS, 5, 3)}, "output: expected shape"),
            ({"output": torch.zeros(BATCH, HEADS, 1, 2).expand(-1, -1, 5, -1)}, "output: .* share memory"),
            ({"final_state": torch.zeros(BATCH, HEADS, 3, 2).double()}, "final_state: expected dtype float32"),
            ({"query": torch.ones(1, 1, 1, 1025)}, "query: head_dim is out of range"),
            ({"threads": 0}, "threads: expected at least 1"),
        ],
    )
    def test_mismatched_arguments_are_refused(self, change, message):
        with pytest.raises((ValueError, TypeError), match=message):
            extension.native.scan(**self.arrays(**change))

    def test_every_element_is_written_and_no_other(self):
        for variant in VARIANTS:
            inputs = make_inputs(variant, length=67, head_dim=5, value_dim=7, dtype=torch.float32)
            around = {}

            def framed(shape, name, around=around):
                around[name] = torch.full((math.prod(shape) + 64,), torch.nan)
                return around[name][32:-32].view(shape)

            results = [framed(inputs[name].shape, f"new {name}") for name in ("value", "state")]
            extension.native.scan(*inputs.values(), *results)
            gradients = [None if part is None else framed(part.shape, name) for name, part in inputs.items()]
            extension.native.scan_backward(*make_output_gradients(inputs), *inputs.values(), *gradients)
            for name, whole in around.items():
                assert whole[32:-32].isfinite().all(), name
                assert whole[:32].isnan().all()
                assert whole[-32:].isnan().all()


class TestSelection:
    @staticmethod
    def request(**change):
        inputs = make_inputs("gated delta", dtype=torch.float32)
        return ScanRequest(**inputs | change)

    def test_auto_prefers_the_kernel(self):
        assert explain_choice("scan", self.request()).impl == "native"

    def test_implementations_agree(self):
        for change in ({}, {"log_decay": None}, {"beta": None, "scale": 0.3}):
            request = self.request(**change)
            actual, expected = (select("scan", impl, request).compute(request) for impl in ("native", "reference"))
            assert isinstance(actual, ScanResult)
            assert_close(actual.output, expected.output, 512, torch.float32)
            assert_close(actual.state, expected.state, 512, torch.float32)

    def test_half_precision_is_rounded_once(self):
        inputs = make_inputs("gated delta", dtype=torch.bfloat16)
        request = ScanRequest(**inputs)
        actual, expected = (select("scan", impl, request).compute(request) for impl in ("native", "reference"))
        assert actual.output.dtype == expected.output.dtype == torch.bfloat16
        assert actual.state.dtype == expected.state.dtype == torch.float32
        assert_close(actual.output, expected.output, 0, torch.bfloat16)

    def test_wide_heads_use_the_reference(self):
        wide = torch.randn(1, 1, 3, 1025)
        request = ScanRequest(wide, wide, wide)
        assert explain_choice("scan", request).impl == "reference"
        with pytest.raises(RefusedError, match="at most 1024"):
            select("scan", "native", request)

    @pytest.mark.parametrize("impl", ["native", "reference"])
    def test_a_decay_above_1_is_refused(self, impl):
        decay = torch.zeros(BATCH, HEADS, 131, 1)
        decay[1, 2, 99] = 1e-3
        request = self.request(log_decay=decay)
        with pytest.raises(OptionError, match=r"(?s)log_decay is above 0.*at most 0.*softplus"):
            select("scan", impl, request).compute(request)

    def test_description_of_a_request(self):
        assert "decay one a token, a delta rule" in self.request().describe()
        assert "decay none, no delta rule" in self.request(log_decay=None, beta=None).describe()

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"key": torch.ones(BATCH, HEADS, 131, 3)}, ShapeError),
            ({"log_decay": torch.zeros(BATCH, HEADS, 131, 2)}, ShapeError),
            ({"beta": torch.zeros(BATCH, HEADS, 130, 1)}, ShapeError),
            ({"state": torch.zeros(BATCH, HEADS, 37, 19)}, ShapeError),
            ({"value": torch.zeros(BATCH, HEADS, 131, 37).half()}, DtypeError),
            ({"beta": torch.zeros(BATCH, HEADS, 131, 1).double()}, DtypeError),
        ],
    )
    def test_mismatched_requests_are_refused(self, change, error):
        for impl in (scan.NATIVE, scan.REFERENCE):
            with pytest.raises(error, match=f"{next(iter(change))} does not fit the query"):
                impl.compute(self.request(**change))

    def test_torch_func_uses_the_reference(self, without_shape_checks):
        inputs = make_inputs("gated delta", length=5)

        def loss(value):
            request = ScanRequest(**inputs | {"value": value})
            return select("scan", "auto", request).compute(request).output.square().sum()

        leaf = inputs["value"].detach().requires_grad_()
        (expected,) = torch.autograd.grad(loss(leaf), leaf)
        torch.testing.assert_close(torch.func.grad(loss)(inputs["value"]), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["native", "reference"])
def test_no_digits_are_lost_behind_a_token_that_resets_the_state(name):
    """In float64, against the recurrence in long double: a chunk has many resets, so sums of its decays are large."""
    generator = torch.Generator().manual_seed(0)
    length, head_dim, value_dim = 211, 5, 7
    query, key, value, decay = (
        torch.randn(1, 1, length, size, generator=generator, dtype=torch.float64)
        for size in (head_dim, head_dim, value_dim, 1)
    )
    decay = -torch.nn.functional.softplus(decay)
    decay = decay.masked_fill(torch.rand(decay.shape, generator=generator) < 0.3, -1e5)
    request = ScanRequest(query, key, value, decay)
    found = select("scan", name, request).compute(request).output[0, 0].numpy()
    queries, keys, values, decays = (
        part[0, 0].numpy().astype(np.longdouble) for part in (query, key, value, decay.exp())
    )
    state, expected = np.zeros((head_dim, value_dim), np.longdouble), []
    for token in range(length):
        state = decays[token] * state + np.outer(keys[token], values[token])
        expected.append(queries[token] @ state)
    assert np.abs(found - np.stack(expected)).max() < 1e-15 * np.abs(expected).max()
