"""All layers of a decoder in a decoding step, or of an encoder, in one native call (``operators.decoder_stack_op``).

    a_l = attention_l(h_l-1),    h_l = feed_forward_l(a_l)       h (batch, length, width), few tokens, without gradients
    h_L = norm(feed_forward_L(a_L))                              in pages h (tokens, width), the last ones of each text
    logits = output(h_L)

The layers are read once and kept as long as their modules are, with a record of what was read. Each step first asks
whether it still holds: a hook, an adapter, a replaced or moved parameter, and any other attribute that was set, ends
it. Then the layers are read again; where they do more than the kernel computes, blocks are called one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast, final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.contract import Frame
from regard.kernels.implementations.paged import find_band
from regard.kernels.int8_rows import MAX_ROWS, stored_width
from regard.kernels.operators.decoder_stack_op import (
    AttentionOfLayer,
    DecoderStack,
    FeedForwardOfLayer,
    PagesOfLayer,
    StepOfLayer,
    compute_stack,
    compute_stack_in_pages,
    read_stack,
)
from regard.kernels.operators.kernel_arguments import KernelArguments, make_kernel_arguments
from regard.kernels.operators.paged_attention_op import PagedKeysValues
from regard.kernels.operators.sublayer_op import RotationFactors
from regard.kernels.request import Terms, is_scale_in_range
from regard.layers.decoder import DecoderBlock
from regard.layers.decoder_cache import DecoderCache
from regard.layers.encoder import EncoderBlock
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.plain_module import NAMES_OF_HOOKS, is_unmodified
from regard.layers.sublayer_step import (
    HeadSizes,
    can_read_text,
    can_step,
    fit_heads,
    read_attention,
    read_feed_forward,
    read_linear,
    read_norm,
    read_norms,
    read_terms,
)
from regard.masks.base import Mask
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.ragged_pages import RaggedStep
from regard.mechanisms.window_cache import WindowCache
from regard.positions.base import Rotation

MAX_TOKENS_OF_STACK = 512
"""Tokens up to which an encoder is one native call."""
_NAMES_OF_PARTS = ("_parameters", "_buffers", "_modules")
_Cache = KeyValueCache | WindowCache


@final
@dataclass(frozen=True)
class ReadLayers:
    """The layers of a decoder or encoder, as the kernel reads them for tokens of ``dtype``."""

    stack: DecoderStack
    norm: nn.Module | None
    output: nn.Module | None
    num_logits: int | None  # None if the kernel does not compute the output layer
    dtype: torch.dtype
    attentions: tuple[AttentionOfLayer, ...]
    rotations: tuple[Rotation | None, ...]

    def fits(self, norm: nn.Module | None, output: nn.Module | None, tokens: Tensor) -> bool:
        """Whether these are still the layers, with this norm and output layer behind them, for tokens of this dtype."""
        is_same = self.norm is norm and self.output is output and self.dtype is tokens.dtype
        return is_same and self.stack.is_unchanged()

    def empty_logits(
        self, tokens: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch length vocabulary"] | None:
        """Allocate the logits of tokens; None if the kernel does not compute them."""
        return None if self.num_logits is None else tokens.new_empty((*tokens.shape[:2], self.num_logits))


_READ: WeakKeyDictionary[nn.ModuleList, ReadLayers] = WeakKeyDictionary()


def stack_step(
    layers: nn.ModuleList,
    norm: nn.Module,
    output: nn.Module | None,
    tokens: Float[Tensor, "batch length width"],
    caches: Sequence[DecoderCache],
    masks: Sequence[Mask | None],
    has_logits: bool,
) -> tuple[Float[Tensor, "layers batch length width"], Tensor | None, tuple[DecoderCache, ...]] | None:
    """Compute the output of each decoder block of ``layers``, the last one normalised, and the extended caches.

    With ``has_logits`` also the logits, or None if the kernel does not compute the ``output`` layer. None if blocks
    must be called.

    Layers with the same mask should be given the same object, which is then lowered once.
    """
    if not can_step(tokens):
        return None
    states = _read_states(caches)
    read = None if states is None else read_layers(layers, norm, output, tokens)
    if states is None or read is None:
        return None
    batch, length, _ = tokens.shape
    keys = [state.visible_keys(length) for state in states]
    terms = _lower_masks(read, keys, masks, batch, length, tokens.dtype)
    first = states[0].length
    rotations = _find_factors(read, lambda rotation, head_dim: rotation.factors(tokens, head_dim, first, length))
    if terms is None or rotations is None or not _fit(read, states, tokens):
        return None
    following = [_reserve(state, length) for state in states]
    steps = [
        StepOfLayer(*state.storage_rows, of_mask.low, of_mask.high, of_mask.start, of_mask.stop, rotation)
        for state, of_mask, rotation in zip(following, terms, rotations, strict=True)
    ]
    logits = read.empty_logits(tokens) if has_logits else None
    outputs = compute_stack(read.stack, tokens, steps, logits)
    return outputs, logits, tuple(DecoderCache(state.trimmed()) for state in following)


def encoder_stack(
    layers: nn.ModuleList,
    norm: nn.Module | None,
    tokens: Float[Tensor, "batch length width"],
    mask: Mask | None,
) -> Float[Tensor, "layers batch length width"] | None:
    """Compute the output of each encoder block of ``layers`` for whole texts, the last one normalised.

    None if blocks must be called: also for more tokens than ``MAX_TOKENS_OF_STACK``, whose outputs of all layers would
    take much memory, while calls of blocks take little time.
    """
    if not can_read_text(tokens) or tokens.shape[0] * tokens.shape[1] > MAX_TOKENS_OF_STACK:
        return None
    read = read_layers(layers, norm, None, tokens)
    if read is None:
        return None
    batch, length, _ = tokens.shape
    terms = _lower_masks(read, [length] * len(layers), [mask] * len(layers), batch, length, tokens.dtype)
    rotations = _find_factors(read, lambda rotation, head_dim: rotation.factors(tokens, head_dim, 0, length))
    if terms is None or rotations is None:
        return None
    stored: dict[tuple[int, int], Tensor] = {}  # keys and values, which the next layer overwrites

    def store(heads: int, size: int, side: int) -> Tensor:
        return stored.setdefault((side, heads * size), tokens.new_empty(batch, heads, length, size))

    steps = []
    for attention, of_mask, rotation in zip(read.attentions, terms, rotations, strict=True):
        heads, key_dim, value_dim = attention.key_heads, attention.head_dim, attention.value_dim
        key, value = store(heads, key_dim, 0), store(heads, value_dim, 1)
        steps.append(
            StepOfLayer(key, value, 0, length, of_mask.low, of_mask.high, of_mask.start, of_mask.stop, rotation)
        )
    return compute_stack(read.stack, tokens, steps, None)


def paged_stack_step(
    layers: nn.ModuleList,
    norm: nn.Module,
    output: nn.Module | None,
    tokens: Float[Tensor, "tokens width"],
    step: RaggedStep,
    masks: Sequence[Mask | None],
) -> tuple[Float[Tensor, "tokens width"], Float[Tensor, "tokens vocabulary"] | None] | None:
    """Compute the normalised output of the last layer, and write the keys and values of the tokens into their pages.

    Also the logits, if each text has one new token; or None if the kernel does not compute the ``output`` layer. None,
    with nothing written, if blocks must be called.
    """
    each = tokens[:, None]
    if not can_step(each):
        return None
    read = read_layers(layers, norm, output, each)
    if read is None:
        return None
    rotations = _find_factors(read, lambda rotation, head_dim: rotation.factors_at(each, head_dim, step.positions))
    if rotations is None:
        return None
    steps = []
    for number, (attention, mask, rotation) in enumerate(zip(read.attentions, masks, rotations, strict=True)):
        pages, band = step.pages_of(number), find_band(mask)
        if band is None or not _fit_pages(attention, pages, each):
            return None
        steps.append(PagesOfLayer(*pages, *band, rotation))
    logits = None if step.has_several else read.empty_logits(each)
    hidden = compute_stack_in_pages(read.stack, each, steps, logits)[-1, :, 0]
    return hidden, None if logits is None else logits[:, 0]


def _read_states(caches: Sequence[DecoderCache]) -> list[_Cache] | None:
    """Return the states of self-attention; None if one of them is not keys and values of as many tokens, or empty."""
    states: list[_Cache] = []
    for cache in caches:
        state = cache.own
        if not isinstance(state, KeyValueCache | WindowCache) or cache.memory is not None or state.inputs:
            return None
        states.append(state)
    length = states[0].length if states else 0
    return states if length > 0 and all(state.length == length for state in states) else None


def _reserve(state: _Cache, length: int) -> _Cache:
    following = state.reserved(length)
    assert following is not None, "a state with tokens reserves more, without gradients"
    return following


def _lower_masks(
    read: ReadLayers,
    keys_of_layers: Sequence[int],
    masks: Sequence[Mask | None],
    batch: int,
    length: int,
    dtype: torch.dtype,
) -> list[KernelArguments] | None:
    """Lower the mask of each layer; None if one of them is not a band and an interval."""
    lowered: dict[tuple[int, int, int], KernelArguments] = {}
    terms = []
    for attention, keys, mask in zip(read.attentions, keys_of_layers, masks, strict=True):
        kind = (id(mask), keys, attention.heads)
        found = lowered.get(kind)
        if found is None:
            if mask is not None:
                mask.check(batch, attention.heads, length, keys)
            found = make_kernel_arguments(Frame(length, keys), batch, dtype, Terms(mask))
            if found.row_start is not None or found.dense is not None:
                return None
            lowered[kind] = found
        terms.append(found)
    return terms


def _find_factors(
    read: ReadLayers, find: Callable[[Rotation, int], RotationFactors | None]
) -> list[RotationFactors | None] | None:
    """Find the factors of each layer's rotation, for heads of a size; None if one of them has none."""
    found: dict[tuple[int, int], RotationFactors | None] = {}
    factors = []
    for attention, rotation in zip(read.attentions, read.rotations, strict=True):
        kind = (id(rotation), attention.head_dim)
        if kind not in found:
            if rotation is None:
                found[kind] = None
            else:
                found[kind] = find(rotation, attention.head_dim)
                if found[kind] is None or not is_unmodified(rotation):
                    return None
        factors.append(found[kind])
    return factors


