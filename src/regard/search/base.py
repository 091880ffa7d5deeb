"""What all strategies share: sources or prompts in, the best targets for each of them out.

    log P(y | x) = sum_t log P(y_t | y_1 .. y_t-1, x)        y ends with the token that ends a target

x is the source of an encoder-decoder, or the prompt that a decoder goes on from. A model gives each factor of that sum
(``Decoder.step``); a strategy says which targets are looked at. source (batch, length), lengths (batch,) -> a list of
``Hypothesis`` for each source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError, check_count, short_repr
from regard.models.base import Decoder
from regard.tensors import check_tensor
from regard.text.subwords import Subwords

_LENGTH_RATIO, _EXTRA_TOKENS = 2, 10
"""A target has at most ``_LENGTH_RATIO`` times as many tokens as its source, and ``_EXTRA_TOKENS``."""


@final
@dataclass(frozen=True)
class Hypothesis:
    """A target: ``ids`` without its source or prompt, and without the tokens that begin and end it.

    ``score`` is what hypotheses were compared by. ``log_probability`` is the model's, in nats, with the end if there is
    one; ``finished`` says whether there is, or whether the target was cut at the most tokens allowed.
    """

    ids: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool


MAX_ROWS = 2**16
"""Targets of a source that may be written side by side."""
_MAX_TARGET_TOKENS = 2**20
"""The most tokens that a target may be allowed: room for them is taken beforehand."""


class Search(ABC):
    """A strategy. It holds its options, and nothing of a search that runs."""

    @property
    def rows(self) -> int:
        """Targets of a source that are written side by side: what memory and time of a batch grow with."""
        return 1

    @final
    @explain_arguments
    def search(
        self, model: Decoder, source: Tensor, lengths: Tensor, *, most: int | None = None
    ) -> list[list[Hypothesis]]:
        """The best targets of each source, the best first; for a decoder without a source, the best to follow a prompt.

        Args:
            model: is put into eval mode while it is asked, and back. No gradients are kept.
            source: ids (batch, length) of sources or prompts, padded on the right.
            lengths: (batch,), of the sources, each at least 1.
            most: tokens of a target, its end included. None is 2 * length + 10 of each source: translations of twice as
                many tokens are rare in any two languages, and 10 are for texts of a word or two. What is longer repeats
                itself, as a rule. For prompts, say it. Never more than ``model.max_new_tokens``.

        A source has the same result whatever stands beside it in the batch, up to rounding. ``model.pad_id``,
        ``model.unknown_id`` and ``model.start_id`` are never written, since none of them stands for any text; but for
        ``model.end_id``, which may be one of them.

        Raises:
            ShapeError, DtypeError, OptionError: arguments that do not fit, such as a prompt that leaves no positions.
            RefusedError: a model that gives no token a probability, or lacks what the strategy needs.
        """
        if not isinstance(model, Decoder):
            raise OptionError(
                "a search asks a model that writes sequences",
                expected="a Transformer, a Recurrent, or another Decoder",
                got=short_repr(model),
                do="load one: regard.load(folder)",
            )
        _check(source, lengths)
        if most is not None:
            check_count("most", most, most=_MAX_TARGET_TOKENS)
        if source.shape[0] == 0:
            return []
        lengths = lengths.to(source.device)
        limits = _token_limits(model, lengths, most)
        with torch.no_grad(), eval_mode(model):
            hypotheses = self.decode(model, source, lengths, limits)
        if not all(hypotheses):
            raise _no_probability_error(hypotheses.index([]))
        return hypotheses

    @abstractmethod
    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        most: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """What ``search`` returns, from a model in eval mode, without gradients; ``most`` (batch,) of each source."""


def banned_token_ids(model: Decoder, subwords: Subwords | None = None) -> Int[Tensor, " banned"]:
    """The tokens that no strategy writes: padding, unknown and the start, as far as a model has them.

    ``subwords`` are those of the target, where the model does not hold them itself.
    """
    unknown_id = model.unknown_id if subwords is None else subwords.unknown_id
    special = {model.pad_id, model.start_id, unknown_id} - {model.end_id, None}
    return torch.tensor(sorted(one for one in special if one is not None), dtype=torch.long, device=model.device)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; after that each of its modules is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _token_limits(model: Decoder, lengths: Int[Tensor, " batch"], most: int | None) -> Int[Tensor, " batch"]:
    """The most tokens of each target. Raises ShapeError where the model has positions for none."""
    limits = lengths * _LENGTH_RATIO + _EXTRA_TOKENS if most is None else torch.full_like(lengths, most)
    room = model.max_new_tokens(lengths)
    if room is None:
        return limits
    if int(room.min()) < 1:
        longest = int(lengths[room.argmin()])
        raise ShapeError(
            "the model has no positions left for another token",
            expected="sources or prompts that leave room for one token or more",
            got=f"{longest} tokens, which leave room for {int(room.min())}",
            do="shorten it, or take a model with more positions",
        )
    return torch.minimum(limits, room)


def _check(source: Tensor, lengths: Tensor) -> None:
    """Raise unless ``source`` is (batch, length) and ``lengths`` (batch,). Ids are for the model to check."""
    for name, tensor in (("source", source), ("lengths", lengths)):
        check_tensor(name, tensor, "a tensor of integers", do="use torch.tensor")
    if source.dim() != 2 or lengths.shape != source.shape[:1]:
        raise ShapeError(
            "sources and their lengths do not fit each other",
            expected="source (batch, length), lengths (batch,)",
            got=f"source {tuple(source.shape)}, lengths {tuple(lengths.shape)}",
            do="pad the sources on the right, and count the tokens of each",
        )
    if lengths.dtype not in (torch.long, torch.int32):
        raise DtypeError("lengths are whole numbers", expected="torch.long", got=str(lengths.dtype), do="use .long()")
    if lengths.numel() and not 1 <= int(lengths.min()) <= int(lengths.max()) <= source.shape[1]:
        raise ShapeError(
            "a source has no token, or fewer than its length",
            expected=f"lengths from 1 to {source.shape[1]}",
            got=f"{int(lengths.min())} to {int(lengths.max())}",
            do="leave out empty sources; each ends with the model's end_id",
        )


def _no_probability_error(number: int) -> RefusedError:
    return RefusedError(
        f"the model gives no token a probability, for source {number} of its batch",
        expected="logits of which at least one is a number",
        got="NaN or -infinity for all of them",
        do="look for NaN in the model's weights",
    )
