"""Recording of layers of ``transformers`` that compute some pairs of tokens by code of their own, in bands or blocks.

    Longformer, LED's encoder     a window and global tokens, which have projections of their own: Beltagy et al. 2020,
                                  section 3.1; ``mechanisms.Longformer`` computes their weights from the projections
    BigBird, Pegasus BigBird      blocks near, random and global: Zaheer et al. 2020, section 2; the layer returns its
                                  weights of all pairs, which are kept. Outside of training its random blocks are all
                                  the first block, whose values then count several times, and whose weights it returns
                                  once: they are multiplied by that number

The models pad their texts to whole windows or blocks; positions at the end that are padding in all texts are left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention
from transformers.models.bigbird_pegasus.modeling_bigbird_pegasus import BigBirdPegasusBlockSparseAttention
from transformers.models.led.modeling_led import LEDEncoderSelfAttention
from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

from regard import masks
from regard.layers.activation_checkpoint import is_recomputing
from regard.mechanisms import Longformer
from regard.recording import CallSource, LayerCall
from regard.recording.recorded_call import make_kept_call

_BANDS = (LongformerSelfAttention, LEDEncoderSelfAttention)
_BLOCKS = (BigBirdBlockSparseAttention, BigBirdPegasusBlockSparseAttention)
_PROJECTIONS = ("query", "key", "value")
_OF_GLOBAL_TOKENS = ("query_global", "key_global", "value_global")


def is_sparse_layer(module: nn.Module) -> bool:
    """Whether a module is one of these layers."""
    return isinstance(module, _BANDS + _BLOCKS)


@final
class SparseLayers(CallSource):
    """The layers of Longformer, LED's encoder and BigBird."""

    def listen(self, model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
        """Return a context in which each call of such a layer is passed to ``add``; None if there are none."""
        layers = {name: module for name, module in model.named_modules() if is_sparse_layer(module)}
        return _open(layers, add) if layers else None

    def covers(self, model: nn.Module) -> Iterator[nn.Module]:
        """The attention layers of Longformer, LED's encoder and BigBird in a model."""
        return filter(is_sparse_layer, model.modules())

    def explain(self, model: nn.Module) -> None:
        """Return no error: all of these layers are recorded."""
        del model


@contextmanager
def _open(layers: Mapping[str, nn.Module], add: Callable[[LayerCall], None]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, layer in layers.items():
            projected: dict[str, Tensor] = {}
            for part in (*_PROJECTIONS, *_OF_GLOBAL_TOKENS):
                if hasattr(layer, part):
                    stack.callback(getattr(layer, part).register_forward_hook(_make_hook(projected, part)).remove)
            hook = _make_layer_hook(name, layer, projected, add)
            stack.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        yield


def _make_hook(projected: dict[str, Tensor], part: str) -> Any:
    """Make the hook that keeps what a projection returns: a copy of queries, which the layer scales in place."""

    def keep(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        del module, args
        projected[part] = output.detach().clone() if part.startswith("query") else output.detach()

    return keep


def _make_layer_hook(
    name: str, layer: nn.Module, projected: dict[str, Tensor], add: Callable[[LayerCall], None]
) -> Any:
    signature = inspect.signature(layer.forward)

    @torch.no_grad()
    def listen(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Any, ...]) -> None:
        if not is_recomputing():
            arguments = signature.bind(*args, **kwargs).arguments
            if isinstance(module, _BANDS):
                add(_make_band_call(name, module, projected, arguments))
            else:
                add(_make_block_call(name, module, projected, arguments, output[1]))
        projected.clear()

    return listen


def _make_band_call(name: str, layer: Any, projected: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> LayerCall:
    """Make the call of a layer with a window; its projections are (tokens, batch, width)."""
    visible = ~arguments["is_index_masked"]
    length, inputs = _count_read(visible), {}
    parts = {part: tokens.transpose(0, 1) for part, tokens in projected.items()}
    if arguments.get("is_global_attn"):
        flags = arguments["is_index_global_attn"]
        parts["query_global"] = _spread(parts["query_global"], flags)
        for part in _OF_GLOBAL_TOKENS:
            inputs[f"global_{part.removesuffix('_global')}"] = _split_heads(parts[part][:, :length], layer.num_heads)
        inputs["is_global"] = flags[:, None, :length, None]
    mechanism = Longformer(
        heads=layer.num_heads,
        head_dim=layer.head_dim,
        window=2 * layer.one_sided_attn_window_size,
        global_tokens=(),
    )
    mask = None
    if not bool((visible := visible[:, :length]).all()):  # a hidden token attends to nothing, too
        mask = masks.keep(visible[:, None, None]) & masks.keep(visible[:, None, :, None])
    query, key, value = (_split_heads(parts[part][:, :length], layer.num_heads) for part in _PROJECTIONS)
    return LayerCall(name, mechanism, query, key, value, mask, None, inputs)


def _make_block_call(
    name: str, layer: Any, projected: Mapping[str, Tensor], arguments: Mapping[str, Any], weights: Tensor
) -> LayerCall:
    """Make the call of a layer with blocks; ``weights`` (batch, heads, tokens, tokens) are those that it returns."""
    length = _count_read(arguments["to_mask"][:, 0, 0] != 0)
    heads = layer.num_attention_heads
    query, key, value = (_split_heads(projected[part][:, :length], heads) for part in _PROJECTIONS)
    kept = weights.detach().clone()
    if not layer.training:
        block = layer.block_size
        kept[:, :, block:-block, :block] *= 1 + layer.num_random_blocks
    kept = kept[:, :, :length, :length].contiguous()
    return replace(make_kept_call(query, key, value, kept, max_score=None), name=name)


def _count_read(visible: Tensor) -> int:
    """The number of positions before those at the end that are hidden in all texts."""
    some = visible.any(0).nonzero()
    return int(some[-1]) + 1 if len(some) else visible.shape[1]


def _spread(of_global: Tensor, flags: Tensor) -> Tensor:
    """Queries of global tokens (batch, global tokens, width) at their places (batch, tokens, width)."""
    spread = of_global.new_zeros(*flags.shape, of_global.shape[2])
    for text, places in enumerate(flags):
        spread[text, places] = of_global[text, : int(places.sum())]
    return spread


def _split_heads(tokens: Tensor, heads: int) -> Tensor:
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)
