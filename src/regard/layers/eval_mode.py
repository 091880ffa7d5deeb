"""Eval mode for the length of a block of code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode inside the block, and restore the mode of each module afterwards.

    ``model.train(before)`` would not do: a module that its user keeps in eval mode, such as a frozen batch norm, would
    be trained.
    """
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