def _fit(read: ReadLayers, states: Sequence[_Cache], tokens: Tensor) -> bool:
    """Whether the keys and values of each state have the sizes of its layer, and fit the tokens."""
    for attention, state in zip(read.attentions, states, strict=True):
        key, value, _, _ = state.storage_rows
        if not fit_heads(key, value, tokens, HeadSizes(*attention[:4])):
            return False
    return True


def _fit_pages(attention: AttentionOfLayer, pages: PagedKeysValues, tokens: Tensor) -> bool:
    """Whether the kernel reads such pages, and they have the sizes of the layer."""
    key, value = pages.key_pages, pages.value_pages
    stored = torch.int8 if key.dtype is torch.int8 else tokens.dtype
    return (
        is_scale_in_range(attention.scale)
        and (stored is not torch.int8 or attention.heads <= MAX_ROWS * attention.key_heads)
        and key.shape[1:] == (attention.key_heads, key.shape[2], stored_width(attention.head_dim, stored))
        and value.shape == (*key.shape[:3], stored_width(attention.value_dim, stored))
        and key.dtype is value.dtype is stored
        and key.is_cpu
    )


def read_layers(
    layers: nn.ModuleList, norm: nn.Module | None, output: nn.Module | None, tokens: Tensor
) -> ReadLayers | None:
    """Return the layers as they were read, or read them again; None if the kernel does not compute one of them."""
    read = _READ.get(layers)
    if read is not None and read.fits(norm, output, tokens):
        return read
    _READ.pop(layers, None)
    found, last = _read_each(layers, tokens), None if norm is None else read_norm(norm, tokens.dtype)
    if found is None or (norm is not None and last is None):
        return None
    modules = [module for module in layers.modules() if not isinstance(module, Rotation)]  # it keeps its latest factors
    if not all(map(is_unmodified, modules)):
        return None
    ends = [end for end in (norm, output) if end is not None]
    parameters = [tensor for part in (layers, *ends) for tensor in (*part.parameters(), *part.buffers())]
    linear = None if output is None else read_linear(output, tokens.dtype, tokens.shape[2])
    stack = read_stack(found, last, linear, _dicts_of([*modules, *ends]), parameters, tokens)
    if stack is None:
        return None
    attentions, _ = zip(*found, strict=True)
    positions = (block.attention.position for block in cast("Iterable[DecoderBlock | EncoderBlock]", layers))
    rotations = tuple(position if isinstance(position, Rotation) else None for position in positions)
    num_logits = None if linear is None else linear[3]
    read = _READ[layers] = ReadLayers(stack, norm, output, num_logits, tokens.dtype, attentions, rotations)
    return read


