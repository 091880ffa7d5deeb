"""Encoding of what a mechanism shows of its own in the steps, beside scores and weights."""

from __future__ import annotations

import numpy as np

from regard.mechanisms.steps import Branch, Branches, Buckets, MixedHeads, States, Steps
from regard.view.pack import Json, pack_fixed, pack_heads, pack_mask, pack_rows
from regard.view.projections import LETTERS

MAX_ROTATIONS = 2**16
"""Numbers of the rotations of a layer, at most; beyond that the page shows the buckets alone."""
MAX_STATE_BYTES = 4_000_000
"""Size of the states of a page, at most; beyond that it leaves them out."""
_ROTATION_UNIT = 2.0**16
"""Standard deviation of the elements of a rotation: divided by it, they are nearly standard normal."""


def pack_buckets(buckets: Buckets) -> Json:
    """Encode the buckets of a text, of each head and round those of all tokens, and the rotations unless too many."""
    rotations = buckets.rotations
    packed: Json = {
        "query": buckets.of_query[0].mT.tolist(),
        "key": buckets.of_key[0].mT.tolist(),
        "count": buckets.count,
        "excepts_self": buckets.excepts_self,
        "chunk": buckets.chunk,
    }
    if buckets.place is not None and buckets.before is not None:
        packed |= {"place": buckets.place[0].tolist(), "before": buckets.before[0].tolist()}
    if rotations is not None and 0 < rotations.numel() <= MAX_ROTATIONS:
        columns = rotations.float().cpu().transpose(2, 3).numpy() / _ROTATION_UNIT
        packed |= {
            "rotations": [[pack_fixed(of_round, LETTERS) for of_round in head] for head in columns],
            "factors": list(buckets.factors),
        }
    return packed


def bytes_of_states(states: States) -> int:
    """The size of the updates of a state on a page, about."""
    return LETTERS * sum(tensor.numel() for tensor in states.tensors.values())


def pack_states(states: States) -> Json:
    """Encode what each token does to the state of each head: the page computes the states."""
    return {
        "rows": states.key.shape[3],
        "columns": states.value.shape[3],
        "decays": 0 if states.decay is None else states.decay.shape[3],
        "scale": states.scale,
        "divided": states.is_divided,
        **{name: pack_heads(tensor[0].numpy(), LETTERS) for name, tensor in states.tensors.items()},
    }


def size_of_softmaxes(softmaxes: Branches | MixedHeads) -> int:
    """The number of values in the queries and keys of several softmaxes, and in masks that differ between heads."""
    several = [softmaxes.steps] if isinstance(softmaxes, MixedHeads) else [part.steps for part in softmaxes.parts]
    return sum(_size_of(steps) for steps in several)


def _size_of(steps: Steps) -> int:
    heads, queries, keys = steps.query.shape[1], steps.query.shape[2], steps.key.shape[2]
    has_masks_per_head = steps.mask is not None and steps.mask.heads is not None
    masks = heads * queries * keys // 12 if has_masks_per_head else 0  # as ``LayerReading.size``
    return steps.query.numel() + steps.key.numel() + masks


def pack_softmaxes(softmaxes: Branches | MixedHeads, masks: list[str], letters: int) -> Json:
    """Encode several softmaxes: what each compares, and how their weights are joined."""
    if isinstance(softmaxes, Branches):
        return {"branches": [_pack_branch(part, masks, letters) for part in softmaxes.parts]}
    mixing = {"score_mixing": softmaxes.score_mixing.tolist(), "weight_mixing": softmaxes.weight_mixing.tolist()}
    return {"mixed_heads": _pack_steps(softmaxes.steps, masks, letters) | mixing}


def _pack_branch(part: Branch, masks: list[str], letters: int) -> Json:
    packed: Json = {"name": part.name, "factor": pack_rows(part.factor[0])}
    if part.blocks is not None:
        packed["blocks"] = {"stride": part.blocks.stride, "shares": part.blocks.shares.tolist()}
    return packed | _pack_steps(part.steps, masks, letters)


def _pack_steps(steps: Steps, masks: list[str], letters: int) -> Json:
    queries, keys = steps.query.shape[2], steps.key.shape[2]
    allowed = None
    if steps.mask is not None:
        dense = steps.mask.dense(queries, keys)
        allowed = np.asarray(dense.expand(1, dense.shape[1], queries, keys)[0].squeeze(0))
    return {
        "width": steps.query.shape[3],
        "keys": keys,
        "scale": steps.scale,
        "query": pack_heads(steps.query[0].numpy(), letters),
        "key": pack_heads(steps.key[0].numpy(), letters),
        "mask": pack_mask(allowed, masks),
    }
