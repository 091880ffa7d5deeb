"""Attention of tokens that share a bucket in any of several hash rounds, in plain torch, on any device.

    o_i = sum_j w_ij v_j,    w_i = softmax_j(scale * q_i . k_j)

over the keys j that may be attended to and share a bucket with query i in any round; each counts once, however many
rounds they share. ``except_self`` leaves out the pairs of a token and itself. Without a key the output is 0. With
``key`` None, each key is the query of its token divided by the root of its mean square: q / sqrt(mean(q^2) + 10^-6).

With ``chunk``, each round sorts the tokens by bucket and cuts them into chunks of that many, and a query attends to its
chunk and to the one before it: within the round, or, for the first chunk of a round, the last one of the round before,
cyclically. A key counts as often as it is met. Tokens without a bucket in any round are hidden, and sorted behind all
others; chunks of hidden tokens alone are not counted, so their number has no influence.

Buckets are a dense mask here, in memory queries x keys; chunks are gathered, in memory linear in the number of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.contract import Frame
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.attention import compute_output, make_dot_product_problem
from regard.kernels.reference.divided_keys import divide_keys
from regard.kernels.reference.nonfinite_isolation import isolate_nonfinite
from regard.kernels.request import Request, Terms
from regard.masks.dense_mask import Keep
from regard.masks.shared_buckets import SharedBuckets


@final
@dataclass(frozen=True)
class BucketRequest:
    """Checked arguments, in float32 or float64.

    ``query_buckets`` and ``key_buckets`` are bucket numbers below ``buckets``, -1 for a key that no query may attend
    to. ``high`` bounds key - query, counted in indices; None: no bound. ``chunk`` needs as many queries as keys, and so
    does a ``key`` that is None.
    """

    query: Float[Tensor, "batch heads queries head_dim"]
    key: Float[Tensor, "batch heads keys head_dim"] | None
    value: Float[Tensor, "batch heads keys value_dim"]
    query_buckets: Int[Tensor, "batch heads queries rounds"]
    key_buckets: Int[Tensor, "batch heads keys rounds"]
    buckets: int
    high: int | None = None
    except_self: bool = False
    chunk: int | None = None
    scale: float = 1.0
    dropout: float = 0.0

    @property
    def frame(self) -> Frame:
        """The numbers of queries and keys, and their alignment."""
        return Frame(self.query.shape[2], self.value.shape[2])

    @property
    def device(self) -> torch.device:
        """Device of query, key and value."""
        return self.query.device

    def describe(self) -> str:
        """The request in one line, for messages."""
        rounds = self.key_buckets.shape[3]
        chunk = "no chunks" if self.chunk is None else f"chunks of {self.chunk}"
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {self.device}, value {tuple(self.value.shape)}, "
            f"{rounds} rounds of {self.buckets} buckets, {chunk}, dropout {self.dropout:g}"
        )


@final
class BucketResult(NamedTuple):
    """The output, and which queries have no key."""

    output: Float[Tensor, "batch heads queries value_dim"]
    empty: Bool[Tensor, "batch heads queries"]


def attend_in_buckets(request: BucketRequest) -> BucketResult:
    """Compute attention in buckets, without the pairs of a token and itself if ``except_self``."""
    frame, device = request.frame, request.device
    shared = SharedBuckets(request.query_buckets, request.key_buckets)
    allowed = shared.dense(frame.queries, frame.keys, device=device)
    distance = torch.arange(frame.keys, device=device) - torch.arange(frame.queries, device=device)[:, None]
    if request.high is not None:
        allowed = allowed & (distance <= request.high)
    if request.except_self:
        allowed = allowed & (distance != frame.offset)
    whole = Request(request.query, _keys(request), request.value, Terms(Keep(allowed), scale=request.scale))
    output = compute_output(make_dot_product_problem(whole), dropout=request.dropout, dtype=request.query.dtype)
    return BucketResult(output, ~allowed.any(-1))


@final
class ChunkPairs(NamedTuple):
    """Which tokens meet in chunks: ``token`` at each place of all rounds, -1 behind the last one of a round, and
    ``place`` of each token; the chunk ``before`` each. ``of_query`` and ``of_key`` are the tokens of each chunk as
    queries and as keys, -1 for none and for hidden keys; ``allowed`` says which of them are pairs.
    """

    token: Int[Tensor, "batch heads places"]
    place: Int[Tensor, "batch heads rounds tokens"]
    before: Int[Tensor, "batch heads chunks"]
    of_query: Int[Tensor, "batch heads chunks chunk"]
    of_key: Int[Tensor, "batch heads chunks 1 keys"]
    allowed: Bool[Tensor, "batch heads chunks chunk keys"]

    def with_chunk_before(self, tensor: Tensor) -> Tensor:
        """Append the chunk before each to a tensor of chunks, unless there is only one."""
        if tensor.shape[2] == 1:
            return tensor
        index = self.before.view(*self.before.shape, *(1 for _ in tensor.shape[3:])).expand_as(tensor)
        return torch.cat([tensor, tensor.gather(2, index)], dim=3)


def pair_in_chunks(request: BucketRequest) -> ChunkPairs:
    """Sort the tokens of each round into chunks, and find the pairs of each chunk. There must be a token."""
    assert request.chunk is not None
    chunk, batch, heads, tokens = request.chunk, *request.value.shape[:3]
    rounds, device = request.key_buckets.shape[3], request.device
    length = -(-tokens // chunk) * chunk
    codes = request.key_buckets.transpose(2, 3)
    is_hidden = (codes < 0).all(2)
    ranks = codes.masked_fill(codes < 0, request.buckets).masked_fill(is_hidden[:, :, None], request.buckets + 1)
    order = ranks.argsort(dim=-1, stable=True)
    token = torch.full((batch, heads, rounds, length), -1, device=device)
    token = torch.cat([order, token[..., tokens:]], dim=-1).flatten(2)
    place = order.argsort(dim=-1) + torch.arange(rounds, device=device)[:, None] * length
    before = _chunk_before(is_hidden, rounds, chunk)
    hidden = is_hidden.gather(2, token.clamp(min=0)) | (token < 0)
    of_query, visible = (side.unflatten(2, (-1, chunk)) for side in (token, token.masked_fill(hidden, -1)))
    pairs = ChunkPairs(token, place, before, of_query, visible, visible)
    of_key = pairs.with_chunk_before(visible)[..., None, :]
    if of_key.shape[2] > 1:  # a chunk that is before itself is met once
        again = (before == torch.arange(of_key.shape[2], device=device))[..., None, None]
        of_key = of_key.masked_fill(again & (torch.arange(2 * chunk, device=device) >= chunk), -1)
    distance = of_key - of_query[..., None]
    allowed = (of_key >= 0) & (of_query[..., None] >= 0)
    if request.high is not None:
        allowed = allowed & (distance <= request.high)
    if request.except_self:
        allowed = allowed & (distance != 0)
    return pairs._replace(of_key=of_key, allowed=allowed)


def count_meetings(request: BucketRequest) -> Int[Tensor, "batch heads queries keys"]:
    """Count how often each query meets each key in chunks, in all rounds."""
    counts = torch.zeros(*request.query.shape[:3], request.frame.keys, dtype=torch.long, device=request.device)
    if request.frame.keys == 0:
        return counts
    pairs = pair_in_chunks(request)
    index = pairs.of_query[..., None].clamp(min=0) * request.frame.keys + pairs.of_key.clamp(min=0)
    counts.flatten(2).scatter_add_(2, index.flatten(2), pairs.allowed.long().flatten(2))
    return counts


def attend_in_chunks(request: BucketRequest) -> BucketResult:
    """Compute attention in chunks of sorted tokens, without the pairs of a token and itself if ``except_self``."""
    if request.frame.keys == 0:
        output = request.query.new_zeros(*request.value.shape[:2], 0, request.value.shape[3])
        return BucketResult(output, output.new_zeros(output.shape[:3], dtype=torch.bool))
    pairs = pair_in_chunks(request)
    clean = isolate_nonfinite(request.query, _keys(request), request.value)
    index = pairs.token.clamp(min=0)

    def sort(tensor: Tensor) -> Tensor:
        """Copy tokens to their places, cut into chunks."""
        chosen = tensor.gather(2, index[..., None].expand(*index.shape, tensor.shape[3]))
        return chosen.unflatten(2, (-1, request.chunk or 1))

    def sort_keys(tensor: Tensor) -> Tensor:
        """Copy keys to their places, with those of the chunk before."""
        return pairs.with_chunk_before(sort(tensor))

    allowed = pairs.allowed
    with disable_autocast(request.device):
        query, key, value = sort(clean.query), sort_keys(clean.key), sort_keys(clean.value)
        scores = ((query * request.scale) @ key.transpose(-2, -1)).masked_fill(~allowed, -torch.inf)
        bad = sort(clean.bad_query[..., None])[..., 0] & allowed.any(-1)
        bad = bad | (allowed & sort_keys(clean.bad_key[..., None])[..., 0][..., None, :]).any(-1)
        return _merge_rounds(scores, allowed, value, bad, pairs.place, request.dropout)


def _keys(request: BucketRequest) -> Float[Tensor, "batch heads keys head_dim"]:
    """Return the keys of a request, or its divided queries."""
    return divide_keys(request.query) if request.key is None else request.key


def _chunk_before(
    is_hidden: Bool[Tensor, "batch heads tokens"], rounds: int, chunk: int
) -> Int[Tensor, "batch heads chunks"]:
    """Return the chunk before each: before the first one of a round the last one, of the round before, that is used."""
    in_round = -(-is_hidden.shape[2] // chunk)
    last_used = ((~is_hidden).sum(2, keepdim=True) - 1).clamp(min=0) // chunk
    number = torch.arange(rounds * in_round, device=is_hidden.device)
    round_before = (number // in_round - 1) % rounds
    return torch.where(number % in_round > 0, number - 1, round_before * in_round + last_used)


def _merge_rounds(
    scores: Float[Tensor, "batch heads chunks queries keys"],
    allowed: Bool[Tensor, "batch heads chunks queries keys"],
    value: Float[Tensor, "batch heads chunks keys value_dim"],
    bad: Bool[Tensor, "batch heads chunks queries"],
    place: Tensor,
    dropout: float,
) -> BucketResult:
    """Compute softmax over the keys that a token meets in all rounds: sums of each round, relative to one largest."""
    batch, heads, rounds, tokens = place.shape

    def unsort(tensor: Tensor) -> Tensor:
        """Copy what was computed at the places of each token, (batch, heads, rounds, tokens, ..)."""
        flat, at = tensor.flatten(2, 3), place.flatten(2)
        if flat.dim() == 4:
            at = at[..., None].expand(*at.shape, flat.shape[3])
        return flat.gather(2, at).unflatten(2, (rounds, tokens))

    largest = unsort(scores.detach().amax(-1)).amax(2)
    base = largest.masked_fill(largest == -torch.inf, 0.0)
    of_places = torch.zeros(batch, heads, scores.shape[2] * scores.shape[3], dtype=base.dtype, device=base.device)
    of_places = of_places.scatter(2, place.flatten(2), base[:, :, None].expand_as(place).flatten(2))
    exponents = scores - of_places.view(*scores.shape[:4], 1)
    weights = exponents.masked_fill(~allowed, -torch.inf).exp().masked_fill(~allowed, 0.0)
    total = unsort(weights.sum(-1)).sum(2)[..., None]
    if dropout > 0.0:
        weights = torch.nn.functional.dropout(weights, dropout)
    output = unsort(weights @ value).sum(2) / total.masked_fill(total == 0, 1.0)
    output = output.masked_fill(total == 0, 0.0)
    return BucketResult(output.masked_fill(unsort(bad).any(2)[..., None], torch.nan), ~unsort(allowed.any(-1)).any(2))
