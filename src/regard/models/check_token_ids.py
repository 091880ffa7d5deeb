"""Checks of token ids, and of other indices of tokens, before an embedding looks them up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from regard.errors import DtypeError, OptionError, ShapeError, short_repr
from regard.tensors import check_dense, has_values, is_dense, least_and_greatest


def check_step(tokens: object, state: Any, kind: type[Any], size: int) -> None:
    """Raise OptionError unless ``state`` is a ``kind``, and what ``check_token_ids`` raises for tokens (rows,)."""
    if not isinstance(state, kind):
        raise OptionError(
            "this is not a decoder state of this model",
            expected=f"a {kind.__name__}, from model.start(source) or from the step before",
            got=short_repr(state),
            do="state = model.start(source), then logits, state = model.step(tokens, state)",
        )
    rows: int = len(state.groups.group_ids)
    if isinstance(tokens, Tensor) and is_dense(tokens) and tokens.shape != (rows,):
        raise ShapeError(
            "tokens do not fit the state",
            expected=f"({rows},): one token for each row of the state",
            got=str(tuple(tokens.shape)),
            do="select rows of the state with state.reordered(entries)",
        )
    column = tokens[:, None] if isinstance(tokens, Tensor) and is_dense(tokens) else tokens
    check_token_ids("tokens", column, size)


def check_token_ids(name: str, indices: object, size: int) -> None:
    """Raise DtypeError, ShapeError or OptionError unless ``indices`` are (batch, length), 0 to size - 1."""
    if not isinstance(indices, Tensor):
        raise DtypeError(
            "a model reads token ids",
            expected="ids (batch, length), a tensor of integers",
            got=short_repr(indices),
            do="batch = model.tokenizer.encode(texts); model(batch.ids, mask=batch.mask)",
        )
    check_dense(name, indices)
    if indices.dim() != 2:
        raise ShapeError(
            f"{name} have the wrong shape",
            expected="(batch, length)",
            got=str(tuple(indices.shape)),
            do="for one text add a batch dimension: ids[None]",
        )
    if indices.dtype not in (torch.long, torch.int32):
        raise DtypeError(
            f"{name} are not integers", expected="torch.long or torch.int32", got=str(indices.dtype), do="use .long()"
        )
    # Only on a CPU: on other devices the check would synchronise. And not in a graph that torch traces.
    if indices.device.type != "cpu" or not indices.numel() or not has_values(indices):
        return
    lowest, highest = least_and_greatest(indices)
    if lowest < 0 or highest >= size:
        raise OptionError(
            f"{name} are out of range",
            expected=f"0 to {size - 1}",
            got=f"{lowest} to {highest}",
            do="use the tokenizer that belongs to the model: model.tokenizer.encode(texts)",
        )


def check_texts_of_ids(name: str, ids: object, vocabulary: int, *, do: str) -> None:
    """Raise what ``check_token_ids`` raises, and ShapeError unless the length is 1 or more; ``do`` is its advice."""
    check_token_ids(name, ids, vocabulary)
    assert isinstance(ids, Tensor)
    if ids.shape[1] == 0:
        raise ShapeError(
            f"{name} have no tokens",
            expected=f"{name} (batch, length) with a length of 1 or more",
            got=str(tuple(ids.shape)),
            do=do,
        )


def check_token_positions(positions: object, tokens: Tensor, max_length: int) -> None:
    """Raise DtypeError, ShapeError or OptionError unless each token of ``tokens`` (batch, length, ..) has a position.

    Positions are (batch, length), 0 to ``max_length - 1``.
    """
    check_token_ids("positions", positions, max_length)
    assert isinstance(positions, Tensor)
    if positions.shape != tokens.shape[:2]:
        raise ShapeError(
            "ids and positions have different shapes",
            expected=f"positions {tuple(tokens.shape[:2])}, like the ids",
            got=str(tuple(positions.shape)),
            do="pass a position for each token, any valid one for padding",
        )
