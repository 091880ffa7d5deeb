"""The decoding loop of greedy search and sampling, which choose one token in each step.

    y_t = choose(log P(. | y_1 .. y_t-1, x))

Rows that have ended are removed from the batch, so no step computes for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from regard.models.base import Decoder
from regard.search.base import Hypothesis, banned_token_ids
from regard.search.blockwise_topk import log_probabilities

ChooseToken: TypeAlias = Callable[[Tensor, Tensor, int], Tensor]
"""Chooses a token for each row, from log-probabilities (rows, vocabulary), row indices (rows,) and the position.

Banned tokens have a log-probability of -infinity.
"""


def decode_token_by_token(
    model: Decoder,
    source: Int[Tensor, "batch length"],
    lengths: Int[Tensor, " batch"],
    most: Int[Tensor, " batch"],
    choose: ChooseToken,
    *,
    each: int = 1,
) -> list[list[Hypothesis]]:
    """Decode ``each`` targets of every source, the most probable first; row ``i`` belongs to source ``i // each``."""
    banned = banned_token_ids(model)
    tokens, state = model.prefill(source, lengths=lengths)
    rows = torch.arange(len(source) * each, device=source.device)
    if each > 1:
        tokens, state = tokens[rows // each], state.reordered(rows // each)
    limits, longest = most.repeat_interleave(each), int(most.max())
    written = rows.new_full((len(rows), longest), model.end_id)
    log_probability = torch.zeros(len(rows), device=source.device)
    for place in range(longest):
        logits, state = model.step(tokens, state)
        known = log_probabilities(logits, banned)
        tokens = choose(known, rows, place)
        log_probability = log_probability.to(known).index_add(0, rows, known.gather(1, tokens[:, None])[:, 0])
        written[rows, place] = tokens
        left = ((tokens != model.end_id) & (place + 1 < limits[rows])).nonzero()[:, 0]
        if len(left) == 0:
            break
        if len(left) < len(rows):
            rows, tokens, state = rows[left], tokens[left], state.reordered(left)
    return _make_hypotheses(written, log_probability, limits, model.end_id, each)


def _make_hypotheses(
    written: Tensor, log_probability: Tensor, limits: Tensor, end_id: int, each: int
) -> list[list[Hypothesis]]:
    """Make hypotheses from rows of tokens padded with ``end_id``; skip rows with a non-finite log-probability."""
    counts = (written != end_id).sum(dim=1)
    finite = log_probability.isfinite()
    columns = (written, counts, log_probability, counts < limits, finite)
    by_source: list[list[Hypothesis]] = [[] for _ in range(len(written) // each)]
    for row, (ids, count, total, finished, is_finite) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        if is_finite:
            by_source[row // each].append(Hypothesis(tuple(ids[:count]), total, total, finished))
    return [sorted(hypotheses, key=lambda one: -one.score) for hypotheses in by_source]
