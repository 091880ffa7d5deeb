"""Translators small enough to be made in a test: random weights, and subwords that were really learnt."""

import torch

from regard.models import Recurrent, RecurrentConfig, Transformer, TransformerConfig
from regard.text.subwords import Subwords
from regard.translation import Translator

GERMAN = ["Ein kleiner Hund läuft durch den Schnee.", "Zwei Hunde laufen.", "Der Hund ist klein."] * 3
ENGLISH = ["A small dog runs through the snow.", "Two dogs run.", "The dog is small."] * 3
JOINT = Subwords.train(GERMAN + ENGLISH, size=360)
SOURCE, TARGET = "Ein kleiner Hund läuft.", "A small dog runs."
WIDTH, HEADS, LAYERS = 20, 5, 3


def transformer(*, length: int = 1024, **options) -> Translator:
    """A Transformer whose weights are all random, those of norms and biases too."""
    numbers = {"width": WIDTH, "layers": LAYERS, "decoder_layers": 2, "heads": HEADS, "inner": 13, "dropout": 0.0}
    torch.manual_seed(5)
    model = Transformer(
        TransformerConfig(vocabulary=JOINT.vocabulary, max_length=length, **{**numbers, **options})
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.tie()
    model.subwords = (JOINT, JOINT)
    return Translator(model)


def recurrent(attention: str, **options) -> Translator:
    """A recurrent model with random weights."""
    torch.manual_seed(7)
    numbers = {"width": 10, "hidden": 14, "attention": attention, "window": 2}
    model = Recurrent(RecurrentConfig(vocabulary=JOINT.vocabulary, **{**numbers, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.subwords = (JOINT, JOINT)
    return Translator(model)
