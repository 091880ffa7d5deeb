"""Seeing: a model's attention over a text or a translation, as one self-contained page and in the terminal.

``read`` and ``read_pair`` ask a model, ``reading`` holds what was seen, ``words`` joins word pieces, ``statistics`` and
``findings`` say which heads and words stand out, ``compare`` follows a word through several texts, ``page`` and
``terminal`` show it all.
"""

from regard.view.attention_layer import AttentionLayer
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.page import write_page
from regard.view.read import read
from regard.view.read_pair import read_pair
from regard.view.reading import PairReading, Reading, Tokens
from regard.view.seen_layer import layers_of
from regard.view.terminal import print_reading, print_readings

__all__ = [
    "AttentionLayer",
    "LayerReading",
    "LayerWeights",
    "PairReading",
    "Reading",
    "Tokens",
    "layers_of",
    "print_reading",
    "print_readings",
    "read",
    "read_pair",
    "write_page",
]
