"""Greedy translation with a Transformer 6 + 6 of width 512, random weights: regard and CTranslate2 on the same weights.

    fp32       weights and activations in float32
    int8       int8 weights, and tokens rounded to int8 in each call, in both

32 tokens are written for each source of 32 tokens. Before any timing, the logits of the first token are compared with
transformers (Marian) in float64, and a translation of another length is wrong.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import missing_package_error
from benchmarks.targets import Faster
from benchmarks.training_baselines import FIRST_TOKEN_ID, load_marian
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weight_formats import convert_weights
from regard.search import Greedy
from regard.text.subwords import Subwords
from regard.translation.export import ctranslate2 as exporter

_CONFIG = TransformerConfig(vocabulary=8000, width=512, layers=6, heads=8, inner=2048)
_LENGTH = _NEW = 32
_BATCHES = (1, 16)
_FASTER = 1.0
_TOLERANCES = {"fp32": 1e-4, "int8": 5e-2}
"""Tolerances of the logits of the first token, for weights and tokens of twelve layers in that format."""


@cache
def _make_model(weights: str | None = None) -> Transformer:
    """Make the model; the end token has the logit 0, so that it is never the likeliest."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2017)
        model = Transformer(_CONFIG).eval().requires_grad_(False)
    model.source_words.weight[_CONFIG.end_id] = 0.0
    if weights is not None:
        convert_weights(model, weights)
    return model


def _draw_sources(batch: int) -> Tensor:
    ids = torch.randint(
        FIRST_TOKEN_ID, _CONFIG.vocabulary, (batch, _LENGTH), generator=torch.Generator().manual_seed(1)
    )
    ids[:, -1] = _CONFIG.end_id
    return ids


@cache
def _expected_logits(batch: int) -> Tensor:
    """The logits of the first token of each target, in float64."""
    start = torch.full((batch, 1), _CONFIG.start_id)
    with torch.no_grad():
        peer = load_marian(_make_model(), torch.float64).eval()
        logits: Tensor = peer(input_ids=_draw_sources(batch), decoder_input_ids=start).logits[:, 0, FIRST_TOKEN_ID:]
    return logits


def _deviations(logits: Tensor, translated: Callable[[], Any], allowed: float) -> Iterator[Deviation]:
    yield deviation("logits", logits[:, FIRST_TOKEN_ID:], _expected_logits(len(logits)), allowed)
    lengths = {len(ids) for ids in translated()}
    yield Deviation("number of tokens", float(max(abs(length - _NEW) for length in lengths)), 0.0)


def _prepare_ours(weights: str | None, batch: int) -> Contestant:
    model, sources = _make_model(weights), _draw_sources(batch)
    lengths, limits = torch.full((batch,), _LENGTH), torch.full((batch,), _NEW)

    def run() -> list[tuple[int, ...]]:
        with torch.no_grad():
            return [found[0].ids for found in Greedy().decode(model, sources, lengths, limits)]

    def compared() -> Iterator[Deviation]:
        with torch.no_grad():
            logits, _ = model.step(*model.prefill(sources, lengths=lengths))
        return _deviations(logits, run, _TOLERANCES[weights or "fp32"])

    return Contestant(run, compared)


def _prepare_ctranslate2(weights: str | None, batch: int) -> Contestant:
    try:
        import ctranslate2
    except ImportError:
        raise missing_package_error("ctranslate2") from None
    names = [str(number) for number in range(_CONFIG.vocabulary)]
    with tempfile.TemporaryDirectory() as folder:
        special = Subwords.train(["a b"] * 3, size=300)  # only for the ids of its special tokens
        exporter.write(_make_model(), special, (names, names), Path(folder))
        translator = ctranslate2.Translator(
            folder, device="cpu", compute_type=weights or "float32", intra_threads=torch.get_num_threads()
        )
    sources = [[names[number] for number in row[:-1]] for row in _draw_sources(batch).tolist()]  # it adds the end token
    options = {"beam_size": 1, "min_decoding_length": _NEW, "max_decoding_length": _NEW}

    def run() -> list[list[str]]:
        return [found.hypotheses[0] for found in translator.translate_batch(sources, **options)]

    def compared() -> Iterator[Deviation]:
        first = {"beam_size": 1, "max_decoding_length": 1, "return_logits_vocab": True}
        found = translator.translate_batch(sources, **first)
        logits = torch.stack([torch.from_numpy(np.array(result.logits[0][0])).flatten() for result in found])
        return _deviations(logits, run, _TOLERANCES[weights or "fp32"])

    return Contestant(run, compared)


def _case(weights: str | None, batch: int) -> Case:
    def prepare() -> PreparedCase:
        _expected_logits(batch)
        makers = {
            "native": partial(_prepare_ours, weights, batch),
            "ctranslate2": partial(_prepare_ctranslate2, weights, batch),
        }
        return PreparedCase(Work(batch * _NEW, "tokens/s", step=1.0), makers)

    return Case(
        f"{weights or 'fp32'} batch-{batch}",
        f"{batch} sources of {_LENGTH} tokens, {_NEW} tokens each",
        prepare,
        ("native", "ctranslate2"),
        (Faster("ctranslate2", _FASTER),),
        quick=batch == 1,
    )


SUITE = Suite(
    name="translation",
    title="Translation",
    description="Greedy translation with a Transformer 6 + 6 of width 512, compared with CTranslate2.",
    cases=tuple(_case(weights, batch) for weights in (None, "int8") for batch in _BATCHES),
    notes=(
        "32 tokens for each source of 32 tokens, the encoder included. int8: CTranslate2 has one scale for each row of "
        "weights, regard one for each group of 64 inputs.",
    ),
)
