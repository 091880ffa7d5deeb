"""The pages in which a generator decodes: a pool with a bound in bytes, and prompts in it that later ones may reuse.

They belong to one model with the weights that it had: ``fits`` is False after a step of training, for example.
"""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor

from regard.errors import OptionError
from regard.generation.prefix_cache import PrefixCache
from regard.models.causal_language_model import CausalLanguageModel

PAGE_SIZE = 16
"""Tokens of a page: prompts share whole pages, and a text wastes half a page on average."""
_SAMPLE = 64
"""Numbers of a tensor that are compared."""
_GOLDEN = 0.6180339887498949
"""Multiples of it are spread evenly over an interval: Knuth, "The art of computer programming", section 6.4."""


@final
class PagedMemory:
    """A pool of pages for ``model`` of at most ``limit_bytes`` (None: no limit), with ``prefix_bytes`` of prompts.

    Raises OptionError if a page is larger than the limit.
    """

    def __init__(self, model: CausalLanguageModel, *, limit_bytes: int | None, prefix_bytes: int) -> None:
        self.pool = model.page_pool(page_size=PAGE_SIZE)
        self.page_bytes = sum(
            side.element_size() * math.prod(side.shape[1:]) for side in (self.pool.key, self.pool.value)
        )
        column_bytes = self.page_bytes * model.page_layout.num_groups
        if limit_bytes is not None:
            self.pool.limit = limit_bytes // self.page_bytes
            if limit_bytes < column_bytes:
                raise OptionError(
                    "the cache has no room for a page",
                    expected=f"{column_bytes:,} bytes or more: {PAGE_SIZE} tokens in all layers of this model",
                    got=f"{limit_bytes:,} bytes",
                    do="give the cache more memory",
                )
        self.prefixes = PrefixCache(PAGE_SIZE, prefix_bytes // column_bytes)
        self._weights = _weights_version(model)

    def fits(self, model: CausalLanguageModel) -> bool:
        """Whether the model still has the weights that computed what is in the pages, and their format."""
        is_same = self.pool.cache_format == model.cache_format
        return is_same and self._weights is not None and self._weights == _weights_version(model)


def _weights_version(model: CausalLanguageModel) -> tuple[object, ...] | None:
    """A key that changes if the model computes something else; None if it is unknown.

    For each tensor where it is and how often torch wrote to it, and since fused optimizers, ``.data`` and NumPy write
    without counting, some of its numbers; and the hooks of all modules.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    places = [(tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in tensors]
    hooks = [(*module._forward_pre_hooks, *module._forward_hooks) for module in model.modules()]
    samples = [_sample(tensor) for tensor in tensors if tensor.numel() and not tensor.is_meta]
    return (*places, *hooks, torch.cat(samples).numpy().tobytes() if samples else b"")


def _sample(tensor: Tensor) -> Tensor:
    """Some numbers of a tensor on the CPU in float64, spread over its rows and its columns alike."""
    numbers = torch.arange(_SAMPLE, device=tensor.device)
    places = [(numbers * round(size * _GOLDEN) + numbers // max(1, size)) % size for size in tensor.shape]
    return tensor.detach()[tuple(places)].reshape(-1).cpu().double()
