"""One training step of a translator, Transformer 3 + 3 of width 256: regard, transformers (Marian) and JoeyNMT.

    a step     label-smoothed loss, its gradient, clipped to norm 1, and each contestant's own optimizer
    fp32       float32 throughout
    bf16       torch.autocast: weights and optimizer in float32; transformers also in float32

Each contestant has its own process, as its users run it; "freed memory kept" is transformers with the allocator
setting of `regard train`. Before any timing, without dropout, the loss and the gradient of the token embedding are
compared with transformers in float64 (norms of rows: contestants order the width differently).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.subprocess_worker import SubprocessWorker
from benchmarks.targets import Faster, Target
from benchmarks.training_baselines import (
    FIRST_TOKEN_ID,
    NUM_PAIRS,
    NUM_TOKENS,
    Batch,
    TrainingBaseline,
    make_joeynmt_baseline,
    make_marian_model,
    make_regard_baseline,
    make_transformers_baseline,
)
from regard.train.allocator import keep_freed_memory

_SMOOTHING, _CLIP = 0.1, 1.0
_FASTER, _FASTER_THAN_FP32 = 2.5, 4.0
_DTYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class _Baseline:
    """A contestant: its maker, whether its allocator keeps freed memory, and its dtype if not that of the case."""

    make: Callable[[Batch], TrainingBaseline]
    keeps_memory: bool = False
    dtype: torch.dtype | None = None


_BASELINES = {
    "native": _Baseline(make_regard_baseline, keeps_memory=True),
    "transformers": _Baseline(make_transformers_baseline),
    "transformers-kept": _Baseline(make_transformers_baseline, keeps_memory=True),
    "transformers-fp32": _Baseline(make_transformers_baseline, dtype=torch.float32),
    "joeynmt": _Baseline(make_joeynmt_baseline),
}
_TOLERANCES = {torch.float32: (1e-5, 1e-4), torch.bfloat16: (1e-2, 5e-2)}
"""Tolerances for six layers in that dtype: of the loss, and of the gradient."""


def _case(dtype: torch.dtype, *targets: Target) -> Case:
    return Case(
        f"{_DTYPE_NAMES[dtype]} {NUM_PAIRS} x {NUM_TOKENS}",
        f"{NUM_PAIRS} pairs of {NUM_TOKENS} tokens on each side",
        partial(_prepare, dtype),
        tuple(name for name, kind in _BASELINES.items() if kind.dtype != dtype),
        (Faster("transformers", _FASTER), Faster("joeynmt", _FASTER), *targets),
        quick=True,
    )


def _prepare(dtype: torch.dtype) -> PreparedCase:
    contestants = {
        name: partial(_contestant_in_subprocess, name, kind.dtype or dtype) for name, kind in _BASELINES.items()
    }
    return PreparedCase(Work(NUM_PAIRS * NUM_TOKENS, "tokens/s", step=1.0), contestants)


def _contestant_in_subprocess(name: str, dtype: torch.dtype) -> Contestant:
    """Start the contestant of that name in its own process."""
    worker = SubprocessWorker(_contestant, name, dtype)
    return Contestant(partial(worker.call, "run"), partial(worker.call, "deviations"))


def _contestant(name: str, dtype: torch.dtype) -> Contestant:
    """The training step, in the contestant's own process."""
    kind = _BASELINES[name]
    if kind.keeps_memory:
        keep_freed_memory()
    batch = Batch.random()
    learner = kind.make(batch)
    return Contestant(partial(_training_step, learner, dtype), partial(_deviations, learner, dtype, batch))


def _training_step(learner: TrainingBaseline, dtype: torch.dtype) -> None:
    """Run one training step: the timed call."""
    learner.model.train()
    with _autocast(dtype):
        loss = learner.loss(_SMOOTHING)
    loss.backward()
    nn.utils.clip_grad_norm_(learner.model.parameters(), _CLIP)
    learner.optimizer.step()
    learner.optimizer.zero_grad()


def _deviations(learner: TrainingBaseline, dtype: torch.dtype, batch: Batch) -> list[Deviation]:
    expected_loss, expected = _reference_loss_and_norms(batch)
    learner.model.eval()
    with _autocast(dtype):
        loss = learner.loss(0.0)
    loss.backward()
    assert learner.token_embedding.grad is not None
    rows = learner.token_embedding.grad[FIRST_TOKEN_ID:].double().norm(dim=1)
    learner.optimizer.zero_grad()
    allowed = _TOLERANCES[dtype]
    return [
        Deviation("loss", abs(float(loss.detach()) / expected_loss - 1), allowed[0]),
        deviation("gradient of the token embedding", rows, expected, allowed[1]),
    ]


@cache
def _reference_loss_and_norms(batch: Batch) -> tuple[float, Tensor]:
    """Return the loss without smoothing, and the row norms of its gradient, by transformers in float64."""
    model = make_marian_model(torch.float64).eval()
    words = model.get_input_embeddings().weight
    logits = model(input_ids=batch.source, decoder_input_ids=batch.decoder_input).logits
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten())
    (gradient,) = torch.autograd.grad(loss, [words])
    return float(loss.detach()), gradient[FIRST_TOKEN_ID:].norm(dim=1)


def _autocast(dtype: torch.dtype) -> AbstractContextManager[Any]:
    return nullcontext() if dtype == torch.float32 else torch.autocast("cpu", dtype=dtype)


SUITE = Suite(
    name="translator",
    title="Training a translator",
    description="One training step: forward pass, loss, backward pass, gradient clipping and optimizer.",
    cases=(_case(torch.float32), _case(torch.bfloat16, Faster("transformers-fp32", _FASTER_THAN_FP32))),
    notes=(
        "Transformer with 3 + 3 layers of width 256, 8,000 subwords shared by both languages, dropout 0.3 and label "
        "smoothing. bf16: torch.autocast, for all implementations.",
        "`regard train` makes the allocator keep freed memory; transformers is measured without this setting and with "
        "it.",
        "Bound on the Intel Xeon: torch's matrix products use the full vector width there, and take three quarters of "
        "the step in regard, too, at 63% of the peak. Without a matrix unit, bf16 is slower than float32 on that "
        "machine, and `regard train` uses float32.",
    ),
)
