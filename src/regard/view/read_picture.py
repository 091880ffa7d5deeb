"""Reading of a picture: run a model on it and capture its attention layers, with rollouts where they exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError, check_kind, short_repr
from regard.layers.eval_mode import eval_mode
from regard.models import ImageEncoder
from regard.models.image_encoder import ImageOutput
from regard.models.media_encoder import TokenGrid
from regard.recording import LayerCall, record
from regard.view.picture_layers import make_picture_layers
from regard.view.picture_reading import PictureReading
from regard.view.rollout import (
    attention_rollout,
    gradient_rollouts,
    keep_outputs,
    latent_gradient_rollouts,
    latent_rollout,
    output_gradients,
    read_out,
)
from regard.vision.image_processor import ImageProcessor
from regard.vision.picture_file import Picture

MAX_TOKENS = 2048
"""Maximum number of tokens of a model with a rollout, which is a matrix: 724 pixels square with ViT base."""
MAX_PIXELS = 2**16
"""Maximum number of tokens that the latents of a Perceiver read: 256 pixels square."""
MAX_LABELS = 5
"""Labels whose gradient rollout is computed, the most probable ones."""


@explain_arguments
def read_picture_attention(
    model: ImageEncoder, picture: Picture, *, label: str | None = None, name: str = ""
) -> PictureReading:
    """Capture every attention layer of ``model`` for a picture; with a head also its labels.

    Args:
        model: an image encoder, from ``regard.load``: a ViT, a DeiT, a Swin, a CCT, a CvT or a Perceiver.
        picture: a path, the bytes of a file, an array of uint8, or a picture of Pillow.
        label: a label whose gradient is shown beside the gradients of the ``MAX_LABELS`` most probable ones.
        name: the picture's name on the page and in messages; "" is its path.

    Raises DataError for a picture that cannot be read or has too many tokens, OptionError for a label that the model
    lacks, CheckpointError for a model without a processor.
    """
    check_kind("model", model, ImageEncoder, do='model = regard.models.ImageEncoder.load("vit/")')
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
    ``labels`` (None is ``MAX_LABELS``) are rolled out, and the gradient of the ``chosen`` one. Raises as
    ``read_picture_attention``.
    """
    name = name or (str(picture) if isinstance(picture, str | Path) else "the picture")
    processor = model.require_processor()
    pixels = processor.to_pixels(picture, name=name)
    grids = model.token_grids(*pixels.shape[1:])
    if not model.windows(*pixels.shape[1:]) and model.key_grids(*pixels.shape[1:]) == grids:
        _check_grids(grids, MAX_PIXELS if model.attends_through_latents else MAX_TOKENS, name)
    output, calls, outputs = _run(model, processor, pixels, with_gradients=bool(labels))
    logits = compute_logits(output)
    reading = PictureReading(
        name,
        pixels,
        make_picture_layers(model, calls, *pixels.shape[1:]),
        rank_labels(labels, logits),
        no_rollout_reason=_no_rollout_reason(model, calls),
    )
    names = [one for one, _ in reading.probabilities[: MAX_LABELS if gradients is None else gradients]]
    names += [chosen] if chosen is not None and chosen not in names else []
    numbers = [labels.index(one) for one in names]

    def find_gradients(of: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
        return [] if logits is None else output_gradients(logits, of, numbers)

    if model.attends_through_latents:
        rolled = latent_gradient_rollouts(calls, find_gradients(outputs))
        answer = latent_rollout(call.weights()[0].double().cpu().numpy() for call in calls)[0]
        return replace(reading, readout=answer, gradient_rollouts=dict(zip(names, rolled, strict=True))), output
    pooled = model.pooling_weights(output)
    weights = None if pooled is None else pooled[0].detach()
    readout = None if weights is None else weights.double().cpu().numpy()
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
    return [read_out(one, readout, hidden, pooled[0]) for one, (pooled,) in zip(rolled, gradients, strict=True)]


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
    graph = torch.set_grad_enabled(with_gradients)
    with eval_mode(model), graph, keep_outputs(model) as outputs, record(model) as seen:
        output = model(given)
    return output, list(seen), outputs


def rank_labels(labels: Sequence[str], logits: Tensor | None) -> tuple[tuple[str, float], ...]:
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
        got=short_repr(label),
        do="check the spelling, or leave out `label`" if model.labels else "leave out `label`",
    )


def _check_grids(grids: tuple[TokenGrid, ...], limit: int, name: str) -> None:
    """Raise DataError for too many tokens."""
    most = max((grid.tokens for grid in grids), default=0)
    if most > limit:
        raise DataError(
            f"{name} has too many patches to show",
            expected=f"at most {limit:,} tokens",
            got=f"{most:,}",
            do="use a processor with a size: model.processor = ImageProcessor(size=(height, width), ..)",
        )
