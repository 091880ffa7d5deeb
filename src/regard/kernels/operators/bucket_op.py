"""regard::bucket_attention, attention of tokens that share a bucket in any hash round, as a torch operator.

``reference.bucket_attention`` has the equation. Each round sorts the tokens by bucket and runs the tile kernels of
``attention_op`` over lists of them; pairs that share a bucket in an earlier round are left out, so that each counts
once. With m_r and l_r the largest score and the sum of a row in round r, and o_r its output there, rounds are merged by

    m = max_r m_r,    l = sum_r l_r exp(m_r - m),    o = sum_r o_r l_r exp(m_r - m) / l

which is the softmax over all keys (Milakov and Gimelshein 2018). The backward pass runs the kernels of each round again
with the merged m and l, so the weights are the softmax of the whole row; no results of a round are stored. There is no
second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.attention_op import zero_values
from regard.kernels.operators.kernel_arguments import KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.reference.bucket_attention import BucketRequest
from regard.kernels.results import empty_token_major
from regard.kernels.sorted_tokens import (
    SortedTokens,
    bucket_tile_map,
    chunk_tile_map,
    sort_into_chunks,
    sort_into_tiles,
)

_LOG2_E = 1.4426950408889634
_NUM_SEEDS = 2**62
_BLOCK_BYTES = 2**22
"""Bytes of the queries that are computed at once: results at places, up to twice as many, then stay in a cache."""


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
    "Tensor query, Tensor? key, Tensor value, Tensor query_buckets, Tensor key_buckets, int buckets, SymInt? high, "
    "SymInt? own, int? chunk, float scale, float dropout, Tensor? seed"
)


@final
class _Round(NamedTuple):
    """Tokens of every batch entry and head that are sorted in one round; with chunks, in all rounds."""

    queries: SortedTokens
    keys: SortedTokens
    number: int


@final
class _Memory:
    """Memory of results at places, used again for each block and round: new memory costs a page fault per 4 KiB."""

    def __init__(self, like: Tensor) -> None:
        self._like = like
        self._parts: dict[str, Tensor] = {}

    def take(self, name: str, *shape: int) -> Tensor:
        """Return an uninitialized tensor; what was in an earlier one of this name is lost."""
        count = math.prod(shape)
        if name not in self._parts or self._parts[name].numel() < count:
            self._parts[name] = self._like.new_empty(count)
        return self._parts[name][:count].view(shape)


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
    return BUCKET_ATTENTION.call((query, key, value), query, key, value, *terms)


def _sort_rounds(terms: BucketArguments) -> list[_Round]:
    """Sort the tokens of each round, or of all with chunks. ``terms`` has int32 buckets."""
    codes, key_codes = (tensor.flatten(0, 1) for tensor in (terms.query_buckets, terms.key_buckets))
    if terms.chunk is not None:
        queries = keys = sort_into_chunks(key_codes, terms.buckets, terms.chunk)
        hidden = (key_codes < 0).all(-1)
        if bool(hidden.any()):
            hidden = hidden.gather(1, queries.token.clamp(min=0).long())
            keys = replace(queries, token=queries.token.masked_fill(hidden, -1))
        return [_Round(queries, keys, 0)]
    rounds = []
    for number in range(codes.shape[2]):
        queries = keys = sort_into_tiles(key_codes[..., number], terms.buckets)
        if codes is not key_codes:
            queries = sort_into_tiles(codes[..., number], terms.buckets)
        rounds.append(_Round(queries, keys, number))
    return rounds


def _list_tiles(hash_round: _Round, terms: BucketArguments) -> dict[str, Any]:
    """Make the tile map of a round of a block, and return it with the other options of the kernels."""
    codes, key_codes, bounds = terms.query_buckets, terms.key_buckets, {"high": terms.high, "own": terms.own}
    if terms.chunk is not None:
        tiles = chunk_tile_map(hash_round.queries, hash_round.keys, codes, key_codes, chunk=terms.chunk, **bounds)
    else:
        tiles = bucket_tile_map(
            hash_round.queries,
            hash_round.keys,
            codes,
            key_codes,
            earlier=hash_round.number,
            buckets=terms.buckets,
            **bounds,
        )
    seed = None if terms.seed is None else terms.seed + hash_round.number
    whole: KernelArguments = tiles._replace(scale=terms.scale, dropout=terms.dropout, seed=seed)
    return whole.to_kwargs()


def _narrow_buckets(terms: BucketArguments) -> BucketArguments:
    """Return the arguments with int32 buckets: one tensor for queries and keys if they have the same."""
    codes, key_codes = terms.query_buckets, terms.key_buckets
    narrow = codes.int()
    same = codes is key_codes or torch.equal(codes, key_codes)
    return terms._replace(query_buckets=narrow, key_buckets=narrow if same else key_codes.int())


@final
class _Block(NamedTuple):
    """Some heads of some batch entries, whose results at places stay in a cache and in memory that is reused."""

    entries: slice
    heads: slice
    number: int

    def take(self, tensor: Tensor) -> Tensor:
        """The part of a tensor (batch, heads, ..)."""
        return tensor[self.entries, self.heads]

    def limit_round(self, hash_round: _Round, heads: int) -> _Round:
        """The round of the block, of ``heads`` heads of each batch entry."""

        def take(of_groups: Tensor) -> Tensor:
            return self.take(of_groups.unflatten(0, (-1, heads))).flatten(0, 1)

        queries = hash_round.queries.take(take)
        return _Round(
            queries, queries if hash_round.keys is hash_round.queries else hash_round.keys.take(take), hash_round.number
        )

    def limit(self, terms: BucketArguments) -> BucketArguments:
        """The arguments of the block, with another seed for each."""
        return terms._replace(
            query_buckets=self.take(terms.query_buckets),
            key_buckets=self.take(terms.key_buckets),
            seed=None if terms.seed is None else terms.seed + self.number * terms.key_buckets.shape[3],
        )


def _blocks(query: Tensor, value: Tensor) -> Iterator[_Block]:
    """Split a call into blocks of about ``_BLOCK_BYTES`` for each tensor."""
    batch, heads, _, size = query.shape
    groups = max(1, _BLOCK_BYTES // max(1, max(query.shape[2], value.shape[2]) * size * query.itemsize))
    entries, heads_at_once = max(1, groups // heads), min(heads, groups)
    number = 0
    for entry in range(0, batch, entries):
        for head in range(0, heads, heads_at_once):
            yield _Block(slice(entry, entry + entries), slice(head, head + heads_at_once), number)
            number += 1


def _compute(query: Tensor, key: Tensor | None, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute regard::bucket_attention on a CPU."""
    output, normalizer = _empty_results(query, key, value, *arguments)
    if normalizer.numel() == 0 or value.shape[2] == 0:
        output.zero_()
        normalizer.fill_(-torch.inf)
        return output, normalizer
    terms, memory = _narrow_buckets(BucketArguments(*arguments)), _Memory(query)
    tokens = [None if tensor is None else _with_rows(tensor) for tensor in (query, key, value)]
    rounds = _sort_rounds(terms)
    for block in _blocks(query, value):
        of_block = [None if token is None else block.take(token) for token in tokens]
        parts = [block.limit_round(hash_round, query.shape[1]) for hash_round in rounds]
        _compute_block(of_block, (block.take(output), block.take(normalizer)), parts, block.limit(terms), memory)
    return output, normalizer


