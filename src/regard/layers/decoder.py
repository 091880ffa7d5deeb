"""Decoder block: self-attention, cross-attention to a memory (if there is one), then a feed-forward layer.

Each has a residual connection (``Residual``). Vaswani et al. 2017, section 3.1 and figure 1. A decoder block without
cross-attention is the block of a GPT; one of a mixer without attention and feed-forward layer is the block of a Mamba.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final, overload

from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, ShapeError, check_flag
from regard.kernels.request import Bias
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.layers.decoder_cache import DecoderCache, SharedEntries
from regard.layers.feed_forward import FeedForward
from regard.layers.mixture_of_experts import MixtureOfExperts, SharedExpertMixture
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.residual import Residual, make_residual
from regard.layers.scan_mixer import ScanMixer
from regard.layers.sublayer_step import attention_step, can_step, cross_attention_step, feed_forward_step
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.state import State
from regard.positions.base import PairBias, Rotation


@final
@explain_arguments
class DecoderBlock(CheckpointedBlock):
    """Decoder block: self-attention, cross-attention to a memory (if the block has one), then feed-forward (if any).

    ``attention`` mixes the tokens of a text: multi-head attention with any mechanism, or a mixer of the scan family.
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention | ScanMixer,
        attention_residual: Residual,
        feed_forward: FeedForward | MixtureOfExperts | SharedExpertMixture | None = None,
        feed_forward_residual: Residual | None = None,
        cross_attention: MultiHeadAttention | None = None,
        cross_attention_residual: Residual | None = None,
    ) -> None:
        super().__init__()
        for name, part, residual in (
            ("cross-attention", cross_attention, cross_attention_residual),
            ("feed-forward", feed_forward, feed_forward_residual),
        ):
            if (part is None) != (residual is None):
                option = name.replace("-", "_")
                raise OptionError(
                    f"{name} and its residual go together",
                    expected="both, or neither",
                    got="one of them",
                    do=f"pass {option}= and {option}_residual=",
                )
        self.attention, self.attention_residual = attention, attention_residual
        self.cross_attention, self.cross_attention_residual = cross_attention, cross_attention_residual
        self.feed_forward, self.feed_forward_residual = feed_forward, feed_forward_residual

    @overload
    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | None = ...,
        *,
        mask: Mask | None = ...,
        bias: Bias | None = ...,
        memory_mask: Mask | None = ...,
        cache: None = ...,
        own_shared: SharedEntries | None = ...,
        memory_shared: SharedEntries | None = ...,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | None = ...,
        *,
        mask: Mask | None = ...,
        bias: Bias | None = ...,
        memory_mask: Mask | None = ...,
        cache: DecoderCache,
        own_shared: SharedEntries | None = ...,
        memory_shared: SharedEntries | None = ...,
    ) -> tuple[Tensor, DecoderCache]: ...

    def forward(
        self,
        tokens: Tensor,
        memory: Tensor | None = None,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        memory_mask: Mask | None = None,
        cache: DecoderCache | None = None,
        own_shared: SharedEntries | None = None,
        memory_shared: SharedEntries | None = None,
    ) -> Tensor | tuple[Tensor, DecoderCache]:
        """Transform tokens to the same shape; with a cache, return the output and the extended cache.

        Args:
            tokens: (batch, length, width).
            memory: (batch, keys, key_width), the input of cross-attention, usually the encoder's output; with a cache
                it is needed in the first call only, and later calls ignore it.
            mask: over the tokens, including those in the cache: usually ``masks.causal()``.
            bias: added to the scores of self-attention, over the same tokens, such as one that all layers share;
                self-attention then has no position that is a bias.
            memory_mask: over the memory.
            cache: ``DecoderCache()``, ``empty_cache(memory)``, or the cache that an earlier call returned.
            own_shared: for a step of one token (rows, 1, width), which rows share an entry of ``cache.own``; ``mask``
                then says which of its keys each row may attend to. None: each row has its own entry.
            memory_shared: the same for ``cache.memory``.

        Raises OptionError for a missing memory, or one that a block without cross-attention gets, and for shared
        entries without a cache or with a position inside attention; ShapeError for shared entries with more than one
        token.
        """
        if memory is not None and self.cross_attention is None:
            raise _no_cross_attention_error(memory)
        if cache is not None:
            _check_cache(cache, self.cross_attention)
        if own_shared is not None:
            _check_shared(tokens, cache, self.attention, bias)
        if memory_shared is not None:
            _check_shared(tokens, cache, self.cross_attention, None)
        old = DecoderCache() if cache is None else cache
        steps, following = cache is not None and can_step(tokens), old

        def transform(tokens: Tensor) -> Tensor:
            nonlocal following
            tokens, own = self._attend(tokens, old.own, mask, bias, own_shared, cached=cache is not None, steps=steps)
            known = old.memory
            if self.cross_attention is not None:
                if known is None:
                    known = self.cross_attention.project_memory(_require_memory(memory))
                offset = None if memory_shared is not None else old.length
                tokens = self._attend_across(tokens, known, memory_mask, memory_shared, offset, steps=steps)
            if cache is not None:  # else a checkpointed block computes it again
                following = DecoderCache(own, known)
            return self._feed_forward(tokens, steps=steps)

        if cache is None:
            return self.run_checkpointed(transform, tokens)
        output = transform(tokens)
        return output, following

    def _attend(
        self,
        tokens: Tensor,
        state: State | None,
        mask: Mask | None,
        bias: Bias | None,
        shared: SharedEntries | None,
        *,
        cached: bool,
        steps: bool,
    ) -> tuple[Tensor, State | None]:
        """Compute self-attention with its residual connection, in one native call if it is a step that allows that."""
        attention, residual = self.attention, self.attention_residual
        if cached and state is None:
            state = attention.empty_cache()
        if steps and state is not None and isinstance(attention, MultiHeadAttention):
            inner = tokens if shared is None else shared.rows_to_queries(tokens)
            found = attention_step(attention, residual, inner, state, mask, bias)
            if found is not None:
                output, following = found
                return (output if shared is None else shared.queries_to_rows(output)), following

        def attend(inner: Tensor) -> Tensor:
            nonlocal state
            if state is None:
                return attention(inner, mask=mask, bias=bias)
            output, state = attention(inner, mask=mask, bias=bias, cache=state)
            return output

        return residual(tokens, _group_by_entry(attend, shared)), state

    def _attend_across(
        self,
        tokens: Tensor,
        known: KeyValueCache,
        mask: Mask | None,
        shared: SharedEntries | None,
        offset: int | None,
        *,
        steps: bool,
    ) -> Tensor:
        """Compute cross-attention with its residual connection, in one native call if it is a step that allows that."""
        cross, residual = self.cross_attention, self.cross_attention_residual
        assert cross is not None, "known keys and values are those of cross-attention"
        assert residual is not None, "cross-attention has a residual connection"
        if steps:
            inner = tokens if shared is None else shared.rows_to_queries(tokens)
            found = cross_attention_step(cross, residual, inner, known, mask)
            if found is not None:
                return found if shared is None else shared.queries_to_rows(found)

        def attend(inner: Tensor) -> Tensor:
            return cross.attend_memory(inner, known, mask=mask, offset=offset)

        output: Tensor = residual(tokens, _group_by_entry(attend, shared))
        return output

    def _feed_forward(self, tokens: Tensor, *, steps: bool) -> Tensor:
        """Compute the feed-forward layer, if there is one, in one native call if it is a step that allows that."""
        layer, residual = self.feed_forward, self.feed_forward_residual
        if layer is None or residual is None:
            return tokens
        output = feed_forward_step(layer, residual, tokens) if steps else None
        return residual(tokens, layer) if output is None else output

    def empty_cache(self, memory: Tensor | None = None) -> DecoderCache:
        """Make the cache before the first token, with the keys and values of ``memory`` if there is cross-attention.

        Raises OptionError for a missing memory, or one that a block without cross-attention gets.
        """
        if self.cross_attention is None:
            if memory is not None:
                raise _no_cross_attention_error(memory)
            return DecoderCache(self.attention.empty_cache())
        return DecoderCache(self.attention.empty_cache(), self.cross_attention.project_memory(_require_memory(memory)))


