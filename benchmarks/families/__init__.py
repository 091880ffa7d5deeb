"""What is measured, a file a family; each has a ``FAMILY``."""

from __future__ import annotations

from benchmarks.case import Family
from benchmarks.families import additive, decode, forward, model, observe, shapes, short, training, translator, window

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (forward, training, shapes, short, window, decode, observe, additive, model, translator)
}
