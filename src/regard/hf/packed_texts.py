"""Several texts that are packed into one row: a token attends to its own text alone.

    cu_seq_lens_q, cu_seq_lens_k  (texts + 1,)      the first token of each text in the row, and the number of tokens
    seq_idx                       (#batch, tokens)  the number of each token's text

Collators of ``transformers`` pass these to a model, for kernels of flash attention, which read them; "eager" and "sdpa"
do not. They separate texts by a mask, which a model makes from ``position_ids``, but not when it makes a cache too, as
it does by default. Here texts are separated in either case.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from regard import masks
from regard.errors import RefusedError, short_repr
from regard.hf.chosen_keys import intersect
from regard.hf.visible_keys import VisibleKeys
from regard.tensors import has_values

ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")


def find_texts(arguments: Mapping[str, Any], query: Tensor, keys: int) -> Int[Tensor, "#batch keys"] | None:
    """The number of the text of each token; None if no argument says that there are several in a row.

    ``query`` is (batch, heads, queries, head_dim). Raises RefusedError for arguments that do not fit the tokens.
    """
    batch, queries = query.shape[0], query.shape[2]
    found = [_texts_of_argument(name, arguments.get(name), batch, keys) for name in ARGUMENTS]
    texts = [one.to(query.device) for one in found if one is not None]
    if not texts:
        return None
    first, *others = texts
    if queries != keys:
        raise _fit_error(f"{queries} queries and {keys} keys")
    for other in others:
        if has_values(first) and has_values(other) and not _are_same_texts(first, other):
            raise _fit_error("two of them with other texts")
    return first


def hide_other_texts(attention_mask: Tensor, texts: Int[Tensor, "#batch keys"]) -> Tensor:
    """The mask (batch, #heads, queries, keys) that hides what ``attention_mask`` does, and all other texts.

    It stays the same tensor where its values can be read: there ``separate`` keeps its structure.
    """
    if has_values(texts) and has_values(attention_mask):
        return attention_mask
    return intersect(attention_mask, (texts[:, :, None] == texts[:, None])[:, None])


def separate(visible: VisibleKeys, attention_mask: Tensor | None, texts: Int[Tensor, "#batch keys"]) -> VisibleKeys:
    """The visible keys among the tokens of the same text."""
    if attention_mask is not None:
        is_readable = has_values(texts) and has_values(attention_mask)
        if not is_readable or _separates(attention_mask, texts):
            return visible
    whole = visible.from_key_0
    of_keys = texts if whole.stop is None else texts[:, : whole.stop]
    own = masks.documents(of_keys, query_ids=texts)
    return VisibleKeys(own if whole.mask is None else whole.mask & own, stop=whole.stop)


def _texts_of_argument(name: str, value: Any, batch: int, keys: int) -> Int[Tensor, "#batch keys"] | None:
    """The texts that an argument describes; None if it is none, or describes one text in each row."""
    if not isinstance(value, Tensor):
        return None
    if name == "seq_idx":
        return _texts_of_numbers(value, batch, keys)
    if value.dim() != 1 or len(value) <= 2:
        return None
    tokens = torch.arange(batch * keys, device=value.device)
    if batch > 1 and has_values(value) and int(value[-1]) != len(tokens):
        raise _fit_error(f"{name} for {int(value[-1])} tokens, and {batch} rows of {keys}")
    return torch.searchsorted(value[1:-1].contiguous(), tokens, right=True).view(batch, keys)


def _texts_of_numbers(numbers: Tensor, batch: int, keys: int) -> Int[Tensor, "#batch keys"] | None:
    numbers = numbers[None] if numbers.dim() == 1 else numbers
    if numbers.numel() <= 1 or (has_values(numbers) and bool((numbers == numbers[..., :1]).all())):
        return None
    if numbers.dim() != 2 or numbers.shape[0] not in (1, batch) or numbers.shape[1] != keys:
        raise _fit_error(f"seq_idx of shape {tuple(numbers.shape)}, and {batch} rows of {keys}")
    return numbers.long()


def _are_same_texts(first: Tensor, other: Tensor) -> bool:
    """Whether two numberings of tokens begin and end texts at the same places."""
    return torch.equal(*torch.broadcast_tensors(first[:, 1:] != first[:, :-1], other[:, 1:] != other[:, :-1]))


def _separates(attention_mask: Tensor, texts: Int[Tensor, "#batch keys"]) -> bool:
    """Whether a mask hides other texts from the first and the last query of each text, and so from those between."""
    rows = (texts[:, 1:] != texts[:, :-1]).any(0).nonzero()[:, 0]
    rows = torch.cat([rows, rows + 1])
    cells = attention_mask[:, :, rows.to(attention_mask.device)] if attention_mask.shape[2] > 1 else attention_mask
    seen = cells if cells.dtype == torch.bool else cells > torch.finfo(torch.float16).min
    others = (texts[:, rows, None] != texts[:, None])[:, None]
    return not bool((seen & others.to(seen.device)).any())


def _fit_error(got: str) -> RefusedError:
    return RefusedError(
        "several texts are packed into one row, and do not fit the tokens of this call",
        expected=f"as many queries as keys, and {', '.join(ARGUMENTS)} that describe these tokens",
        got=short_repr(got)[1:-1],
        do="leave them out, and pass position_ids that start again at 0 for each text, with use_cache=False",
    )
