"""Connectionist temporal classification: a text from a label, or the blank, for each token of a sound.

    B(path)     remove repeated labels, then blanks: B(a a - a b) = a a b
    tokens      that a target needs: its labels, and a blank between equal ones: 4 for a a b
    loss        -ln sum_{path : B(path) = target} prod_t softmax(logits_t)[path_t]
    decode      B of the most likely label of each token

Graves et al. 2006, "Connectionist temporal classification", sections 3 and 4. logits (batch, tokens, 1 + labels), the
blank first. Hidden tokens take no part.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError
from regard.models.audio_encoder import AudioEncoderOutput

BLANK = 0
"""The index of the blank among the logits."""


@final
class LabelSpan(NamedTuple):
    """A label of a sound, numbered from 0, and the tokens of its run in the path: ``begin`` to before ``end``."""

    label: int
    begin: int
    end: int


def count_needed_tokens(target: Sequence[int]) -> int:
    """The least number of tokens of a sound that can write a target."""
    return len(target) + sum(label == other for label, other in pairwise(target))


@explain_arguments
def ctc_loss(output: AudioEncoderOutput, targets: Sequence[Sequence[int]]) -> Float[Tensor, " batch"]:
    """The loss of each sound: the negative log-probability of its target, in nats.

    ``targets`` are sequences of labels, numbered from 0 as in ``model.labels``. Visible tokens must come first, as in
    sounds padded on the right. Raises DataError for a target that no path gives, and OptionError for another output.
    """
    logits, lengths = _check_output(output)
    labels = logits.shape[2] - 1
    if len(targets) != logits.shape[0]:
        raise OptionError(
            "the targets are not those of the batch",
            expected=f"{logits.shape[0]} targets, one for each sound",
            got=f"{len(targets)} targets",
            do="pass a list of labels for each sound",
        )
    for number, (target, length) in enumerate(zip(targets, lengths.tolist(), strict=True)):
        needed = count_needed_tokens(target)
        outside = [label for label in target if not 0 <= label < labels]
        if outside or needed > length:
            raise DataError(
                f"target {number} cannot be written by the tokens of its sound",
                expected=f"labels from 0 to {labels - 1}, with a blank between equal ones at most {length} in all",
                got=f"label {outside[0]}"
                if outside
                else f"{len(target)} labels, and {needed - len(target)} blanks between",
                do="leave the sound out, or check its text",
            )
    flat = torch.tensor([1 + label for target in targets for label in target], dtype=torch.long, device=logits.device)
    counts = torch.tensor([len(target) for target in targets], dtype=torch.long, device=logits.device)
    probabilities = torch.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, dim=-1)
    return torch.nn.functional.ctc_loss(
        probabilities.transpose(0, 1), flat, lengths, counts, blank=BLANK, reduction="none"
    )


@explain_arguments
def decode_ctc(output: AudioEncoderOutput) -> list[list[int]]:
    """The labels of each sound, by the most likely label of each token. Raises OptionError for another output."""
    return [[span.label for span in spans] for spans in decode_ctc_spans(output)]


def decode_ctc_spans(output: AudioEncoderOutput) -> list[list[LabelSpan]]:
    """The labels of each sound as ``decode_ctc``, and their tokens. Raises OptionError for another output."""
    logits, lengths = _check_output(output)
    decoded = []
    for path, length in zip(logits.argmax(dim=-1).tolist(), lengths.tolist(), strict=True):
        starts = [at for at in range(length) if at == 0 or path[at] != path[at - 1]]
        runs = zip(starts, [*starts[1:], length], strict=True)
        decoded.append([LabelSpan(path[begin] - 1, begin, end) for begin, end in runs if path[begin] != BLANK])
    return decoded


def _check_output(output: AudioEncoderOutput) -> tuple[Float[Tensor, "batch tokens rows"], Tensor]:
    """Return the logits and the number of visible tokens of each sound."""
    if output.logits is None or output.logits.dim() != 3:
        raise OptionError(
            "the output has no logits of tokens",
            expected='the output of a model with head="ctc"',
            got=repr(output),
            do='build the model with head="ctc" and labels',
        )
    lengths = output.visible.sum(dim=1)
    first = torch.arange(output.visible.shape[1], device=lengths.device) < lengths[:, None]
    if not torch.equal(first, output.visible):
        raise OptionError(
            "the sounds are not padded on the right",
            expected="visible tokens first",
            got="hidden tokens before visible ones",
            do="pad the features on the right: mask=masks.padding(lengths)",
        )
    return output.logits, lengths
