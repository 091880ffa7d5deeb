"""Nystromformer: softmax attention through a few landmarks, by the Nystrom method.

    output = softmax(s Q K~^T) Z softmax(s Q~ K^T) V        Z ~ A^+,  A = softmax(s Q~ K~^T),  s = 1/sqrt(head_dim)

    Z_0 = A^T / (|A|_1 |A|_inf)        Z_(t+1) = Z_t (13 I - A Z_t (15 I - A Z_t (7 I - A Z_t))) / 4

Xiong et al. 2021, "Nystromformer: a Nystrom-based algorithm for approximating self-attention", equations 11 to 14 and
algorithm 1. The landmarks Q~ and K~ are means of consecutive tokens; Z is an iterative pseudo-inverse. A convolution of
the values along the sequence, one filter per head, may be added as a skip connection. Time and memory are n landmarks.
A query's weights over the keys may have either sign.

Segments. n visible keys are cut into ``landmarks`` segments whose sizes differ by at most one: the p-th belongs to
segment floor(p landmarks / n). If n is divisible, these are the equal segments of the paper. Keys that are hidden from
every query, such as padding, belong to no segment and no softmax, so a padded text has the result that it has alone.
With as many queries as keys both are taken for the same tokens: the query of a hidden token belongs to no segment
either. With another number of queries, all of them do, in segments of their own.

With at most as many queries, or visible keys, as landmarks, the result is exact attention.

An output depends on the other queries through their landmarks. So there is no causal form, and masks that differ
between queries, a bias of scores, and dropout of weights are not supported.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), A and Z (batch, heads, landmarks,
landmarks).

The convolution has one filter for each head and all its channels (``implementations.token_convolution``):

    out_i = sum_t filter_t v_(p_i + t - size // 2)          p_i: the position of query i among the keys
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import LARGEST_SIZE, OptionError, check_choice, check_count, check_size, check_weights
from regard.kernels.autocast import disable_autocast
from regard.kernels.implementations.token_convolution import convolve_tokens
from regard.kernels.reference.token_convolution import convolve_in_torch
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts
from regard.masks.dense_mask import keep
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.clean_tokens import fill_nan, fill_zeros, has_norm_below, is_false, is_finite, mark_heads
from regard.mechanisms.steps import Factors

_MAX_ITERATIONS = 1000
_MAX_NORM = {torch.float32: 2.0**40, torch.float64: 2.0**300}


@final
@explain_arguments
class Nystromformer(Mechanism):
    """Nystromformer: softmax(s Q K~^T) softmax(s Q~ K~^T)^+ softmax(s Q~ K^T) V, with ``landmarks`` segment means.

    Args:
        heads, head_dim: of the queries.
        landmarks: their number.
        iterations: of the pseudo-inverse.
        convolution: size of the filter (odd) that is convolved with the values and added; None adds nothing.
        initial_norm: "matrix" divides the first Z by the norms of each A, as the paper does; "batch" by the largest
            norm of all heads and texts, as the authors' code and transformers do: a result then depends on the other
            texts in the batch.
    """

    traits = Traits(weights_are="signed", approximates="dot_product", divides_scores=True, mixes_queries=True)

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        landmarks: int = 64,
        iterations: int = 6,
        convolution: int | None = None,
        initial_norm: Literal["matrix", "batch"] = "matrix",
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        check_size("landmarks", landmarks)
        check_weights(heads=heads, landmarks=landmarks, columns=landmarks)
        check_count("iterations", iterations, maximum=_MAX_ITERATIONS)
        check_choice("initial_norm", initial_norm, ("matrix", "batch"))
        self.landmarks, self.iterations, self.initial_norm = landmarks, iterations, initial_norm
        self.convolution = None if convolution is None else _make_filters(heads, convolution)

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks that differ between queries."""
        if request.bias is not None:
            return "a bias is defined for pairs of a query and a key, and it compares both with means of tokens"
        parts = causal_parts(request.mask, request.frame)
        if parts is None or (parts.high is not None and parts.high < request.frame.keys - 1):
            return "its landmarks are means of all tokens, so every query attends to the same keys: no causal mask"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, "auto")

    def attend_in_torch(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output without the fused kernels, which have no second derivatives."""
        return self._attend(request, "reference")

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        parts, dtype = causal_parts(request.mask, request.frame), accumulation_dtype(request.query.dtype)
        assert parts is not None
        visible = parts.visible_keys(request.frame, request.device)
        group = 1 if visible is None or visible.shape[1] == 1 else request.group
        key, value = (side.to(dtype) for side in (request.key, request.value))
        if group > 1:
            key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        wide = request.replace(query=request.query.to(dtype), key=key, value=value, mask=parts.keys)
        with disable_autocast(request.device):
            if min(request.frame.queries, request.frame.keys) <= self.landmarks:
                output = attend("attention", impl, wide)
            else:
                output = self._approximate(wide, visible, impl)
            if self.convolution is not None:
                output = add_convolution(output, self.convolution.to(dtype), value, visible, request.frame, impl)
        return output.to(request.query.dtype)

    def _approximate(
        self, request: Request, visible: Bool[Tensor, "#batch #heads keys"] | None, impl: str
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the product of the three matrices and the values, from right to left."""
        queries, keys = request.frame.queries, request.frame.keys
        key_segments = query_segments = Segments.of(keys, self.landmarks, visible, request.query)
        if queries != keys:
            query_segments = Segments.of(queries, self.landmarks, None, request.query)
        query_means, key_means = query_segments.means(request.query), key_segments.means(request.key)
        key_means = key_means.repeat_interleave(request.query.shape[1] // key_means.shape[1], dim=1)
        # Products of means with a larger norm might overflow, so these count as not finite.
        good = [has_norm_below(means, _MAX_NORM[means.dtype]).all(-1) for means in (query_means, key_means)]
        broken = ~(good[0] & good[1])
        query_means, key_means = (means.masked_fill(broken[..., None, None], 0.0) for means in (query_means, key_means))
        inverse = self._invert((self.scale * query_means @ key_means.mT).softmax(-1))

        of_landmarks = request.replace(query=query_means)
        mixed = attend("attention", impl, of_landmarks)
        broken = broken | ~mixed.isfinite().all(-1).all(-1)
        values = inverse @ mixed.masked_fill(broken[..., None, None], 0.0)
        mask: Mask | None = None
        if visible is not None and key_segments.counts is not None:
            # In a text with at most one key in each segment, attention to the segments is attention to the keys.
            single = (key_segments.counts <= 1).all(-1)[..., None, None]
            segment_values = key_segments.means(request.value).repeat_interleave(request.group, dim=1)
            values = torch.where(single, segment_values, values)
            mask = keep(key_segments.counts[:, :, None] > 0)
        of_queries = request.replace(key=key_means, value=values, mask=mask)
        output = attend("attention", impl, of_queries)
        empty = torch.zeros_like(broken) if visible is None else ~visible.any(-1).expand_as(broken)
        return mark_heads(output, empty, broken)

    def weight_factors(self, request: Request) -> Factors | None:
        """Return the weights of the landmarks, and Z softmax(s Q~ K^T).

        None where it attends exactly, for hidden keys, and with a convolution.
        """
        parts, frame = causal_parts(request.mask, request.frame), request.frame
        assert parts is not None
        hides = parts.visible_keys(frame, request.device) is not None
        if hides or self.convolution is not None or min(frame.queries, frame.keys) <= self.landmarks:
            return None
        dtype = accumulation_dtype(request.query.dtype)
        query, key = request.query.to(dtype), request.key.to(dtype).repeat_interleave(request.group, dim=1)
        query_means = Segments.of(frame.queries, self.landmarks, None, query).means(query)
        key_means = Segments.of(frame.keys, self.landmarks, None, key).means(key)
        inverse = self._invert((self.scale * query_means @ key_means.mT).softmax(-1))
        of_key = inverse @ (self.scale * query_means @ key.mT).softmax(-1)
        return Factors("landmarks", (self.scale * query @ key_means.mT).softmax(-1), of_key.mT, is_divided=False)

    def _invert(
        self, matrix: Float[Tensor, "batch heads landmarks landmarks"]
    ) -> Float[Tensor, "batch heads landmarks landmarks"]:
        """Compute the iterative pseudo-inverse of matrices whose rows are distributions, so that |A|_inf is 1."""
        norm = matrix.sum(-2).amax(-1)
        norm = norm[..., None, None] if self.initial_norm == "matrix" else norm.amax()
        inverse, identity = matrix.mT / norm, torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        for _ in range(self.iterations):
            product = matrix @ inverse
            inverse = 0.25 * inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
        return inverse

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        size = None if self.convolution is None else self.convolution.shape[1]
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, landmarks={self.landmarks}, iterations={self.iterations}, "
            f"convolution={size}, initial_norm={self.initial_norm!r}"
        )


def _make_filters(heads: int, size: int) -> nn.Parameter:
    """Make a filter per head, with the initial weights of a convolution of torch."""
    check_count("convolution", size, maximum=LARGEST_SIZE, example=33)
    if size % 2 == 0:
        raise OptionError(
            "an even convolution has no middle",
            expected="an odd size, so that a filter reaches as far to the left as to the right",
            got=f"convolution={size}",
            do=f"use {size - 1} or {size + 1}",
        )
    check_weights(heads=heads, convolution=size)
    return nn.Parameter(torch.empty(heads, size).uniform_(-(size**-0.5), size**-0.5))


@final
@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of the visible tokens of each text and head, whose sizes differ by at most one.

    The p-th of n visible tokens belongs to segment floor(p segments / n). So the segments are equal if n is divisible,
    and hold at most one token each if there are fewer tokens than segments. Hidden tokens belong to no segment.
    ``visible`` is None if all tokens are visible, ``counts`` then too. ``shares`` has 1 / count in the columns of a
    segment's tokens and 0 elsewhere; None if the segments are equal.
    """

    segments: int
    visible: Bool[Tensor, "#batch #heads length"] | None
    counts: Int[Tensor, "#batch #heads segments"] | None
    shares: Float[Tensor, "#batch #heads segments length"] | None

    @classmethod
    def of(
        cls, length: int, segments: int, visible: Bool[Tensor, "#batch #heads length"] | None, like: Tensor
    ) -> Segments:
        """Cut the visible tokens, of which there are ``length`` if all are, into ``segments``; dtype as ``like``."""
        if visible is None and length % segments == 0:
            return cls(segments, None, None, None)
        flags = torch.ones(1, 1, length, dtype=torch.bool, device=like.device) if visible is None else visible
        rank = flags.cumsum(-1) - 1
        number = rank * segments // flags.sum(-1, keepdim=True).clamp(min=1)
        belongs = (number[..., None, :] == torch.arange(segments, device=like.device)[:, None]) & flags[..., None, :]
        counts = belongs.sum(-1)
        shares = belongs.to(like.dtype) / counts.clamp(min=1).to(like.dtype)[..., None]
        return cls(segments, visible, counts if visible is not None else None, shares)

    def means(self, tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads segments size"]:
        """Compute the mean token of each segment; 0 for a segment without tokens."""
        if self.shares is None:
            return tokens.unflatten(2, (self.segments, -1)).mean(3)
        return self.shares @ fill_zeros(tokens, None if self.visible is None else ~self.visible)


def add_convolution(
    output: Float[Tensor, "batch heads queries value_dim"],
    filters: Float[Tensor, "heads size"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    visible: Bool[Tensor, "#batch #heads keys"] | None,
    frame: Frame,
    impl: str,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Add the convolution of the visible values to an output; values hidden or beyond the ends count as 0.

    The last query has the position of the last key. NaN where a filter reaches a value that is not finite.
    """
    bad = ~is_finite(value)
    bad = bad if visible is None else bad & visible
    value = fill_zeros(value, bad if visible is None else bad | ~visible)
    convolve = convolve_in_torch if impl == "reference" else convolve_tokens
    output = convolve(output, filters, value, frame.offset)
    if is_false(bad):
        return output
    size = filters.shape[1]
    front = size // 2 - frame.offset
    ends = (front, frame.queries + size - 1 - front - frame.keys)
    before = torch.nn.functional.pad(torch.nn.functional.pad(bad, ends).cumsum(2), (1, 0))
    first = torch.arange(frame.queries, device=bad.device)
    near = (before[..., first + size] > before[..., first]).repeat_interleave(output.shape[1] // bad.shape[1], dim=1)
    return fill_nan(output, near)
