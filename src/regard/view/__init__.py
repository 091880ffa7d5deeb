"""Seeing: a model's attention over a text or a translation, as one self-contained page and in the terminal.

``read`` and ``read_pair`` run a model, ``reading`` holds what was recorded, ``words_from_tokens`` joins word pieces,
``head_statistics`` and ``findings`` say which heads and words stand out, ``shared_words`` follows a word through
several texts, ``page`` and ``terminal`` show it all.
"""

from regard.view.attention_layer import AttentionLayer
from regard.view.from_recording import layers_of
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.page import write_page
from regard.view.read import read
from regard.view.read_pair import read_pair
from regard.view.reading import PairReading, Reading, Tokens
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
