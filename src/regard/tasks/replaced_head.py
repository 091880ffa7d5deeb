"""The message about a trained classifier whose head does not fit the labels of the data, so that it is replaced."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_SHOWN = 8
"""Labels to name on each side."""


def report_replaced_head(
    start: str, old: Sequence[str], new: Sequence[str], *, is_kept: bool, say: Callable[[str], None]
) -> None:
    """Report that the head of the model ``start`` is replaced by one of random weights for the labels ``new``.

    Says nothing if the head is kept, or if the model has no labels, so no head.
    """
    if is_kept or not old:
        return
    if tuple(old) == tuple(new):
        reason = "predicts in another way (one label, several labels or CTC)"
    elif set(old) == set(new):
        reason = "has its labels in another order"
    else:
        reason = f"has other labels ({_list(old)})"
    say(f"the head of {start} {reason}: it is replaced by a head with random weights for {_list(new)}")


def _list(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - _SHOWN:,} more" if len(labels) > _SHOWN else ""
    return ", ".join(labels[:_SHOWN]) + more
