"""Translation of sentences with a trained model.

    text -> text with placeholders -> subwords -> search -> subwords -> text -> placeholders replaced

The subwords of a pretrained model, such as a T5, have no placeholders; its sources begin with a prefix, which names the
task, such as "translate English to German: ".

Sentences are batched by length to reduce padding; translations come in the order of the sentences. ``stream``
translates any number of sentences in constant memory.
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

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, OptionError, RefusedError, check_count, check_kind, short_repr
from regard.fields import repr_of_fields
from regard.models import EncoderDecoder
from regard.search import Beam, Hypothesis, Search
from regard.text.alignments import Alignment, expand_links, links, word_weights
from regard.text.placeholders import UNPROTECTED, ProtectedPair, ProtectedText, protect
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.tokenizer import check_text, check_texts, iterate_texts
from regard.text.words import Splitter, word_spans
from regard.translation.batches import batch_by_length, cross_attention_weights, pad_rows

MAX_TOKENS = 4096
"""The maximum tokens of a sentence, for models without a limit of their own."""
CHUNK_SENTENCES = 1024
"""Sentences to sort by length together."""
BATCH_TOKENS = 2048
"""Default source tokens of a batch; more are hardly faster."""
_USUAL_ROWS = 5
"""Hypotheses of a source that a full batch is sized for, as in the default beam; with more, it has fewer sources."""
_MAX_LOGITS = 2**25
"""Maximum logits of a step (128 MB), which limits batches of many short sources with a large vocabulary."""


@final
@explain_arguments
@dataclass(frozen=True)
class Rendering:
    """One candidate translation of a text.

    ``ids`` are its subwords. ``score`` is what the search ranked it by; ``log_probability`` is the model's, in nats.
    ``finished`` is False if it was cut at the maximum number of tokens. ``missing`` are the protected strings of the
    source, such as "%s", that it lacks.
    """

    text: str
    ids: tuple[int, ...]
    score: float
    log_probability: float
    finished: bool
    missing: tuple[str, ...] = ()


@final
@explain_arguments
@dataclass(frozen=True)
class Translation:
    """A source sentence and its candidate translations, the best first."""

    source: str
    renderings: tuple[Rendering, ...]

    @property
    def text(self) -> str:
        """The text of the best rendering."""
        return self.renderings[0].text


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class Aligned:
    """The words of a pair and the model's attention between them: ``weights`` (target words, source words)."""

    __repr__ = repr_of_fields

    source_words: tuple[str, ...]
    target_words: tuple[str, ...]
    weights: Float[Tensor, "target source"]

    @property
    def alignment(self) -> Alignment:
        """Links from each target word to the source word with the largest weight."""
        return links(self.weights)

    @property
    def token_alignment(self) -> Alignment:
        """The same links between tokens separated by white space, which alignment formats count.

        A word may be a protected string of several tokens, such as a tag with attributes.
        """
        sources, targets = ([len(word.split()) for word in side] for side in (self.source_words, self.target_words))
        return expand_links(self.alignment, sources, targets)


@final
@dataclass(frozen=True)
class _EncodedText:
    """A sentence with placeholders, and the token ids of its prefix and its words, without the end token."""

    protected: ProtectedText
    ids: list[int]


