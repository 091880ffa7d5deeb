"""Reformer: attention among tokens that hash into the same bucket, in any of several rounds.

    o_i = softmax_j(q_i . k_j / |k_j|) v_j      over j with h_r(q_i) = h_r(k_j) in any round r, and j != i
    o_i = v_i                                   if there is no such j

    h_r(x) = argmax([x R_r; -x R_r])            R_r random: tokens in similar directions share a bucket

(``mechanisms.locality_hash`` defines h so that it is the same on every processor.)

Kitaev et al. 2020, "Reformer: the efficient Transformer", section 2. Queries and keys are one projection, which
layers read from its ``traits``; so a query's own key is nearly always the closest, and it is left out unless
there is no other. Keys are divided by their norm, as in the authors' code: k / sqrt(mean(k^2) + 10^-6), with a scale of
1/sqrt(head_dim). Rounds are merged by their log-sum-exp, and a key that shares a bucket in several rounds counts once
(section 2, equation 6), since every round leaves out the pairs of earlier ones. Time is n * (n / buckets) * rounds * d.

With ``shared=False``, queries and keys have projections of their own, are not divided, and a token may attend to
itself: then this approximates ``dot_product``, and equals it with buckets=1. With ``shared`` it approximates the dot
product with divided keys, and leaves out a token's own key.

By default attention is exact inside buckets. A token's bucket depends on itself alone, so what a mask hides has no
influence: a causal text may be cut anywhere, and padding added. With ``buckets=None``, their number follows the number
of visible tokens of each text, 64 to 127 a bucket on average; where a mask differs between queries, and in decoding, it
is 64, because a query would else depend on how many tokens come later.

``chunk`` is the paper's form instead: each round sorts tokens by bucket, cuts them into chunks of that many, and a
query attends to its chunk and to the one before, whatever their buckets are (the first chunk of a round to the last one
of the round before, cyclically). Keys count as often as they are met. Time is n * chunk * rounds * d, however unequal
the buckets are. But a token moves others across the borders of chunks, so hidden tokens may have an influence on which
tokens meet: with a causal mask, no later token is attended to, but which earlier ones are depends on later ones. Tokens
that are hidden from every query, such as padding, are sorted last, and chunks of them alone are not counted: the first
chunk meets the last one with a visible token. So neither what padding holds nor how much of it there is has an
influence. There is no decoding in this form.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). Queries are the last of the keys
(``contract.Frame``). Masks that are not causal or padding, and biases, are computed with a dense mask, in memory
queries x keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import RefusedError, check_flag, check_size
from regard.kernels.autocast import disable_autocast
from regard.kernels.reference.attention import compute_weights, make_dot_product_problem
from regard.kernels.reference.bucket_attention import BucketRequest, BucketResult, count_meetings, pair_in_chunks
from regard.kernels.reference.divided_keys import divide_keys
from regard.kernels.request import Bias, Request, repeat_heads
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend, select
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.masks.causal_parts import CausalParts, causal_parts
from regard.masks.compose import Not
from regard.masks.dense_mask import Keep
from regard.masks.shared_buckets import SharedBuckets
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.bucket_counts import check_buckets, count_buckets, split_buckets
from regard.mechanisms.bucket_hash import BucketHash
from regard.mechanisms.clean_tokens import fill_nan, is_false
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.state import State
from regard.mechanisms.steps import Buckets, Steps
from regard.mechanisms.weights import weights_by_gradient
from regard.tensors import is_dense

_MIN_SORTED = 256
"""Number of keys from which sorting them is faster than a dense mask."""
_ROWS_AT_ONCE = 256


@final
@explain_arguments
class Reformer(Mechanism):
    """Reformer: attention among tokens that hash into the same bucket, in any of ``rounds`` rounds.

    Args:
        rounds: number of hash rounds. It and ``seed`` are attributes too, and may be changed between calls.
        buckets: number of buckets, 1 or even; or factors of it, each even, which cost less to hash. None: from the
            number of tokens.
        chunk: None for exact attention inside buckets; or the number of tokens in a chunk, for the paper's form.
        shared: whether queries and keys are one projection.
        seed: seed of the random rotations.

    Inputs of a call, both optional: ``query_buckets`` (batch, heads, queries, rounds) and ``key_buckets`` (batch,
    heads, keys, rounds), integers that replace the hash; -1 is no bucket.
    """

    traits = Traits(approximates="dot_product", divides_scores=True)

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        rounds: int = 4,
        buckets: int | Sequence[int] | None = None,
        chunk: int | None = None,
        shared: bool = True,
        seed: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        if chunk is not None:
            check_size("chunk", chunk)
        check_flag("shared", shared)
        self._hash = BucketHash(
            heads=heads, head_dim=head_dim, rounds=rounds, factors=check_buckets(buckets), seed=seed
        )
        self.chunk = None if chunk is None else int(chunk)
        self.shared = bool(shared)
        self.traits = replace(self.traits, shares_query_key=self.shared)

    @property
    def rounds(self) -> int:
        """The number of hash rounds. Setting it raises OptionError unless it is an integer from 1 to 1024."""
        return self._hash.rounds

    @rounds.setter
    def rounds(self, rounds: int) -> None:
        self._hash.rounds = rounds

    @property
    def seed(self) -> int:
        """The seed of the random rotations. Setting it raises OptionError unless it is an integer of 0 or more."""
        return self._hash.seed

    @seed.setter
    def seed(self, seed: int) -> None:
        self._hash.seed = seed

    @property
    def factors(self) -> tuple[int, ...] | None:
        """The factors of the number of buckets; None if it follows from the number of tokens."""
        return self._hash.factors

    @property
    def buckets(self) -> int | None:
        """The number of buckets; None if it follows from the number of tokens."""
        return None if self.factors is None else count_buckets(self.factors)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The buckets of queries and of keys, which replace the hash; decoding caches the buckets of keys."""
        return (
            ExtraInput("query_buckets", "query", self.heads, self.rounds, projected=False),
            ExtraInput("key_buckets", "key", self.heads, self.rounds, projected=False),
        )

    def refuses(self, request: Request) -> str | None:
        """Refuse, with chunks, what needs tokens in their own order: a bias, other masks, and fewer queries."""
        if self.chunk is None:
            return None
        if request.bias is not None:
            return "a bias of pairs has no form for chunks of sorted tokens; chunk=None accepts it"
        if request.frame.queries != request.frame.keys:
            return "chunks are cut from all tokens, so there must be as many queries as keys; chunk=None decodes"
        if causal_parts(request.mask, request.frame) is None:
            return "with chunks, a mask must be causal, hide keys from all queries, or both; chunk=None accepts others"
        return None

    def empty_state(self) -> State:
        """Make the state before the first step of decoding. Raises RefusedError with chunks, which need all tokens."""
        if self.chunk is None:
            return super().empty_state()
        raise RefusedError(
            "chunks are cut from all tokens of a text, and a step has only its own",
            expected="buckets that any number of tokens can be in: chunk=None",
            got=f"chunk={self.chunk}",
            do="make it with chunk=None, which computes with the same weights and decodes",
        )

    def make_request(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        inputs: Mapping[str, Tensor | TokenProjection] | None = None,
    ) -> Request:
        """Build the request of a call, as ``Mechanism.make_request`` does, and hash its tokens once."""
        request = super().make_request(query, key, value, mask, bias, inputs)
        return request.replace(inputs=self._hash.of_request(request))

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request)

    def _attend(self, request: Request, impl: str = "auto") -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the named implementation of chunks or sorted tokens."""
        wide, parts = self._widen(request), causal_parts(request.mask, request.frame)
        with disable_autocast(request.device):
            if parts is None or (self.chunk is None and not self._sorts(request)):
                pairs = self._pair_mask(wide, request.frame.all_rows(request.device))
                dense = pairs.dense(request.frame.queries, request.frame.keys, device=request.device)
                wide = self._divide(wide).replace(mask=Keep(dense), inputs={})
                output = attend("attention", "auto", wide)
            else:
                output = self._attend_sorted(wide, parts, impl)
        return output.to(request.query.dtype)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries in plain torch; with chunks by gradients."""
        if self.chunk is not None:
            impl = "reference" if torch.is_grad_enabled() else "auto"  # the kernels have no second derivatives
            return weights_by_gradient(partial(self._attend, impl=impl), request, rows)
        wide = self._divide(self._widen(request))
        wide = wide.replace(mask=self._pair_mask(wide, rows), inputs={})
        return compute_weights(make_dot_product_problem(wide), rows)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product, with the buckets and the pairs that meet in them."""
        wide, frame, counts = self._widen(request), request.frame, None
        if self.chunk is None:
            wide = self._divide(wide)
            mask = self._pair_mask(wide, frame.all_rows(request.device))
        else:
            counts = self._count_meetings(wide)
            mask, wide = Keep(counts > 0), self._divide(wide)
        buckets = self._explain_buckets(wide)
        return Steps(wide.query, wide.key, mask, self.scale, hidden_by="buckets", counts=counts, buckets=buckets)

    def _count_meetings(self, wide: Request) -> Int[Tensor, "batch heads queries keys"]:
        """Count how often queries meet keys in chunks; a query that meets no other token meets itself."""
        parts = causal_parts(wide.mask, wide.frame)
        assert parts is not None
        visible = parts.visible_keys(wide.frame, wide.device)
        counts = count_meetings(self._bucket_request(wide, parts, visible))
        if not self.shared or (parts.high is not None and parts.high < 0):
            return counts
        own = torch.eye(wide.frame.keys, dtype=torch.bool, device=wide.device)
        own = own if visible is None else own & visible[:, :, None]
        return counts + (own & (counts.sum(-1, keepdim=True) == 0))

    def _explain_buckets(self, wide: Request) -> Buckets:
        """Return the buckets of a call, with the rotations if the buckets are those of the hash."""
        of_query, of_key = wide.inputs["query_buckets"], wide.inputs["key_buckets"]
        factors, levels = self._hash.choose_factors(wide)
        if levels is not None and bool((levels == levels.flatten()[0]).all()):
            factors, levels = split_buckets(2 ** int(levels.flatten()[0])), None
        rotations = None
        if levels is None and torch.equal(self._hash.find_buckets(wide.query, factors), of_query):
            rotations = self._hash.get_rotations(factors, wide.device)
        place, before = None, None
        if self.chunk is not None and wide.frame.keys:
            parts = causal_parts(wide.mask, wide.frame)
            assert parts is not None
            pairs = pair_in_chunks(self._bucket_request(wide, parts, parts.visible_keys(wide.frame, wide.device)))
            place, before = pairs.place, pairs.before
        count = self._hash.bound_buckets(of_query, of_key) if rotations is None else count_buckets(factors)
        return Buckets(of_query, of_key, count, self.shared, rotations, factors, self.chunk, place, before)

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, State]:
        """Compute one step of decoding, as ``Mechanism.step`` does; the cache holds the buckets of its keys too."""
        hashes = self.chunk is None and not isinstance(state, PagedCache) and not inputs
        if hashes and self._fits(query) and self._fits(key):
            factors = self._hash.fixed_factors
            inputs = {
                "query_buckets": self._hash.find_buckets(query, factors),
                "key_buckets": self._hash.find_buckets(key, factors),
            }
        return super().step(query, key, value, state, mask, bias=bias, **inputs)

    def _sorts(self, request: Request) -> bool:
        """Whether tokens are sorted into buckets: a bias has no form for sorted tokens, and few are faster without."""
        return request.bias is None and request.frame.keys > _MIN_SORTED

    def _fits(self, tokens: object) -> bool:
        """Whether tokens can be hashed; if not, the call will be refused."""
        if not isinstance(tokens, Tensor) or not is_dense(tokens) or tokens.dim() != 4:
            return False
        heads = max(1, tokens.shape[1])
        return tokens.is_floating_point() and tokens.shape[3] == self.head_dim and self.heads % heads == 0

    def _widen(self, request: Request) -> Request:
        """Return the request in the dtype of sums, with a key head for each query head.

        The key stays the same tensor as the query if it is.
        """
        dtype, is_query = accumulation_dtype(request.query.dtype), request.key is request.query
        query = request.query.to(dtype)
        key, value = (repeat_heads(side.to(dtype), request.group) for side in (request.key, request.value))
        return request.replace(query=query, key=query if is_query else key, value=value)

    def _divide(self, wide: Request) -> Request:
        """Return the request with divided keys, if queries and keys are one projection."""
        return wide.replace(key=divide_keys(wide.key)) if self.shared else wide

    def _attend_sorted(
        self, wide: Request, parts: CausalParts, impl: str
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute attention over tokens that are sorted by bucket, under a causal mask or padding."""
        visible = parts.visible_keys(wide.frame, wide.device)
        request = self._bucket_request(wide, parts, visible)
        result: BucketResult = select("bucket attention", impl, request).compute(request)
        if not self.shared:
            return result.output
        return _attend_to_own(wide, result, visible, parts.high)

    def _bucket_request(
        self, wide: Request, parts: CausalParts, visible: Bool[Tensor, "#batch #heads keys"] | None
    ) -> BucketRequest:
        """Make the request of a kernel; keys that are hidden from all queries have no bucket."""
        of_queries, of_keys = wide.inputs["query_buckets"], wide.inputs["key_buckets"]
        if visible is not None:
            of_keys = of_keys.masked_fill(~visible[..., None], -1)
        of_query = self.shared and wide.key is wide.query
        return BucketRequest(
            wide.query,
            None if of_query else self._divide(wide).key,
            wide.value,
            of_queries,
            of_keys,
            buckets=self._hash.bound_buckets(of_queries, of_keys),
            high=parts.high,
            except_self=self.shared,
            chunk=self.chunk,
            scale=wide.terms.scale,
            dropout=wide.terms.dropout,
        )

    def _pair_mask(self, wide: Request, rows: Int[Tensor, " rows"]) -> Mask:
        """Return which queries attend to which keys, as a mask that is valid for the queries ``rows``."""
        frame = wide.frame
        pairs: Mask = SharedBuckets(wide.inputs["query_buckets"], wide.inputs["key_buckets"])
        pairs = pairs if wide.mask is None else pairs & wide.mask
        if not self.shared:
            return pairs
        own = masks.window(0, 0)
        # Not(own) is ~own, which torch.compile cannot trace.
        pairs, query_mask = pairs & Not(own), own if wide.mask is None else own & wide.mask
        alone = []
        for some in rows.split(_ROWS_AT_ONCE):
            others, itself = (
                mask.dense(frame.queries, frame.keys, device=wide.device, rows=some).any(-1)
                for mask in (pairs, query_mask)
            )
            alone.append((~others & itself).expand(*wide.query.shape[:2], -1))
        if not alone:
            return pairs
        of_rows = torch.zeros(wide.query.shape[:3], dtype=torch.bool, device=wide.device)
        return pairs | own & Keep(of_rows.index_copy(2, rows, torch.cat(alone, dim=2))[..., None])

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        buckets = None if self.factors is None else self.factors[0] if len(self.factors) == 1 else list(self.factors)
        return (
            f"{super().extra_repr()}, rounds={self.rounds}, buckets={buckets if self.factors != () else 1}, "
            f"chunk={self.chunk}, shared={self.shared}, seed={self.seed}"
        )


def _attend_to_own(
    wide: Request, result: BucketResult, visible: Bool[Tensor, "#batch #heads keys"] | None, high: int | None
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Let the queries that attend to nothing else attend to their own token, where it is visible.

    A token without a bucket is visible to itself, unless a mask hides it.
    """
    if is_false(result.empty):
        return result.output
    frame = wide.frame
    if frame.keys == 0 or (high is not None and frame.offset > high):
        return result.output
    own = frame.query_positions(frame.all_rows(wide.device))
    there = (own >= 0) & (own < frame.keys)
    own = own.clamp(min=0, max=frame.keys - 1)
    alone = result.empty & there if visible is None else result.empty & visible[:, :, own] & there
    if is_false(alone):
        return result.output
    value, key = wide.value[:, :, own], wide.key[:, :, own]
    broken = ~(wide.query.isfinite().all(-1) & key.isfinite().all(-1) & value.isfinite().all(-1))
    if wide.terms.dropout > 0.0:
        value = value * torch.nn.functional.dropout(torch.ones_like(value[..., :1]), wide.terms.dropout)
    output = torch.where(alone[..., None], value, result.output)
    return fill_nan(output, broken & alone)
