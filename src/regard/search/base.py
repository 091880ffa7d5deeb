"""The base class of decoding strategies: from sources or prompts to the best targets of each.

    log P(y | x) = sum_t log P(y_t | y_1 .. y_t-1, x)        y ends with the end token

x is the source of an encoder-decoder, or the prompt that a decoder continues. The model computes each term of the sum
(``Decoder.step``); the strategy decides which targets to explore. source (batch, length), lengths (batch,) -> a list of
``Hypothesis`` for each source.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError, check_count, short_repr
from regard.layers.eval_mode import eval_mode
from regard.models.base import Decoder
from regard.tensors import check_tensor
from regard.text.length_batches import group_lengths
from regard.text.sentence_tokenizer import SentenceTokenizer

_LENGTH_RATIO, _EXTRA_TOKENS = 2, 10
"""By default, a target has at most ``_LENGTH_RATIO`` * (tokens of its source) + ``_EXTRA_TOKENS`` tokens."""


@final
@explain_arguments
@dataclass(frozen=True)
class Hypothesis:
    """A target: ``ids`` without its source or prompt, and without start and end tokens.

    ``score`` is what the search ranked it by. ``log_probability`` is the model's, in nats, and includes the end token
    if the target is ``finished``; ``finished`` is False if it was cut at the maximum number of tokens.
    """

    ids: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool


MAX_ROWS = 2**16
"""The maximum of a beam width or a number of samples."""
_MAX_TARGET_TOKENS = 2**20
"""The upper limit of ``max_tokens``: memory for that many tokens is allocated beforehand."""


class Search(ABC):
    """A decoding strategy. An instance holds options only, no state of a running search."""

    @property
    def rows(self) -> int:
        """The number of targets decoded in parallel for each source, to which memory and time are proportional."""
        return 1

    @final
    @explain_arguments
    def search(
        self, model: Decoder, source: Tensor, lengths: Tensor, *, max_tokens: int | None = None
    ) -> list[list[Hypothesis]]:
        """Decode the best targets of each source, the best first; for a decoder without a source, of each prompt.

        Args:
            model: runs in eval mode and without gradients; its mode is restored afterwards.
            source: ids (batch, length) of sources or prompts, padded on the right.
            lengths: (batch,), tokens of each source, at least 1.
            max_tokens: maximum tokens of a target, end token included. None is 2 * length + 10 for each source: a
                translation is rarely twice as long in any language pair, 10 more are for texts of a word or two, and
                longer output is usually repetition. For prompts, set it. The limit of ``model.max_new_tokens`` applies
                as well.

        The result of a source does not depend on the other sources of the batch, up to rounding: if the model's
        positions depend on the length of a text, prompts of each length are decoded apart. ``model.pad_id``,
        ``model.unknown_id`` and ``model.start_id`` are never written, since they stand for no text, unless one of them
        is also an end token.

        Raises:
            ShapeError, DtypeError, OptionError: arguments that do not fit, such as a prompt that leaves no positions.
            RefusedError: a model that gives no token a finite log-probability, or lacks what the strategy needs.
        """
        lengths, limits = self.prepare(model, source, lengths, max_tokens)
        if source.shape[0] == 0:
            return []
        found: list[list[Hypothesis]] = [[]] * len(source)
        with torch.no_grad(), eval_mode(model):
            for group in (
                group_lengths(lengths.tolist(), equal=True) if model.depends_on_length else [range(len(source))]
            ):
                rows = torch.tensor(group, device=source.device)
                longest = int(lengths[rows].max())
                some = self.decode(model, source[rows, :longest], lengths[rows], limits[rows])
                for row, hypotheses in zip(group, some, strict=True):
                    found[row] = hypotheses
        self.check_found(found)
        return found

    @final
    def prepare(
        self, model: Decoder, source: Tensor, lengths: Tensor, max_tokens: int | None
    ) -> tuple[Int[Tensor, " batch"], Int[Tensor, " batch"]]:
        """Check the arguments of ``search``; return lengths and maximum tokens, (batch,) each, on the source's device.

        Raises what ``search`` raises for them.
        """
        if not isinstance(model, Decoder):
            raise OptionError(
                "a search needs a model that writes sequences",
                expected="a Transformer, a Recurrent, or another Decoder",
                got=short_repr(model),
                do="load one: regard.load(folder)",
            )
        _check(source, lengths)
        if max_tokens is not None:
            check_count("max_tokens", max_tokens, maximum=_MAX_TARGET_TOKENS)
        lengths = lengths.to(source.device)
        return lengths, lengths if len(lengths) == 0 else _token_limits(model, lengths, max_tokens)

    @final
    def check_found(self, hypotheses: list[list[Hypothesis]]) -> None:
        """Raise RefusedError if a source has no hypothesis, since the model gave no finite probability."""
        if not all(hypotheses):
            raise _no_probability_error(hypotheses.index([]), len(hypotheses))

    @abstractmethod
    def decode(
        self,
        model: Decoder,
        source: Int[Tensor, "batch length"],
        lengths: Int[Tensor, " batch"],
        max_tokens: Int[Tensor, " batch"],
    ) -> list[list[Hypothesis]]:
        """Implement ``search``, with the model in eval mode and without gradients.

        ``max_tokens`` (batch,) is the maximum tokens of each target. If the list of a source is empty, ``search``
        raises RefusedError.
        """


def banned_token_ids(model: Decoder, subwords: SentenceTokenizer | None = None) -> Int[Tensor, " banned"]:
    """The ids that no strategy writes, sorted: padding, unknown and start tokens, as far as the model has them.

    ``subwords`` are the target's subwords, if the model does not have them itself.
    """
    unknown_id = model.unknown_id if subwords is None else subwords.unknown_id
    special = {model.pad_id, model.start_id, unknown_id} - {*model.end_ids, None}
    return torch.tensor(sorted(token for token in special if token is not None), dtype=torch.long, device=model.device)


def _token_limits(model: Decoder, lengths: Int[Tensor, " batch"], max_tokens: int | None) -> Int[Tensor, " batch"]:
    """The maximum tokens of each target, (batch,). Raises ShapeError if the model has no positions left."""
    limits = lengths * _LENGTH_RATIO + _EXTRA_TOKENS if max_tokens is None else torch.full_like(lengths, max_tokens)
    room = model.max_new_tokens(lengths)
    if room is None:
        return limits
    if int(room.min()) < 1:
        longest = int(lengths[room.argmin()])
        raise ShapeError(
            "the model has no positions left for another token",
            expected="sources or prompts that leave room for at least one token",
            got=f"{longest} tokens, which leave room for {int(room.min())}",
            do="shorten it, or use a model with more positions",
        )
    return torch.minimum(limits, room)


def _check(source: Tensor, lengths: Tensor) -> None:
    """Raise unless ``source`` is (batch, length) and ``lengths`` is (batch,). The model checks the ids."""
    for name, tensor in (("source", source), ("lengths", lengths)):
        check_tensor(name, tensor, "a tensor of integers", do="use torch.tensor")
    if source.dim() != 2 or lengths.shape != source.shape[:1]:
        raise ShapeError(
            "the shapes of source and lengths do not fit each other",
            expected="source (batch, length), lengths (batch,)",
            got=f"source {tuple(source.shape)}, lengths {tuple(lengths.shape)}",
            do="pad the sources on the right, and count the tokens of each",
        )
    if lengths.dtype not in (torch.long, torch.int32):
        raise DtypeError("lengths are not integers", expected="torch.long", got=str(lengths.dtype), do="use .long()")
    if lengths.numel() and not 1 <= int(lengths.min()) <= int(lengths.max()) <= source.shape[1]:
        raise ShapeError(
            "lengths are out of range",
            expected=f"lengths from 1 to {source.shape[1]}",
            got=f"{int(lengths.min())} to {int(lengths.max())}",
            do="leave out empty sources, and count the end_id of each source",
        )


def _no_probability_error(number: int, sources: int) -> RefusedError:
    return RefusedError(
        "the model gives no token a finite log-probability"
        + (f", for source {number + 1} of the {sources} in the batch" if sources > 1 else ""),
        expected="at least one finite logit",
        got="NaN or -infinity for all tokens",
        do="look for NaN in the model's weights",
    )
