"""How far weights of few bits move the answers of trained models, and what they gain: ``regard.load(.., weights=..)``.

    python -m benchmarks.weight_accuracy --texts texts.txt                               MiniLM, which is packaged
    python -m benchmarks.weight_accuracy --lm model/ --documents test.txt                perplexity
    python -m benchmarks.weight_accuracy --lm model/ --documents test.txt --cache-format int8
    python -m benchmarks.weight_accuracy --classifier model/ --labelled test.tsv         accuracy
    python -m benchmarks.weight_accuracy --translator model/ --source a.de --target a.en BLEU, by a beam of 5

Each line is a measure with weights in the dtype and in each format. The last line is the least seconds of ``--rounds``
calls, in which the formats take turns; ``--rounds 0`` leaves it out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import regard
from benchmarks import machine
from regard.classification import Classifier, score_probabilities
from regard.columns import LabelFormat
from regard.generation import score_texts
from regard.interleaved_timing import least_seconds
from regard.media import TEXTS, label_matrix
from regard.models import CausalLanguageModel, Encoder
from regard.number_formats import CACHE_FORMATS, PRECISIONS, WEIGHT_FORMATS
from regard.text.embedding import Embedder
from regard.text.labelled import read_and_report_labelled
from regard.translation import Scorer, Translator

_FORMATS = (None, *WEIGHT_FORMATS)
Measure = Callable[[], Sequence[float]]


def _read_lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _measure(names: Sequence[str], make: Callable[[str | None], Measure], rounds: int) -> None:
    """Print what the measure of each format returns, and its time."""
    measures = [make(weights) for weights in _FORMATS]
    found = [measure() for measure in measures]
    for name, values in zip(names, zip(*found, strict=True), strict=True):
        print(f"{name:34}" + "".join(f"{value:12.5f}" for value in values))
    if rounds:
        seconds = least_seconds(measures, tries=rounds)
        print(f"{'seconds':34}" + "".join(f"{value:12.3f}" for value in seconds))


def _cosines(texts: list[str], dtype: torch.dtype) -> Callable[[str | None], Measure]:
    """The cosines of the vectors of texts with those in float32."""
    expected = Embedder(Encoder.load("minilm")).sentences(texts, truncate=True)

    def make(weights: str | None) -> Measure:
        embedder = Embedder(Encoder.load("minilm", dtype=dtype, weights=weights))

        def measure() -> tuple[float, float]:
            cosines = torch.cosine_similarity(embedder.sentences(texts, truncate=True), expected)
            return float(cosines.min()), float(cosines.mean())

        return measure

    return make


def _perplexity(
    folder: Path, documents: Path, dtype: torch.dtype, cache_format: str | None
) -> Callable[[str | None], Measure]:
    text = documents.read_text(encoding="utf-8")

    def make(weights: str | None) -> Measure:
        model = CausalLanguageModel.load(folder, dtype=dtype, weights=weights, cache_format=cache_format)
        return lambda: (score_texts(model, [text]).perplexity,)

    return make


def _accuracy(folder: Path, data: Path) -> Callable[[str | None], Measure]:
    texts = read_and_report_labelled([data], LabelFormat((1, 2)))

    def make(weights: str | None) -> Measure:
        classifier = Classifier.load(folder, weights=weights)
        expected = label_matrix(texts, classifier.labels, "the model", TEXTS)

        def measure() -> tuple[float, float]:
            found = classifier.probabilities([text.text for text in texts]).numpy()
            scores = score_probabilities(found, expected, classifier.labels)
            return scores.accuracy, scores.calibration_error

        return measure

    return make


def _bleu(folder: Path, source: Path, target: Path) -> Callable[[str | None], Measure]:
    sources, scorer = _read_lines(source), Scorer(_read_lines(target), language="en")

    def make(weights: str | None) -> Measure:
        translator = Translator.load(folder, weights=weights)
        return lambda: (scorer.score([found.text for found in translator.translate(sources)]).bleu,)

    return make


def main() -> None:
    """Measure what the options name."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("texts", "lm", "documents", "classifier", "labelled", "translator", "source", "target"):
        parser.add_argument(f"--{name}", type=Path, metavar="PATH")
    parser.add_argument("--dtype", choices=PRECISIONS, default="float32", help="of MiniLM and the language model")
    parser.add_argument("--cache-format", choices=CACHE_FORMATS, help="of keys and values of the language model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    dtype = getattr(torch, given.dtype)
    print(f"{machine.slug()}, regard {regard.__version__}, {given.threads} threads, {given.dtype}")
    print(f"{'':34}" + "".join(f"{weights or given.dtype:>12}" for weights in _FORMATS))
    if given.texts:
        names = ("MiniLM: smallest cosine", "MiniLM: mean cosine")
        _measure(names, _cosines(_read_lines(given.texts), dtype), given.rounds)
    if given.lm:
        make = _perplexity(given.lm, given.documents, dtype, given.cache_format)
        _measure(("perplexity of a token",), make, given.rounds)
    if given.classifier:
        names = ("accuracy", "calibration error")
        _measure(names, _accuracy(given.classifier, given.labelled), given.rounds)
    if given.translator:
        _measure(("BLEU",), _bleu(given.translator, given.source, given.target), given.rounds)


if __name__ == "__main__":
    main()
