"""Sentences in, translations out.

    text -> placeholders numbered -> subwords -> search -> subwords -> text -> placeholders put back

Sentences are read in batches of similar length, so that little is padded; translations come in the order of the
sentences. Text of any length streams through ``stream`` in constant memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.errors import CheckpointError, DataError, RefusedError, check_count, check_kind
from regard.models import EncoderDecoder
from regard.models.load import load_translator
from regard.search import Beam, Hypothesis, Search
from regard.text.alignments import Alignment, expand_links, links, word_weights
from regard.text.placeholders import ProtectedPair, ProtectedText, protect
from regard.text.tokenizer import check_text, check_texts, iterate_texts
from regard.text.words import Splitter, word_spans
from regard.translation.batches import batch_by_length, pad_rows
from regard.translation.cross_attention import cross_attention_weights

MAX_TOKENS = 4096
"""Tokens of a sentence that are read, for models without a limit of their own: a longer one is no sentence."""
CHUNK_SENTENCES = 1024
"""Sentences that are sorted by length together."""
BATCH_TOKENS = 2048
"""Tokens of sources that are read together unless something else is said: more are hardly faster."""
_USUAL_ROWS = 5
"""Targets of a source that a batch is meant for, those of the usual beam; with more of them it has fewer sources."""
_MAX_LOGITS = 2**25
"""Logits of a step: 128 MB of them, where a batch of short sources has many rows and the vocabulary is large."""


@final
@dataclass(frozen=True)
class Rendering:
    """One way of saying it. ``score`` is what renderings were compared by; ``log_probability`` the model's, in nats.

    ``ids`` are its subwords; ``finished`` is False where it was cut at the most tokens allowed; ``missing`` are
    placeholders of the source that it lacks.
    """

    text: str
    ids: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool
    missing: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Translation:
    """A sentence and what it may be in the other language, the best first."""

    source: str
    renderings: tuple[Rendering, ...]

    @property
    def text(self) -> str:
        """The best rendering."""
        return self.renderings[0].text


@final
@dataclass(frozen=True, eq=False)
class Aligned:
    """How the words of a translation were found: ``weights`` (target words, source words), as a model gave them."""

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Float[Tensor, "target source"]

    @property
    def alignment(self) -> Alignment:
        """Each target word's heaviest source word."""
        return links(self.weights)

    @property
    def token_alignment(self) -> Alignment:
        """The same links, between what white space parts: that is what formats of alignments count.

        A word may be a placeholder, and what that stands for, such as a tag with attributes, several.
        """
        sources, targets = ([len(word.split()) for word in side] for side in (self.source_words, self.target_words))
        return expand_links(self.alignment, sources, targets)


@final
@dataclass(frozen=True)
class _EncodedText:
    """A sentence as the model reads it."""

    protected: ProtectedText
    ids: list[int]


