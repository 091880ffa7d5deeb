"""A whole image model, Swin-T at 224 x 224 pixels, with regard, transformers and timm.

    forward     the last hidden states of pictures
    training    the same, and the gradients of all weights and of the pixels

transformers computes Swin by torch's fused attention ("sdpa", its default) and by products and a softmax
("transformers-eager"); the mask of shifted windows and the relative position bias are one tensor there, of all windows
of the batch. timm computes products and a softmax, its default for Swin. Weights are random and the same in all.
Results are compared with transformers in float64.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import OURS, Case, Contestant, PreparedCase, Suite, Work
from benchmarks.image_baselines import build_swin, compute_hidden
from benchmarks.optional_imports import import_transformers
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster
from regard.models import ImageEncoder

_TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (5e-2, 1e-1)}
"""Of hidden states after all layers, and of the gradient of the pixels."""
_SIDE, _BATCH = 224, 4
_NUM_CHECKED = 1
"""Number of pictures that are compared with float64."""
_PEERS = {"transformers": "sdpa", "transformers-eager": "eager"}
_TIMM = "timm"


def _case(dtype: torch.dtype, *, training: bool) -> Case:
    what = "training" if training else "forward"
    return Case(
        f"{what} {DTYPE_NAMES[dtype]}",
        f"{_BATCH} pictures of {_SIDE} x {_SIDE} pixels",
        partial(_prepare, dtype, training=training),
        (OURS, *_PEERS, _TIMM),
        tuple(Faster(peer, 1.0) for peer in ("transformers", _TIMM)),
        quick=dtype == torch.bfloat16,
    )


def _prepare(dtype: torch.dtype, *, training: bool) -> PreparedCase:
    pixels = torch.randn(_BATCH, 3, _SIDE, _SIDE, generator=torch.Generator().manual_seed(2020)).to(dtype)
    makers: dict[str, Callable[[], Any]] = {OURS: partial(_load_ours, dtype)}
    makers |= {name: partial(_build_peer, dtype, implementation) for name, implementation in _PEERS.items()}
    makers[_TIMM] = lambda: build_swin(_build_peer(torch.float32, "eager")).to(dtype)
    contestants = {name: partial(_contestant, make, pixels, training=training) for name, make in makers.items()}
    return PreparedCase(Work(_BATCH, "pictures/s", step=1.0), contestants)


def _contestant(make: Callable[[], Any], pixels: Tensor, *, training: bool) -> Contestant:
    compute = partial(_train if training else _infer, make())

    def compared() -> list[Deviation]:
        some = pixels[:_NUM_CHECKED]
        return list(_deviations(some, compute(pixels=some), training=training))

    return Contestant(lambda: compute(pixels=pixels), compared)


def _infer(model: Any, pixels: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        return (compute_hidden(model, pixels),)


def _train(model: Any, pixels: Tensor) -> tuple[Tensor, ...]:
    """Compute the hidden states and the gradient of the pixels; the gradients of the weights are discarded."""
    leaf = pixels.clone().requires_grad_()
    hidden = compute_hidden(model, leaf)
    hidden.backward(_upstream(hidden.shape).to(hidden))
    model.zero_grad()
    assert leaf.grad is not None
    return hidden.detach(), leaf.grad


@cache
def _upstream(shape: torch.Size) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2021))


def _deviations(pixels: Tensor, found: tuple[Tensor, ...], *, training: bool) -> Iterator[Deviation]:
    model = _build_peer(torch.float64, "eager")
    expected = (_train if training else _infer)(model, pixels.double())
    names = ("hidden states", "gradient of the pixels")
    for name, one, other, tolerance in zip(names, found, expected, _TOLERANCES[pixels.dtype], strict=False):
        yield deviation(name, one, other, tolerance)


def _build_peer(dtype: torch.dtype, implementation: str) -> Any:
    """Build Swin-T of transformers with the same random weights each time."""
    transformers = import_transformers()
    config = transformers.SwinConfig(image_size=_SIDE)
    with torch.random.fork_rng():
        torch.manual_seed(2020)
        model = transformers.AutoModel.from_config(config, attn_implementation=implementation)
        for name, weight in model.named_parameters():
            if name.endswith("relative_position_bias_table"):  # they are initialised with 0
                torch.nn.init.normal_(weight, std=0.5)
    return model.to(dtype).eval()


def _load_ours(dtype: torch.dtype) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        _build_peer(torch.float32, "eager").save_pretrained(Path(folder))
        return ImageEncoder.load(folder, dtype=dtype)


SUITE = Suite(
    name="swin",
    title="Whole image model: Swin-T",
    description="Swin-T (12 layers in windows of 7 x 7 tokens) at 224 x 224: regard, transformers and timm.",
    cases=tuple(
        _case(dtype, training=training) for training in (False, True) for dtype in (torch.float32, torch.bfloat16)
    ),
    notes=(
        "Weights are random, and models have no heads. transformers adds the mask of shifted windows to the relative "
        "position bias, one tensor for all windows of the batch, and computes by torch's fused attention (sdpa), or by "
        "products and a softmax (transformers-eager), which is timm's default too. training: forward, and the "
        "gradients of weights and pixels.",
    ),
)
