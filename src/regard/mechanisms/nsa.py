"""Native sparse attention, NSA: compressed blocks, chosen blocks and a window, joined by gates for each query.

    o_i = g_1 compressed_i + g_2 chosen_i + g_3 window_i       g = sigmoid(gate_i)
    compressed_i   softmax(scale * q_i . k~_b) v~_b     over the complete blocks b up to i (``block_compression``)
    chosen_i       softmax(scale * q_i . k_j) v_j       over j <= i in the own block and ``chosen_blocks`` - 1 others
    window_i       softmax(scale * q_i . k_j) v_j       over i - window < j <= i

Yuan et al. 2025, "Native sparse attention: hardware-aligned and natively trainable sparse attention", equations 5 to
12; scale = 1/sqrt(head_dim). Of the ``chosen_blocks``, one is the own block, the next ones are the first block and the
one before the own, and the others are chosen by the weights of the compressed attention: a block sums the weights of
each compressed block times the strides that they share (equation 9), summed over the query heads that share a key head
(equation 10), so these heads choose alike. Of equal blocks the first are chosen.

The weights that choose are computed in float64, and rounded to float32. A kernel computes them in float32
(``csrc/selection/block_importance.h``); for the queries where its error could change the choice, few, they are computed
again in float64.

Compression and gates are trained; the choice has no gradient of its own. Time is n (n / stride + chosen_blocks * block
+ window) d, memory linear in length. The branches share keys and values, and the compression is a weighted mean, where
the paper has keys and values for each branch and a small network. The weights of a query are not negative, and their
sum is the sum of its gates, or less before the first compressed block is complete. It is causal, hides later keys
itself, and takes padding on the right; with other masks blocks would differ between queries. It cannot take a bias, and
has no dropout.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim), gate (batch, heads, queries, 3).
"""

from __future__ import annotations

from functools import partial
from typing import final

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import LARGEST_LENGTH, OptionError, check_count, check_size, check_sizes
from regard.kernels.autocast import disable_autocast
from regard.kernels.operators.block_importance_op import choose_blocks
from regard.kernels.reference.nonfinite_isolation import masked_softmax
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend
from regard.kernels.support import MAX_HEAD_DIM, unsupported_reason
from regard.masks.base import Mask
from regard.masks.dense_mask import Keep
from regard.mechanisms.base import Traits
from regard.mechanisms.block_compression import BlockCompression
from regard.mechanisms.chosen_keys import ChosenKeysMechanism, attend_to_blocks, visible_keys
from regard.mechanisms.clean_tokens import fill_nan, fill_zeros, is_finite
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.highest_scores import mark_highest, rounded_scores
from regard.mechanisms.key_prefix import KeyPrefix
from regard.mechanisms.mean_key_scores import count_blocks
from regard.mechanisms.steps import Blocks, Branch, Branches, BranchName, Steps
from regard.mechanisms.weights import weights_by_gradient
from regard.tensors import has_values, is_traced

_ROWS_AT_ONCE = 1024
"""Queries of the compressed branch that share a range of compressed keys."""
_NUMBERS_AT_ONCE = 1 << 20
"""Weights in float64 that are computed at once."""


