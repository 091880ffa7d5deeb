"""Perplexity and bits per byte of a language model on documents, with a sliding window.

    loss        = - (1 / T) sum_t log p(y_t | context of y_t)          T predicted tokens, in nats
    perplexity  = exp(loss)
    bits/byte   = - sum_t log_2 p(y_t | ..) / (bytes of the predicted texts in UTF-8)

A window of ``length`` tokens moves over each document by ``stride`` tokens. Each token is predicted once, in the first
window that contains it, so all but the first ``length`` of a document have at least length - stride tokens of context.
With stride = length windows do not overlap, as in training: cheaper, and a little worse. Perplexity depends on the
tokenizer. Bits per byte does not, so it compares models with different ones: Gao et al. 2020, "The Pile", section 3.1.
A model without a start token does not predict the first token of a document, so the text of that token does not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import OptionError, check_count
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.layers.eval_mode import eval_mode
from regard.models.causal_language_model import CausalLanguageModel
from regard.text.language_tokenizer import split_text
from regard.text.length_batches import cut_batches, group_lengths
from regard.text.tokenizer import Tokenizer

BATCH_TOKENS = 8192
"""Default tokens of a batch, padding included."""
DEFAULT_LENGTH = 1024
"""The window of a model whose context is longer, or without limit."""
_IGNORED = -100
_FIRST_CHARACTERS = 256
"""Characters of the beginning of a text that are tokenized to find its first token."""

TokenIds = npt.NDArray[np.unsignedinteger]


def perplexity_of(loss: float) -> float:
    """The exponential of a loss in nats; infinite where that is too large for a float."""
    return math.exp(loss) if loss < 700 else math.inf


@final
@explain_arguments
@dataclass(frozen=True)
class LanguageModelScores:
    """How well a model predicts documents.

    ``nats`` is the sum of the losses of the ``tokens`` that were predicted, end tokens included. ``characters`` and
    ``bytes`` count the predicted texts: without the first token of each, for a model without a start token. ``unknown``
    counts tokens that replace text outside the vocabulary; their loss says nothing of that text. ``length`` and
    ``stride`` describe the window.
    """

    documents: int
    tokens: int
    characters: int
    bytes: int
    unknown: int
    nats: float
    length: int
    stride: int

    @property
    def loss(self) -> float:
        """The mean loss of a token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """The exponential of the loss; infinite where that is too large for a float."""
        return perplexity_of(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """The mean information of a byte of the texts in UTF-8, in bits; infinite if only ends were predicted."""
        return self.nats / math.log(2) / self.bytes if self.bytes else math.inf

    @property
    def bits_per_character(self) -> float:
        """The mean information of a character of the texts, in bits."""
        return self.nats / math.log(2) / self.characters if self.characters else math.inf


@final
class _Window(NamedTuple):
    """Part of a document: its inputs are ``document[begin:end]``, and those before ``scored`` are context."""

    document: int
    begin: int
    end: int
    scored: int


def document_ids(text: str, tokenizer: Tokenizer, *, start_id: int | None, end_id: int | None) -> TokenIds:
    """Encode a document, (tokens,), as a language model is trained and measured on it: between start and end tokens.

    The start token is left out for a model without one, and then the first token of a text is not predicted. A long
    text is tokenized in parts, see ``split_text``.
    """
    kind = np.uint16 if tokenizer.vocabulary <= 2**16 else np.uint32
    before, after = ([] if token is None else [token] for token in (start_id, end_id))
    inner = (tokenizer.plain_ids([part])[0] for part in split_text(text))
    return np.concatenate([np.array(part, dtype=kind) for part in (before, *inner, after)])


def model_document_ids(text: str, model: CausalLanguageModel) -> TokenIds:
    """Encode a document for a model with a tokenizer, with the model's start token and its first end token."""
    assert model.tokenizer is not None
    end_id = model.end_ids[0] if model.end_ids else None
    return document_ids(text, model.tokenizer, start_id=model.start_id, end_id=end_id)


@explain_arguments
def score_texts(
    model: CausalLanguageModel,
    texts: Sequence[str],
    *,
    length: int | None = None,
    stride: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int], None] | None = None,
) -> LanguageModelScores:
    """Measure the model on texts, each a document of its own.

    Args:
        model: with a tokenizer.
        texts: the documents.
        length: tokens of the window; None is the model's context, at most 1,024.
        stride: tokens by which it moves, from 1 to ``length``; None is half of it.
        batch_tokens: maximum tokens of a batch, padding included; a single window may be longer.
        advance: receives the number of predicted tokens so far.

    Raises CheckpointError for a model without tokenizer, OptionError for numbers out of range and for texts that leave
    nothing to predict.
    """
    model.require_tokenizer()
    documents = [model_document_ids(text, model) for text in texts]
    length, stride = choose_window(model, length, stride)
    return score_documents(
        model, documents, texts, length=length, stride=stride, batch_tokens=batch_tokens, advance=advance
    )


