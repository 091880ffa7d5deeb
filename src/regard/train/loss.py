"""Cross-entropy with smoothed labels.

    L = sum_t (1 - e) (-log p_t[y_t]) + e / V sum_v (-log p_t[v]),    p_t = softmax(logits_t)

Szegedy et al. 2016, "Rethinking the Inception architecture", section 7; Vaswani et al. 2017, section 5.4. The sum is
over the labels t that are not padding, and V is the vocabulary size.

Labels are padded with ``IGNORE_INDEX``, which is not in any vocabulary. The pad token of a model's inputs cannot be
used: it may be any token, even the end token, which has to be learned.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import DeviceError, DtypeError, OptionError, RegardError, ShapeError, check_count, check_number
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.masks.as_tensor import is_integer_tensor
from regard.tensors import check_tensor
from regard.validation import FLOATS

IGNORE_INDEX = -100
"""The label of padding, torch's convention."""


def smoothed_cross_entropy(
    logits: Float[Tensor, "batch length vocabulary"],
    labels: Int[Tensor, "batch length"],
    *,
    smoothing: float,
    ignored: int = IGNORE_INDEX,
) -> Float[Tensor, ""]:
    """Cross-entropy with label smoothing, summed over all labels that are not ``ignored``: a scalar in nats.

    ``logits`` (batch, length, vocabulary), ``labels`` (batch, length), ``smoothing`` e. The sum is in float32 or wider.
    Where a label is ignored the logits may be anything, including NaN, and their gradient is 0. Raises DtypeError,
    ShapeError, DeviceError or OptionError for arguments that do not fit, and for labels outside the vocabulary.
    """
    _check(logits, labels, smoothing, ignored)
    try:
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), smoothing=smoothing, ignored=ignored).sum()
    except RegardError:
        raise
    except (ValueError, IndexError) as error:
        raise OptionError(
            "a label is not in the vocabulary",
            expected=f"ids from 0 to {logits.shape[2] - 1}, or {ignored} for padding",
            got=str(error),
            do="tokenize targets with the subwords of the model",
        ) from error


def _check(logits: Tensor, labels: Tensor, smoothing: float, ignored: int) -> None:
    """Raise DtypeError, ShapeError, DeviceError or OptionError for arguments that the loss is not defined for."""
    check_tensor("logits", logits, "logits (batch, length, vocabulary)")
    check_tensor("labels", labels, "token ids (batch, length)")
    if logits.dtype not in FLOATS:
        raise DtypeError(
            "logits are not floating-point numbers",
            expected="float32 or another float",
            got=str(logits.dtype),
            do="use logits.float()",
        )
    if not is_integer_tensor(labels):
        raise DtypeError("labels are not integers", expected="integers", got=str(labels.dtype), do="use labels.long()")
    if logits.dim() != 3 or logits.shape[2] == 0 or labels.shape != logits.shape[:2]:
        raise ShapeError(
            "logits and labels do not fit",
            expected="logits (batch, length, vocabulary) and labels (batch, length)",
            got=f"{tuple(logits.shape)} and {tuple(labels.shape)}",
            do="pass one label for each position of the logits",
        )
    if logits.device != labels.device:
        raise DeviceError(
            "logits and labels are on different devices",
            expected=str(logits.device),
            got=str(labels.device),
            do="move one of them with .to(...)",
        )
    check_number("smoothing", smoothing, minimum=0.0, maximum=1.0)
    check_count("ignored", ignored, minimum=-(2**63), maximum=2**63 - 1)
