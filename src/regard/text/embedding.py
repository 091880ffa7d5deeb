"""Text embedding: one vector per sentence, or one per token.

    hidden = model(ids, mask)                       (batch, length, width)
    sentence vector = pooling(hidden)               (width,)            ``regard.text.pooling``, or the model's own
    token vectors   = hidden without padding        (tokens, width)     contextual, not normalised

Texts are batched by length, to save padding. Vectors come back in the order of the texts, in float32 whatever the dtype
of the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.devices import launch_ahead
from regard.errors import CheckpointError, OptionError, UnknownWordsWarning, check_count, check_kind
from regard.text.length_batches import cut_batches
from regard.text.pooling import Pooling
from regard.text.tokenizer import TokenBatch, TokenizedText, Tokenizer
from regard.text.unknown_words import is_mostly_unknown, unknown_words_warning

MAX_BATCH_TOKENS = 8192
"""Maximum tokens per batch, padding included: bounds memory for long texts."""
MAX_BATCH_PADDING = 128
"""Maximum padding tokens per batch on a CPU: beyond it, one more call of a small model costs less."""


@runtime_checkable
class TextEncoder(Protocol):
    """Model interface of ``Embedder``: ``model(ids, mask=...)`` returns ``.hidden``, (batch, length, width)."""

    tokenizer: Tokenizer | None
    pooling: Pooling | None

    @property
    def width(self) -> int:
        """The number of components of a hidden state."""
        ...

    @property
    def device(self) -> torch.device:
        """Device that the model computes on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the weights of the model by name."""
        ...

    def modules(self) -> Iterator[nn.Module]:
        """Return the model and all modules in it; models among them have a ``config``."""
        ...

    def __call__(self, ids: Tensor, **options: Any) -> Any:
        """Compute the output for ids (batch, length); its ``.hidden`` is (batch, length, width)."""
        ...


@runtime_checkable
class VectorEncoder(TextEncoder, Protocol):
    """A model that makes the vector of a text itself, not by pooling: its ``pooling`` is "own"."""

    @property
    def vector_width(self) -> int:
        """The number of components of a vector."""
        ...

    def embed(self, ids: Tensor, *, mask: Any = None) -> Tensor:
        """Compute the vector of each text, (batch, vector width)."""
        ...


@final
@explain_arguments
class Embedder:
    """Embeds texts with ``model``, as loaded by ``regard.load``.

    ``pooling`` None takes the pooling of the model's folder, or if it has none the normalised mean over the tokens. A
    text may have as many tokens as the model has positions (MiniLM: 512; sentence-transformers silently truncates the
    same model at 256). Raises CheckpointError for a model without tokenizer.
    """

    def __init__(self, model: TextEncoder, *, pooling: Pooling | None = None) -> None:
        check_kind("model", model, TextEncoder, do='model = regard.load("minilm")')
        if pooling is not None:
            check_kind("pooling", pooling, Pooling, do="leave it out for the model's own")
        if model.tokenizer is None:
            raise CheckpointError(
                "this model has no tokenizer, so it cannot read text",
                expected="a model loaded from a folder with tokenizer.json",
                got="model.tokenizer is None",
                do="put tokenizer.json beside config.json, or set model.tokenizer",
            )
        self.model, self.tokenizer = model, model.tokenizer
        self.pooling = pooling or model.pooling or Pooling()
        if self.pooling.is_own and not isinstance(model, VectorEncoder):
            raise OptionError(
                "this model makes no vectors of texts itself",
                expected="another pooling, or a model with the method embed, such as the text tower of a CLIP",
                got=f"{type(model).__name__} with {self.pooling}",
                do='for example Pooling(("mean",))',
            )

    @explain_arguments
    def sentences(
        self, texts: str | Iterable[str], *, batch: int = 32, truncate: bool = False
    ) -> Float[Tensor, "texts width"]:
        """Embed each text as one vector, ``batch`` texts at a time.

        Raises DataError for a text that is too long, unless ``truncate``. Warns (``UnknownWordsWarning``) if the
        model's vocabulary lacks most words of a text.
        """
        return self.pooled(self._tokenize(texts, truncate), batch=batch)

    @explain_arguments
    def tokens(
        self, texts: str | Iterable[str], *, batch: int = 32, truncate: bool = False
    ) -> tuple[Float[Tensor, "_ width"], ...]:
        """Embed each text as contextual token vectors, (tokens, width), [CLS] and [SEP] included."""
        return self.contextual(self._tokenize(texts, truncate), batch=batch)

    def pooled(self, texts: Sequence[TokenizedText], *, batch: int = 32) -> Float[Tensor, "texts width"]:
        """Embed each tokenized text as one vector, (texts, width). Raises RefusedError for an unsupported pooling."""
        self.pooling.check()

        def pool(ids: Tensor, read: TokenBatch) -> Sequence[Tensor]:
            if self.pooling.is_own:
                assert isinstance(self.model, VectorEncoder), "__init__ checks it"
                return self.model.embed(ids, mask=read.mask).unbind()
            hidden = self.model(ids, mask=read.mask).hidden
            lengths = copy_to(torch.tensor(read.lengths), hidden.device)
            return self.pooling.pool(hidden, lengths).unbind()

        vectors = self._run_batches(texts, batch, pool)
        return torch.stack(vectors) if vectors else torch.empty(0, self.width)

    @property
    def width(self) -> int:
        """The number of components of the vector of a text."""
        if self.pooling.is_own and isinstance(self.model, VectorEncoder):
            return self.model.vector_width
        return self.model.width

    def contextual(self, texts: Sequence[TokenizedText], *, batch: int = 32) -> tuple[Float[Tensor, "_ width"], ...]:
        """Embed each tokenized text as contextual token vectors, (tokens, width)."""

        def cut(ids: Tensor, read: TokenBatch) -> Sequence[Tensor]:
            hidden = self.model(ids, mask=read.mask).hidden
            return [row[:length] for row, length in zip(hidden, read.lengths, strict=True)]

        return tuple(self._run_batches(texts, batch, cut))

    def _tokenize(self, texts: str | Iterable[str], truncate: bool) -> tuple[TokenizedText, ...]:
        tokenized = self.tokenizer.tokenize(texts, truncate=truncate)
        for index, text in enumerate(tokenized):
            self.tokenizer.check_length(text, f"text {index}")
        unknown = [index for index, text in enumerate(tokenized) if is_mostly_unknown(text)]
        if unknown:
            where = f"text {unknown[0]}" if len(unknown) == 1 else f"the first of them text {unknown[0]}"
            warnings.warn(unknown_words_warning(len(unknown), where), UnknownWordsWarning, stacklevel=3)
        return tokenized

    @torch.no_grad()
    def _run_batches(
        self,
        texts: Sequence[TokenizedText],
        batch: int,
        part: Callable[[Tensor, TokenBatch], Sequence[Tensor]],
    ) -> list[Tensor]:
        vectors: list[Tensor] = [torch.empty(0)] * len(texts)
        most_padding = MAX_BATCH_PADDING if self.model.device.type == "cpu" else None
        device = self.model.device

        def compute() -> Iterator[tuple[list[int], Sequence[Tensor]]]:
            for rows in batches_by_length([len(text) for text in texts], batch, most_padding=most_padding):
                read = self.tokenizer.pad([texts[row] for row in rows])
                yield rows, part(copy_to(read.ids, device), read)

        for rows, found in launch_ahead(compute(), device):
            for row, vector in zip(rows, _to_cpu(found), strict=True):
                vectors[row] = vector
        return vectors


def _to_cpu(vectors: Sequence[Tensor]) -> Sequence[Tensor]:
    """The vectors of a batch in float32 on the CPU, by one copy from another device."""
    if vectors[0].device.type == "cpu":
        return [vector.float().clone() for vector in vectors]
    if vectors[0].dim() == 1:
        return torch.stack(list(vectors)).float().cpu().unbind()
    return torch.cat(list(vectors)).float().cpu().split([len(vector) for vector in vectors])


def batches_by_length(
    lengths: Sequence[int], size: int, *, most_tokens: int = MAX_BATCH_TOKENS, most_padding: int | None = None
) -> Iterator[list[int]]:
    """Group texts into batches of similar length; yield the indices of each batch.

    A batch has at most ``size`` texts, ``most_tokens`` tokens, padding included, and ``most_padding`` padding tokens
    (None: no limit).
    """
    check_count("batch", size)
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    ascending = [lengths[row] for row in order]
    for batch in cut_batches(ascending, tokens=most_tokens, size=size, padding=most_padding):
        yield order[batch]
