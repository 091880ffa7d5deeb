"""Classifiers small enough to build in a test, and a data set that they learn in seconds."""

import random
from pathlib import Path

import torch

from regard.models import TextClassifier, TextClassifierConfig, TransformerEncoder, TransformerEncoderConfig
from regard.text.tokenizer_training import train_text_tokenizer

NOUNS = {"animal": ["dog", "cat", "horse"], "plant": ["oak", "rose", "fern"], "vehicle": ["car", "bus", "train"]}
TEXTS = [f"the {size} {noun}" for nouns in NOUNS.values() for noun in nouns for size in ("small", "old")]


def classifier(*, several: bool = False, pooling: str = "mean", limit: int | None = 31, **options) -> TextClassifier:
    """Build a classifier with random weights, including norms and biases, and three labels."""
    tokenizer = train_text_tokenizer(TEXTS, kind="bpe", size=330)
    numbers = {"width": 20, "layers": 2, "heads": 5, "inner": 13, "dropout": 0.0}
    torch.manual_seed(5)
    encoder = TransformerEncoder(TransformerEncoderConfig(tokenizer.vocabulary, **{**numbers, **options}))
    encoder.tokenizer = tokenizer
    config = TextClassifierConfig(tuple(NOUNS), several, pooling, dropout=0.0, max_tokens=limit)
    model = TextClassifier(encoder, config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    return model


def labelled_texts(count: int = 211, seed: int = 1) -> list[tuple[str, str]]:
    """Different sentences about one noun each, with the topic of the noun as their label."""
    chance, result = random.Random(seed), {}
    while len(result) < count:
        label = chance.choice(list(NOUNS))
        words = chance.choices(["the", "a", "small", "big", "old", "that", "runs", "waits", "falls", "here"], k=6)
        words.insert(chance.randrange(7), chance.choice(NOUNS[label]))
        result[" ".join(words)] = label
    return list(result.items())


def write_texts(path: Path, count: int = 211, seed: int = 1) -> None:
    """Write labelled texts as a TSV file with a header."""
    rows = [("text", "label"), *labelled_texts(count, seed)]
    path.write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