@final
class Translator:
    """Translates with ``model``, which ``regard.load`` gave or a training run left.

    ``tokens`` is the most of sources that a batch may hold, padding included, where a search writes up to 5 targets of
    each side by side; fewer where it writes more. Raises CheckpointError for a model without subwords.
    """

    def __init__(self, model: EncoderDecoder, *, tokens: int = BATCH_TOKENS) -> None:
        check_count("tokens", tokens)
        check_kind("model", model, EncoderDecoder, do="Translator.load(folder), or regard.load(folder)")
        if model.subwords is None:
            raise CheckpointError(
                "this model has no subwords, so it reads no text",
                expected="tokenizer.json, or source.tokenizer.json and target.tokenizer.json, in its folder",
                got="neither",
                do="take the whole folder that `regard train translate` wrote",
            )
        self.model, self.tokens = model, tokens
        self.source, self.target = model.subwords
        self.limit = min(MAX_TOKENS, model.max_tokens or MAX_TOKENS)

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None, tokens: int = BATCH_TOKENS) -> Translator:
        """A translator from a model's folder. Raises CheckpointError where that is none."""
        return cls(load_translator(folder, device=device), tokens=tokens)

    def translate(self, texts: Sequence[str], *, search: Search | None = None) -> list[Translation]:
        """The translations of all texts, in their order. ``search`` None is a beam of 5.

        A text without words has itself as its only rendering. Raises DataError for a text that is too long for the
        model, OptionError for what is no list of texts.
        """
        check_texts("texts", texts)
        return self._translate(texts, _search_or_default(search), first=1)

    def stream(
        self, texts: Iterable[str], *, search: Search | None = None, names: Sequence[str] = ()
    ) -> Iterator[Translation]:
        """The translations of any number of texts, in their order; a thousand are held at a time.

        ``names`` are what messages call the texts; without them they are numbered.
        """
        rest, chosen, first = iterate_texts(texts), _search_or_default(search), 1
        while chunk := list(islice(rest, CHUNK_SENTENCES)):
            yield from self._translate(chunk, chosen, first=first, names=names)
            first += len(chunk)

    def _translate(
        self, texts: Sequence[str], search: Search, *, first: int, names: Sequence[str] = ()
    ) -> list[Translation]:
        """The translations of texts that are numbered from ``first``."""
        read = self._encode_texts(texts, first=first, names=names)
        found: list[Translation | None] = [None] * len(texts)
        for index, one in enumerate(read):
            if not one.ids:
                found[index] = Translation(texts[index], (Rendering(texts[index].strip(), (), 0.0, 0.0, True),))
        worded = [index for index, one in enumerate(read) if one.ids]
        for places in self._make_batches([len(read[index].ids) + 1 for index in worded], search):
            batch = [worded[place] for place in places]
            for index, hypotheses in zip(batch, self._search([read[i] for i in batch], search), strict=True):
                renderings = tuple(self._render(read[index].protected, one) for one in hypotheses)
                found[index] = Translation(texts[index], renderings)
        return [one for one in found if one is not None]

    def aligned(self, text: str, rendering: Rendering, *, split: Splitter = word_spans) -> Aligned:
        """Which words of ``text`` the words of its rendering were found by.

        ``split`` says what words are; for formats that count what white space parts it is ``words.token_spans``.
        Raises RefusedError for a model without attention.
        """
        return self.aligned_all([(text, rendering)], split=split)[0]

    def aligned_all(self, rendered: Sequence[tuple[str, Rendering]], *, split: Splitter = word_spans) -> list[Aligned]:
        """The same for many texts and their renderings, in batches."""
        read = self._encode_texts([text for text, _ in rendered])
        written = [rendering.ids for _, rendering in rendered]
        return self._align([one.ids for one in read], written, [one.protected.kept for one in read], split)

    def aligned_pair(self, source: str, target: str, *, split: Splitter = word_spans) -> Aligned:
        """The same for a translation that a person wrote."""
        return self.aligned_pairs([(source, target)], split=split)[0]

    def aligned_pairs(
        self, pairs: Sequence[tuple[str, str]], *, split: Splitter = word_spans, places: Sequence[str] = ()
    ) -> list[Aligned]:
        """The same for many of them, in batches. ``places`` say in messages where each pair stands."""
        protected, read, written = self._encode_pairs(pairs, places)
        return self._align(read, written, [pair.kept for pair in protected], split)

    def weights(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "target source"]:
        """The weights of source subwords, the end included, when each target subword and the end were written."""
        return cross_attention_weights(self.model, [(source, target)], tokens=self.tokens)[0]

    def check(self, text: str, name: str) -> None:
        """Raise DataError, with ``name`` for the text, unless the model can read it."""
        self.check_all([text], [name])

    def check_all(self, texts: Sequence[str], names: Sequence[str]) -> None:
        """The same for many texts."""
        self._encode_texts(texts, names=names)

    def check_pairs(self, pairs: Sequence[tuple[str, str]], places: Sequence[str]) -> None:
        """Raise what ``aligned_pairs`` would raise, before anything is computed."""
        self.check_attention()
        self._encode_pairs(pairs, places)

    def check_attention(self) -> None:
        """Raise RefusedError for a model that never looks at its source."""
        if not self.model.has_attention:
            raise RefusedError(
                "this model translates without attention, so there is nothing to see",
                expected="a model whose target looks at its source",
                got="attention='none'",
                do="train one with attention: regard train translate --model gru --attention additive",
            )

    def check_length(self, ids: Sequence[int], name: str) -> None:
        """Raise DataError, with ``name`` for the text of these subwords, where the model has no place for its end."""
        if len(ids) + 1 > self.limit:
            raise DataError(
                f"{name} is too long for the model",
                expected=f"at most {self.limit - 1:,} subwords",
                got=f"{len(ids):,}",
                do="split it into sentences",
            )

    def _align(
        self,
        sources: Sequence[Sequence[int]],
        targets: Sequence[Sequence[int]],
        kept: Sequence[tuple[str, ...]],
        split: Splitter,
    ) -> list[Aligned]:
        weights = cross_attention_weights(self.model, list(zip(sources, targets, strict=True)), tokens=self.tokens)
        return [
            self._align_words(source, target, own, strings, split)
            for source, target, own, strings in zip(sources, targets, weights, kept, strict=True)
        ]

    def _align_words(
        self, source: Sequence[int], target: Sequence[int], weights: Tensor, kept: tuple[str, ...], split: Splitter
    ) -> Aligned:
        """From weights of subwords, the ends included, which are of no word."""
        of_target, of_source = (
            [piece.word for piece in subwords.pieces_of(ids, split)]
            for subwords, ids in ((self.target, target), (self.source, source))
        )
        restore = ProtectedText("", kept).restore
        return Aligned(
            tuple(map(restore, self.source.words_of(source, split))),
            tuple(map(restore, self.target.words_of(target, split))),
            word_weights(weights[: len(target), : len(source)], of_target, of_source),
        )

    def _encode_texts(self, texts: Sequence[str], *, first: int = 1, names: Sequence[str] = ()) -> list[_EncodedText]:
        """The texts as the model reads them. In messages they have ``names``, or else numbers from ``first``."""
        for number, text in enumerate(texts, start=first):
            check_text(text, number)
        protected = [protect(text) for text in texts]
        encoded = self.source.encode([one.text for one in protected])
        for number, ids in enumerate(encoded, start=first):
            self.check_length(ids, names[number - 1] if names else f"text {number:,}")
        return [_EncodedText(one, ids) for one, ids in zip(protected, encoded, strict=True)]

    def _encode_pairs(
        self, pairs: Sequence[tuple[str, str]], places: Sequence[str]
    ) -> tuple[list[ProtectedPair], list[list[int]], list[list[int]]]:
        """Pairs, and the ids of both sides; ``places`` as for ``aligned_pairs``."""
        protected = [protect(source, target) for source, target in pairs]
        read = self.source.encode([pair.source for pair in protected])
        written = self.target.encode([pair.target for pair in protected])
        for side, those in (("source", read), ("target", written)):
            for number, ids in enumerate(those, start=1):
                place = f" in {places[number - 1]}" if places else "" if len(pairs) == 1 else f" of pair {number:,}"
                self.check_length(ids, f"the {side}{place}")
        return protected, read, written

    def _make_batches(self, lengths: Sequence[int], search: Search) -> Iterator[list[int]]:
        """Sources that are searched together: what they take grows with the rows that the search has of each."""
        tokens = self.tokens * _USUAL_ROWS // max(search.rows, _USUAL_ROWS)
        most = max(1, _MAX_LOGITS // (search.rows * self.model.vocab_sizes[1]))
        return batch_by_length(lengths, tokens=tokens, most=most)

    def _search(self, read: Sequence[_EncodedText], search: Search) -> list[list[Hypothesis]]:
        sources = [[*one.ids, self.model.end_id] for one in read]
        lengths = torch.tensor([len(ids) for ids in sources])
        return search.search(self.model, pad_rows(sources, self.model.pad_id, self.model.device), lengths)

    def _render(self, protected: ProtectedText, one: Hypothesis) -> Rendering:
        written = self.target.decode(one.ids)
        return Rendering(
            text=protected.restore(written),
            ids=one.ids,
            score=one.score,
            log_probability=one.log_probability,
            finished=one.finished,
            missing=protected.missing(written),
        )


def _search_or_default(given: Search | None) -> Search:
    """How to search. Raises OptionError for what is no search."""
    if given is None:
        return Beam()
    check_kind("search", given, Search, do="regard.search.Beam(), Greedy() or Sampling(seed=1)")
    return given
