"""States of regard's own decoders: those of kernels that read tokens, and pages of several texts.

The property "cache" reads a state in float64, from ``extend`` or ``step``, whatever kind it is: keys and values, those
of a window, latent vectors, patterns, sums of linear attention. Pages, and kernels that read a token in all layers at
once, are of float32, so these are asked in float32, with its noise floor.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from regard.auditing.calls import Comparison, Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.noise import difference, largest
from regard.auditing.properties.cache import compare_parts, has_cache, in_parts
from regard.auditing.properties.modes import in_float32
from regard.auditing.properties.property import Property, first_reason
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject

LENGTHS = (9, 5, 12)
"""Tokens of texts that are read together in pages; each of the last ``STEPS`` is read alone."""
STEPS, PAGE_SIZE = 3, 4


def _is_own(subject: Subject) -> str | None:
    return None if subject.family == "regard" else "asked of regard's own models"


def _reads_pages(subject: Subject) -> str | None:
    module: Any = subject.module
    if hasattr(module, "key_value_heads"):
        return None
    if not hasattr(module, "pages_refusal"):
        return "the model does not read pages of several texts"
    reason: str | None = copy.deepcopy(module).float().pages_refusal
    return reason


def _by_kernels(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    eager, floor = in_float32(subject, noise)
    return [compare_all(eager, compare_parts(eager), floor)]


def _compare_layer(subject: Subject) -> Sequence[Comparison]:
    """Two texts, read by a layer in parts with a paged cache."""
    from regard.mechanisms import PagedCache, PagePool

    layer: Any = subject.module
    rows, length = [Row(subject.text(1)), Row(subject.text(2))], subject.stream.length

    def make_empty() -> Any:
        return PagedCache.empty(PagePool(layer.key_value_heads, layer.head_dim, page_size=PAGE_SIZE), len(rows))

    whole, parts = subject.call(rows), in_parts(subject, rows, (5, 3, *[1] * (length - 8)), first={"state": make_empty})
    change = "the text was read in parts, with a paged cache"
    return [Comparison(Span(whole, row), Span(parts, row), length, change) for row in range(2)]


def _in_pages(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """Texts of several lengths in one pool: their prompts together, then a token of each in each step."""
    from regard.mechanisms.ragged_pages import PagedSequence, RaggedStep

    eager, floor = in_float32(subject, noise)
    if hasattr(eager.module, "key_value_heads"):
        return [compare_all(eager, _compare_layer(eager), floor)]
    module, (name,) = cast(Any, eager.module), subject.stream.dims
    texts = [subject.text(seed, length)[name][0] for seed, length in enumerate(LENGTHS, 1)]
    pool = module.page_pool(page_size=PAGE_SIZE)
    sequences = [PagedSequence(pool, module.page_layout) for _ in texts]
    read: list[Tensor] = []
    with eager.running(subject.call([Row(subject.text(1))])):
        for step in range(STEPS + 1):
            counts = [length - STEPS if step == 0 else 1 for length in LENGTHS]
            starts = [sequence.length for sequence in sequences]
            for sequence, count in zip(sequences, counts, strict=True):
                sequence.extend(count)
            pieces = [text[start : start + count] for text, start, count in zip(texts, starts, counts, strict=True)]
            read.append(
                module.read_pages(torch.cat(pieces), RaggedStep(pool, module.page_layout, sequences, counts)).clone()
            )
            for sequence in sequences:
                sequence.free_hidden()
    found = []
    for number, text in enumerate(texts):
        alone = eager.run(subject.call([Row({name: text[None]})]))[0, -STEPS - 1 :]
        gap = difference(alone, torch.stack([logits[number] for logits in read]))
        change = "the text was read with others, in pages of one pool"
        found.append(Outcome(gap, floor.threshold(largest(alone)), change))
    return found


OWN_CACHES = (
    Property(
        "cache of kernels",
        "in float32, in which kernels read tokens in all layers at once, a text read in parts has its outputs",
        first_reason(_is_own, has_cache),
        measure=_by_kernels,
    ),
    Property(
        "paged cache",
        "texts that are read together, in pages of one pool, have the outputs that they have alone",
        first_reason(_is_own, has_cache, _reads_pages),
        measure=_in_pages,
    ),
)
