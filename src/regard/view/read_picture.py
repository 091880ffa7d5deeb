"""Reading of a picture: run a model on it and capture its attention layers, with rollouts where they exist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.errors import DataError, OptionError, short_repr
from regard.layers.eval_mode import eval_mode
from regard.layers.window_partition import WindowPartition
from regard.models import ImageEncoder
from regard.models.image_encoder import ImageOutput
from regard.models.media_encoder import TokenGrid
from regard.positions import Relative2d
from regard.recording import LayerCall, record
from regard.recording.captured_inputs import CapturedLayer, capture_projections
from regard.view.captured_projections import add_projections
from regard.view.from_recording import check_number_of_weights, layers_of, to_float32
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.rollout import (
    attention_rollout,
    gradient_rollouts,
    keep_outputs,
    latent_gradient_rollouts,
    latent_rollout,
    output_gradients,
    read_out,
)
from regard.view.window_reading import WindowReading
from regard.vision.image_processor import ImageProcessor
from regard.vision.picture_file import Picture

MAX_TOKENS = 2048
"""Maximum number of tokens of a model with a rollout, which is a matrix: 724 pixels square with ViT base."""
MAX_PIXELS = 2**16
"""Maximum number of tokens that the latents of a Perceiver read: 256 pixels square."""
MAX_LABELS = 5
"""Labels whose gradient rollout is computed, the most probable ones."""


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
    ``labels`` (None is ``MAX_LABELS``) are rolled out, and the gradient of the ``chosen`` one. Raises as ``read_file``.
    """
    name = name or (str(picture) if isinstance(picture, str | Path) else "the picture")
    processor = model.require_processor()
    pixels = processor.to_pixels(picture, name=name)
    grids = model.token_grids(*pixels.shape[1:])
    if not model.windows(*pixels.shape[1:]) and model.key_grids(*pixels.shape[1:]) == grids:
        _check_grids(grids, MAX_PIXELS if model.attends_through_latents else MAX_TOKENS, name)
    with capture_projections(model) as projections:
        output, calls, outputs = _run(model, processor, pixels, with_gradients=bool(labels))
    logits = compute_logits(output)
    reading = PictureReading(
        name,
        pixels,
        _add_projections(_make_layers(model, calls, *pixels.shape[1:]), projections),
        rank_labels(labels, logits),
        no_rollout_reason=_no_rollout_reason(model, calls),
    )
    names = [label for label, _ in reading.probabilities[: MAX_LABELS if gradients is None else gradients]]
    names += [chosen] if chosen is not None and chosen not in names else []
    numbers = [labels.index(label) for label in names]

    def find_gradients(of: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        return [] if logits is None else output_gradients(logits, of, numbers)

    if model.attends_through_latents:
        rolled = latent_gradient_rollouts(calls, find_gradients(outputs))
        answer = latent_rollout(call.weights()[0].cpu().double().numpy() for call in calls)[0]
        return replace(reading, readout=answer, gradient_rollouts=dict(zip(names, rolled, strict=True))), output
    pooled = model.pooling_weights(output)
    weights = None if pooled is None else pooled[0].detach()
    readout = None if weights is None else weights.cpu().double().numpy()
    if reading.no_rollout_reason:
        return replace(reading, readout=readout), output
    rows = gradient_rollouts(calls, find_gradients(outputs))
    if weights is None:
        rows = [row[: len(grids[0].prefix)] for row in rows]
    else:
        rows = _read_out_all(rows, weights, output, find_gradients([output.pooled]))
    rollout = attention_rollout(layer.attention.weights() for layer in reading.layers)
    by_label = dict(zip(names, rows, strict=True))
    return replace(reading, readout=readout, rollout=rollout, gradient_rollouts=by_label), output


def _make_layers(model: ImageEncoder, calls: list[LayerCall], height: int, width: int) -> tuple[PictureLayer, ...]:
    """Convert the calls of the layers of ``model`` for a picture of ``height`` x ``width`` pixels; of a Perceiver, the
    first one.

    Raises DataError for numbers that are not finite, and for too many weights in layers that have them alone.
    """
    grids, key_grids = model.token_grids(height, width), model.key_grids(height, width)
    if model.attends_through_latents:
        return (_make_latent_layer(calls[0], grids, (height, width)),)
    windows, cells = model.windows(height, width), model.token_cells(height, width)
    if windows:
        rows = zip(calls, grids, windows, cells, strict=True)
        return tuple(
            PictureLayer(grid, _join_windows(call, grid, partition), cell, partition)
            for call, grid, partition, cell in rows
        )
    if key_grids != grids:
        check_number_of_weights([(call.query.shape[1], call.query.shape[2], call.key.shape[2]) for call in calls])
    return tuple(
        PictureLayer(grid, layer, cell)
        if keys == grid
        else PictureLayer(grid, layer, cell, key_grid=keys, key_cell=keys.cell(height, width))
        for grid, keys, layer, cell in zip(grids, key_grids, layers_of(calls), cells, strict=True)
    )


def _add_projections(
    layers: tuple[PictureLayer, ...], captured: Mapping[str, CapturedLayer]
) -> tuple[PictureLayer, ...]:
    """The layers with their projections, where these are known."""
    known = add_projections([layer.attention for layer in layers], captured)
    return tuple(replace(layer, attention=attention) for layer, attention in zip(layers, known, strict=True))


def _make_latent_layer(call: LayerCall, grids: tuple[TokenGrid, ...], size: tuple[int, int]) -> PictureLayer:
    """The cross-attention of a Perceiver: the others are between latents, which have no place in the picture."""
    pixels, latents, *_ = grids
    check_number_of_weights([(call.query.shape[1], latents.tokens, pixels.tokens)])
    (layer,) = layers_of([call])
    return PictureLayer(latents, layer, size, key_grid=pixels, key_cell=pixels.cell(*size))


def _join_windows(call: LayerCall, grid: TokenGrid, windows: WindowPartition) -> WindowReading:
    """The steps of all windows, whose queries, keys and values are (windows, heads, tokens, head_dim)."""
    cells, slots = windows.cells, windows.slots
    assert isinstance(call.bias, Relative2d), "the position of a Swin"
    allowed = None
    if call.mask is not None:
        of_window = call.mask.dense(windows.size**2, windows.size**2).expand(len(cells), 1, -1, -1)[:, 0].cpu()
        allowed = torch.empty(grid.tokens, windows.size**2, dtype=torch.bool)
        allowed[cells[cells >= 0]] = of_window[cells >= 0]

    def join(parts: Tensor, places: Tensor, count: int) -> Tensor:
        joined = parts.new_empty(count, *parts.shape[1::2])
        joined[places[places >= 0]] = parts.transpose(1, 2)[places >= 0]
        return to_float32(joined.transpose(0, 1))

    return WindowReading(
        name=call.name,
        query=join(call.query, cells, grid.tokens),
        key=join(call.key, slots, slots.numel()),
        value=join(call.value, slots, slots.numel()),
        scale=call.mechanism.scale,
        table=to_float32(call.bias.table_of(windows.size).flatten(0, 1).T),
        windows=windows,
        allowed=allowed,
    )


def _no_rollout_reason(model: ImageEncoder, calls: Sequence[LayerCall]) -> str:
    """Why attention cannot be rolled out from each token; "" if it can."""
    if model.no_rollout_reason:
        return model.no_rollout_reason
    if any(call.mechanism.weights_are == "signed" for call in calls):
        return "Weights may be below 0 here, so there is no rollout."
    return "" if calls else "The model has no layers."


def _read_out_all(
    rolled: Sequence[np.ndarray], readout: Tensor, output: ImageOutput, gradients: Sequence[tuple[Tensor, ...]]
) -> list[np.ndarray]:
    """The row of the readout for each label, from the gradients of its logit with respect to the pooled vector."""
    hidden = output.hidden[0].detach()
    return [read_out(rows, readout, hidden, pooled[0]) for rows, (pooled,) in zip(rolled, gradients, strict=True)]


def _run(
    model: ImageEncoder,
    processor: ImageProcessor,
    pixels: UInt8[np.ndarray, "channels height width"],
    *,
    with_gradients: bool,
) -> tuple[ImageOutput, list[LayerCall], list[Tensor]]:
    """Run the model in eval mode: its output, the calls of its attention layers, and their outputs in the graph."""
    normalised = processor.normalise(processor.rescale_pixels(torch.from_numpy(pixels[None].copy())))
    inputs = normalised.to(model.device, next(model.parameters()).dtype).requires_grad_(with_gradients)
    graph = torch.set_grad_enabled(with_gradients)
    with eval_mode(model), graph, keep_outputs(model) as outputs, record(model) as recording:
        output = model(inputs)
    return output, list(recording), outputs


def rank_labels(labels: Sequence[str], logits: Tensor | None) -> tuple[tuple[str, float], ...]:
    """The labels with their probabilities, the most probable first."""
    if logits is None:
        return ()
    probabilities = logits.detach()[0].cpu().double().softmax(0).tolist()
    return tuple(sorted(zip(labels, probabilities, strict=True), key=lambda pair: -pair[1]))


def find_label(model: ImageEncoder, label: str | None) -> str | None:
    """Return a label of the model, or None. Raises OptionError for one that it lacks."""
    if label is None or label in model.labels:
        return label
    some = ", ".join(model.labels[:10]) + (" .." if len(model.labels) > 10 else "")
    raise OptionError(
        "the model has no such label",
        expected=f"one of {some}" if model.labels else "a model with labels, and this one has none",
        got=short_repr(label),
        do="check the spelling, or leave out `labels`" if model.labels else "leave out `labels`",
    )


def _check_grids(grids: tuple[TokenGrid, ...], limit: int, name: str) -> None:
    """Raise DataError for too many tokens."""
    largest = max((grid.tokens for grid in grids), default=0)
    if largest > limit:
        raise DataError(
            f"{name} has too many patches to show",
            expected=f"at most {limit:,} tokens",
            got=f"{largest:,}",
            do="use a processor with a size: model.processor = ImageProcessor(size=(height, width), ..)",
        )
