"""One self-contained page: template, style, script and data in a single HTML file that loads nothing.

What makes it safe for text from anyone: the data stands in a JSON block with every less-than sign escaped, the
script sets text only as text, and the content security policy allows this script and this style, by their
hashes, and nothing else. What keeps it small: queries, keys and values are stored, linear in the length, and
the page computes the weights of a head when it shows it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32

from regard.errors import DataError, OptionError, OutputError, OutputExistsError
from regard.view.compare import shared_words
from regard.view.findings import Finding, WordPairs, findings, strongest_pieces, weight_of_pair, word_pairs
from regard.view.pack import ALPHABET, pack_bits, pack_fixed, pack_float32, rounded_to_fixed
from regard.view.reading import LayerReading, Reading, Tokens
from regard.view.statistics import statistics_of
from regard.view.visible import direction_of, visible
from regard.view.words import vocabulary_gap

# Each file is one idea; a later one may use the names of the earlier ones.
SCRIPTS = (
    "decode.js",
    "attention.js",
    "colour.js",
    "element.js",
    "state.js",
    "row.js",
    "findings.js",
    "grid.js",
    "heatmap.js",
    "lines.js",
    "numbers.js",
    "steps.js",
    "shared.js",
    "start.js",
)
ROOM = 880_000  # characters of vectors that keep a page under a megabyte: the finest encoding that fits is taken
FLOAT32 = 0  # letters a number, for the encoding without rounding
SHARED_LIMIT = 200  # pairs of texts and words that a page lists

Json = dict[str, Any]


def write_page(readings: Sequence[Reading], path: Path, *, model: str = "", overwrite: bool = False) -> Path:
    """Writes the page of one or more readings, aside first and then in one step, and gives its path.

    Raises OutputExistsError where ``path`` exists and ``overwrite`` is False, OutputError where it
    cannot be written, DataError where there is no reading.
    """
    refuse_output(path, overwrite=overwrite)
    page = page_of(readings, model=model)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(page, encoding="utf-8", newline="\n")
        aside.replace(path)
    except OSError as error:
        raise OutputError(
            "the page cannot be written",
            expected="a place where you may write, with room",
            got=f"{path}: {error.strerror}",
            do="choose another place with --out",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return path


def refuse_output(path: Path, *, overwrite: bool) -> None:
    """Raises where a page could not be written to ``path``; asked before a model is loaded."""
    if path.is_dir():
        raise OptionError(
            "the output is a folder", expected="a file name", got=str(path), do="add a name such as attention.html"
        )
    if not path.parent.is_dir():
        raise OptionError(
            "the output's folder does not exist",
            expected="an existing folder",
            got=str(path.parent),
            do="make the folder, or choose another",
        )
    if path.exists() and not overwrite:
        raise OutputExistsError(
            "the output exists already",
            expected="a new file",
            got=str(path),
            do="choose another name with --out, or pass --overwrite to replace it",
        )


def page_of(readings: Sequence[Reading], *, model: str = "") -> str:
    """The page as text. Raises DataError where there is no reading."""
    if not readings:
        raise DataError("there is nothing to show", expected="at least one text", got="none", do="give a text")
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    title = visible(readings[0].tokens.text).strip()
    parts = {
        "policy": policy,
        "title": html.escape(f"{title[:60]}{'…' if len(title) > 60 else ''} · regard"),
        "style": style,
        "data": _safe_json(_data(list(readings), model)),
        "script": script,
    }
    # One pass, so that nothing put in is taken for a place to put something.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _asset("page.html"))


def _asset(name: str) -> str:
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _safe_json(data: Json) -> str:
    # A less-than sign could end the script element; in JSON it is the same character when escaped.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _data(readings: list[Reading], model: str) -> Json:
    letters = _letters(readings)
    pairs = [word_pairs(reading) for reading in readings]
    shared = shared_words(readings)
    return {
        "model": visible(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": max(_largest_error(reading, letters) for reading in readings) if letters else 0.0,
        "texts": [_text(number, readings, pairs, letters) for number in range(len(readings))],
        "shared": [
            {
                "word": visible(one.word),
                "first": one.first,
                "second": one.second,
                "cosines": [round(cosine, 5) for cosine in one.cosines],
            }
            for one in shared[:SHARED_LIMIT]
        ],
    }


def _text(number: int, readings: list[Reading], pairs: list[WordPairs], letters: int) -> Json:
    reading = readings[number]
    masks: list[str] = []
    found = findings(pairs[number])
    return {
        "text": visible(reading.tokens.text),
        "direction": direction_of(reading.tokens.text),
        "tokens": _tokens(reading.tokens),
        "keys": None if reading.keys is None else _tokens(reading.keys),
        "key_direction": direction_of(reading.key_tokens.text),
        "dropped": reading.dropped,
        "vocabulary": vocabulary_gap(pairs[number].words),
        "layers": [_layer(layer, masks, letters) for layer in reading.layers],
        "masks": masks,
        "statistics": _statistics(reading),
        "findings": [_finding(one, number, readings, pairs) for one in found],
    }


def _tokens(tokens: Tokens) -> list[Json]:
    end = 0
    shown = []
    for token, (start, stop) in enumerate(tokens.spans):
        special = tokens.special[token]
        gap = special or (token > 0 and tokens.special[token - 1]) or any(map(str.isspace, tokens.text[end:start]))
        end = end if special else stop
        surface, piece = visible(tokens.surface(token)), visible(tokens.pieces[token])
        one: Json = {"surface": surface}
        one |= {"piece": piece} if piece != surface else {}
        one |= {"gap": 1} if gap and token else {}
        one |= {"special": 1} if special else {}
        one |= {"unknown": 1} if tokens.unknown(token) else {}
        shown.append(one)
    return shown


def _layer(layer: LayerReading, masks: list[str], letters: int) -> Json:
    def pack(heads: Float32[np.ndarray, "heads tokens head_dim"]) -> list[str]:
        return [pack_fixed(head, letters) if letters else pack_float32(head) for head in heads]

    return {
        "name": layer.name,
        "scale": layer.scale,
        "head_dim": int(layer.query.shape[2]),
        "value_dim": int(layer.value.shape[2]),
        "query": pack(layer.query),
        "key": pack(layer.key),
        "value": pack(layer.value),
        "mask": None if layer.allowed is None else _mask(layer.allowed, masks),
    }


def _mask(allowed: Bool[np.ndarray, "queries keys"], masks: list[str]) -> int:
    packed = pack_bits(allowed)
    if packed not in masks:
        masks.append(packed)
    return masks.index(packed)


def _statistics(reading: Reading) -> Json:
    """A table, one row a head: columns are named once, since a row's names would weigh more than its numbers."""
    heads = statistics_of(reading)
    names = ("layer", "head", "entropy", "distance", "itself", "previous", "next")
    special = list(heads[0].special) if heads else []
    rows = [[getattr(one, name) for name in names] + [one.special[name] for name in special] for one in heads]
    return {
        "columns": [*names, *map(visible, special)],
        "rows": [[round(number, 5) for number in row] for row in rows],
    }


