"""From files of labelled texts to corpora of token ids: read, split into training and validation texts, encode.

Batches of labelled texts of similar length.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import torch

from regard import masks
from regard.copy_to_device import copy_to
from regard.errors import DataError
from regard.language import abbreviate_names
from regard.log import log
from regard.media import TEXTS
from regard.tasks.classification.recipe import ClassificationRecipe
from regard.tasks.labelled_data import report_conflicts, split_entries
from regard.tasks.medium_task import LabelledBatches
from regard.tasks.numbered_batches import BatchesByLength
from regard.tasks.sentences import Indices, Sentences, pad_rows
from regard.text.labelled import LabelledText, read_and_report_labelled
from regard.text.subword_training import normalize_text
from regard.text.tokenizer import Tokenizer


@final
class LabelledTextBatches(LabelledBatches, BatchesByLength):
    """Batches of ``texts``, whose token ids, special tokens included, are ``ids``, padded with ``pad_id``."""

    def __init__(
        self,
        texts: Sequence[LabelledText],
        ids: Sentences,
        *,
        pad_id: int,
        size: int,
        seed: int,
        tokens: int | None = None,
    ) -> None:
        super().__init__(size=size, seed=seed)
        self.entries, self.ids, self.pad_id, self.tokens = texts, ids, pad_id, tokens

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def lengths(self) -> Indices:
        """The tokens of each text."""
        return self.ids.lengths

    @property
    def digest(self) -> str:
        """SHA-256 of all tokens and labels, in order, by which a resumed run recognises its data."""
        digest = hashlib.sha256()
        digest.update(self.ids.offsets.tobytes())
        digest.update(self.ids.ids.astype(np.uint32).tobytes())
        digest.update(self.target_bytes())
        return digest.hexdigest()

    def inputs(self, examples: Indices, device: torch.device) -> Mapping[str, Any]:
        """The token ids of texts, padded on the right, and the mask that hides padding."""
        ids = pad_rows(self.ids, examples, self.pad_id)
        return {"ids": copy_to(ids, device), "mask": masks.padding(self.ids.lengths[examples].tolist())}


_ENCODING_BATCH = 1000
"""Texts to encode at a time."""
_SHOWN = 5


def split_texts(recipe: ClassificationRecipe, *, seed: int) -> tuple[list[LabelledText], list[LabelledText]]:
    """Read the recipe's files, and return training and validation texts; ``seed`` decides which are held out.

    Raises DataError for files without texts, and for too few different texts to hold any out.
    """
    texts = read_and_report_labelled(recipe.data, recipe.where)
    listed = [text.labels for text in texts]
    report_conflicts([normalize_text(text.text) for text in texts], texts, list(map(frozenset, listed)), TEXTS)
    if recipe.where.columns is None or all(isinstance(column, int) for column in recipe.where.columns):
        _report_unknown_headers(texts)
    others = read_and_report_labelled(recipe.validation, recipe.where) if recipe.validation else None
    return split_entries(texts, others, TEXTS, digest=lambda text: normalize_text(text.text), labels=listed, seed=seed)


@final
class LengthReport:
    """Counts the texts that were skipped or cut since they are too long, for one message about all of them."""

    def __init__(self) -> None:
        self.skipped: list[str] = []
        self.cut = self.total = 0

    def report(self, limit: int | None) -> None:
        """Report the counts, if there are any, with the ``limit`` of tokens."""
        if self.cut:
            log.info(f"cut {self.cut:,} of {self.total:,} texts at {limit:,} tokens")
        if self.skipped:
            log.info(
                f"skipped {len(self.skipped):,} because the text has more than {limit:,} tokens: "
                f"{abbreviate_names(self.skipped, _SHOWN)}; "
                "`truncate=True` cuts them, `most_tokens` sets the limit"
            )


def encode_texts(
    texts: Sequence[LabelledText], tokenizer: Tokenizer, *, truncate: bool, lengths: LengthReport
) -> tuple[Sentences, list[LabelledText]]:
    """Encode texts without those that are longer than the tokenizer's limit, or cut these with ``truncate``.

    Returns the texts that were kept, too. Raises DataError if there is none.
    """
    limit = tokenizer.limit
    found = _encode(texts, tokenizer, truncate=truncate, lengths=lengths)
    sentences = Sentences.from_ids(found, tokenizer.vocabulary)
    if limit is None:
        return sentences, list(texts)
    fits = sentences.lengths <= limit
    kept = [text for text, fit in zip(texts, fits, strict=True) if fit]
    lengths.skipped += [text.place for text, fit in zip(texts, fits, strict=True) if not fit]
    if not kept:
        raise DataError(
            "every text is too long",
            expected=f"texts with at most {limit} tokens",
            got=f"{len(texts)} texts, all longer",
            do="raise `most_tokens`, or cut them: `truncate=True`",
        )
    return sentences.select(fits), kept


def _encode(
    texts: Sequence[LabelledText], tokenizer: Tokenizer, *, truncate: bool, lengths: LengthReport
) -> Iterator[list[int]]:
    """Yield the ids of each text, and count in ``lengths`` how many were cut.

    Encodes in batches: lists of ints take 20 times the memory of the result.
    """
    lengths.total += len(texts)
    for first in range(0, len(texts), _ENCODING_BATCH):
        some = [text.text for text in texts[first : first + _ENCODING_BATCH]]
        found = tokenizer.ids(some)
        if truncate and tokenizer.limit is not None:
            long = [index for index, ids in enumerate(found) if len(ids) > tokenizer.limit]
            for index, ids in zip(long, tokenizer.ids([some[index] for index in long], truncate=True), strict=True):
                found[index] = ids
            lengths.cut += len(long)
        yield from found


def _report_unknown_headers(texts: Sequence[LabelledText]) -> None:
    """Report first rows of tables that may be headers with other names: no other text has their label."""
    counts = Counter(label for text in texts for label in text.labels)
    for text in texts:
        is_first = re.fullmatch(r"line 1 of .+\.[ct]sv(?:\.gz)?", text.place) is not None
        if is_first and text.labels and all(counts[label] == 1 for label in text.labels):
            log.info(
                f"{text.place} is read as a text with the label {', '.join(text.labels)}, which no other text has; if "
                "it is a header, call its columns text and label, or name them: `columns=...`"
            )
