"""Encoding of what a mechanism shows of its own in the steps, beside scores and weights."""

from __future__ import annotations

from regard.mechanisms.steps import Buckets
from regard.view.pack import Json, pack_fixed
from regard.view.projections import LETTERS

MAX_ROTATIONS = 2**16
"""Numbers of the rotations of a layer, at most; beyond that the page shows the buckets alone."""
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