def _read_each(layers: nn.ModuleList, tokens: Tensor) -> list[tuple[AttentionOfLayer, FeedForwardOfLayer]] | None:
    found = []
    for block in layers:
        if type(block) is not EncoderBlock and (type(block) is not DecoderBlock or block.cross_attention is not None):
            return None
        if block.feed_forward is None or block.feed_forward_residual is None:
            return None
        feed_forward, around = read_feed_forward(block.feed_forward, tokens), block.feed_forward_residual
        norms = read_norms(around, tokens.dtype)
        attention = _read_self_attention(block, tokens)
        if feed_forward is None or norms is None or attention is None:
            return None
        found.append((attention, FeedForwardOfLayer(feed_forward, norms)))
    return found or None


def _read_self_attention(block: DecoderBlock | EncoderBlock, tokens: Tensor) -> AttentionOfLayer | None:
    """Read self-attention, if its scores are changed by nothing but a softcap and sinks."""
    attention = block.attention
    if not isinstance(attention, MultiHeadAttention):
        return None
    if attention.position is not None and not isinstance(attention.position, Rotation):
        return None
    norms = read_norms(block.attention_residual, tokens.dtype)
    linear = read_attention(attention, tokens, has_keys=True)
    terms = read_terms(attention.mechanism, Frame(1, 1), tokens, None, None)
    if norms is None or linear is None or terms is None:
        return None
    if terms.bias is not None or terms.table is not None or terms.seed is not None:
        return None
    return AttentionOfLayer(
        attention.heads,
        attention.key_value_heads,
        attention.head_dim,
        attention.value_head_dim,
        terms.scale,
        terms.softcap,
        terms.sinks,
        linear,
        norms,
    )


def _dicts_of(modules: Sequence[nn.Module]) -> list[dict[Any, Any]]:
    """List the dicts that say what modules compute: attributes, parameters, buffers, submodules and hooks."""
    return [
        own
        for module in modules
        for own in (module.__dict__, *(module.__dict__[name] for name in (*NAMES_OF_HOOKS, *_NAMES_OF_PARTS)))
    ]