def _group_by_entry(attend: Callable[[Tensor], Tensor], shared: SharedEntries | None) -> Callable[[Tensor], Tensor]:
    """Wrap ``attend`` for rows that share cache entries; None leaves it unchanged."""
    return attend if shared is None else lambda inner: shared.queries_to_rows(attend(shared.rows_to_queries(inner)))


def _check_shared(
    tokens: Tensor, cache: DecoderCache | None, attention: MultiHeadAttention | ScanMixer | None, bias: Bias | None
) -> None:
    """Raise ShapeError or OptionError unless rows may share cache entries: one token, and no position in attention."""
    if cache is None or attention is None:
        raise OptionError(
            "rows cannot share entries of a missing cache",
            expected="cache=..., and cross-attention for memory_shared",
            got="no cache" if cache is None else "a block without cross-attention",
            do="leave own_shared and memory_shared out",
        )
    if tokens.dim() != 3 or tokens.shape[1] != 1:
        raise ShapeError(
            "rows that share cache entries take one token at a time",
            expected="tokens (rows, 1, width)",
            got=str(tuple(tokens.shape)),
            do="leave own_shared and memory_shared out for whole sequences",
        )
    position = attention.position if bias is None else bias
    if position is not None:
        raise OptionError(
            "rows cannot share cache entries if attention has a position",
            expected="attention without a position inside, or one entry per row",
            got=f"{type(position).__name__}, and rows that share entries",
            do="leave own_shared and memory_shared out",
        )


