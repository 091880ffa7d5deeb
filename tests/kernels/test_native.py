"""impl "native" through the public API: calls that it refuses or leaves to others, dropout, threads, memory."""

import os

import pytest
import torch

import regard
from oracles import attention as oracle
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels import extension
from script_process import run_script

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 67, 71, 5, 13


def tensors(dtype=torch.float32, queries=QUERIES, keys=KEYS, head_dim=HEAD_DIM, value_dim=VALUE_DIM):
    generator = torch.Generator().manual_seed(41)
    shapes = ((HEADS, queries, head_dim), (KEY_HEADS, keys, head_dim), (KEY_HEADS, keys, value_dim))
    return [torch.randn(BATCH, *shape, generator=generator).to(dtype).requires_grad_() for shape in shapes]


def attend(*given, **options):
    return regard.attention(*given, **options, impl="native")


def bits(output, leaves):
    """Return the output, and the input gradients for an output gradient of ones."""
    return [output, *torch.autograd.grad(output.sum(), leaves)]


def same(ones, others):
    return all(torch.equal(one, other) for one, other in zip(ones, others, strict=True))


# Half precision


@pytest.mark.parametrize("impl", ["forward", "observe"])
def test_what_rounding_cuts_off_the_output_does_not_bend_gradients(impl):
    """If all keys are equal, the weights are equal for any query, and the query's gradient is 0.

    The usual delta_i = dO_i . o_i uses the rounded output, and then has an error of eps of float16.
    """
    query, key, value = tensors(torch.float16)
    alike = key[:, :, :1].detach().expand_as(key)
    if impl == "forward":
        output = attend(query, alike, value)
    else:
        output = regard.observe(query, alike, value, impl="native").output
    (found,) = torch.autograd.grad(output, query, torch.ones_like(output))
    # delta and each D are sums, in float32, of VALUE_DIM products below 4; they are multiplied with numbers below 4.
    assert found.abs().max() <= VALUE_DIM * 4 * 4 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("impl", ["forward", "observe"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_all_values_have_in_common_comes_out_as_it_is(dtype, impl):
    """Weights add up to 1, also after rounding for multiplication. For equal values the gradient of scores is 0."""
    query, key, value = tensors(dtype)
    alike = value[:, :, :1].detach().expand_as(value)
    output = attend(query, key, alike) if impl == "forward" else regard.observe(query, key, alike, impl="native").output
    expected = alike[:, :, :1].repeat_interleave(HEADS // KEY_HEADS, dim=1).expand_as(output)
    # A float32 this close to a half-precision number is rounded to it.
    close = 4 * KEYS * torch.finfo(torch.float32).eps if dtype == torch.float32 else 0
    torch.testing.assert_close(output, expected, rtol=0, atol=close)
    (found,) = torch.autograd.grad(output, query, torch.ones_like(output))
    assert found.abs().max() <= VALUE_DIM * 4 * 4 * torch.finfo(torch.float32).eps  # as above


# Refusals


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: tensors(head_dim=257), "at most 256.*257 and 13"),
        (lambda: tensors(value_dim=263), "at most 256.*5 and 263"),
        (lambda: [tensor.to("meta") for tensor in tensors()], "on a CPU.*meta"),
    ],
)
def test_it_refuses(made, reason, without_shape_checks):
    with pytest.raises(RefusedError, match=f"(?s)'native' refuses.*{reason}"):
        attend(*made())


def test_wide_heads_are_left_to_others():
    given = tensors(head_dim=257)
    assert regard.why(*given).impl == "sdpa"
    assert "256" in regard.why(*given).reasons["native"]


def test_a_bias_that_needs_the_weights_is_refused():
    bias = positions.ShawRelative(HEAD_DIM, value_dim=VALUE_DIM)
    with pytest.raises(RefusedError, match=r"(?s)native.*ShawRelative"):
        attend(*tensors(), bias=bias)


