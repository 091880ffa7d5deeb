"""regard::bucket_attention, attention of tokens that share a bucket in any hash round, as a torch operator.

``kernels.bucket_request`` has the equation. Each round sorts the tokens by bucket and runs the tile kernels of
``attention_op`` over them; pairs that share a bucket in an earlier round are left out, so that each counts once. With
m_r and l_r the largest score and the sum of a row in round r, and o_r its output there, the rounds are merged by

    m = max_r m_r,    l = sum_r l_r exp(m_r - m),    o = sum_r o_r l_r exp(m_r - m) / l

which is the softmax over all keys (Milakov and Gimelshein 2018). The backward pass runs the kernels of each round again
with the merged m and l, so the weights are those of the whole row: nothing of a round is kept. There is no second
derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.bucket_request import BucketRequest
from regard.kernels.extension import native
from regard.kernels.operators.attention_op import zero_values
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import empty_token_major
from regard.kernels.sorted_tokens import (
    SortedTokens,
    bucket_tile_map,
    chunk_tile_map,
    sort_into_chunks,
    sort_into_tiles,
)
from regard.kernels.tracing import any_requires_grad, is_eager, is_eager_backward

_LOG2_E = 1.4426950408889634
_NUM_SEEDS = 2**62
_BLOCK_BYTES = 2**22
"""Bytes of the queries that are sorted at once: sorted tokens, up to twice as many, then stay in a level 2 cache."""


@final
class BucketArguments(NamedTuple):
    """Arguments besides query, key and value, in the order of the schema; see ``BucketRequest``."""

    query_buckets: Tensor
    key_buckets: Tensor
    buckets: int
    high: int | None
    own: int | None  # key - query of a token and itself, if these pairs are left out
    chunk: int | None
    scale: float
    dropout: float
    seed: Tensor | None  # int64 scalar; None without dropout


_SCHEMA = (
    "Tensor query, Tensor key, Tensor value, Tensor query_buckets, Tensor key_buckets, int buckets, SymInt? high, "
    "SymInt? own, int? chunk, float scale, float dropout, Tensor? seed"
)


@final
class _Part(NamedTuple):
    """One run of the tile kernels: where its tokens lie, and the options of the kernels."""

    queries: SortedTokens
    keys: SortedTokens
    options: dict[str, Any]


def bucket_attention(
    request: BucketRequest,
) -> tuple[Float[Tensor, "batch heads queries value_dim"], Float[Tensor, "batch heads queries 2"]]:
    """Compute the output and the normalizer (``attention_op.Results``), without the pairs of a token and itself.

    Both go through the torch operator if torch is tracing, else the kernels are called directly.
    """
    query, key, value = request.query, request.key, request.value
    seed = None if request.dropout == 0.0 else torch.randint(_NUM_SEEDS, (), device="cpu")
    own = request.frame.offset if request.except_self else None
    terms = BucketArguments(
        request.query_buckets,
        request.key_buckets,
        request.buckets,
        request.high,
        own,
        request.chunk,
        request.scale,
        request.dropout,
        seed,
    )
    compute = BUCKET_ATTENTION.torch_op
    if is_eager(query, key, value):
        learning = any_requires_grad(query, key, value)
        compute = BUCKET_ATTENTION.compute_with_grad if learning else BUCKET_ATTENTION.compute
    return cast("tuple[Tensor, Tensor]", compute(query, key, value, *terms))


def _split(terms: BucketArguments) -> Iterator[_Part]:
    """List the runs of the kernels: one for each round, or one for all with chunks."""
    codes, key_codes = (of_tokens.int().contiguous() for of_tokens in (terms.query_buckets, terms.key_buckets))
    for number in range(1 if terms.chunk is not None else codes.shape[3]):
        if terms.chunk is not None:
            queries = sort_into_chunks(key_codes.flatten(0, 1), terms.buckets, terms.chunk)
            hidden = (key_codes < 0).all(-1).flatten(0, 1).gather(1, queries.token.clamp(min=0))
            keys = replace(queries, token=queries.token.masked_fill(hidden, -1))
            tiles = chunk_tile_map(queries, keys, codes, key_codes, chunk=terms.chunk, high=terms.high, own=terms.own)
        else:
            queries = keys = sort_into_tiles(key_codes.flatten(0, 1)[..., number], terms.buckets)
            if not torch.equal(codes, key_codes):
                queries = sort_into_tiles(codes.flatten(0, 1)[..., number], terms.buckets)
            tiles = bucket_tile_map(
                queries,
                keys,
                codes,
                key_codes,
                earlier=number,
                buckets=terms.buckets,
                high=terms.high,
                own=terms.own,
            )
        seed = None if terms.seed is None else terms.seed + number
        whole: KernelArguments = tiles._replace(scale=terms.scale, dropout=terms.dropout, seed=seed)
        yield _Part(queries, keys, whole.to_kwargs())


@final
class _Block(NamedTuple):
    """Some heads of some batch entries, whose sorted tokens stay in a cache and in memory that is reused."""

    entries: slice
    heads: slice
    number: int

    def take(self, tensor: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, ..)."""
        return tensor[self.entries, self.heads]

    def limit(self, terms: BucketArguments) -> BucketArguments:
        """The arguments of the block, with another seed for each."""
        return terms._replace(
            query_buckets=self.take(terms.query_buckets),
            key_buckets=self.take(terms.key_buckets),
            seed=None if terms.seed is None else terms.seed + self.number * terms.key_buckets.shape[3],
        )


