"""``regard.hf.replace_sdpa``: regard's kernels under the name "sdpa", where ``transformers`` accepts no other name.

Continuous batching checks ``attn_implementation`` against a list of names, and refuses "regard". What it passes to the
attention function, a paged cache and a mask, ``attention_function`` supports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import GeneralInterface

from regard.hf.attention_function import attention_function
from regard.hf.attention_mask import bool_mask

_NAME = "sdpa"


@contextmanager
def replace_sdpa() -> Iterator[None]:
    """While the context is open, every model of this process whose implementation is "sdpa" computes with regard."""
    replacements: tuple[tuple[GeneralInterface, Callable[..., Any]], ...] = (
        (ALL_ATTENTION_FUNCTIONS, attention_function),
        (ALL_MASK_ATTENTION_FUNCTIONS, bool_mask),
    )
    earlier = [interface[_NAME] for interface, _ in replacements]
    for interface, function in replacements:
        interface[_NAME] = function
    try:
        yield
    finally:
        for (interface, _), function in zip(replacements, earlier, strict=True):
            interface[_NAME] = function
