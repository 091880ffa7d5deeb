"""Encoding of what a mechanism shows of its own in the steps, beside scores and weights."""

from __future__ import annotations

from regard.mechanisms.steps import Buckets, States
from regard.view.pack import Json, pack_fixed, pack_heads
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