def score_documents(
    model: CausalLanguageModel,
    documents: Sequence[TokenIds],
    texts: Sequence[str],
    *,
    length: int,
    stride: int,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int], None] | None = None,
) -> LanguageModelScores:
    """Measure the model on documents of token ids, the ids of ``texts``. See ``score_texts``."""
    check_count("batch_tokens", batch_tokens)
    choose_window(model, length, stride)
    windows = [
        window for index, ids in enumerate(documents) for window in _windows(index, len(ids) - 1, length, stride)
    ]
    if not windows:
        raise OptionError(
            "the documents leave no token to predict",
            expected="texts of two tokens or more",
            got=f"{len(texts)} texts",
            do="pass longer texts",
        )
    nats, tokens = 0.0, 0
    with torch.no_grad(), eval_mode(model):
        for batch in _batches(windows, batch_tokens, equal=model.depends_on_length):
            nats += _score_batch(model, documents, batch)
            tokens += sum(window.end - window.scored for window in batch)
            if advance is not None:
                advance(tokens)
    unknown = model.unknown_id
    given = [_given_text(text, model) for text in texts]
    return LanguageModelScores(
        documents=len(texts),
        tokens=tokens,
        characters=sum(map(len, texts)) - sum(characters for characters, _ in given),
        bytes=sum(len(text.encode("utf-8")) for text in texts) - sum(size for _, size in given),
        unknown=0 if unknown is None else int(sum((ids == unknown).sum() for ids in documents)),
        nats=nats,
        length=length,
        stride=stride,
    )


def _given_text(text: str, model: CausalLanguageModel) -> tuple[int, int]:
    """The characters and bytes of a text that are given and not predicted: of its first token, or none.

    Tokens that share a character have equal parts of its bytes, and it is predicted with the last of them.
    """
    if model.start_id is not None:
        return 0, 0
    assert model.tokenizer is not None
    spans = model.tokenizer.plain_spans(next(split_text(text, _FIRST_CHARACTERS)))
    if not spans:
        return 0, 0
    first, sharing = text[: spans[0][1]], sum(span == spans[0] for span in spans[:8])
    return len(first) if sharing == 1 else 0, len(first.encode("utf-8")) // sharing


def choose_window(model: CausalLanguageModel, length: int | None, stride: int | None) -> tuple[int, int]:
    """Choose the window and its stride where they are None. Raises OptionError for numbers out of range."""
    limit = model.max_tokens
    if length is None:
        length = DEFAULT_LENGTH if limit is None else min(limit, DEFAULT_LENGTH)
    check_count("length", length)
    if limit is not None and length > limit:
        raise OptionError(
            "the window is longer than the model's context",
            expected=f"`length` of at most {limit}",
            got=str(length),
            do="leave it out for the whole context",
        )
    stride = max(1, length // 2) if stride is None else stride
    check_count("stride", stride)
    if stride > length:
        raise OptionError(
            "the stride is larger than the window, so tokens would be left out",
            expected=f"`stride` of at most {length}, the length of the window",
            got=str(stride),
            do=f"use `stride={length}` for windows that do not overlap",
        )
    return length, stride


def _windows(document: int, inputs: int, length: int, stride: int) -> Iterator[_Window]:
    """The windows of a document with this number of inputs."""
    scored = begin = 0
    while scored < inputs:
        end = min(begin + length, inputs)
        yield _Window(document, begin, end, scored)
        begin, scored = begin + stride, end


def _batches(windows: list[_Window], tokens: int, *, equal: bool) -> Iterator[list[_Window]]:
    """Group windows of similar length, or of ``equal`` length, into batches of at most so many tokens."""
    lengths = [window.end - window.begin for window in windows]
    for group in group_lengths(lengths, equal=equal):
        for part in cut_batches([lengths[number] for number in group], tokens=tokens):
            yield [windows[number] for number in group[part]]


def _score_batch(model: CausalLanguageModel, documents: Sequence[TokenIds], batch: Sequence[_Window]) -> float:
    """The sum of the losses of the scored tokens of a batch, in nats."""
    longest = max(window.end - window.begin for window in batch)
    ids = np.zeros((len(batch), longest), dtype=np.int64)
    labels = np.full((len(batch), longest), _IGNORED, dtype=np.int64)
    for row, window in enumerate(batch):
        tokens = documents[window.document][window.begin : window.end + 1]
        ids[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, window.scored - window.begin : len(tokens) - 1] = tokens[1 + window.scored - window.begin :]
    lengths = [window.end - window.begin for window in batch]
    logits = _read_windows(model, copy_to(torch.from_numpy(ids), model.device), lengths)
    targets = copy_to(torch.from_numpy(labels), model.device)
    losses = cross_entropy(logits.flatten(0, 1), targets.flatten(), smoothing=0.0, ignored=_IGNORED)
    return float(to_float64(losses).sum())


def _read_windows(model: CausalLanguageModel, ids: Tensor, lengths: list[int]) -> Tensor:
    """The logits of windows that are padded on the right, read through a cache if the model rounds keys and values."""
    if model.cache_format is not None:  # later tokens, as padding is, have no effect on earlier ones
        return model.extend(ids, model.empty_state(len(ids)))[0].logits
    mask = None if min(lengths) == ids.shape[1] else masks.padding(lengths)
    logits: Tensor = model(ids, mask=mask).logits
    return logits
