"""The loss of an image classifier: cross-entropy, of mixed pictures for both labels, and of a teacher's answers.

    L = m CE(z, y_a) + (1 - m) CE(z, y_b)           m is the share of the picture's own label, 1 if nothing is mixed

With a teacher, whose logits are t, and the logits z_d of the distillation token (z itself in a model without one):

    hard      1/2 L + 1/2 CE(z_d, argmax t)                                             equation 3
    soft      (1 - a) L + a T^2 KL(softmax(t / T) || softmax(z_d / T)),  a = 0.1, T = 3       equation 2

Touvron et al. 2021, "Training data-efficient image transformers & distillation through attention", section 4. CE has
class weights and label smoothing as in ``tasks.label_validation``; the teacher's part has neither.
"""

from __future__ import annotations

from functools import partial

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from regard.models import ImageOutput
from regard.tasks.image_classification.data import PictureBatch
from regard.tasks.label_validation import label_loss

_SOFT_SHARE, _TEMPERATURE = 0.1, 3.0


def picture_loss(
    output: ImageOutput,
    batch: PictureBatch,
    *,
    smoothing: float = 0.0,
    weights: Float[Tensor, " labels"] | None = None,
    teacher: Float[Tensor, "rows labels"] | None = None,
    distill: str = "hard",
) -> Float[Tensor, ""]:
    """The loss summed over the pictures of a batch, in float32 or wider; ``teacher`` are the logits of the teacher."""
    logits = _class_logits(output, distilled=teacher is not None)
    loss_of = partial(label_loss, logits, several=False, smoothing=smoothing, weights=weights)
    loss = loss_of(batch.truth)
    if batch.other is not None:
        other = loss_of(batch.other)
        loss = batch.share * loss + (1 - batch.share) * other
    if teacher is None:
        return loss
    taught = logits if output.distillation_logits is None else output.distillation_logits
    taught, answers = taught.float(), teacher.float()
    if distill == "hard":
        return (loss + functional.cross_entropy(taught, answers.argmax(1), reduction="sum")) / 2
    divergence = functional.kl_div(
        (taught / _TEMPERATURE).log_softmax(1),
        (answers / _TEMPERATURE).log_softmax(1),
        reduction="sum",
        log_target=True,
    )
    return (1 - _SOFT_SHARE) * loss + _SOFT_SHARE * _TEMPERATURE**2 * divergence


def _class_logits(output: ImageOutput, *, distilled: bool) -> Float[Tensor, "rows labels"]:
    """The logits that learn the labels: with a teacher the logits of the class token, if they are apart."""
    apart = output.class_logits if distilled else None
    logits = output.logits if apart is None else apart
    assert logits is not None
    return logits


def teacher_pixels(
    pixels: Float[Tensor, "rows _ _ _"], channels: int, size: tuple[int, int]
) -> Float[Tensor, "rows _ _ _"]:
    """Pictures, 0 to 1, with the channels and in the size that a teacher reads; antialiased, bilinear."""
    if pixels.shape[1] != channels:
        pixels = pixels.expand(-1, 3, -1, -1) if channels == 3 else pixels.mean(1, keepdim=True)
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    resized: Tensor = functional.interpolate(pixels, size=size, mode="bilinear", antialias=True)
    return resized.clamp(0, 1)
