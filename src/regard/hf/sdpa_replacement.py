"""``regard.hf.replace_sdpa``: regard's kernels under the name "sdpa", where ``transformers`` accepts no other name.

Continuous batching checks ``attn_implementation`` against a list of names, and refuses "regard". What it passes to the
attention function, a paged cache and a mask, ``attention_function`` supports. Some types, such as Gemma 2 and gpt-oss,
refuse the name "sdpa", since torch's function has no softcap and no sinks: those that use the interface accept it then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import GeneralInterface

from regard.arguments import explain_arguments
from regard.hf.attention_function import attention_function
from regard.hf.attention_mask import bool_mask

_NAME, _CHECK = "sdpa", "_sdpa_can_dispatch"


@explain_arguments
@contextmanager
def replace_sdpa() -> Iterator[None]:
    """While the context is open, every model of this process whose implementation is "sdpa" computes with regard."""
    replacements: tuple[tuple[GeneralInterface, Callable[..., Any]], ...] = (
        (ALL_ATTENTION_FUNCTIONS, attention_function),
        (ALL_MASK_ATTENTION_FUNCTIONS, bool_mask),
    )
    earlier = [interface[_NAME] for interface, _ in replacements]
    refuses = getattr(PreTrainedModel, _CHECK)

    def accepts(model: PreTrainedModel, is_init_check: bool = False) -> bool:
        return bool(model._supports_attention_backend) or refuses(model, is_init_check)

    for interface, function in replacements:
        interface[_NAME] = function
    setattr(PreTrainedModel, _CHECK, accepts)
    try:
        yield
    finally:
        setattr(PreTrainedModel, _CHECK, refuses)
        for (interface, _), function in zip(replacements, earlier, strict=True):
            interface[_NAME] = function