def _compute_block(
    tensors: Sequence[Tensor | None],
    results: tuple[Tensor, Tensor],
    rounds: Sequence[_Round],
    terms: BucketArguments,
    memory: _Memory,
) -> None:
    """Compute a block of query, key and value into output and normalizer, round by round."""
    output, normalizer = results
    query, key, value = _divide_queries(tensors, memory)
    of_values = value if value.shape[3] else zero_values(value)
    for number, hash_round in enumerate(rounds):
        places = (*query.shape[:2], hash_round.queries.token.shape[1])
        found, log_sums = memory.take("output", *places, of_values.shape[3]), memory.take("normalizer", *places, 2)
        options = _list_rows(hash_round, query) | _list_tiles(hash_round, terms)
        native.forward(query, key, of_values, found, None, normalizer=log_sums, **options)
        native.merge_rounds(
            found[..., : value.shape[3]],
            log_sums,
            hash_round.queries.place,
            output,
            normalizer,
            factor=terms.scale * _LOG2_E,
            first=number == 0,
            last=number == len(rounds) - 1,
            threads=torch.get_num_threads(),
        )


def _divide_queries(tensors: Sequence[Tensor | None], memory: _Memory) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value; without a key, divided queries are the keys."""
    query, key, value = tensors
    assert query is not None
    assert value is not None
    if key is None:
        key = memory.take("key", *query.shape)
        native.divide_rows(query, key, threads=torch.get_num_threads())
    return query, key, value


def _list_rows(hash_round: _Round, query: Tensor) -> dict[str, Any]:
    """Return the tokens at the places of queries and keys, as the kernels read their rows."""
    sides = {"query_rows": hash_round.queries, "key_rows": hash_round.keys}
    return {name: side.token.unflatten(0, query.shape[:2]) for name, side in sides.items()}


def _empty_results(query: Tensor, key: Tensor | None, value: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Allocate the results; also the fake kernel for tracing."""
    del key, arguments
    output = empty_token_major(query, query.shape[2], value.shape[3])
    return output, empty_token_major(query, query.shape[2], 2)


