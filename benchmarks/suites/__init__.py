"""The suites, one per file; each file has a ``SUITE``."""

from __future__ import annotations

from benchmarks.case import Suite
from benchmarks.suites import (
    additive,
    decode,
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
    translator,
    window,
)

SUITES: dict[str, Suite] = {
    module.SUITE.name: module.SUITE
    for module in (
        forward,
        training,
        shapes,
        short,
        window,
        long_inputs,
        low_rank,
        hashing,
        scan,
        selection,
        decode,
        observe,
        additive,
        sigmoid,
        talking_heads,
        softcap_sinks,
        linear,
        model,
        hf_models,
        swin,
        images,
        generation,
        generation_t5,
        translator,
    )
}
