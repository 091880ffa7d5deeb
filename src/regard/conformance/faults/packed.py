"""Packed rows read wrongly: texts that see one another, lengths that are off by one, and a longest text too short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import allowed_in_texts, attention_with, texts


def wrong_lengths(arguments: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Wrong ``cu_seqlens`` of a packed row, as changes of the arguments of a case."""
    lengths = {name: arguments[name] for name in ("cu_seqlens_q", "cu_seqlens_k") if name in arguments}
    if not lengths:
        return
    rows = {"cu_seqlens_q": arguments["query"].shape[2], "cu_seqlens_k": arguments["key"].shape[2]}
    whole = {name: np.array([0, array[-1]]) for name, array in lengths.items()}
    if "state" in arguments:
        whole["state"] = arguments["state"][:1]
    yield "cu_seqlens is ignored: the texts of a row are one text", whole
    for step, sentence in ((1, "the text before it has the first token"), (-1, "the text after it has the last token")):
        shifted = {name: array.copy() for name, array in lengths.items()}
        for array in shifted.values():
            array[1:-1] = np.clip(array[1:-1] + step, 0, array[-1])
        yield f"cu_seqlens is off by one: {sentence}", shifted
    longer = {name: np.append(array[:-1], rows[name]) for name, array in lengths.items()}
    yield "the last text runs on to the end of the row", longer
    if "state" in arguments:
        states = arguments["state"]
        filled = np.diff(lengths["cu_seqlens_q"]) > 0
        order = np.where(filled, np.cumsum(filled) - 1, 0)
        yield "texts after an empty text have the initial state of the text before", {"state": states[order]}


def wrong_packing(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each wrong reading of a packed row in words, with the output that it gives."""
    arguments = case.arguments
    if "cu_seqlens_q" not in arguments:
        return
    for sentence, changes in wrong_lengths(arguments):
        yield sentence, attention_with(case, **changes)
    of_queries, of_keys = arguments["cu_seqlens_q"], arguments["cu_seqlens_k"]
    if not np.array_equal(of_queries, of_keys):
        yield "the lengths of queries are used for keys, too", attention_with(case, cu_seqlens_k=of_queries)
        yield "the lengths of keys are used for queries, too", attention_with(case, cu_seqlens_q=of_keys)
    place, allowed, longest = places_of_keys(case)[0], case.expected.allowed, arguments["max_seqlen_q"]
    limits = {
        "max_seqlen_q is taken for the longest text of keys": longest,
        "the last key of the longest text is ignored: max_seqlen_k is too small by one": arguments["max_seqlen_k"] - 1,
        "keys after the length of the first text are ignored": int(np.diff(of_keys)[0]),
    }
    for sentence, limit in limits.items():
        yield sentence, attention_with(case, allowed & (place < limit))
    edges = {
        "off by one: the first key of each text is ignored": (1, 0),
        "off by one: the keys of a text begin with the last one of the text before": (-1, 0),
        "off by one: the last key of each text is ignored": (0, -1),
        "off by one: the keys of a text end with the first one of the text after": (0, 1),
    }
    for sentence, steps in edges.items():
        columns = [_move_edges(keys, *steps, case.layout.keys) for keys in texts(of_keys)]
        yield sentence, attention_with(case, allowed_in_texts(arguments, texts(of_queries), columns))
    exact = case.expected.output
    for side, row in (("first", 0), ("last", -1)):
        missing = exact.copy()
        for rows in texts(of_queries):
            missing[:, :, rows][:, :, row : row + 1 or None] = 0.0
        yield f"off by one: the {side} query of each text is left out", missing
    for sentence, rows in (("last", texts(of_queries)[-1]), ("first", texts(of_queries)[0])):
        missing = exact.copy()
        missing[:, :, rows] = 0.0
        yield f"the {sentence} text is left out", missing


def _move_edges(tokens: slice, first: int, end: int, limit: int) -> slice:
    start = min(max(tokens.start + first, 0), limit)
    return slice(start, max(min(tokens.stop + end, limit), start))


def places_of_keys(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The index of each key in its text and the length of its text; in a call without packed texts, of all keys."""
    keys = case.layout.keys
    if "cu_seqlens_k" not in case.arguments:
        return np.arange(keys), np.full(keys, keys)
    place, length = np.zeros(keys, int), np.zeros(keys, int)
    for columns in texts(case.arguments["cu_seqlens_k"]):
        length[columns] = columns.stop - columns.start
        place[columns] = np.arange(columns.stop - columns.start)
    return place, length
