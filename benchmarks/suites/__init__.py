"""The suites, one per file; each file has a ``SUITE``."""

from __future__ import annotations

from benchmarks.case import Suite
from benchmarks.suites import (
    additive,
    decode,
    few_bits,
    forward,
    generation,
    generation_t5,
    hashing,
    hf_models,
    images,
    linear,
    long_inputs,
    low_rank,
    model,
    observe,
    scan,
    selection,
    shapes,
    short,
    sigmoid,
    softcap_sinks,
    swin,
    talking_heads,
    training,
    translation,
    translator,
    window,
)

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE
    for module in (
        forward,
        training,
        decode,
        short,
        generation,
        model,
        few_bits,
        linear,
        translation,
        shapes,
        window,
        translator,
        hf_models,
        scan,
        low_rank,
        long_inputs,
        selection,
        hashing,
        softcap_sinks,
        sigmoid,
        talking_heads,
        additive,
        observe,
        generation_t5,
        images,
        swin,
    )
}
"""All suites by name, the most valuable first: the order of runs and of pages."""