@final
@explain_arguments
class Translator:
    """Translates with ``model``, an ``EncoderDecoder`` from ``regard.load`` or from a training run.

    ``tokens`` is the maximum of source tokens in a batch, padding included, for a search with up to 5 hypotheses of a
    source; batches are smaller for a search with more. ``prefix`` is a text to put before each source, for a pretrained
    model of several tasks; None is the model's own. Raises CheckpointError for a model without subwords, OptionError
    for a prefix to a model that has a single task.
    """

    def __init__(self, model: EncoderDecoder, *, tokens: int = BATCH_TOKENS, prefix: str | None = None) -> None:
        check_count("tokens", tokens)
        check_kind("model", model, EncoderDecoder, do="Translator.load(folder), or regard.load(folder)")
        if model.subwords is None:
            raise CheckpointError(
                "the model has no subwords, so it cannot read text",
                expected="tokenizer.json, or source.tokenizer.json and target.tokenizer.json, in its folder",
                got="neither",
                do="use the whole folder; in one of transformers, write tokenizer.json: "
                "transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
            )
        self.model, self.tokens = model, tokens
        self.source, self.target = model.subwords
        self.prefix = model.prefix if prefix is None else prefix
        check_prefix(self.prefix, self.source)
        self.limit = min(MAX_TOKENS, model.max_tokens or MAX_TOKENS)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        cache_format: str | None = None,
        tokens: int = BATCH_TOKENS,
        prefix: str | None = None,
    ) -> Translator:
        """Load a translator from a model folder; the other arguments are as for ``regard.load``.

        Raises CheckpointError if the folder holds no translation model.
        """
        model = EncoderDecoder.load(folder, device=device, dtype=dtype, weights=weights, cache_format=cache_format)
        return cls(model, tokens=tokens, prefix=prefix)

    def translate(self, texts: Sequence[str], *, search: Search | None = None) -> list[Translation]:
        """Translate texts, and return the translations in their order. ``search`` None is a beam of 5.

        The only rendering of a text without words is the text itself. Raises DataError for a text that is too long for
        the model, OptionError if ``texts`` is not a list of strings.
        """
        check_texts("texts", texts)
        return self._translate(texts, _search_or_default(search), first=1)

    def stream(
        self, texts: Iterable[str], *, search: Search | None = None, names: Sequence[str] = ()
    ) -> Iterator[Translation]:
        """Translate any number of texts, and yield the translations in their order; holds about 1,000 in memory.

        ``names`` are the names of the texts in messages; without them they are numbered. Raises what ``translate``
        raises.
        """
        check_texts("names", names)
        rest, chosen, first = iterate_texts(texts), _search_or_default(search), 1
        while chunk := list(islice(rest, CHUNK_SENTENCES)):
            if names and len(names) < first - 1 + len(chunk):
                raise OptionError(
                    "there are more texts than `names`",
                    expected="a name for each text, or none",
                    got=f"{len(names):,} names",
                    do="leave out `names`: texts are then numbered",
                )
            yield from self._translate(chunk, chosen, first=first, names=names)
            first += len(chunk)

    def _translate(
        self, texts: Sequence[str], search: Search, *, first: int, names: Sequence[str] = ()
    ) -> list[Translation]:
        """Translate texts that are numbered from ``first`` in messages."""
        encoded = self._encode_texts(texts, first=first, names=names)
        translations: list[Translation | None] = [None] * len(texts)
        for index, sentence in enumerate(encoded):
            if not sentence.ids:
                translations[index] = Translation(texts[index], (Rendering(texts[index].strip(), (), 0.0, 0.0, True),))
        with_words = [index for index, sentence in enumerate(encoded) if sentence.ids]
        for places in self._make_batches([len(encoded[index].ids) + 1 for index in with_words], search):
            batch = [with_words[place] for place in places]
            for index, hypotheses in zip(batch, self._search([encoded[i] for i in batch], search), strict=True):
                renderings = tuple(self._render(encoded[index].protected, hypothesis) for hypothesis in hypotheses)
                translations[index] = Translation(texts[index], renderings)
        return [translation for translation in translations if translation is not None]

    def aligned(self, text: str, rendering: Rendering, *, split: Splitter = word_spans) -> Aligned:
        """Align the words of a rendering with the words of ``text``, by the model's cross-attention.

        ``split`` splits a text into words; for formats that count tokens separated by white space, use
        ``words.token_spans``. Raises RefusedError for a model without attention.
        """
        return self.aligned_all([(text, rendering)], split=split)[0]

    def aligned_all(self, rendered: Sequence[tuple[str, Rendering]], *, split: Splitter = word_spans) -> list[Aligned]:
        """Align many texts with their renderings, in batches. See ``aligned``."""
        encoded = self._encode_texts([text for text, _ in rendered])
        targets = [rendering.ids for _, rendering in rendered]
        return self._align(
            [sentence.ids for sentence in encoded], targets, [sentence.protected.kept for sentence in encoded], split
        )

    def aligned_pair(self, source: str, target: str, *, split: Splitter = word_spans) -> Aligned:
        """Align a source with a translation by a person. See ``aligned``; also raises DataError for a text too long."""
        return self.aligned_pairs([(source, target)], split=split)[0]

    def aligned_pairs(
        self, pairs: Sequence[tuple[str, str]], *, split: Splitter = word_spans, places: Sequence[str] = ()
    ) -> list[Aligned]:
        """Align many sources with translations by people, in batches. See ``aligned_pair``.

        ``places`` name the pairs in messages, for example "line 3 of test.tsv".
        """
        protected, sources, targets = self._encode_pairs(pairs, places)
        return self._align(sources, targets, [pair.kept for pair in protected], split)

    def weights(self, source: Sequence[int], target: Sequence[int]) -> Float[Tensor, "target source"]:
        """Cross-attention weights between the subwords of a pair: (target + 1, source + 1), end tokens included."""
        return cross_attention_weights(self.model, [(source, target)], tokens=self.tokens)[0]

    def encode_source(self, text: str) -> tuple[ProtectedText, list[int]]:
        """A source with placeholders, and its ids, including the ids of the prefix; no ids for a text without words.

        Raises DataError for a text that is too long for the model.
        """
        (found,) = self._encode_texts([text])
        return found.protected, found.ids

    def encode_pair(self, source: str, target: str) -> tuple[ProtectedPair, list[int], list[int]]:
        """A pair with placeholders, and the ids of both sides, as ``encode_source`` gives them."""
        protected, (read,), (written,) = self._encode_pairs([(source, target)], ())
        return protected[0], read, written

    def check(self, text: str, name: str) -> None:
        """Raise DataError if ``text`` is too long for the model; ``name`` is the text's name in the message."""
        self.check_all([text], [name])

    def check_all(self, texts: Sequence[str], names: Sequence[str]) -> None:
        """Raise DataError if one of the texts is too long for the model; ``names`` are their names in the message."""
        self._encode_texts(texts, names=names)

    def check_pairs(self, pairs: Sequence[tuple[str, str]], places: Sequence[str]) -> None:
        """Raise what ``aligned_pairs`` would raise for these pairs, without computing weights."""
        self.check_attention()
        self._encode_pairs(pairs, places)

    def check_attention(self) -> None:
        """Raise RefusedError for a model without cross-attention."""
        if not self.model.has_attention:
            raise RefusedError(
                "this model translates without attention, so it has no attention weights",
                expected="a model with cross-attention",
                got="attention='none'",
                do="train one with attention: regard train translate --model gru --attention additive",
            )

    def check_length(self, ids: Sequence[int], name: str) -> None:
        """Raise DataError if these subwords and an end token are too long for the model; ``name`` names the text."""
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
        """Merge weights of subwords into weights of words, without the end tokens, which belong to no word."""
        of_target, of_source = (
            [piece.word for piece in subwords.pieces_of(ids, split)]
            for subwords, ids in ((self.target, target), (self.source, source))
        )
        restore = ProtectedText("", kept).restore
        # The words of the prefix are left out. Without a space at its end, its last word is part of the source's first.
        first = len(split(self.prefix + "x")) - 1
        return Aligned(
            tuple(map(restore, self.source.words_of(source, split)))[first:],
            tuple(map(restore, self.target.words_of(target, split))),
            word_weights(weights[: len(target), : len(source)], of_target, of_source)[:, first:],
        )

    def _encode_texts(self, texts: Sequence[str], *, first: int = 1, names: Sequence[str] = ()) -> list[_EncodedText]:
        """Protect and encode texts. Messages use their ``names``, or else numbers from ``first``."""
        for number, text in enumerate(texts, start=first):
            check_text(text, number)
        protected = [self._protect(text) for text in texts]
        encoded = self._encode_sources([sentence.text for sentence in protected])
        for number, ids in enumerate(encoded, start=first):
            self.check_length(ids, names[number - 1] if names else f"text {number:,}")
        return [_EncodedText(sentence, ids) for sentence, ids in zip(protected, encoded, strict=True)]

    def _encode_pairs(
        self, pairs: Sequence[tuple[str, str]], places: Sequence[str]
    ) -> tuple[list[ProtectedPair], list[list[int]], list[list[int]]]:
        """Protect and encode pairs, and return the ids of both sides; ``places`` as for ``aligned_pairs``."""
        protected = [self._protect_pair(source, target) for source, target in pairs]
        sources = self._encode_sources([pair.source for pair in protected])
        targets = self.target.encode([pair.target for pair in protected])
        for side, sequences in (("source", sources), ("target", targets)):
            for number, ids in enumerate(sequences, start=1):
                if places:
                    self.check_length(ids, f"the {side} in {places[number - 1]}")
                else:
                    self.check_length(ids, f"the {side}" if len(pairs) == 1 else f"the {side} of pair {number:,}")
        return protected, sources, targets

    def _protect(self, text: str) -> ProtectedText:
        return protect(text) if self.source.has_placeholders else ProtectedText(text, UNPROTECTED)

    def _protect_pair(self, source: str, target: str) -> ProtectedPair:
        has_placeholders = self.source.has_placeholders
        return protect(source, target) if has_placeholders else ProtectedPair(source, target, UNPROTECTED)

    def _encode_sources(self, texts: Sequence[str]) -> list[list[int]]:
        return self.source.encode([add_prefix(self.prefix, text) for text in texts])

    def _make_batches(self, lengths: Sequence[int], search: Search) -> Iterator[list[int]]:
        """Batch sources by length. Memory grows with the search's rows of a source, so more rows mean fewer sources."""
        tokens = self.tokens * _USUAL_ROWS // max(search.rows, _USUAL_ROWS)
        size = max(1, _MAX_LOGITS // (search.rows * self.model.vocab_sizes[1]))
        return batch_by_length(lengths, tokens=tokens, size=size)

    def _search(self, read: Sequence[_EncodedText], search: Search) -> list[list[Hypothesis]]:
        sources = [[*row.ids, self.model.end_id] for row in read]
        lengths = torch.tensor([len(ids) for ids in sources])
        return search.search(self.model, pad_rows(sources, self.model.pad_id, self.model.device), lengths)

    def _render(self, protected: ProtectedText, hypothesis: Hypothesis) -> Rendering:
        written = self.target.decode(hypothesis.ids)
        return Rendering(
            text=protected.restore(written),
            ids=hypothesis.ids,
            score=hypothesis.score,
            log_probability=hypothesis.log_probability,
            finished=hypothesis.finished,
            missing=protected.missing(written),
        )


def add_prefix(prefix: str, text: str) -> str:
    """Put the prefix before a source, unless it has no words."""
    return prefix + text if text.strip() else text


def check_prefix(prefix: object, subwords: SentenceTokenizer) -> None:
    """Raise OptionError for a prefix that is not a string, and for one to a model of a single task."""
    check_kind("prefix", prefix, str, do='for example prefix="translate English to German: "')
    if prefix and subwords.has_placeholders:
        raise OptionError(
            "this model has a single task, so a prefix would be translated like other words",
            expected="a prefix only for a pretrained model of several tasks, such as a T5",
            got=short_repr(prefix),
            do="leave out the prefix (`prefix=...`)",
        )


def _search_or_default(search: Search | None) -> Search:
    """Return the given search, or a beam of 5 for None. Raises OptionError if it is not a ``Search``."""
    if search is None:
        return Beam()
    check_kind("search", search, Search, do="regard.search.Beam(), Greedy() or Sampling(seed=1)")
    return search
