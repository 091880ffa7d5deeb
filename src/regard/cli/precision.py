"""``--dtype``: what a model computes in, and a word where bfloat16 was asked for and float32 is the faster here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from regard.errors import unknown

if TYPE_CHECKING:
    import torch


def check_precision(asked: str, known: Sequence[str]) -> None:
    """Raise OptionError for a precision that the verb does not have."""
    if asked not in known:
        raise unknown("precision", asked, known)


def say_if_slower(asked: str, device: torch.device, say: Callable[[str], None]) -> None:
    """Say so where bfloat16 was asked for and float32 is measured to be the faster: it was asked for to save time."""
    if asked != "bfloat16":
        return
    from regard.layers.precision import precisions

    found = precisions(device)
    if asked in found.slower:
        say(f"--dtype float32 is faster than {asked} here: {found.reason}")
