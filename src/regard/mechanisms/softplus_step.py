"""Step sizes and decays of state-space models: softplus of a logit, and exp(-rate step).

    step_t = softplus(logit_t + bias)        log_decay_t = -exp(log_rate) step_t

Dao and Gu 2024, "Transformers are SSMs". As in the authors' code, the initial rates are uniform from 1 to 16, and the
logarithms of the initial steps uniform between those of 0.001 and 0.1.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_RATES = (1.0, 16.0)
_STEPS = (1e-3, 0.1)


def draw_log_rate(*shape: int) -> Tensor:
    """Draw logarithms of decay rates."""
    return torch.empty(shape).uniform_(*_RATES).log()


def draw_step_bias(*shape: int) -> Tensor:
    """Draw biases whose softplus is a step: ln(exp(step) - 1)."""
    step = torch.empty(shape).uniform_(math.log(_STEPS[0]), math.log(_STEPS[1])).exp()
    return step + torch.log(-torch.expm1(-step))


def softplus(logits: Tensor) -> Tensor:
    """Compute ln(1 + exp(x)); exact for every x, where torch's function returns x from 20 on."""
    return -torch.nn.functional.logsigmoid(-logits)
