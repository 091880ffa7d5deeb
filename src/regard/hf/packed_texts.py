"""Several texts that are packed into one row: a token attends to its own text alone.

    cu_seq_lens_q, cu_seq_lens_k  (texts + 1,)      the first token of each text in the row, and the number of tokens
    seq_idx                       (#batch, tokens)  the number of each token's text

Collators of ``transformers`` pass these to a model, for kernels of flash attention, which read them; "eager" and "sdpa"
do not. They separate texts by a mask, which a model makes from ``position_ids``, but not when it makes a cache too, as
it does by default. Here texts are separated in either case.

The tokens are the first keys, and the queries are the last of them. Where that cannot be, such as in cross-attention or
behind a cache that the arguments do not describe, the mask is left unchanged.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard import masks
from regard.errors import RefusedError
from regard.hf.chosen_keys import intersect
from regard.masks.visible_keys import VisibleKeys
from regard.tensors import has_values, is_traced


@final
class _Separations(threading.local):
    """The number of times that masks or layers of a thread were separated by texts."""

    made = 0

    def count(self) -> None:
        """Count one more; not in a trace, which runs no layer."""
        if not is_traced():
            self.made += 1


SEPARATIONS = _Separations()
ARGUMENTS = ("cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")

_latest: tuple[VisibleKeys, Tensor, VisibleKeys] | None = None
"""The keys, the texts and the separated keys of the latest call: all layers of a model have the same ones."""


def find_texts(
    arguments: Mapping[str, Any], module: nn.Module, query: Tensor, keys: int, *, has_mask: bool
) -> Int[Tensor, "#batch tokens"] | None:
    """The number of the text of each token; None if no argument says that there are several in a row.

    ``query`` is (batch, heads, queries, head_dim). Raises RefusedError for arguments that do not fit the tokens; if
    ``has_mask``, only where that is certain.
    """
    batch, queries = query.shape[0], query.shape[2]
    packed = _find_packed(arguments)
    if not packed or _is_cross_attention(module):
        return None
    SEPARATIONS.count()
    if queries == keys:
        first, *others = (_number_tokens(name, tensor, batch, keys).to(query.device) for name, tensor in packed.items())
        if any(has_values(first) and has_values(other) and not _are_same_texts(first, other) for other in others):
            raise _fit_error("two of them with other texts")
        return first
    texts = _number_first_keys(packed, batch)
    if texts is not None and queries <= texts.shape[1] <= keys:
        return texts.to(query.device)
    if has_mask:
        return None
    raise _fit_error(f"{queries} queries and {keys} keys")


def number_call(arguments: Mapping[str, Any], batch: int, tokens: int) -> Int[Tensor, "#batch tokens"] | None:
    """The number of the text of each token of a call; None if no argument says that there are several in a row.

    None too for arguments that describe other tokens, such as those in a cache: the layers read these.
    """
    for name, value in _find_packed(arguments).items():
        described = value.shape[-1] if name == "seq_idx" else int(value[-1]) if has_values(value) else batch * tokens
        if described == (tokens if name == "seq_idx" else batch * tokens):
            return _number_tokens(name, value, batch, tokens)
    return None


def _find_packed(arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    """The arguments that say that there are several texts in a row."""
    named = {name: arguments[name] for name in ARGUMENTS if isinstance(arguments.get(name), Tensor)}
    return {name: tensor for name, tensor in named.items() if _has_several(name, tensor)}


def hide_other_texts(attention_mask: Tensor, texts: Int[Tensor, "#batch tokens"]) -> Tensor:
    """The mask (batch, #heads, queries, keys) that hides what ``attention_mask`` does, and all other texts.

    It stays the same tensor where its values can be read: there ``separate`` keeps its structure.
    """
    if (has_values(texts) and has_values(attention_mask)) or texts.shape[1] != attention_mask.shape[3]:
        return attention_mask
    return intersect(attention_mask, (texts[:, :, None] == texts[:, None])[:, None])


def separate(
    visible: VisibleKeys, texts: Int[Tensor, "#batch tokens"], sizes: tuple[int, int], *, has_mask: bool
) -> VisibleKeys:
    """The visible keys among the tokens of the same text; ``sizes`` are the numbers of queries and of keys.

    They stay as they are if keys behind the tokens are visible, since then it is not known which keys the tokens are.
    """
    global _latest
    if not has_values(texts):
        return visible if has_mask else VisibleKeys(_join(visible, texts, texts))
    queries, keys = sizes
    tokens = texts.shape[1]
    if tokens < keys and (visible.stop is None or visible.stop > tokens):
        return visible
    known = _latest
    if known is not None and known[0] is visible and torch.equal(known[1], texts):
        return known[2]
    whole = visible.from_key_0
    of_keys = texts if whole.stop is None else texts[:, : whole.stop]
    found = VisibleKeys(_join(whole, of_keys, texts[:, tokens - queries :]), stop=whole.stop)
    _latest = visible, texts, found  # one tuple, replaced as a whole, so that threads may share it
    return found


def _join(visible: VisibleKeys, of_keys: Tensor, of_queries: Tensor) -> masks.Mask:
    own = masks.documents(of_keys, query_ids=of_queries)
    return own if visible.mask is None else visible.mask & own


def _is_cross_attention(module: nn.Module) -> bool:
    """Whether a layer attends to other tokens than its own, which ``transformers`` does not say in one way."""
    if getattr(module, "is_cross_attention", False) or "cross" in type(module).__name__.lower():
        return True
    config = getattr(module, "config", None)
    return bool(getattr(config, "is_encoder_decoder", False)) and not getattr(module, "is_causal", False)


def _has_several(name: str, value: Tensor) -> bool:
    """Whether an argument describes several texts in a row."""
    if name != "seq_idx":
        return value.dim() == 1 and len(value) > 2
    return value.numel() > 1 and not (has_values(value) and bool((value == value[..., :1]).all()))


def _number_tokens(name: str, value: Tensor, batch: int, tokens: int) -> Int[Tensor, "#batch tokens"]:
    """The number of the text of each of the ``tokens`` of a row; tokens behind the last text have a number too."""
    if name == "seq_idx":
        numbers = value[None] if value.dim() == 1 else value
        if numbers.dim() != 2 or numbers.shape[0] not in (1, batch) or numbers.shape[1] != tokens:
            raise _fit_error(f"seq_idx of shape {tuple(value.shape)}, and {batch} rows of {tokens}")
        return numbers.long()
    if has_values(value) and (int(value[-1]) > batch * tokens or (batch > 1 and int(value[-1]) != batch * tokens)):
        raise _fit_error(f"{name} for {int(value[-1])} tokens, and {batch} rows of {tokens}")
    places = torch.arange(batch * tokens, device=value.device)
    return torch.searchsorted(value[1:].contiguous(), places, right=True).view(batch, tokens)


def _number_first_keys(packed: Mapping[str, Tensor], batch: int) -> Int[Tensor, "#batch tokens"] | None:
    """Number as many tokens as an argument describes, the keys' argument first; None if it cannot be read."""
    name = next(name for name in ("cu_seq_lens_k", "cu_seq_lens_q", "seq_idx") if name in packed)
    value = packed[name]
    if not has_values(value) or (batch > 1 and name != "seq_idx"):
        return None
    return _number_tokens(name, value, batch, value.shape[-1] if name == "seq_idx" else int(value[-1]))


def _are_same_texts(first: Tensor, other: Tensor) -> bool:
    """Whether two numberings of tokens begin and end texts at the same places."""
    return torch.equal(*torch.broadcast_tensors(first[:, 1:] != first[:, :-1], other[:, 1:] != other[:, :-1]))


def _fit_error(got: str) -> RefusedError:
    return RefusedError(
        "several texts are packed into one row, and do not fit the tokens of this call",
        expected=f"{', '.join(ARGUMENTS)} that describe these tokens",
        got=got,
        do="leave them out, and pass position_ids that start again at 0 for each text, with use_cache=False",
    )
