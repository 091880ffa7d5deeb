"""Reading of a picture: run a model on it and capture its attention layers, with rollouts where they exist."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from regard.errors import CheckpointError, DataError, OptionError, RefusedError, check_kind, short_repr
from regard.models import Cct, Cvt, ImageEncoder, Swin
from regard.models.image_encoder import ImageOutput, TokenGrid
from regard.recording import LayerCall, record
from regard.view.picture_layers import make_picture_layers
from regard.view.picture_reading import PictureReading
from regard.view.rollout import attention_rollout, gradient_rollouts, keep_outputs, output_gradients, read_out
from regard.vision.image_processor import ImageProcessor
from regard.vision.picture_file import Picture

MAX_TOKENS = 2048
"""Maximum number of tokens of a model with a rollout, which is a matrix: 724 pixels square with ViT base."""
MAX_LABELS = 5
"""Labels whose gradient rollout is computed, the most probable ones."""


def read_picture_attention(
    model: ImageEncoder, picture: Picture, *, label: str | None = None, name: str = ""
) -> PictureReading:
    """Capture every attention layer of ``model`` for a picture; with a head also its labels.

    Args:
        model: an image encoder, from ``regard.load``: a ViT, a DeiT, a Swin, a CCT or a CvT.
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
    output, calls, outputs = _run(model, processor, pixels, with_gradients=bool(labels))
    logits = compute_logits(output)
    probabilities = _rank_labels(labels, logits)
    readout = model.pooling.weights(output.hidden)[0].detach() if isinstance(model, Cct) else None
    reading = PictureReading(
        name,
        pixels,
        make_picture_layers(model, calls, *pixels.shape[1:]),
        probabilities,
        readout=None if readout is None else readout.double().cpu().numpy(),
        no_rollout_reason=_no_rollout_reason(model, calls),
    )
    if reading.no_rollout_reason:
        return reading, output
    names = [one for one, _ in probabilities[: MAX_LABELS if gradients is None else gradients]]
    names += [chosen] if chosen is not None and chosen not in names else []
    rows: list[np.ndarray] = []
    if logits is not None:
        numbers = [labels.index(one) for one in names]
        rolled = gradient_rollouts(calls, output_gradients(logits, outputs, numbers))
        if readout is None:
            rows = [one[: len(grids[0].prefix)] for one in rolled]
        else:
            rows = _read_out_all(rolled, readout, output, output_gradients(logits, [output.pooled], numbers))
    rollout = attention_rollout(layer.attention.weights() for layer in reading.layers)
    gradient_rows = dict(zip(names, rows, strict=True)) if rows else {}
    return replace(reading, rollout=rollout, gradient_rollouts=gradient_rows), output


def _no_rollout_reason(model: ImageEncoder, calls: Sequence[LayerCall]) -> str:
    """Why attention cannot be rolled out; "" if it can."""
    if isinstance(model, Swin):
        return "The tokens of a Swin are merged from stage to stage, so there is no rollout."
    if isinstance(model, Cvt):
        return (
            "The keys of a CvT are convolutions of its tokens, which are fewer in each stage, so there is no rollout."
        )
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
    was_training = model.training
    model.eval()
    try:
        with torch.set_grad_enabled(with_gradients), keep_outputs(model) as outputs, record(model) as seen:
            output = model(given)
    finally:
        model.train(was_training)
    return output, list(seen), outputs


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
        got=short_repr(label),
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
            expected="a model whose tokens are patches: ViT, DeiT, Swin, CCT or CvT",
            got="layers of latents, which have no place",
            do="record it in Python: with regard.record(model) as seen: model(pixels)",
        )
    most = max((grid.tokens for grid in grids), default=0)
    if not isinstance(model, Swin | Cvt) and most > MAX_TOKENS:
        raise DataError(
            f"{name} has too many patches to show",
            expected=f"at most {MAX_TOKENS:,} tokens",
            got=f"{most:,}",
            do="use a processor with a size: model.processor = ImageProcessor(size=(height, width), ..)",
        )
