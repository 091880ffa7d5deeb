"""A whole image model, ViT base at 197 tokens (224 x 224 pixels, patches of 16 x 16): regard, transformers and timm.

    forward     hidden states of 8 pictures
    training    and the gradients of all weights

All have the same random weights, without a head and a pooler; transformers and timm compute attention with torch's
sdpa. The results are compared with transformers in float64, on the first pictures.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

import regard
from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import OURS, Case, Contestant, PreparedCase, Suite, Work
from benchmarks.image_baselines import build_vit, compute_hidden
from benchmarks.optional_imports import import_transformers
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster

_THEIRS, _TIMM = "transformers", "timm"
_CONTESTANTS = (OURS, _THEIRS, _TIMM)
_PICTURES, _SIDE, _CHANNELS = 8, 224, 3
_TOKENS = 1 + (_SIDE // 16) ** 2
_NUM_CHECKED = 2
"""Number of pictures that are compared with float64."""
_TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (5e-2, 1e-1)}
"""Of hidden states after 12 layers, and of the gradient of the pixels."""


def _build_theirs() -> Any:
    transformers = import_transformers()
    config = transformers.ViTConfig(attn_implementation="sdpa")
    with torch.random.fork_rng():
        torch.manual_seed(2020)
        return transformers.ViTModel(config, add_pooling_layer=False).eval()


@cache
def _build(name: str, dtype: torch.dtype) -> nn.Module:
    """Build the model of a contestant; that of regard is read from the folder of transformers."""
    theirs = _build_theirs()
    if name == _THEIRS:
        return theirs.to(dtype)
    if name == _TIMM:
        return build_vit(theirs).to(dtype)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        model = regard.load(folder, dtype=dtype)
    assert isinstance(model, nn.Module)
    return model


def _pixels(dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(2021)
    return torch.randn(_PICTURES, _CHANNELS, _SIDE, _SIDE, generator=generator).to(dtype)


def _grad_output(hidden: Tensor) -> Tensor:
    noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2022))
    return noise.to(hidden.dtype)


def _contestant(name: str, dtype: torch.dtype, *, training: bool) -> Contestant:
    model, pixels = _build(name, dtype), _pixels(dtype)

    def run() -> object:
        if not training:
            with torch.no_grad():
                return compute_hidden(model, pixels)
        hidden = compute_hidden(model, pixels)
        return torch.autograd.grad(hidden, list(model.parameters()), _grad_output(hidden))

    return Contestant(run, lambda: list(_deviations(model, pixels[:_NUM_CHECKED], training=training)))


def _deviations(model: nn.Module, pixels: Tensor, *, training: bool) -> Iterator[Deviation]:
    right = _build(_THEIRS, torch.float64)
    results = []
    for one in (model, right):
        leaf = pixels.to(next(one.parameters()).dtype).requires_grad_(training)
        with torch.set_grad_enabled(training):
            hidden = compute_hidden(one, leaf)
        slope = torch.autograd.grad(hidden, leaf, _grad_output(hidden))[0] if training else None
        results.append((hidden.detach(), slope))
    for what, ours, theirs, allowed in zip(
        ("hidden states", "gradient of the pixels"), *results, _TOLERANCES[pixels.dtype], strict=True
    ):
        if ours is not None and theirs is not None:
            yield deviation(what, ours, theirs, allowed)


def _case(dtype: torch.dtype, *, training: bool) -> Case:
    def prepare() -> PreparedCase:
        contestants = {name: partial(_contestant, name, dtype, training=training) for name in _CONTESTANTS}
        return PreparedCase(Work(_PICTURES, "pictures/s", step=1.0), contestants)

    return Case(
        f"{DTYPE_NAMES[dtype]} vit {'training' if training else 'forward'}",
        f"{_PICTURES} pictures of {_SIDE} x {_SIDE} pixels, {_TOKENS} tokens",
        prepare,
        _CONTESTANTS,
        tuple(Faster(peer, 1.0) for peer in (_THEIRS, _TIMM)),
        quick=dtype == torch.float32 and not training,
        length=_TOKENS,
    )


SUITE = Suite(
    name="images",
    title="Image models",
    description="ViT base with regard, transformers and timm.",
    cases=tuple(
        _case(dtype, training=training) for dtype in (torch.float32, torch.bfloat16) for training in (False, True)
    ),
    notes=("Weights are random, and models have no heads.",),
)
