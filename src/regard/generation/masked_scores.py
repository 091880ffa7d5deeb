"""How well a masked language model fills in tokens of documents: loss and accuracy with fixed masks.

    each document is cut into texts of at most n tokens, [CLS] and [SEP] included
    of each text a share of the tokens, drawn from a seed, is replaced by [MASK]
    loss        = - (1 / M) sum_t log p(x_t | the text with its masks)        M masked tokens, in nats
    perplexity  = exp(loss)
    accuracy    = the share of the masked tokens whose most probable prediction is right

All chosen tokens are replaced, unlike in training, so a prediction never sees its answer. Loss and perplexity depend on
the tokenizer, and on the share; they are no probability of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import to_float64
from regard.errors import CheckpointError, OptionError, check_count
from regard.generation.scores import BATCH_TOKENS, perplexity_of
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.layers.eval_mode import eval_mode
from regard.models.masked_language_model import MaskedLanguageModel
from regard.text.language_tokenizer import split_text
from regard.text.length_batches import cut_batches
from regard.text.token_masking import SHARE, TokenMasking
from regard.text.tokenizer import Tokenizer

DEFAULT_LENGTH = 512
"""The tokens of a text for a model that reads longer ones."""
_IGNORED = -100

TokenIds = npt.NDArray[np.int64]


@final
@explain_arguments
@dataclass(frozen=True)
class MaskedLanguageModelScores:
    """How well a model fills in masked tokens.

    ``nats`` is the sum of the losses of the ``tokens`` that were masked, and ``correct`` counts those whose most
    probable prediction is right. ``texts`` is the number of parts into which the documents were cut, ``length`` the
    most tokens of one, ``share`` the share of masked tokens.
    """

    documents: int
    texts: int
    tokens: int
    correct: int
    nats: float
    length: int
    share: float

    @property
    def loss(self) -> float:
        """The mean loss of a masked token, in nats."""
        return self.nats / self.tokens

    @property
    def perplexity(self) -> float:
        """The exponential of the loss; infinite where that is too large for a float."""
        return perplexity_of(self.loss)

    @property
    def accuracy(self) -> float:
        """The share of the masked tokens that were filled in rightly."""
        return self.correct / self.tokens


@final
class MaskedText(NamedTuple):
    """A text with masks: its ids (length,), those that a model reads, and whether each was masked."""

    ids: TokenIds
    masked: TokenIds
    chosen: npt.NDArray[np.bool_]


def encode_document(text: str, tokenizer: Tokenizer) -> TokenIds:
    """The token ids of a document without special tokens before and after it. A long one is tokenized in parts."""
    parts = (np.array(tokenizer.plain_ids([part])[0], dtype=np.int64) for part in split_text(text))
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def mask_documents(
    documents: Sequence[TokenIds], tokenizer: Tokenizer, *, length: int, masking: TokenMasking, seed: int
) -> list[MaskedText]:
    """Cut documents into texts of at most ``length`` tokens, special ones included, and replace a share by [MASK].

    Texts in which nothing can be masked are left out. The masks depend on the seed and the documents alone.
    """
    before, after = (np.array(side, dtype=np.int64) for side in tokenizer.frame)
    room = length - len(before) - len(after)
    found: list[MaskedText] = []
    for ids in documents:
        for begin in range(0, len(ids), room):
            whole = np.concatenate([before, ids[begin : begin + room], after])
            chosen = masking.choose(whole[None], np.random.default_rng([seed, len(found)]))[0]
            if chosen.any():
                found.append(MaskedText(whole, np.where(chosen, masking.mask_id, whole), chosen))
    return found


@explain_arguments
def score_masked_texts(
    model: MaskedLanguageModel,
    texts: Sequence[str],
    *,
    length: int | None = None,
    share: float = SHARE,
    seed: int = 1,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int], None] | None = None,
) -> MaskedLanguageModelScores:
    """Measure the model on texts, each a document of its own.

    Args:
        model: with a masked-language head and a tokenizer.
        texts: the documents.
        length: the most tokens of a text; None is the model's limit, at most 512.
        share: the share of the tokens that are masked.
        seed: decides which.
        batch_tokens: maximum tokens of a batch, padding included; a single text may be longer.
        advance: receives the number of tokens read so far.

    Raises CheckpointError for a model without tokenizer, mask token or head, OptionError for numbers out of range and
    for texts in which nothing can be masked.
    """
    if model.tokenizer is None or model.head is None:
        missing = "tokenizer" if model.tokenizer is None else "masked-language head"
        raise CheckpointError(
            f"the model has no {missing}, so it cannot fill in masked tokens",
            expected="the folder of a masked language model, with its head and tokenizer.json",
            got=f"a {type(model).__name__} without {missing}",
            do="train the head on your texts: regard train mlm --from MODEL --data text.txt --out model/",
        )
    length = choose_length(model, length)
    documents = [encode_document(text, model.tokenizer) for text in texts]
    masked = mask_documents(
        documents, model.tokenizer, length=length, masking=TokenMasking.of(model.tokenizer, share=share), seed=seed
    )
    nats, correct = score_masked(model, masked, batch_tokens=batch_tokens, advance=advance)
    tokens = sum(int(part.chosen.sum()) for part in masked)
    return MaskedLanguageModelScores(len(texts), len(masked), tokens, correct, nats, length, share)


def score_masked(
    model: MaskedLanguageModel,
    texts: Sequence[MaskedText],
    *,
    batch_tokens: int = BATCH_TOKENS,
    advance: Callable[[int], None] | None = None,
) -> tuple[float, int]:
    """The sum of the losses of the masked tokens in nats, and how many are filled in rightly.

    Raises OptionError for texts in which nothing is masked.
    """
    check_count("batch_tokens", batch_tokens)
    if not texts:
        raise OptionError(
            "the documents leave no token to mask",
            expected="texts with a token of the vocabulary",
            got="none",
            do="pass longer texts",
        )
    nats, correct, done = 0.0, 0, 0
    ranked = sorted(texts, key=lambda text: -len(text.ids))
    with torch.no_grad(), eval_mode(model):
        for batch in cut_batches([len(text.ids) for text in ranked], tokens=batch_tokens):
            some = ranked[batch]
            logits, truth = predict(model, some)
            nats += float(to_float64(cross_entropy(logits, truth, smoothing=0.0, ignored=_IGNORED)).sum())
            correct += int((logits.argmax(dim=1) == truth).sum())
            done += sum(len(text.ids) for text in some)
            if advance is not None:
                advance(done)
    return nats, correct


def predict(model: MaskedLanguageModel, texts: Sequence[MaskedText]) -> tuple[Tensor, Tensor]:
    """The logits (masked tokens, vocabulary) of the masked tokens of some texts, in order, and their true ids."""
    lengths = [len(text.ids) for text in texts]
    ids = np.full((len(texts), max(lengths)), model.pad_id, dtype=np.int64)
    chosen = np.zeros(ids.shape, dtype=bool)
    for row, text in enumerate(texts):
        ids[row, : len(text.ids)], chosen[row, : len(text.ids)] = text.masked, text.chosen
    mask = None if min(lengths) == max(lengths) else masks.padding(lengths)
    at: Any = copy_to(torch.from_numpy(chosen), model.device)
    logits: Tensor = model(copy_to(torch.from_numpy(ids), model.device), mask=mask, logits_at=at).logits
    truth = np.concatenate([text.ids[text.chosen] for text in texts])
    return logits, copy_to(torch.from_numpy(truth), model.device)


def choose_length(model: MaskedLanguageModel, length: int | None) -> int:
    """Choose the most tokens of a text where it is None. Raises OptionError for a number out of range."""
    limit = model.max_tokens
    minimum = 1 + (0 if model.tokenizer is None else sum(map(len, model.tokenizer.frame)))
    length = min(limit, DEFAULT_LENGTH) if length is None else length
    check_count("length", length, minimum=minimum)
    if length > limit:
        raise OptionError(
            "the texts are longer than those that the model reads",
            expected=f"`length` of at most {limit}",
            got=str(length),
            do="leave it out",
        )
    return length