def _check_cache(cache: object, cross_attention: MultiHeadAttention | None) -> None:
    """Raise OptionError unless this is a block's cache, and RefusedError where cross-attention cannot take a step.

    Step by step, it would not know the position of a query.
    """
    if not isinstance(cache, DecoderCache):
        raise OptionError(
            "this is not a cache of a decoder block",
            expected="a DecoderCache: DecoderCache(), or what an earlier call returned",
            got=type(cache).__name__,
            do="start with cache=DecoderCache()",
        )
    if cross_attention is None:
        return
    if isinstance(cross_attention.position, PairBias):
        kind = type(cross_attention.position).__name__
        raise RefusedError(
            f"cross-attention with {kind} takes all queries at once: the last one stands on the last key",
            expected="no cache, or cross-attention with Rotary or without a position",
            got=f"a cache, and cross-attention with {kind}",
            do="compute whole sequences without a cache",
        )
    rotates = isinstance(cross_attention.position, Rotation)
    if rotates and cache.own is not None and len(set(cache.own.next_positions)) > 1:
        raise RefusedError(
            "cross-attention with a rotation needs the same position in all sequences",
            expected="sequences of equal length, or cross-attention without Rotary",
            got=f"sequences of {', '.join(map(str, cache.own.next_positions))} tokens",
            do="decode sequences of equal length together",
        )


def _no_cross_attention_error(memory: Tensor) -> OptionError:
    return OptionError(
        "this block has no cross-attention, but a memory was passed",
        expected="memory=None",
        got=f"memory {tuple(memory.shape)}",
        do="build it with cross_attention= and cross_attention_residual=, or by decoder_block(cross_attention=True)",
    )


def _require_memory(memory: Tensor | None) -> Tensor:
    if memory is None:
        raise OptionError(
            "this block attends to a memory, but none was passed",
            expected="memory (batch, keys, key_width)",
            got="None",
            do="pass the encoder's output; with a cache it is needed in the first call only",
        )
    return memory


@explain_arguments
def decoder_block(
    width: int,
    heads: int,
    inner: int,
    *,
    norm: str = "post",
    activation: str = "relu",
    dropout: float = 0.0,
    attention_dropout: float = 0.0,
    inner_dropout: float = 0.0,
    epsilon: float = 1e-5,
    key_value_heads: int | None = None,
    mechanism: str | Mechanism = "dot_product",
    mechanism_options: Mapping[str, Any] | None = None,
    position: Rotation | PairBias | None = None,
    cross_attention: bool = True,
) -> DecoderBlock:
    """Build a decoder block; ``cross_attention=False`` is for decoder-only models. Options as for ``encoder_block``.

    ``mechanism``, its options, ``position`` and ``key_value_heads`` apply to self-attention; cross-attention is
    scaled dot product with ``heads`` key/value heads.
    """
    check_flag("cross_attention", cross_attention)
    return DecoderBlock(
        attention=MultiHeadAttention(
            width,
            heads,
            key_value_heads=key_value_heads,
            mechanism=mechanism,
            mechanism_options=mechanism_options,
            position=position,
            dropout=attention_dropout,
        ),
        cross_attention=MultiHeadAttention(width, heads, dropout=attention_dropout) if cross_attention else None,
        feed_forward=FeedForward(width, inner, activation=activation, dropout=inner_dropout),
        attention_residual=make_residual(norm, width, epsilon, dropout),
        cross_attention_residual=make_residual(norm, width, epsilon, dropout) if cross_attention else None,
        feed_forward_residual=make_residual(norm, width, epsilon, dropout),
    )
