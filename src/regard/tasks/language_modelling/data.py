"""From files to documents for training and for validation.

One long text: its last tenth is held out. Several documents: a tenth of the different ones, chosen by the seed; all
copies of a document are in the same part, since else the score would measure memorisation. A book beside some notes:
the notes would be too short to hold out and the book too long, so the end of the book is held out.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.errors import DataError
from regard.language import count_noun
from regard.log import log
from regard.tasks.document_recipe import DocumentRecipe
from regard.text.documents import read_and_report_documents

MAX_HELD_OUT_CHARACTERS = 200_000
"""Held out at most, so that a validation takes seconds."""
_HELD_OUT_SHARE = 0.1
_MIN_CUT_CHARACTERS = 200
"""Characters from which the end of a document is worth a validation."""


def split_documents(recipe: DocumentRecipe, *, seed: int) -> tuple[list[str], list[str]]:
    """Read the recipe's files, and return training and validation texts.

    Raises DataError for files without text, and for too little text to hold any out.
    """
    texts = _read(recipe, recipe.data)
    if recipe.validation:
        validation = _read(recipe, recipe.validation)
        known = len(set(validation) & set(texts))
        if known:
            log.info(
                f"{count_noun(known, 'validation document also occurs', 'validation documents also occur')} in the "
                "training data, so scores are inflated"
            )
        log.info(f"{_count(texts)} for training; {_count(validation)} for validation")
        return texts, validation
    if len(texts) == 1:
        held = min(int(_HELD_OUT_SHARE * len(texts[0])), MAX_HELD_OUT_CHARACTERS)
        training, validation = _hold_out_end(texts[0], held)
        log.info(f"one text: {len(training[0]):,} characters for training, the last {len(validation[0]):,} held out")
        return training, validation
    training, validation = hold_out_documents(texts, seed=seed)
    if not training or not validation:
        raise DataError(
            "there are too few different documents to hold some out for validation",
            expected="at least 2 different documents",
            got=f"{len(texts)} documents",
            do="give more of them, or validation texts: `validation=...`",
        )
    is_cut = len(training) == len(texts)
    held_out = f"the end of the longest one, {len(validation[0]):,} characters," if is_cut else _count(validation)
    log.info(f"{_count(training)} for training; {held_out} held out for validation")
    return training, validation


def hold_out_documents(texts: Sequence[str], *, seed: int) -> tuple[list[str], list[str]]:
    """Split documents: a tenth of the different ones is held out, at most about ``MAX_HELD_OUT_CHARACTERS``.

    If the longest one is longer than that and the others are too short, its end is held out in place of whole ones.
    """
    different = list(dict.fromkeys(texts))
    budget = min(_HELD_OUT_SHARE * sum(map(len, different)), MAX_HELD_OUT_CHARACTERS)
    drawn = [different[index] for index in np.random.default_rng(seed).permutation(len(different)).tolist()]
    held_out: set[str] = set()
    held = 0
    for text in drawn:
        if held + len(text) <= budget:
            held_out.add(text)
            held += len(text)
        if held >= budget:
            break
    longest = max(drawn, key=len)
    if held < budget / 2 and len(longest) > budget >= _MIN_CUT_CHARACTERS:
        (begin,), end = _hold_out_end(longest, int(budget))
        return [begin if text == longest else text for text in texts], end
    if not held_out and len(different) > 1:
        held_out.add(min(drawn, key=len))
    return [text for text in texts if text not in held_out], [text for text in texts if text in held_out]


def _read(recipe: DocumentRecipe, paths: Sequence[Path]) -> list[str]:
    return [document.text for document in read_and_report_documents(paths, field=recipe.text_field, lines=recipe.lines)]


def _hold_out_end(text: str, held: int) -> tuple[list[str], list[str]]:
    """Split a text before its last ``held`` characters. Raises DataError for fewer than 2."""
    if held < 2:
        raise DataError(
            "the text is too short to hold some of it out for validation",
            expected="at least 20 characters",
            got=count_noun(len(text), "character"),
            do="give more text, or validation texts: `validation=...`",
        )
    return [text[:-held]], [text[-held:]]


def _count(texts: Sequence[str]) -> str:
    return f"{count_noun(len(texts), 'document')} of {count_noun(sum(map(len, texts)), 'character')}"
