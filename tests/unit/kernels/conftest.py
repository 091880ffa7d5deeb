"""Fixtures that several files of unit tests share."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


@pytest.fixture(params=["force_eager", pytest.param("default", marks=pytest.mark.slow)])
def flex_attention(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Torch's FlexAttention, eager. In slow tests a compiler traces each call first, which takes most of the time."""
    from torch.nn.attention import flex_attention as module

    return torch.compiler.set_stance(request.param)(module.flex_attention)