@final
@explain_arguments
class NativeSparseAttention(ChosenKeysMechanism):
    """Native sparse attention: gated sum of attention to compressed blocks, to chosen blocks, and to a window.

    Args:
        block: number of tokens in a block of the chosen branch, a multiple of ``stride``.
        chosen_blocks: number of blocks of a query: its own, the first, the one before its own, and then the best ones.
        compressed_block: number of tokens that are compressed to one, a multiple of ``stride`` and at most ``block``.
        stride: distance between compressed blocks.
        window: number of keys in the window, with the query's own.

    ``gate`` (batch, heads, queries, 3) are the logits of the gates of the three branches, in the order above; without
    them each gate is 1/2.
    """

    traits = Traits(
        weights_are="non-negative",
        divides_scores=True,
        hides_later_keys=True,
        mixes_heads=True,  # those that share a key head choose together
        uses_all_parameters=False,  # a text shorter than a block has none to compress
        no_steps_reason="This mechanism adds up attention to compressed blocks, to chosen blocks and to a window.",
    )

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        block: int = 64,
        chosen_blocks: int = 16,
        compressed_block: int = 32,
        stride: int = 16,
        window: int = 512,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim)
        check_count("chosen_blocks", chosen_blocks, minimum=1, maximum=LARGEST_LENGTH)
        check_sizes(block=block, compressed_block=compressed_block, stride=stride)
        check_size("window", window)
        if block % stride or compressed_block % stride or compressed_block > block:
            raise OptionError(
                "the blocks do not fit together",
                expected="block and compressed_block multiples of stride, and compressed_block at most block",
                got=f"block={block}, compressed_block={compressed_block}, stride={stride}",
                do="for example block=64, compressed_block=32, stride=16",
            )
        self.block, self.chosen_blocks, self.window = int(block), int(chosen_blocks), int(window)
        self.stride = int(stride)
        self.compression = BlockCompression(head_dim, block=int(compressed_block), stride=self.stride)

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The logits of the gates of the compressed, the chosen and the window branch."""
        return (ExtraInput("gate", side="query", heads=self.heads, size=3, may_be_wide=True),)

    def refuses(self, request: Request) -> str | None:
        """Refuse a bias, and masks that hide keys other than the last ones."""
        if request.bias is not None:
            return "a bias is not part of its choice of keys"
        if KeyPrefix.of(request) is None:
            return "its blocks begin with the first key: a mask must be causal, padding on the right, or both"
        return None

    def visible(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "#batch #heads rows keys"]:
        """Return the keys up to the position of each query that the mask of the call allows."""
        frame = request.frame
        causal = masks.causal().dense(frame.queries, frame.keys, device=request.device, rows=rows)
        return visible_keys(request, rows) & causal

    def choose(self, request: Request, rows: Int[Tensor, " rows"]) -> Bool[Tensor, "batch heads rows keys"]:
        """Choose the keys of the chosen branch."""
        own = (_prefix(request).visible_counts(request, rows)[..., None] - 1) // self.block
        compressed = self._compress_for_choice(request)
        blocks = self._choose_blocks_of(request, rows, request.query[:, :, rows], compressed)
        blocks = blocks.repeat_interleave(request.group, dim=1)
        blocks = blocks | (torch.arange(blocks.shape[3], device=request.device) == own)
        number = torch.arange(request.frame.keys, device=request.device) // self.block
        return self.visible(request, rows) & blocks[..., number]

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once.

        In a text that has no more blocks than are chosen, the chosen branch is causal attention.
        """
        return self._mix(request, self._choose_blocks(request), "auto")

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries; in plain torch if gradients are enabled."""
        impl = "reference" if torch.is_grad_enabled() else "auto"
        chosen = self._choose_blocks(request)  # before keys are repeated: heads that share keys choose together
        return weights_by_gradient(partial(self._mix, chosen=chosen, impl=impl), request, rows)

    def steps(self, request: Request) -> None:
        """There is no single softmax from which the weights follow."""
        del request

    def softmaxes(self, request: Request) -> Branches:
        """Return the softmaxes over compressed blocks, over chosen blocks and over the window, times their gates."""
        prefix, dtype = _prefix(request), accumulation_dtype(request.query.dtype)
        rows, query, key = request.frame.all_rows(request.device), request.query.to(dtype), request.key.to(dtype)
        blocks = Blocks(self.stride, self.compression.value_logits.to(dtype).softmax(0))
        compressed = self.compression.keys(key), Keep(self._visible_compressed(request, prefix, rows))
        inputs: tuple[tuple[BranchName, Tensor, Mask, Blocks | None], ...] = (
            ("compressed", *compressed, blocks),
            ("chosen", key, Keep(self.choose(request, rows)), None),
            ("window", key, self._window_mask(prefix), None),
        )
        gates, _ = self._gates(request, dtype)
        parts = [
            Branch(
                name,
                Steps(query, side.repeat_interleave(request.group, dim=1), mask, scale=self.scale),
                gate[..., 0].expand(query.shape[:3]),
                of_blocks,
            )
            for gate, (name, side, mask, of_blocks) in zip(gates, inputs, strict=True)
        ]
        return Branches(tuple(parts))

    def _mix(
        self, request: Request, chosen: Bool[Tensor, "batch heads queries blocks"] | None, impl: str
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the gated sum of the branches; ``chosen`` None is all blocks."""
        dtype, prefix = accumulation_dtype(request.query.dtype), _prefix(request)
        query, key, value = (part.to(dtype) for part in (request.query, request.key, request.value))
        wide = request.replace(query=query, key=key, value=value, mask=None, inputs={})
        with disable_autocast(request.device):
            branches = [
                self._attend_compressed(wide, prefix, impl),
                self._attend_chosen(wide, chosen, prefix, impl),
                self._attend_window(wide, prefix, impl),
            ]
            gates, broken = self._gates(request, dtype)
            for branch in branches:
                broken = broken | ~is_finite(branch)
            # Such rows have no gradients, also where 0 would be multiplied by infinity.
            branches = [fill_zeros(branch, broken) for branch in branches]
            output = gates[0] * branches[0] + gates[1] * branches[1] + gates[2] * branches[2]
        has_visible_key = prefix.visible_counts(request, request.frame.all_rows(request.device)) > 0
        # Hidden rows are 0 already, but a NaN in the gradient of such a row must not reach its gate.
        return fill_nan(fill_zeros(output, ~has_visible_key), broken & has_visible_key).to(request.query.dtype)

    def _gates(
        self, request: Request, dtype: torch.dtype
    ) -> tuple[list[Tensor], Bool[Tensor, "#batch #heads #queries"]]:
        """Return the gate of each branch (batch, heads, queries, 1), and which queries have one that is not finite."""
        logits = request.inputs.get("gate")
        if logits is None:
            half = request.query.new_full((1, 1, 1, 1), 0.5, dtype=dtype)
            return [half, half, half], torch.zeros(1, 1, 1, dtype=torch.bool, device=request.device)
        broken = ~logits.detach().isfinite().all(-1)
        return list(logits.to(dtype).masked_fill(broken[..., None], 0.0).sigmoid().split(1, dim=-1)), broken

    def _attend_compressed(self, request: Request, prefix: KeyPrefix, impl: str) -> Tensor:
        """Compute the compressed branch, for some queries at a time and the compressed keys up to them."""
        key, value = self.compression.keys(request.key), self.compression.values(request.value)
        outputs = [value.new_zeros(*request.query.shape[:2], 0, value.shape[3])]
        queries, offset = request.frame.queries, request.frame.offset
        # The gradient of a split is one concatenation; the gradient of a slice would be as large as all queries.
        for first, query in zip(range(0, queries, _ROWS_AT_ONCE), request.query.split(_ROWS_AT_ONCE, 2), strict=False):
            last = min(first + _ROWS_AT_ONCE, queries)
            stop = self.compression.count(max(0, last + offset))
            if stop == 0:  # a graph of ONNX cannot attend to no keys
                outputs.append(value.new_zeros(*query.shape[:3], value.shape[3]))
                continue
            rows = torch.arange(first, last, device=request.device)
            visible = self._visible_compressed(request, prefix, rows)[..., :stop]
            part = request.replace(
                query=query,
                key=key[:, :, :stop],
                value=value[:, :, :stop],
                mask=Keep(visible),
            )
            outputs.append(attend("attention", impl, part))
        return torch.cat(outputs, dim=2)

    def _visible_compressed(
        self, request: Request, prefix: KeyPrefix, rows: Int[Tensor, " rows"]
    ) -> Bool[Tensor, "#batch 1 rows blocks"]:
        """Return the compressed blocks that are complete at the position of each query."""
        compression = self.compression
        last = (
            torch.arange(compression.count(request.frame.keys), device=request.device) * compression.stride
            + compression.block
        )
        return last <= prefix.visible_counts(request, rows)[..., None]

    def _attend_chosen(
        self, request: Request, chosen: Bool[Tensor, "batch heads queries blocks"] | None, prefix: KeyPrefix, impl: str
    ) -> Tensor:
        """Compute the chosen branch; a text whose blocks are all chosen is computed as causal attention."""
        if chosen is not None:
            return attend_to_blocks(request, chosen, self.block, prefix.lengths, impl)
        return attend("attention", impl, request.replace(mask=_with_padding(masks.causal(), prefix)))

    def _attend_window(self, request: Request, prefix: KeyPrefix, impl: str) -> Tensor:
        """Compute the window branch."""
        return attend("attention", impl, request.replace(mask=self._window_mask(prefix)))

    def _window_mask(self, prefix: KeyPrefix) -> Mask:
        """Return the mask of the window branch."""
        return _with_padding(masks.window(self.window - 1, 0), prefix)

    @torch.no_grad()
    def _choose_blocks(self, request: Request) -> Bool[Tensor, "batch heads queries blocks"] | None:
        """Choose the blocks of all queries before their own; None if there are no more than are chosen."""
        if not is_traced() and request.frame.keys <= self.block * self.chosen_blocks:  # a graph is for any length
            return None
        rows, compressed = request.frame.all_rows(request.device), self._compress_for_choice(request)
        chosen = self._choose_blocks_of(request, rows, request.query, compressed)
        return chosen.repeat_interleave(request.group, dim=1)

    @torch.no_grad()
    def _compress_for_choice(self, request: Request) -> Float64[Tensor, "batch key_heads blocks head_dim"]:
        """Return the compressed keys in float64, times the scale; a head at a time, in memory that is reused."""
        return torch.cat([self.compression.keys(key.double()) for key in request.key.split(1, dim=1)], 1) * self.scale

    @torch.no_grad()
    def _choose_blocks_of(
        self,
        request: Request,
        rows: Int[Tensor, " rows"],
        query: Float[Tensor, "batch heads rows head_dim"],
        compressed: Float64[Tensor, "batch key_heads compressed head_dim"],
    ) -> Bool[Tensor, "batch key_heads rows blocks"]:
        """Choose the blocks of the queries ``rows`` before their own, from compressed keys times the scale."""
        if not self._may_be_narrow(request):
            return self._choose_exactly(request, rows, compressed)
        chosen, certain = choose_blocks(
            query,
            compressed.float(),
            _prefix(request).visible_counts(request, rows)[:, 0].contiguous(),
            blocks=count_blocks(request.frame.keys, self.block),
            block=self.block,
            compressed_block=self.compression.block,
            stride=self.stride,
            count=self.chosen_blocks - 1,
        )
        unsure = ~certain.all(1).all(0)
        some = rows[unsure]
        if len(some):
            chosen[:, :, unsure] = self._choose_exactly(request, some, compressed)
        return chosen

    def _choose_exactly(
        self,
        request: Request,
        rows: Int[Tensor, " rows"],
        compressed: Float64[Tensor, "batch key_heads compressed head_dim"],
    ) -> Bool[Tensor, "batch key_heads rows blocks"]:
        """Choose blocks by weights in float64, for some queries at a time."""
        prefix, columns = _prefix(request), max(compressed.shape[2], self.head_dim)
        at_once = max(1, _NUMBERS_AT_ONCE // max(1, request.query.shape[0] * request.query.shape[1] * columns))
        parts = []
        for some in rows.split(at_once):
            own = (prefix.visible_counts(request, some)[..., None] - 1) // self.block
            importance = self._score_blocks(request, prefix, some, compressed)
            parts.append(self._mark_blocks(importance, own, request.query.dtype))
        return torch.cat(parts, dim=2)

    def _may_be_narrow(self, request: Request) -> bool:
        """Whether the choice may begin in float32: the kernel takes the tensors, and numbers are known.

        float64 tokens are compared in float64.
        """
        query = request.query
        return (
            query.dtype != torch.float64
            and has_values(query)
            and unsupported_reason(query, request.key) is None
            and 0 < query.shape[3] <= MAX_HEAD_DIM
            and 0 not in query.shape
            and self.compression.count(request.frame.keys) > 0
        )

    def _mark_blocks(
        self,
        importance: Float[Tensor, "batch key_heads rows blocks"],
        own: Int[Tensor, "#batch 1 rows 1"],
        dtype: torch.dtype,
    ) -> Bool[Tensor, "batch key_heads rows blocks"]:
        """Mark the blocks before the own one that are chosen: the first, the one before the own, and the best."""
        importance = self._force_blocks(rounded_scores(importance, dtype), own)
        at = torch.arange(importance.shape[3], device=importance.device)
        return mark_highest(importance, at < own, self.chosen_blocks - 1)

    def _force_blocks(
        self, importance: Float[Tensor, "batch key_heads rows blocks"], own: Int[Tensor, "#batch 1 rows 1"]
    ) -> Float[Tensor, "batch key_heads rows blocks"]:
        """Set the importance of the first block and of the one before the own to Inf."""
        at = torch.arange(importance.shape[3], device=importance.device)
        return importance.masked_fill((at == 0) | (at == own - 1), torch.inf)

    def _score_blocks(
        self, request: Request, prefix: KeyPrefix, rows: Int[Tensor, " rows"], compressed: Tensor
    ) -> Float[Tensor, "batch key_heads rows blocks"]:
        """Sum the compressed weights over the heads that share keys, and over each block by the strides they share.

        They are computed in the dtype of ``compressed``.
        """
        keys = compressed.repeat_interleave(request.group, dim=1)
        products = request.query[:, :, rows].to(keys.dtype) @ keys.mT
        weights = masked_softmax(products, self._visible_compressed(request, prefix, rows)).weights
        return self._sum_over_blocks(request, weights)

    def _sum_over_blocks(
        self, request: Request, weights: Float[Tensor, "batch heads rows compressed"]
    ) -> Float[Tensor, "batch key_heads rows blocks"]:
        """Sum compressed weights over the heads that share keys, and over each block by the strides they share."""
        of_groups = weights.unflatten(1, (request.key.shape[1], request.group)).sum(2)
        blocks, strides = count_blocks(request.frame.keys, self.block), self.block // self.compression.stride
        of_strides = of_groups.new_zeros(*of_groups.shape[:3], blocks * strides)
        for at in range(self.compression.block // self.compression.stride):
            of_strides[..., at : at + of_groups.shape[3]] += of_groups
        return of_strides.unflatten(3, (blocks, strides)).sum(4)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        compression = self.compression
        return (
            f"heads={self.heads}, head_dim={self.head_dim}, block={self.block}, chosen_blocks={self.chosen_blocks}, "
            f"compressed_block={compression.block}, stride={compression.stride}, window={self.window}"
        )


def _prefix(request: Request) -> KeyPrefix:
    """Return the prefix of keys that a call shows, which is not refused."""
    prefix = KeyPrefix.of(request)
    assert prefix is not None
    return prefix


def _with_padding(mask: Mask, prefix: KeyPrefix) -> Mask:
    """Return a mask that also hides the padding of a call."""
    return mask if prefix.lengths is None else mask & masks.padding(prefix.lengths)
