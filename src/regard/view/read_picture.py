"""Reading of a picture: run a model on it and capture its attention layers, with rollouts where they exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.errors import CheckpointError, DataError, OptionError, RefusedError, check_kind
from regard.layers.window_partition import WindowPartition
from regard.models import ImageEncoder, Swin
from regard.models.image_encoder import ImageOutput, TokenGrid
from regard.recording import LayerCall, record
from regard.view.from_recording import check_number_of_weights, layers_of, to_numpy
from regard.view.layer_weights import LayerWeights
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.rollout import attention_rollout, gradient_rollouts, keep_outputs, output_gradients
from regard.vision.image_processor import ImageProcessor
from regard.vision.picture_file import Picture

MAX_TOKENS = 2048
"""Maximum number of tokens of a layer without windows, whose rollout is a matrix: 724 pixels square with ViT base."""
MAX_LABELS = 5
"""Labels whose gradient rollout is computed, the most probable ones."""
WINDOWS_REASON = "The weights of a window are stored, and its scores have a bias by rows and columns."


def read_picture_attention(
    model: ImageEncoder, picture: Picture, *, label: str | None = None, name: str = ""
) -> PictureReading:
    """Capture every attention layer of ``model`` for a picture; with a head also its labels.

    Args:
        model: an image encoder, from ``regard.load``: a ViT, a DeiT or a Swin.
        picture: a path, the bytes of a file, an array of uint8, or a picture of Pillow.
        label: a label whose gradient is shown beside those of the ``MAX_LABELS`` most probable ones.
        name: the picture's name on the page and in messages; "" is its path.

    Raises DataError for a picture that cannot be read or has too many tokens, OptionError for a label that the model
    lacks, CheckpointError for a model without a processor, RefusedError for one whose tokens do not lie over the
    picture, such as a Perceiver.
    """
    check_kind("model", model, ImageEncoder, do='model = regard.models.load.load_image_encoder("vit/")')
    check_kind("name", name, str, do="the picture's name on the page")
    if label is not None:
        check_kind("label", label, str, do="one of model.labels, or None")
    chosen = _find_label(model, label)
    return capture_picture(
        model, picture, name=name, labels=model.labels, compute_logits=lambda output: output.logits, chosen=chosen
    )[0]


def capture_picture(
    model: ImageEncoder,
    picture: Picture,
    *,
    name: str,
    labels: Sequence[str],
    compute_logits: Callable[[ImageOutput], Tensor | None],
    chosen: str | None = None,
    gradients: int | None = None,
) -> tuple[PictureReading, ImageOutput]:
    """Run ``model`` on a picture, and return its reading and its output.

    ``compute_logits`` makes the logits (1, labels) of an output; the gradients of the ``gradients`` most probable
    ``labels`` (None is ``MAX_LABELS``) are rolled out, and that of the ``chosen`` one. Raises as
    ``read_picture_attention``.
    """
    name = name or (str(picture) if isinstance(picture, str | Path) else "the picture")
    processor = _get_processor(model)
    pixels = processor.to_pixels(picture, name=name)
    grids = model.token_grids(*pixels.shape[1:])
    _check_grids(model, grids, name)
    windows = model.windows(*pixels.shape[1:]) if isinstance(model, Swin) else (None,) * len(grids)
    output, calls, outputs = _run(model, processor, pixels, with_gradients=bool(labels))
    logits = compute_logits(output)
    probabilities = _rank_labels(labels, logits)
    layers = _make_layers(calls, grids, windows, _find_cells(model, grids))
    reading = PictureReading(name, pixels, layers, probabilities)
    reason = _no_rollout_reason(reading, windows)
    if reason:
        return replace(reading, no_rollout_reason=reason), output
    names = [one for one, _ in probabilities[: MAX_LABELS if gradients is None else gradients]]
    names += [chosen] if chosen is not None and chosen not in names else []
    rolled = {} if logits is None else _roll_gradients(labels, logits, calls, outputs, names, len(grids[0].prefix))
    rollout = attention_rollout(layer.attention.weights() for layer in reading.layers)
    return replace(reading, rollout=rollout, gradient_rollouts=rolled), output


def _no_rollout_reason(reading: PictureReading, windows: Sequence[WindowPartition | None]) -> str:
    """Why attention cannot be rolled out; "" if it can."""
    if any(one is not None for one in windows):
        return "The tokens of a Swin are merged from stage to stage, so there is no rollout."
    if any(layer.attention.is_signed for layer in reading.layers):
        return "Weights may be below 0 here, so there is no rollout."
    return "" if reading.layers else "The model has no layers."


def _run(
    model: ImageEncoder,
    processor: ImageProcessor,
    pixels: UInt8[np.ndarray, "channels height width"],
    *,
    with_gradients: bool,
) -> tuple[ImageOutput, list[LayerCall], list[Tensor]]:
    """Run the model in eval mode: its output, the calls of its attention layers, and their outputs in the graph."""
    made = processor.normalise(processor.rescale_pixels(torch.from_numpy(pixels[None].copy())))
    given = made.to(model.device, next(model.parameters()).dtype).requires_grad_(with_gradients)
    was_training = model.training
    model.eval()
    try:
        with torch.set_grad_enabled(with_gradients), keep_outputs(model) as outputs, record(model) as seen:
            output = model(given)
    finally:
        model.train(was_training)
    return output, list(seen), outputs


def _make_layers(
    calls: list[LayerCall],
    grids: tuple[TokenGrid, ...],
    windows: tuple[WindowPartition | None, ...],
    cells: list[tuple[int, int]],
) -> tuple[PictureLayer, ...]:
    if all(one is None for one in windows):
        return tuple(map(PictureLayer, grids, layers_of(calls), cells))
    check_number_of_weights(
        [(call.query.shape[1], grid.tokens, call.key.shape[2]) for call, grid in zip(calls, grids, strict=True)]
    )
    return tuple(
        PictureLayer(grid, _join_windows(call, grid, one), cell, one)
        for call, grid, one, cell in zip(calls, grids, windows, cells, strict=True)
        if one is not None
    )


def _find_cells(model: ImageEncoder, grids: tuple[TokenGrid, ...]) -> list[tuple[int, int]]:
    """The (height, width) in pixels of a token in each layer: a patch, and twice as much after each merging."""
    height, width = model.config.patch_size
    cells: list[tuple[int, int]] = []
    for before, grid in zip(grids[:1] + grids, grids, strict=False):
        if (grid.rows, grid.columns) != (before.rows, before.columns):
            height, width = 2 * height, 2 * width
        cells.append((height, width))
    return cells


def _join_windows(call: LayerCall, grid: TokenGrid, windows: WindowPartition) -> LayerWeights:
    """The weights of all windows (windows, heads, tokens, tokens) as rows of the map (heads, cells, window tokens)."""
    weights = to_numpy(call.weights())
    rows = np.empty((weights.shape[1], grid.tokens, weights.shape[3]), dtype=np.float32)
    for window, cells in zip(weights, windows.cells.numpy(), strict=True):
        rows[:, cells[cells >= 0]] = window[:, cells >= 0]
    return LayerWeights(call.name, rows, call.mechanism.weights_are, WINDOWS_REASON)


def _roll_gradients(
    labels: Sequence[str],
    logits: Tensor,
    calls: list[LayerCall],
    outputs: list[Tensor],
    names: list[str],
    prefix: int,
) -> dict[str, np.ndarray]:
    """The rows of the tokens before the patches, which the heads read, of the gradient rollout of each name."""
    gradients = output_gradients(logits, outputs, [labels.index(one) for one in names])
    return {one: rolled[:prefix] for one, rolled in zip(names, gradient_rollouts(calls, gradients), strict=True)}


def _rank_labels(labels: Sequence[str], logits: Tensor | None) -> tuple[tuple[str, float], ...]:
    """The labels with their probabilities, the most probable first."""
    if logits is None:
        return ()
    probabilities = logits.detach()[0].double().softmax(0).tolist()
    return tuple(sorted(zip(labels, probabilities, strict=True), key=lambda one: -one[1]))


def _find_label(model: ImageEncoder, label: str | None) -> str | None:
    if label is None or label in model.labels:
        return label
    some = ", ".join(model.labels[:10]) + (" .." if len(model.labels) > 10 else "")
    raise OptionError(
        "the model has no such label",
        expected=f"one of {some}" if model.labels else "a model with labels, and this one has none",
        got=repr(label),
        do="check the spelling, or leave --label out" if model.labels else "leave --label out",
    )


def _get_processor(model: ImageEncoder) -> ImageProcessor:
    if model.processor is None:
        raise CheckpointError(
            "the model does not say how its pixels are made from pictures",
            expected="preprocessor_config.json in its folder",
            got="none",
            do="use the whole folder of the model, or set model.processor = regard.vision.ImageProcessor(...)",
        )
    return model.processor


def _check_grids(model: ImageEncoder, grids: tuple[TokenGrid, ...], name: str) -> None:
    """Raise RefusedError for tokens that do not lie over the picture, DataError for too many of them."""
    if any(grid.rows * grid.columns == 0 for grid in grids):
        raise RefusedError(
            f"the tokens of a {type(model).__name__} do not lie over the picture",
            expected="a model whose tokens are patches: ViT, DeiT or Swin",
            got="layers of latents, which have no place",
            do="record it in Python: with regard.record(model) as seen: model(pixels)",
        )
    most = max((grid.tokens for grid in grids), default=0)
    if not isinstance(model, Swin) and most > MAX_TOKENS:
        raise DataError(
            f"{name} has too many patches to show",
            expected=f"at most {MAX_TOKENS:,} tokens",
            got=f"{most:,}",
            do="use a processor with a size: model.processor = ImageProcessor(size=(height, width), ..)",
        )