def _finding(finding: Finding, number: int, readings: list[Reading], pairs: list[WordPairs]) -> Json:
    query = pairs[number].query_words[finding.query_word]
    key = pairs[number].key_words[finding.key_word]
    # Of a word of several tokens the one is opened that shows the finding best.
    asks, gets = strongest_pieces(readings[number], query, key, finding.looks[0].layer, finding.looks[0].head)
    return {
        "from": visible(query.label),
        "to": visible(key.label),
        "query": asks,
        "key": gets,
        "pieces": [len(query.pieces), len(key.pieces)],
        "looks": [
            {"layer": look.layer, "head": look.head, "weight": round(look.weight, 6), "usual": round(look.usual, 6)}
            for look in finding.looks
        ],
        "first_choice": finding.first_choice,
        "heads": finding.heads,
        "elsewhere": _elsewhere(finding, number, readings, pairs),
    }


def _elsewhere(finding: Finding, number: int, readings: list[Reading], pairs: list[WordPairs]) -> list[Json]:
    """What the finding's head gives the same two words, each by its first occurrence, in up to three other texts."""
    query = pairs[number].query_words[finding.query_word].text.casefold()
    key = pairs[number].key_words[finding.key_word].text.casefold()
    strongest = finding.looks[0]
    shown: list[Json] = []
    for other, words in enumerate(pairs):
        asks = next((word for word in words.query_words if word.text.casefold() == query), None)
        gets = next((word for word in words.key_words if word.text.casefold() == key), None)
        if other == number or asks is None or gets is None or len(shown) == 3:
            continue
        weight = weight_of_pair(readings[other], asks, gets, strongest.layer, strongest.head)
        shown.append({"text": other, "weight": round(weight, 6)})
    return shown


def _letters(readings: list[Reading]) -> int:
    """The encoding, in letters a number: float32 where that fits in the room, else 3 letters, else 2."""
    numbers = sum(
        layer.query.size + layer.key.size + layer.value.size for reading in readings for layer in reading.layers
    )
    if numbers * 16 // 3 <= ROOM:
        return FLOAT32
    return 3 if numbers * 3 <= ROOM else 2


def _largest_error(reading: Reading, letters: int) -> float:
    """The largest difference that rounding makes to any weight of the reading."""
    errors = [0.0]
    for layer in reading.layers:
        query, key = rounded_to_fixed(layer.query, letters), rounded_to_fixed(layer.key, letters)
        rounded = LayerReading(layer.name, query, key, layer.value, layer.scale, layer.allowed)
        errors.append(float(np.abs(rounded.weights() - layer.weights()).max()))
    return max(errors)