def test_it_is_what_auto_takes_on_a_cpu():
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
def test_what_it_cannot_be_transformed_by_is_refused(transform, without_shape_checks):
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
def test_the_instruction_set_can_be_named(isa):
    done = run_script(RUN, environment={**os.environ, "REGARD_ISA": isa})
    if isa == "sse9":
        assert "OptionError: REGARD_ISA" in done.stderr
        assert "portable" in done.stderr
        assert "'sse9'" in done.stderr
    else:
        assert done.stdout.strip() == "1.0", done.stderr


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
def test_it_agrees_with_the_oracle(mask, grad):
    given = tensors(torch.float64)
    allowed = None if mask is None else mask.dense(QUERIES, KEYS).numpy()
    with torch.set_grad_enabled(grad):
        ours = attend(*given, mask=mask)
    exact, _ = oracle.attention(*(tensor.detach().numpy() for tensor in given), allowed)
    assert abs(ours.detach().numpy() - exact).max() < 1e-13
    assert ours.requires_grad == grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_the_same_bits_with_and_without_gradients(dtype):
    given, mask = tensors(dtype), masks.causal() & masks.padding([71, 13])
    with torch.no_grad():
        plain = attend(*given, mask=mask)
    assert torch.equal(attend(*given, mask=mask), plain)
    with torch.inference_mode():
        assert torch.equal(attend(*given, mask=mask), plain)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_bits_with_any_number_of_threads(dropout):
    given, mask, bias = tensors(), masks.causal() & masks.padding([71, 13]), positions.T5Buckets(HEADS)
    found, before = [], torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(43)
        found.append(bits(attend(*given, mask=mask, bias=bias, dropout=dropout), [*given, bias.weight]))
    torch.set_num_threads(before)
    assert same(found[0], found[1])
    assert same(found[0], found[2])


def test_dropout_follows_the_seed():
    given = tensors()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(bits(attend(*given, dropout=0.5), given))
    assert same(found[0], found[1])
    assert not torch.equal(found[0][0], found[2][0])


def test_each_call_drops_other_weights():
    given = tensors()
    assert not torch.equal(attend(*given, dropout=0.5), attend(*given, dropout=0.5))


def test_checkpointing_drops_the_same_weights_again():
    given = tensors()
    torch.manual_seed(3)
    plain = bits(attend(*given, dropout=0.5), given)
    torch.manual_seed(3)
    output = torch.utils.checkpoint.checkpoint(lambda *given: attend(*given, dropout=0.5), *given, use_reentrant=False)
    assert same(bits(output, given), plain)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "shape", [(BATCH, HEADS, QUERIES, KEYS), (1, HEADS, 1, KEYS), (1, 1, QUERIES, 1), (BATCH, 1, 1, 1)]
)
def test_the_gradient_of_a_bias_has_its_shape_and_dtype(shape, dtype):
    given = tensors()
    bias = torch.randn(shape).to(dtype).requires_grad_()
    (ours,) = torch.autograd.grad(attend(*given, bias=bias).square().sum(), bias)
    (theirs,) = torch.autograd.grad(regard.attention(*given, bias=bias, impl="reference").square().sum(), bias)
    assert ours.shape == shape
    assert ours.dtype == dtype
    # sums over head_dim, value_dim, keys, and the bias's broadcast dimensions, in float32, rounded once to its dtype
    terms = HEAD_DIM + VALUE_DIM + KEYS + BATCH * HEADS * QUERIES * KEYS / bias.numel()
    close = terms * torch.finfo(torch.float32).eps + torch.finfo(dtype).eps
    torch.testing.assert_close(ours, theirs, rtol=0, atol=float(close * theirs.abs().max().clamp(min=1)))


def test_the_gradient_of_an_expanded_bias():
    given = tensors()
    row = torch.randn(1, 1, 1, KEYS, requires_grad=True)
    ours, theirs = (
        torch.autograd.grad(regard.attention(*given, bias=row.expand(1, HEADS, QUERIES, KEYS), impl=impl).sum(), row)[0]
        for impl in ("native", "reference")
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("as_table", [False, True])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_a_bias_near_the_lowest_number_is_finite(as_table, queries):
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


def test_only_what_is_asked_for_gets_a_gradient():
    query, key, value = (tensor.detach() for tensor in tensors())
    bias = positions.T5Buckets(HEADS)
    attend(query, key, value, bias=bias).sum().backward()
    assert bias.weight.grad is not None
    assert query.grad is None
    value.requires_grad_()
    attend(query, key, value).sum().backward()
    assert key.grad is None
    assert value.grad.shape == value.shape


def test_lengths_for_one_serve_the_batch():
    given = tensors()
    one, each = (attend(*given, mask=masks.padding(lengths)) for lengths in ([13], [13, 13]))
    assert torch.equal(one, each)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_computes_in_the_dtype_it_is_given(dtype):
    given = tensors()
    with torch.autocast("cpu", dtype=dtype):
        whole = attend(*given)
        half = attend(*(tensor.to(dtype) for tensor in given))
    assert whole.dtype == torch.float32
    assert torch.equal(whole, attend(*given))
    assert half.dtype == dtype
