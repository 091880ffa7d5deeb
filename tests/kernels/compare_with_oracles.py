"""Compare each kernel operation with the oracles in float64, in the instruction set that REGARD_ISA names.

test_isas.py runs it in a separate process, since the instruction set is chosen once. Prints the set and all wrong
results, and exits with 1 if there are any. With the argument "sample" each operation is compared in every dtype, but
each dtype of a scan with two of the six kinds of decay and delta rule.

Inputs are rounded to the dtype first, so the oracle has the same inputs. With eps of the dtype, and wide the epsilon of
the dtype of sums (float32 for half precision), the error of a result is at most

    (L * wide + 8 * eps / 2) * largest,    L = head_dim + value_dim + max(keys, group * queries)

where largest = max(1, max |oracle|): a score is a sum of head_dim terms, its gradient of value_dim, a result of as many
as there are keys, or queries that share a key; and at most 8 intermediate numbers are rounded to the dtype.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch

import regard
from regard import masks
from regard.conformance.oracles import additive as additive_oracle
from regard.conformance.oracles import attention as oracle
from regard.conformance.oracles import dropout as dropout_oracle
from regard.conformance.oracles import scan as scan_oracle
from regard.conformance.oracles import sigmoid as sigmoid_oracle
from regard.conformance.oracles import talking_heads as talking_heads_oracle
from regard.kernels import extension, results
from regard.kernels.implementations import scan
from regard.kernels.operators import (  # the first two define operators
    cross_entropy_op,  # noqa: F401
    dropout_op,  # noqa: F401
    paged_attention_op,
)
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.reference.scan import ScanRequest, scan_tokens

BATCH, HEADS, KEY_HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 19, 37
GROUP = HEADS // KEY_HEADS
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SCAN_KINDS = tuple((channels, delta) for channels in (0, 1, HEAD_DIM) for delta in (False, True))
"""Channels of the decay, 0 for none, and whether there is a delta rule."""
Comparisons = Iterator[tuple[str, torch.Tensor, np.ndarray, int]]
"""(name, regard's result, the oracle's, number of terms of the sums) of each result."""


def random_tensor(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def random_query_key_value(dtype: torch.dtype, queries: int, keys: int) -> list[torch.Tensor]:
    """Random inputs in the memory layout of layers, (batch, length, heads, head_dim)."""
    shapes = (queries, HEADS, HEAD_DIM), (keys, KEY_HEADS, HEAD_DIM), (keys, KEY_HEADS, VALUE_DIM)
    return [random_tensor(dtype, BATCH, *shape).transpose(1, 2).requires_grad_() for shape in shapes]


def arrays(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [tensor.detach().double().numpy() for tensor in tensors]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread: several would take ten times as long for thousands of tiny tensors, on busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def num_terms(queries: int, keys: int) -> int:
    return HEAD_DIM + VALUE_DIM + max(keys, GROUP * queries)


def compare_attention(dtype: torch.dtype, queries: int = 67, keys: int = 131) -> Comparisons:
    """Compare forward and backward, with a mask of every kind and a trained bias."""
    query, key, value = random_query_key_value(dtype, queries, keys)
    mask = (masks.window(90, 3) | masks.global_tokens([0])) & masks.padding([keys, 71])
    bias = random_tensor(dtype, 1, HEADS, 1, keys).requires_grad_()
    upstream = random_tensor(dtype, BATCH, HEADS, queries, VALUE_DIM)
    output = regard.attention(query, key, value, mask=mask, bias=bias, impl="native")
    ours = torch.autograd.grad(output, (query, key, value, bias), upstream)
    inputs, allowed, added = arrays(query, key, value), mask.dense(queries, keys).numpy(), arrays(bias)[0]
    exact, _ = oracle.attention(*inputs, allowed, added)
    exacts = oracle.backward(*inputs, *arrays(upstream), allowed, added)
    yield "output", output, exact, num_terms(queries, keys)
    for name, one, other in zip(("query", "key", "value", "bias"), ours, exacts[:4], strict=True):
        yield f"gradient of {name}", one, other, num_terms(queries, keys) * (BATCH if name == "bias" else 1)


def compare_observe(dtype: torch.dtype, queries: int = 67, keys: int = 131) -> Comparisons:
    query, key, value = random_query_key_value(dtype, queries, keys)
    observation = regard.observe(query, key, value, mask=masks.causal(), top=3, rows=[66, 5], impl="native")
    allowed = masks.causal().dense(queries, keys).numpy()
    exact = oracle.observe(*arrays(query, key, value), allowed, top=3, query_rows=(66, 5))
    for name in ("output", "lse", "entropy", "received", "top_weights", "rows", "max_score"):
        yield name, getattr(observation, name), getattr(exact, name), num_terms(queries, keys)


def compare_decode(dtype: torch.dtype, keys: int = 1031) -> Comparisons:
    query, key, value = random_query_key_value(dtype, 1, keys)
    output = regard.attention(query, key, value, mask=masks.padding([keys, 577]), impl="native")
    allowed = masks.padding([keys, 577]).dense(1, keys).numpy()
    yield "output", output, oracle.attention(*arrays(query, key, value), allowed)[0], num_terms(1, keys)


def compare_paged_attention(dtype: torch.dtype, keys: int = 131, page_size: int = 7) -> Comparisons:
    """Compare with pages in any order; the second sequence is shorter than the first."""
    query, key, value = random_query_key_value(dtype, 2, keys)
    lengths = torch.tensor([keys, 71])
    most = -(-keys // page_size)
    table = torch.randperm(BATCH * most, generator=torch.Generator().manual_seed(3)).view(BATCH, most)
    pages = [
        torch.full((BATCH * most, KEY_HEADS, page_size, part.shape[3]), torch.nan).to(dtype) for part in (key, value)
    ]
    for entry in range(BATCH):
        for index in range(int(lengths[entry])):
            page, row = table[entry, index // page_size], index % page_size
            pages[0][page, :, row], pages[1][page, :, row] = (
                key[entry, :, index].detach(),
                value[entry, :, index].detach(),
            )
    ours = paged_attention_op.paged_attention(
        query.detach(),
        paged_attention_op.PagedKeysValues(*pages, table, lengths),
        KernelArguments(scale=HEAD_DIM**-0.5),
    )
    for entry, length in enumerate(lengths.tolist()):
        one = [array[entry : entry + 1] for array in arrays(query, key, value)]
        exact, _ = oracle.attention(one[0], one[1][:, :, :length], one[2][:, :, :length])
        yield f"entry {entry}", ours[entry : entry + 1], exact, num_terms(2, keys)


def compare_additive(dtype: torch.dtype, queries: int = 67, keys: int = 71) -> Comparisons:
    """Compare additive attention, with identity projections."""
    of_query, of_key, value = (part.detach() for part in random_query_key_value(dtype, queries, keys))
    wide = results.accumulation_dtype(dtype)
    vector = random_tensor(dtype, HEADS, HEAD_DIM)
    upstream = random_tensor(dtype, BATCH, HEADS, queries, VALUE_DIM)
    output, normalizer = torch.empty_like(upstream), torch.empty(BATCH, HEADS, queries, 2, dtype=wide)
    extension.native.additive_forward(of_query, of_key, vector, value, output, None, normalizer=normalizer)
    inner = [torch.empty_like(part) for part in (of_query, of_key)]
    of_vector, of_value = vector.new_empty(vector.shape, dtype=wide), torch.empty_like(value)
    extension.native.additive_backward(
        upstream, of_query, of_key, vector, value, output, normalizer, *inner, of_vector, of_value, None, None
    )
    same = np.broadcast_to(np.eye(HEAD_DIM), (HEADS, HEAD_DIM, HEAD_DIM))
    inputs = [*arrays(of_query, of_key, value), same, same, *arrays(vector)]
    exact = additive_oracle.backward(*inputs, *arrays(upstream))
    yield "output", output, additive_oracle.attention(*inputs)[0], num_terms(queries, keys)
    yield "gradient of query", inner[0], exact.query, num_terms(queries, keys)
    yield "gradient of key", inner[1], exact.key, num_terms(queries, keys)
    yield "gradient of value", of_value, exact.value, num_terms(queries, keys)
    yield "gradient of vector", of_vector, exact.score_vector, BATCH * queries * keys


def compare_sigmoid(dtype: torch.dtype, queries: int = 67, keys: int = 131) -> Comparisons:
    """Compare forward and backward, with a mask of every kind and a trained bias."""
    query, key, value = random_query_key_value(dtype, queries, keys)
    mask = (masks.window(90, 3) | masks.global_tokens([0])) & masks.padding([keys, 71])
    bias = random_tensor(dtype, 1, HEADS, 1, keys).requires_grad_()
    upstream = random_tensor(dtype, BATCH, HEADS, queries, VALUE_DIM)
    output = regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, impl="native")(
        query, key, value, mask, bias=bias
    )
    ours = torch.autograd.grad(output, (query, key, value, bias), upstream)
    inputs, allowed, added = arrays(query, key, value), mask.dense(queries, keys).numpy(), arrays(bias)[0]
    exact, _ = sigmoid_oracle.attention(*inputs, allowed, pair_bias=added)
    exacts = sigmoid_oracle.backward(*inputs, *arrays(upstream), allowed, pair_bias=added)
    yield "output", output, exact, num_terms(queries, keys)
    for name, one, other in zip(("query", "key", "value", "bias"), ours, exacts[:4], strict=True):
        yield f"gradient of {name}", one, other, num_terms(queries, keys) * (BATCH if name == "bias" else 1)


def compare_talking_heads(dtype: torch.dtype, queries: int = 67, keys: int = 131) -> Comparisons:
    """Compare forward and backward, with a mask of every kind and a trained bias."""
    query, key, value = random_query_key_value(dtype, queries, keys)
    mask = (masks.window(90, 3) | masks.global_tokens([0])) & masks.padding([keys, 71])
    bias = random_tensor(dtype, 1, HEADS, 1, keys).requires_grad_()
    upstream = random_tensor(dtype, BATCH, HEADS, queries, VALUE_DIM)
    mechanism = regard.mechanism("talking_heads", heads=HEADS, head_dim=HEAD_DIM, impl="native")
    mechanism.to(results.accumulation_dtype(dtype))
    output = mechanism(query, key, value, mask, bias=bias)
    matrices = (mechanism.score_mixing, mechanism.weight_mixing)
    ours = torch.autograd.grad(output, (query, key, value, *matrices, bias), upstream)
    inputs, allowed, added = arrays(query, key, value, *matrices), mask.dense(queries, keys).numpy(), arrays(bias)[0]
    exact, _ = talking_heads_oracle.attention(*inputs, allowed, added)
    exacts = talking_heads_oracle.backward(*inputs, *arrays(upstream), allowed, added)
    yield "output", output, exact, num_terms(queries, keys)
    for name, one, other in zip(exacts._fields, ours, exacts, strict=True):
        times = {"bias": BATCH, "p": BATCH * queries, "r": BATCH * queries}.get(name, 1)
        yield f"gradient of {name}", one, other, num_terms(queries, keys) * times


def compare_sigmoid_decode(dtype: torch.dtype, keys: int = 1031) -> Comparisons:
    query, key, value = random_query_key_value(dtype, 1, keys)
    mask = masks.padding([keys, 577])
    mechanism = regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, impl="native", score_bias=-1.5)
    allowed = mask.dense(1, keys).numpy()
    exact, _ = sigmoid_oracle.attention(*arrays(query, key, value), allowed, -1.5)
    yield "output", mechanism(query, key, value, mask), exact, num_terms(1, keys)


def compare_dropout(dtype: torch.dtype, count: int = 40009, probability: float = 0.3) -> Comparisons:
    """Compare dropout of numbers, each multiplied by about 1."""
    tokens = random_tensor(dtype, count)
    ours = torch.ops.regard.dropout.default(tokens, probability, torch.tensor(7))
    exact = np.where(dropout_oracle.keep_mask(7, count, probability), arrays(tokens)[0] / (1 - probability), 0)
    yield "output", ours, exact, 1


def compare_cross_entropy(
    dtype: torch.dtype, rows: int = 17, classes: int = 1009, smoothing: float = 0.1
) -> Comparisons:
    logits, targets = random_tensor(dtype, rows, classes).requires_grad_(), torch.arange(rows) * 59
    ours, _ = torch.ops.regard.cross_entropy.default(logits, targets, smoothing, 0)
    (gradient,) = torch.autograd.grad(ours.sum(), logits)
    exact = arrays(logits)[0]
    weights = np.exp(exact) / np.exp(exact).sum(axis=1, keepdims=True)
    expected = (1 - smoothing) * np.eye(classes)[targets] + smoothing / classes
    counted = (targets > 0).numpy()
    yield "loss", ours, -(expected * np.log(weights)).sum(axis=1) * counted, classes
    yield "gradient of logits", gradient, (weights - expected) * counted[:, None], classes


def compare_scan(dtype: torch.dtype, length: int = 131, kinds: Sequence[tuple[int, bool]] = SCAN_KINDS) -> Comparisons:
    """Compare kinds of decay, with the delta rule and without; gradients with autograd in float64."""
    for channels, delta in kinds:
        shapes = (length, HEADS, HEAD_DIM), (length, HEADS, HEAD_DIM), (length, HEADS, VALUE_DIM)
        query, key, value = (random_tensor(dtype, BATCH, *shape).transpose(1, 2) for shape in shapes)
        key = torch.nn.functional.normalize(key.double(), dim=-1).to(dtype)
        decay = -random_tensor(dtype, BATCH, HEADS, length, channels).abs() if channels else None
        beta = random_tensor(dtype, BATCH, HEADS, length, 1).sigmoid() if delta else None
        state = random_tensor(dtype, BATCH, HEADS, HEAD_DIM, VALUE_DIM)
        inputs = [part for part in (query, key, value, decay, beta, state) if part is not None]
        leaves = [part.detach().requires_grad_() for part in inputs]
        rest = iter(leaves[3:])
        given = (*leaves[:3], next(rest) if channels else None, next(rest) if delta else None, next(rest))
        output, final = scan.NATIVE.compute(ScanRequest(*given))
        upstream = random_tensor(dtype, *output.shape), random_tensor(final.dtype, *final.shape)
        ours = torch.autograd.grad((output, final), leaves, upstream)
        wide = [None if part is None else part.detach().double().requires_grad_() for part in given]
        with one_thread():
            exact = scan_tokens(ScanRequest(*wide))
            exacts = torch.autograd.grad(
                exact, [part for part in wide if part is not None], [part.double() for part in upstream]
            )
        of_beta = None if beta is None else arrays(beta)[0][..., 0]
        of_decay = None if decay is None else arrays(decay)[0]
        expected = scan_oracle.scan(*arrays(query, key, value), of_decay, of_beta, *arrays(state))
        name, terms = f"{channels} decays, {'a' if delta else 'no'} delta rule", num_terms(length, length)
        yield f"output of {name}", output, expected[0], terms
        yield f"final state of {name}", final, expected[1], terms
        largest = max(1.0, *(gradient.abs().max().item() for gradient in exacts))
        for index, (one, other) in enumerate(zip(ours, exacts, strict=True)):
            yield f"gradient {index} of {name}", one / largest, other.numpy() / largest, terms


OPERATIONS: tuple[Callable[[torch.dtype], Comparisons], ...] = (
    compare_attention,
    compare_observe,
    compare_decode,
    compare_paged_attention,
    compare_additive,
    compare_sigmoid,
    compare_sigmoid_decode,
    compare_talking_heads,
    compare_dropout,
    compare_cross_entropy,
    compare_scan,
)


def take_sample(operation: Callable[[torch.dtype], Comparisons], dtype: torch.dtype) -> Callable[..., Comparisons]:
    """Take a share of the kinds of scan, whose oracle takes longest; over all dtypes, every kind is compared."""
    if operation is compare_scan:
        return partial(compare_scan, kinds=SCAN_KINDS[DTYPES.index(dtype) % 3 :: 3])
    return operation


def main(*, sample: bool = False) -> int:
    found = []
    for operation in OPERATIONS:
        for dtype in DTYPES:
            compare = take_sample(operation, dtype) if sample else operation
            eps, wide = (torch.finfo(which).eps for which in (dtype, results.accumulation_dtype(dtype)))
            for name, ours, exact, count in compare(dtype):
                error = np.abs(ours.detach().double().numpy() - exact).max() / max(1.0, np.abs(exact).max())
                if not error <= count * wide + 8 * eps / 2:
                    found.append(f"{operation.__name__}, {dtype}, {name}: off by {error:.2e} of the largest")
    print(extension.native.isa(), *(found or ["all agree"]), sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sample="sample" in sys.argv[1:]))
