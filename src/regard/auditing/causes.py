"""The cause of a leak in words, where the evidence says it: experiments first, and the class of the module last."""

from __future__ import annotations

from torch import nn

from regard.auditing.compare import Outcome
from regard.auditing.layers import LeakingModule
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Subject


def find_cause(name: str, subject: Subject, outcome: Outcome, found: LeakingModule | None, noise: NoiseFloor) -> str:
    """The cause of a leak of the property ``name``; "" if the evidence does not say it."""
    del name, subject, outcome, noise
    return "" if found is None else _cause_of_class(found.module)


def _cause_of_class(module: nn.Module) -> str:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "batch norm computes its statistics over all rows and positions"
    return ""
