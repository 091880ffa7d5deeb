"""Scores of a translator: sacreBLEU with its signature, and BLEU as in papers that used Moses.

There, texts are lower-cased and tokenized by the rules of Moses, and BLEU is computed over those tokens, as
multi-bleu.perl does.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, versions
from benchmarks.translation.bleu_by_length import bleu_by_length
from benchmarks.translation.config import Config
from benchmarks.translation.train import resolve_files
from regard.search import Beam, Greedy
from regard.text.pairs import SkipCounts, read_pairs
from regard.translation import Translator, score


def measure_translator(config: Config, data: Path, model: Path) -> dict[str, Any]:
    """Return all scores, and some translations."""
    translator = Translator.load(model)
    pairs = list(SkipCounts().count(read_pairs(resolve_files(config, config.test, data, model))))
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    searches = {
        "greedy": Greedy(),
        f"beam {config.beam}": Beam(width=config.beam, length_penalty=config.length_penalty),
    }
    scores, lengths = {}, {}
    for name, search in searches.items():
        began = time.monotonic()
        texts = [found.text for found in translator.translate(sources, search=search)]
        seconds = time.monotonic() - began
        scores[name] = _score_translations(texts, references, config.languages[1]) | {"seconds": round(seconds, 1)}
        lengths[name] = bleu_by_length(sources, texts, references, config.languages[1])
    examples = [*config.sentences, *sources[:3]]
    return {
        "options": " ".join(config.options),
        "scores": scores,
        "by length": lengths,
        "examples": [[text, found.text] for text, found in zip(examples, translator.translate(examples), strict=True)],
        "pairs": translator.model.metadata.get("pairs"),
        "trained": translator.model.metadata.get("trained"),
        "weights": sum(weight.numel() for weight in translator.model.parameters()),
    }


def _score_translations(texts: list[str], references: list[str], language: str) -> dict[str, Any]:
    plain = score(texts, references, language=language)
    tokens = score(_tokenize(texts, language), _tokenize(references, language), tokenize="none")
    cased = score(
        _tokenize(texts, language, lower=False), _tokenize(references, language, lower=False), tokenize="none"
    )
    return {
        "sacrebleu": round(plain.bleu, 2),
        "signature": plain.bleu_signature,
        "chrf": round(plain.chrf, 2),
        "chrf signature": plain.chrf_signature,
        "tokenized, lower case": round(tokens.bleu, 2),
        "tokenized": round(cased.bleu, 2),
    }


def _tokenize(texts: list[str], language: str, *, lower: bool = True) -> list[str]:
    """Tokenize by the rules of Moses; Chinese by characters."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    if language == "zh":
        return [" ".join(text.replace(" ", "")) for text in texts]
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)
    normal = (normalizer.normalize(text.lower() if lower else text) for text in texts)
    return [tokenizer.tokenize(text, return_str=True, escape=False, aggressive_dash_splits=False) for text in normal]


TRAINING_KEYS = ("training", "memory GB", "machine", "versions")
"""Keys of the result that only a training run can measure."""


def describe_run(model: Path, memory: float) -> dict[str, Any]:
    """Describe the training run that has just ended: its metrics, memory in GB, machine and versions."""
    return dict(zip(TRAINING_KEYS, (_summarize_metrics(model), round(memory, 2), machine(), versions()), strict=True))


def _summarize_metrics(model: Path) -> dict[str, Any]:
    """Return the median tokens per second, and BLEU at each validation."""
    lines = (model.with_name(f"{model.name}.run") / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    speeds = sorted(one["tokens_per_second"] for one in records if one["kind"] == "train")
    validations = [[one["step"], round(one["bleu"], 2)] for one in records if one["kind"] == "validation"]
    return {"tokens a second": round(speeds[len(speeds) // 2]), "validations": validations}
