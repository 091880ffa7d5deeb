"""Load subwords from a ``tokenizer.json`` of any origin.

Only tokens, merges and weights are taken from the file. All other parts must equal those that ``subword_training``
writes, or texts would be tokenized differently than in training.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from regard.errors import CheckpointError, short_repr
from regard.text.subword_training import FIXED_TOKENS, SPECIAL_TOKENS, build_bpe, build_tokenizer, build_unigram

_MIN_SCORE = -1e4
"""Lower bound of a piece's score, a log-probability."""


def read_subwords(path: str | Path) -> tokenizers.Tokenizer:
    """Load a tokenizer from a file. Raises CheckpointError for a damaged file, or one that regard did not write."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        model, bare, bare_fields = _parse_model(content["model"])
        _check_pipeline(content, bare, bare_fields)
    # The library raises bare Exception for unreadable files, and malformed JSON can fail anywhere.
    except Exception as error:
        raise CheckpointError(
            f"{path if isinstance(path, Path) else short_repr(path)} has no readable subwords",
            expected=f"a tokenizer.json that regard wrote, with {', '.join(SPECIAL_TOKENS)} among its tokens",
            got=f"{type(error).__name__}: {error}"[:300],
            do="copy the file again, or train subwords with Subwords.train",
        ) from error
    return build_tokenizer(model)


def _parse_model(model: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Build the model, a minimal one of the fixed tokens alone, and the fields of the minimal one in a file.

    Everything that would make the library abort is checked first.
    """
    if model["type"] == "BPE":
        names = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if sorted(model["vocab"].values()) != list(range(len(names))):
            raise ValueError("the ids are not 0, 1, 2, ...")
        _check_names(names)
        _check_merges(model["merges"], frozenset(names))
        fixed = {name: number for number, name in enumerate(FIXED_TOKENS)}
        return build_bpe(names, model["merges"]), build_bpe(FIXED_TOKENS, []), {"vocab": fixed, "merges": []}
    if model["type"] == "Unigram":
        names = [name for name, _ in model["vocab"]]
        _check_names(names)
        if model["unk_id"] != names.index("<unk>"):
            raise ValueError(f"unk_id is not the id of <unk>: {model['unk_id']}")
        if not all(_MIN_SCORE <= score <= 0 for _, score in model["vocab"]):
            raise ValueError("scores that are not log-probabilities")
        pairs = [[name, 0.0] for name in FIXED_TOKENS]
        return (
            build_unigram(model["vocab"]),
            build_unigram(pairs),
            {"vocab": pairs, "unk_id": FIXED_TOKENS.index("<unk>")},
        )
    raise ValueError(f"a model of type {model['type']}")


def _check_names(names: Sequence[str]) -> None:
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ValueError("tokens that are empty, repeated, or not strings")
    missing = [name for name in FIXED_TOKENS if name not in set(names)]
    if missing:
        raise ValueError(f"a vocabulary without {', '.join(missing[:4])}")


def _check_merges(merges: Sequence[Sequence[str]], names: frozenset[str]) -> None:
    for left, right in merges:
        if not {left, right, left + right} <= names:
            raise ValueError(f"a merge of {left!r} and {right!r}, which are not tokens")


def _check_pipeline(content: dict[str, Any], bare: Any, fields: dict[str, Any]) -> None:
    """Raise ValueError unless the rest of the file equals our own pipeline.

    Both are compared as the library writes them, so a file of another version of it may have other fields. A
    post-processor only adds special tokens, which subwords leave to the model.
    """
    plain = {**content, "post_processor": None, "model": {**content["model"], **fields}}
    found = tokenizers.Tokenizer.from_str(json.dumps(plain))
    if found.to_str() != build_tokenizer(bare).to_str():
        raise ValueError("its normalizer, pre-tokenizer or decoder differs from that of regard")
