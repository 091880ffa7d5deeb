"""impl "native" through the public API: calls that it refuses or leaves to others, dropout, threads, memory."""

import os

import pytest
import torch

import regard
from any_threads import assert_same_bits
from regard import masks, positions
from regard.conformance.oracles import attention as oracle
from regard.errors import RefusedError
from regard.kernels import extension
from script_process import run_script

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 67, 71, 5, 13


def tensors(dtype=torch.float32, queries=QUERIES, keys=KEYS, head_dim=HEAD_DIM, value_dim=VALUE_DIM):
    generator = torch.Generator().manual_seed(41)
    shapes = ((HEADS, queries, head_dim), (KEY_HEADS, keys, head_dim), (KEY_HEADS, keys, value_dim))
    return [torch.randn(BATCH, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def attend(*inputs, **options):
    return regard.attention(*inputs, **options, impl="native")


def output_and_gradients(output, leaves):
    """Return the output, and the input gradients for an output gradient of ones."""
    return [output, *torch.autograd.grad(output.sum(), leaves)]


def equal_bits(first, second):
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


# Half precision


@pytest.mark.parametrize("impl", ["forward", "observe"])
def test_rounding_of_the_output_does_not_bias_gradients(impl):
    """If all keys are equal, the weights are equal for any query, and the query's gradient is 0.

    The usual delta_i = dO_i . o_i uses the rounded output, and then has an error of eps of float16.
    """
    query, key, value = tensors(torch.float16)
    equal_keys = key[:, :, :1].detach().expand_as(key)
    if impl == "forward":
        output = attend(query, equal_keys, value)
    else:
        output = regard.observe(query, equal_keys, value, impl="native").output
    (gradient,) = torch.autograd.grad(output, query, torch.ones_like(output))
    # delta and each D are sums, in float32, of VALUE_DIM products below 4; they are multiplied with numbers below 4.
    assert gradient.abs().max() <= VALUE_DIM * 4 * 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("impl", ["forward", "observe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_values_are_returned_exactly(dtype, impl):
    """Weights add up to 1, also after rounding for multiplication. For equal values the gradient of scores is 0."""
    query, key, value = tensors(dtype)
    equal_values = value[:, :, :1].detach().expand_as(value)
    output = (
        attend(query, key, equal_values)
        if impl == "forward"
        else regard.observe(query, key, equal_values, impl="native").output
    )
    expected = equal_values[:, :, :1].repeat_interleave(HEADS // KEY_HEADS, dim=1).expand_as(output)
    # A float32 this close to a half-precision number is rounded to it.
    close = 4 * KEYS * torch.finfo(torch.float32).eps if dtype == torch.float32 else 0
    torch.testing.assert_close(output, expected, rtol=0, atol=close)
    (gradient,) = torch.autograd.grad(output, query, torch.ones_like(output))
    assert gradient.abs().max() <= VALUE_DIM * 4 * 4 * torch.finfo(torch.float32).eps  # as above


@pytest.mark.parametrize(("queries", "head_dim", "value_dim"), [(1, 576, 512), (67, 576, 512), (67, 257, 640)])
def test_wide_heads_and_their_gradients(queries, head_dim, value_dim):
    """One key head of 576 numbers with values of 512 are the sizes of absorbed latent attention."""
    leaves = [part.requires_grad_() for part in tensors(queries=queries, head_dim=head_dim, value_dim=value_dim)]
    wide = [part.detach().double().requires_grad_() for part in leaves]
    upstream = torch.randn(*leaves[0].shape[:3], value_dim)
    output = attend(*leaves, mask=masks.causal())
    exact = regard.attention(*wide, mask=masks.causal(), impl="reference")
    pairs = [(output, exact)]
    pairs += zip(
        torch.autograd.grad(output, leaves, upstream), torch.autograd.grad(exact, wide, upstream.double()), strict=True
    )
    terms = head_dim + value_dim + KEYS * queries
    for ours, expected in pairs:
        bound = terms * torch.finfo(torch.float32).eps * max(1.0, float(expected.detach().abs().max()))
        torch.testing.assert_close(ours.double(), expected, rtol=0, atol=bound)


# Refusals


@pytest.mark.parametrize(
    ("make_inputs", "reason"),
    [
        (lambda: tensors(head_dim=641), "at most 640.*641 and 13"),
        (lambda: tensors(value_dim=643), "at most 640.*5 and 643"),
        (lambda: [tensor.to("meta") for tensor in tensors()], "on a CPU.*meta"),
    ],
)
def test_unsupported_inputs_are_refused(make_inputs, reason, without_shape_checks):
    with pytest.raises(RefusedError, match=f"(?s)'native' refuses.*{reason}"):
        attend(*make_inputs())


def test_auto_uses_sdpa_for_wide_heads():
    inputs = tensors(head_dim=641)
    assert regard.why(*inputs).impl == "sdpa"
    assert "640" in regard.why(*inputs).reasons["native"]


def test_bias_that_needs_the_weights_is_refused():
    bias = positions.ShawRelative(HEAD_DIM, value_dim=VALUE_DIM)
    with pytest.raises(RefusedError, match=r"(?s)native.*ShawRelative"):
        attend(*tensors(), bias=bias)


def test_auto_prefers_native_on_a_cpu():
    choice = regard.why(*tensors(), mask=masks.causal(), bias=positions.ALiBi(HEADS), dropout=0.1)
    assert choice.impl == "native"
    assert choice.reasons["sdpa"] == "native comes first"


@pytest.mark.parametrize(
    "transform",
    [
        lambda function, tensor: torch.func.vmap(function)(tensor[None]),
        lambda function, tensor: torch.func.grad(lambda given: function(given).sum())(tensor),
        lambda function, tensor: torch.func.jvp(function, (tensor,), (tensor,)),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_torch_func_transforms_are_refused(transform, without_shape_checks):
    query, key, value = (tensor.detach() for tensor in tensors())
    with pytest.raises(RefusedError, match=r"(?s)torch.func"):
        transform(lambda given: attend(given, key, value), query)


def test_forward_mode_derivatives_are_refused(without_shape_checks):
    query, key, value = (tensor.detach() for tensor in tensors())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(query, query)
        with pytest.raises(RefusedError, match="forward-mode"):
            attend(dual, key, value)


RUN = "import torch, regard; q = torch.ones(1, 1, 1, 1); print(regard.attention(q, q, q, impl='native').item())"


@pytest.mark.slow  # tests/kernels/test_isas.py tests each of them too
@pytest.mark.parametrize("isa", [*(extension.native.isas() if extension.missing_reason is None else []), "sse9"])
def test_instruction_set_can_be_selected(isa):
    result = run_script(RUN, environment={**os.environ, "REGARD_ISA": isa})
    if isa == "sse9":
        assert "OptionError: REGARD_ISA" in result.stderr
        assert "portable" in result.stderr
        assert "'sse9'" in result.stderr
    else:
        assert result.stdout.strip() == "1.0", result.stderr


@pytest.mark.filterwarnings("ignore")  # tracing warns about sizes, and that it is deprecated
def test_tracing_records_the_operator(without_shape_checks):
    given = [tensor.detach() for tensor in tensors(queries=7, keys=11)]
    traced = torch.jit.trace(lambda *given: attend(*given), given, check_trace=False)
    others = [torch.randn_like(tensor) for tensor in given]
    torch.testing.assert_close(traced(*others), attend(*others), rtol=0, atol=1e-6)  # tracing rounds the scale


# Results


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(
    "mask", [None, masks.causal(), masks.window(5, 3) | masks.global_tokens([0]), masks.padding([71, 13])], ids=str
)
def test_agrees_with_the_oracle(mask, grad):
    inputs = tensors(torch.float64)
    allowed = None if mask is None else mask.dense(QUERIES, KEYS).numpy()
    with torch.set_grad_enabled(grad):
        ours = attend(*inputs, mask=mask)
    exact, _ = oracle.attention(*(tensor.detach().numpy() for tensor in inputs), allowed)
    assert abs(ours.detach().numpy() - exact).max() < 1e-13
    assert ours.requires_grad == grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_same_bits_with_and_without_gradients(dtype):
    inputs, mask = tensors(dtype), masks.causal() & masks.padding([71, 13])
    with torch.no_grad():
        plain = attend(*inputs, mask=mask)
    assert torch.equal(attend(*inputs, mask=mask), plain)
    with torch.inference_mode():
        assert torch.equal(attend(*inputs, mask=mask), plain)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_same_bits_with_any_number_of_threads(dropout):
    inputs, mask, bias = tensors(), masks.causal() & masks.padding([71, 13]), positions.T5Buckets(HEADS)

    def compute():
        torch.manual_seed(43)
        output = attend(*inputs, mask=mask, bias=bias, dropout=dropout)
        return output_and_gradients(output, [*inputs, bias.weight])

    assert_same_bits(compute)


def test_dropout_depends_on_the_seed():
    inputs = tensors()
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        results.append(output_and_gradients(attend(*inputs, dropout=0.5), inputs))
    assert equal_bits(results[0], results[1])
    assert not torch.equal(results[0][0], results[2][0])


def test_each_call_drops_different_weights():
    inputs = tensors()
    assert not torch.equal(attend(*inputs, dropout=0.5), attend(*inputs, dropout=0.5))


def test_checkpointing_repeats_the_dropout_mask():
    given = tensors()
    torch.manual_seed(3)
    plain = output_and_gradients(attend(*given, dropout=0.5), given)
    torch.manual_seed(3)
    output = torch.utils.checkpoint.checkpoint(lambda *given: attend(*given, dropout=0.5), *given, use_reentrant=False)
    assert equal_bits(output_and_gradients(output, given), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(BATCH, HEADS, QUERIES, KEYS), (1, HEADS, 1, KEYS), (1, 1, QUERIES, 1), (BATCH, 1, 1, 1)]
)
def test_the_gradient_of_a_bias_has_its_shape_and_dtype(shape, dtype):
    inputs = tensors()
    bias = torch.randn(shape).to(dtype).requires_grad_()
    (ours,) = torch.autograd.grad(attend(*inputs, bias=bias).square().sum(), bias)
    (theirs,) = torch.autograd.grad(regard.attention(*inputs, bias=bias, impl="reference").square().sum(), bias)
    assert ours.shape == shape
    assert ours.dtype == dtype
    # sums over head_dim, value_dim, keys, and the bias's broadcast dimensions, in float32, rounded once to its dtype
    terms = HEAD_DIM + VALUE_DIM + KEYS + BATCH * HEADS * QUERIES * KEYS / bias.numel()
    close = terms * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=0, atol=float(close * theirs.abs().max().clamp(min=1)))


def test_the_gradient_of_an_expanded_bias():
    inputs = tensors()
    row = torch.randn(1, 1, 1, KEYS, requires_grad=True)
    ours, theirs = (
        torch.autograd.grad(regard.attention(*inputs, bias=row.expand(1, HEADS, QUERIES, KEYS), impl=impl).sum(), row)[
            0
        ]
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_bias_near_the_lowest_float_does_not_mask(as_table, queries):
    """It is not -infinity, which would hide keys: if all keys have it, their weights are equal."""
    query, key, value = (tensor.detach() for tensor in tensors(queries=queries))
    lowest = -3.4e38  # commonly used for "almost never"; times log2 e it overflows float32
    if as_table:
        bias = positions.T5Buckets(HEADS)
        torch.nn.init.constant_(bias.weight, lowest)
    else:
        bias = torch.full((1, 1, queries, KEYS), lowest)
    expected = value.mean(2, keepdim=True).repeat_interleave(HEADS // KEY_HEADS, 1).expand(-1, -1, queries, -1)
    torch.testing.assert_close(attend(query, key, value, bias=bias), expected)


def test_only_tensors_that_require_gradients_get_them():
    query, key, value = (tensor.detach() for tensor in tensors())
    bias = positions.T5Buckets(HEADS)
    attend(query, key, value, bias=bias).sum().backward()
    assert bias.weight.grad is not None
    assert query.grad is None
    value.requires_grad_()
    attend(query, key, value).sum().backward()
    assert key.grad is None
    assert value.grad.shape == value.shape


def test_padding_lengths_broadcast_over_the_batch():
    inputs = tensors()
    broadcast, repeated = (attend(*inputs, mask=masks.padding(lengths)) for lengths in ([13], [13, 13]))
    assert torch.equal(broadcast, repeated)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_convert_inputs(dtype):
    inputs = tensors()
    with torch.autocast("cpu", dtype=dtype):
        whole = attend(*inputs)
        half = attend(*(tensor.to(dtype) for tensor in inputs))
    assert whole.dtype == torch.float32
    assert torch.equal(whole, attend(*inputs))
    assert half.dtype == dtype