def _blocks(query: Tensor, key: Tensor) -> Iterator[_Block]:
    """Split a call into blocks of about ``_BLOCK_BYTES`` for each tensor."""
    batch, heads, _, size = query.shape
    groups = max(1, _BLOCK_BYTES // max(1, max(query.shape[2], key.shape[2]) * size * query.itemsize))
    entries, heads_at_once = max(1, groups // heads), min(heads, groups)
    number = 0
    for entry in range(0, batch, entries):
        for head in range(0, heads, heads_at_once):
            yield _Block(slice(entry, entry + entries), slice(head, head + heads_at_once), number)
            number += 1


def _compute(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute regard::bucket_attention on a CPU."""
    terms = BucketArguments(*arguments)
    output, normalizer = _empty_results(query, key, value, *arguments)
    normalizer.fill_(-torch.inf)
    if normalizer.numel() == 0 or key.shape[2] == 0:
        output.zero_()
    else:
        for block in _blocks(query, key):
            tokens, results = (query, key, value), (output, normalizer)
            _compute_block(tuple(map(block.take, tokens)), tuple(map(block.take, results)), block.limit(terms))
    return output, normalizer


def _compute_block(tensors: tuple[Tensor, ...], results: tuple[Tensor, ...], terms: BucketArguments) -> None:
    """Compute a block of query, key and value into output and normalizer, which is -inf.

    The output of the first round is copied; each further one is averaged with it, weighted by their sums of weights.
    """
    (query, key, value), (output, normalizer) = tensors, results
    is_first = True
    by_token, of_rows = output.transpose(1, 2), normalizer.transpose(1, 2)
    largest, total = of_rows[..., 0], torch.zeros_like(of_rows[..., 0])
    values = value if value.shape[3] else zero_values(value)
    factor = terms.scale * _LOG2_E
    for part in _split(terms):
        queries = _gather(query, part.queries.token)
        of_keys = (_gather(key, part.keys.token), _gather(values, part.keys.token))
        found = queries.new_empty(*queries.shape[:3], values.shape[3])
        log_sums = queries.new_empty(*queries.shape[:3], 2)
        native.forward(queries, of_keys[0], of_keys[1], found, None, normalizer=log_sums, **part.options)
        for place in part.queries.place.unbind(1):
            own, log_sum = _take_rows(log_sums, place, fill=-torch.inf).unbind(-1)
            own = own.masked_fill(log_sum == -torch.inf, -torch.inf)
            highest = torch.maximum(largest, own)
            base = highest.masked_fill(highest == -torch.inf, 0.0)
            before = torch.exp2((largest - base) * factor).mul_(total)
            weight = torch.exp2((own - base) * factor + log_sum)
            largest.copy_(highest)
            torch.add(before, weight, out=total)
            if value.shape[3]:
                rows = _take_rows(found, place, fill=0.0)
                if is_first:
                    by_token.copy_(rows)
                else:
                    divisor = total.masked_fill(total == 0, 1.0)
                    by_token.mul_((before / divisor)[..., None]).addcmul_(rows, (weight / divisor)[..., None])
            is_first = False
    torch.log2(total, out=of_rows[..., 1])


def _empty_results(query: Tensor, key: Tensor, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Allocate the results; also the fake kernel for tracing."""
    del key, arguments
    output = empty_token_major(query, query.shape[2], value.shape[3])
    return output, empty_token_major(query, query.shape[2], 2)


def _compute_backward(
    grad_output: Tensor, output: Tensor, normalizer: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Compute regard::bucket_attention_backward on a CPU."""
    terms = BucketArguments(*arguments)
    gradients = _empty_gradients(grad_output, output, normalizer, query, key, value, *arguments)
    for gradient in gradients:
        gradient.zero_()
    if normalizer.numel() > 0 and key.shape[2] > 0 and value.shape[3] > 0:
        for block in _blocks(query, key):
            results, tokens = (grad_output, output, normalizer), (query, key, value)
            into = [block.take(gradient).transpose(1, 2) for gradient in gradients]
            of_block = (tuple(map(block.take, results)), tuple(map(block.take, tokens)))
            _compute_block_backward(*of_block, into, block.limit(terms))
    return gradients


def _compute_block_backward(
    results: tuple[Tensor, ...], tensors: tuple[Tensor, ...], into: list[Tensor], terms: BucketArguments
) -> None:
    """Add the gradients of a block to ``into``, each (batch, tokens, heads, size).

    ``results`` are the gradient of the output, output and normalizer; ``tensors`` query, key and value.
    """
    (grad_output, output, normalizer), (query, key, value) = results, tensors
    # dS = w (D - sum_j w D): the sum, dO . o, goes in as a gradient of lse, so that outputs need not be sorted.
    sums = (grad_output * output).sum(-1, keepdim=True).neg_().masked_fill_(~normalizer[..., 1:].isfinite(), 0.0)
    nothing = zero_values(output)[:, :, :1]
    for part in _split(terms):
        queries, of_outputs, normalizers, of_lse = (
            _gather(one, part.queries.token) for one in (query, grad_output, normalizer, sums)
        )
        keys, values = (_gather(one, part.keys.token) for one in (key, value))
        found = [torch.empty_like(one) for one in (queries, keys, values)]
        native.backward(
            of_outputs,
            queries,
            keys,
            values,
            nothing.expand_as(of_outputs),
            normalizers,
            found[0],
            found[1],
            found[2],
            None,
            None,
            grad_lse=of_lse.squeeze(-1),
            **part.options,
        )
        for gradient, rows, side in zip(into, found, (part.queries, part.keys, part.keys), strict=True):
            for place in side.place.unbind(1):
                gradient.add_(_take_rows(rows, place, fill=0.0))


def _empty_gradients(
    grad_output: Tensor, output: Tensor, normalizer: Tensor, query: Tensor, key: Tensor, value: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    """Allocate the gradients."""
    del grad_output, output, normalizer, arguments
    return tuple(empty_token_major(one, one.shape[2], one.shape[3]) for one in (query, key, value))


def _gather(
    tokens: Float[Tensor, "batch heads length size"], token: Int[Tensor, "groups places"]
) -> Float[Tensor, "batch heads places size"]:
    """Copy the tokens at places; empty places get any token."""
    batch, heads, length, size = tokens.shape
    at = token.view(batch, heads, -1).clamp(min=0)
    whole = tokens if tokens.stride(3) == 1 or size == 1 else tokens.contiguous()
    strides = [0 if count == 1 else one for count, one in zip(whole.shape[:3], whole.stride(), strict=False)]
    step = math.gcd(*strides) or size
    if step < size:
        return tokens.gather(2, at[..., None].expand(*at.shape, size))
    steps = [one // step for one in strides]
    last = sum((count - 1) * one for count, one in zip((batch, heads, length), steps, strict=True))
    rows = whole.as_strided((last + 1, size), (step, 1))
    first = torch.arange(batch)[:, None, None] * steps[0] + torch.arange(heads)[:, None] * steps[1]
    return rows.index_select(0, (first + at * steps[2]).flatten()).view(batch, heads, -1, size)


def _take_rows(
    rows: Float[Tensor, "batch heads places size"], place: Int[Tensor, "groups tokens"], fill: float | None = None
) -> Float[Tensor, "batch tokens heads size"]:
    """Copy the rows at the places of tokens; ``fill`` is for tokens without a place, None if all have one."""
    batch, heads, places, size = rows.shape
    group = torch.arange(batch * heads).view(batch, 1, heads)
    at = place.view(batch, heads, -1).transpose(1, 2)
    taken = rows.reshape(-1, size).index_select(0, (at.clamp(min=0) + group * places).flatten())
    taken = taken.view(batch, -1, heads, size)
    if fill is not None and int(place.min()) < 0:
        taken.masked_fill_((at < 0)[..., None], fill)
    return taken


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Save the inputs and results."""
    save_for_backward(ctx, inputs, output)


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; None for the other inputs."""
    rest = (None,) * len(BucketArguments._fields)
    grad_output = gradients[0]
    if grad_output is None:
        return (None, None, None, *rest)
    results, inputs = load_saved(ctx)
    backward = BUCKET_ATTENTION_BACKWARD.torch_op
    if is_eager_backward(grad_output, *results, *inputs[:3]):
        backward = BUCKET_ATTENTION_BACKWARD.compute
    return (*backward(grad_output, *results, *inputs), *rest)


BUCKET_ATTENTION_BACKWARD = Operator(
    "bucket_attention_backward",
    f"(Tensor grad_output, Tensor output, Tensor normalizer, {_SCHEMA}) -> "
    "(Tensor grad_query, Tensor grad_key, Tensor grad_value)",
    compute=_compute_backward,
    fake=_empty_gradients,
    differentiate=refuse_second_derivative,
    vmap=True,
)
BUCKET_ATTENTION = Operator(
    "bucket_attention",
    f"({_SCHEMA}) -> (Tensor output, Tensor normalizer)",
    compute=_compute,
    fake=_empty_results,
    save=_save,
    differentiate=_differentiate,
    non_differentiable=(1,),
)