def _compute_backward(
    grad_output: Tensor,
    output: Tensor,
    normalizer: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    *arguments: Any,
) -> tuple[Tensor, ...]:
    """Compute regard::bucket_attention_backward on a CPU."""
    gradients = _empty_gradients(grad_output, output, normalizer, query, key, value, *arguments)
    if normalizer.numel() == 0 or value.shape[2] == 0 or value.shape[3] == 0:
        for gradient in gradients:
            gradient.zero_()
        return gradients
    terms, memory = _narrow_buckets(BucketArguments(*arguments)), _Memory(query)
    results = [_with_rows(tensor) for tensor in (grad_output, output, normalizer)]
    tokens = [None if tensor is None else _with_rows(tensor) for tensor in (query, key, value)]
    rounds = _sort_rounds(terms)
    for block in _blocks(query, value):
        _compute_block_backward(
            [block.take(result) for result in results],
            [None if token is None else block.take(token) for token in tokens],
            [block.take(gradient) for gradient in gradients],
            [block.limit_round(hash_round, query.shape[1]) for hash_round in rounds],
            block.limit(terms),
            memory,
        )
    return gradients


def _compute_block_backward(
    results: Sequence[Tensor],
    tensors: Sequence[Tensor | None],
    into: Sequence[Tensor],
    rounds: Sequence[_Round],
    terms: BucketArguments,
    memory: _Memory,
) -> None:
    """Write the gradients of a block of query, key and value to ``into``.

    ``results`` are the gradient of the output, output and normalizer.
    """
    threads = torch.get_num_threads()
    upstream, output, of_rows = results
    query, key, value = _divide_queries(tensors, memory)
    nothing = zero_values(output)[:, :, :1]
    for number, hash_round in enumerate(rounds):
        places, key_places = ((*query.shape[:2], side.token.shape[1]) for side in (hash_round.queries, hash_round.keys))
        # dS = w (D - sum_j w D): the sum, dO . o, goes in as a gradient of lse, so that outputs need not be sorted.
        normalizer, grad_lse = memory.take("normalizer", *places, 2), memory.take("lse", *places)
        native.sort_gradients(
            upstream, output, of_rows, hash_round.queries.token, normalizer, grad_lse, threads=threads
        )
        of_query = memory.take("gradient of query", *places, query.shape[3])
        of_key, of_value = (
            memory.take(f"gradient of {name}", *key_places, side.shape[3])
            for name, side in (("key", key), ("value", value))
        )
        native.backward(
            upstream,
            query,
            key,
            value,
            nothing.expand(*places, value.shape[3]),
            normalizer,
            of_query,
            of_key,
            of_value,
            None,
            None,
            grad_lse=grad_lse,
            **_list_rows(hash_round, query),
            **_list_tiles(hash_round, terms),
        )
        first, of_queries, of_keys = number == 0, hash_round.queries.place, hash_round.keys.place
        native.add_rows(of_query, of_queries, into[0], first=first, threads=threads)
        if tensors[1] is None:
            native.add_rows(of_key, of_keys, into[0], divided=tensors[0], first=False, threads=threads)
        else:
            native.add_rows(of_key, of_keys, into[1], first=first, threads=threads)
        native.add_rows(of_value, of_keys, into[2], first=first, threads=threads)


def _empty_gradients(
    grad_output: Tensor,
    output: Tensor,
    normalizer: Tensor,
    query: Tensor,
    key: Tensor | None,
    value: Tensor,
    *arguments: Any,
) -> tuple[Tensor, ...]:
    """Allocate the gradients; the gradient of an absent key has no tokens."""
    del grad_output, output, normalizer, arguments
    of_key = empty_token_major(query, 0, query.shape[3]) if key is None else empty_token_major(key, *key.shape[2:])
    return empty_token_major(query, *query.shape[2:]), of_key, empty_token_major(value, *value.shape[2:])


def _with_rows(tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads length size"]:
    """Return tokens whose numbers are adjacent in memory."""
    return tokens if tokens.stride(3) == 1 else tokens.contiguous()


def _differentiate(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Compute the gradients of query, key and value; None for the other inputs."""
    rest = (None,) * len(BucketArguments._fields)
    grad_output = gradients[0]
    if grad_output is None:
        return (None, None, None, *rest)
    results, inputs = load_saved(ctx)
    tensors = (grad_output, *results, *inputs[:3])
    grad_query, grad_key, grad_value = BUCKET_ATTENTION_BACKWARD.call_backward(tensors, grad_output, *results, *inputs)
    return (grad_query, None if inputs[1] is None else grad_key, grad_value, *rest)


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
    save=save_for_backward,
    differentiate=_differentiate,
    non_differentiable=(1,),
)
