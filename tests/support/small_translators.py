"""Translators small enough to build in a test: random weights, and trained subwords."""

import random
from pathlib import Path

import torch

from regard.models import Recurrent, RecurrentConfig, Transformer, TransformerConfig
from regard.text.subwords import Subwords
from regard.translation import Translator

GERMAN = ["Ein kleiner Hund läuft durch den Schnee.", "Zwei Hunde laufen.", "Der Hund ist klein."] * 3
ENGLISH = ["A small dog runs through the snow.", "Two dogs run.", "The dog is small."] * 3
JOINT_SUBWORDS = Subwords.train(GERMAN + ENGLISH, size=360)
SOURCE, TARGET = "Ein kleiner Hund läuft.", "A small dog runs."
WIDTH, HEADS, LAYERS = 20, 5, 3


def transformer(*, length: int = 1024, **options) -> Translator:
    """Build a Transformer translator with random weights, including norms and biases."""
    hyperparameters = {
        "width": WIDTH,
        "layers": LAYERS,
        "decoder_layers": 2,
        "heads": HEADS,
        "inner": 13,
        "dropout": 0.0,
    }
    torch.manual_seed(5)
    model = Transformer(
        TransformerConfig(vocabulary=JOINT_SUBWORDS.vocabulary, max_length=length, **{**hyperparameters, **options})
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.tie()
    model.subwords = (JOINT_SUBWORDS, JOINT_SUBWORDS)
    return Translator(model)


def recurrent(attention: str, **options) -> Translator:
    """Build a recurrent translator with random weights."""
    torch.manual_seed(7)
    hyperparameters = {"width": 10, "hidden": 14, "attention": attention, "window": 2}
    model = Recurrent(RecurrentConfig(vocabulary=JOINT_SUBWORDS.vocabulary, **{**hyperparameters, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.subwords = (JOINT_SUBWORDS, JOINT_SUBWORDS)
    return Translator(model)


def write_pairs(path: Path) -> None:
    """Write a TSV file of 42 pairs of two words each: 6 different pairs, 7 times."""
    words = {"hund": "dog", "katze": "cat", "haus": "house"}
    rows = [(one, other) for one in words for other in words if one != other] * 7
    lines = [f"{one} {other}\t{words[one]} {words[other]}\n" for one, other in rows]
    path.write_text("".join(lines), encoding="utf-8")


ENGLISH_WORDS = {
    "hund": "dog", "katze": "cat", "haus": "house", "baum": "tree", "auto": "car", "mann": "man", "frau": "woman",
    "kind": "child", "brot": "bread",
}  # fmt: skip


def word_pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Sentences of one to five words, translated word by word, which a small model learns."""
    rng = random.Random(seed)
    sentences = [rng.choices(list(ENGLISH_WORDS), k=rng.randint(1, 5)) for _ in range(count)]
    return [(" ".join(words), " ".join(ENGLISH_WORDS[word] for word in words)) for words in sentences]


def write_word_pairs(path: Path, count: int, *, seed: int = 1) -> None:
    """Write such pairs as TSV."""
    lines = [f"{source}\t{target}\n" for source, target in word_pairs(count, seed)]
    path.write_text("".join(lines), encoding="utf-8")
