"""Who may attend to whom, wrongly: masks, causal masks and windows."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import allowed_pairs, attention_with


def wrong_masks(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of a mask or causal mask in words, with the output that it gives."""
    arguments, layout = case.arguments, case.layout
    mask = arguments.get("mask")
    if mask is not None:
        full = np.broadcast_to(mask, (layout.batch, layout.heads, layout.queries, layout.keys))
        yield "the mask is ignored", attention_with(case, mask=None)
        yield "the mask has the other polarity: True hides", attention_with(case, mask=~full)
        yield "the mask of the first head is used for all heads", attention_with(case, mask=full[:, :1])
        yield "the mask of the first batch entry is used for all", attention_with(case, mask=full[:1])
        yield (
            "the mask is of keys and queries in the wrong order",
            (attention_with(case, mask=full.swapaxes(2, 3)) if layout.queries == layout.keys else np.array(np.nan)),
        )
        if arguments.get("bias") is not None:
            yield "the bias is ignored beside the mask", attention_with(case, bias=None)
        if arguments.get("dropout_mask") is not None:
            yield "the mask is dropped when dropout is used", attention_with(case, mask=None)
    if arguments.get("causal"):
        yield "the causal mask is ignored", attention_with(case, causal=False)
        yield f"the causal mask is {_other_alignment(case)}", attention_with(case, align=_other(case))
        rest = allowed_pairs({**arguments, "causal": False})
        shifted = {
            "a query does not see its own position": (None, -1),
            "a query sees one key after its own position": (None, 1),
            "the causal mask is upside down: queries see later keys": (0, None),
        }
        for sentence, bounds in shifted.items():
            near = allowed_pairs({**arguments, "causal": False, "mask": None, "window": bounds})
            yield sentence, attention_with(case, rest & near)
        if mask is not None:
            either = allowed_pairs({**arguments, "mask": None}) | allowed_pairs({**arguments, "causal": False})
            yield "keys are visible by the mask or the causal mask: both are expected", attention_with(case, either)


def _other(case: Case) -> str:
    return "end" if case.arguments.get("align") == "start" else "start"


def _other_alignment(case: Case) -> str:
    """The alignment that the case does not have, in words."""
    if _other(case) == "start":
        return "aligned at the start (top left): queries are expected to be the last positions"
    return "aligned at the end (bottom right): queries are expected to be the first positions"


def wrong_windows(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of a window in words, with the output that it gives."""
    if case.arguments.get("window") is None:
        return
    left, right = case.arguments["window"]
    edges = {
        "the window is ignored": (None, None),
        "the window's left bound is ignored": (None, right),
        "the window's right bound is ignored": (left, None),
        "the window's right bound is taken to be 0": (left, 0),
        "the bounds of the window are exchanged": (right, left),
    }
    if left is not None:
        edges["off by one at the window's left edge: one key too few"] = (left - 1, right)
        edges["off by one at the window's left edge: one key too many"] = (left + 1, right)
    if right is not None:
        edges["off by one at the window's right edge: one key too many"] = (left, right + 1)
        edges["off by one at the window's right edge: one key too few"] = (left, right - 1)
    for sentence, window in edges.items():
        yield sentence, attention_with(case, window=window)
    yield f"the window is {_other_alignment(case)}", attention_with(case, align=_other(case))
