"""Views of a model's attention over a text or a translation: one self-contained page, and the terminal.

``read`` and ``read_pair`` run a model, ``reading`` holds the recorded layers, ``words_from_tokens`` joins word pieces,
``head_statistics``, ``head_patterns`` and ``findings`` find the heads and words that stand out, ``without_marks``
leaves out special tokens, ``shared_words`` compares a word in several texts, ``page`` and ``terminal`` show the
results. ``picture_reading`` and the files named like it do the same for pictures, ``episode_reading`` for episodes of
an agent.
"""

from regard.view.attention_layer import AttentionLayer
from regard.view.attention_view import AttentionView
from regard.view.corpus_heads import CorpusHead, CorpusStatistics, corpus_statistics
from regard.view.episode_reading import EpisodeReading
from regard.view.figures.figure import Figure
from regard.view.from_recording import layers_of
from regard.view.head_patterns import HeadPattern
from regard.view.head_statistics import HeadStatistics, statistics_of
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.page import write_page
from regard.view.picture_comparison import PictureComparison, compare_pictures
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.read import read
from regard.view.read_file import read_file
from regard.view.read_pair import read_pair
from regard.view.read_side_by_side import read_side_by_side
from regard.view.reading import Answer, PairReading, Reading, Tokens
from regard.view.reading_comparison import HeadChange, ReadingComparison, WordMove, compare_pairs, compare_readings
from regard.view.side_by_side import SideBySide
from regard.view.tables import Table
from regard.view.terminal import print_reading, print_readings
from regard.view.window_reading import WindowReading
from regard.view.without_marks import mass_of_marks, without_marks
from regard.view.word_grouping import group_chinese_words

__all__ = [
    "Answer",
    "AttentionLayer",
    "AttentionView",
    "CorpusHead",
    "CorpusStatistics",
    "EpisodeReading",
    "Figure",
    "HeadChange",
    "HeadPattern",
    "HeadStatistics",
    "LayerReading",
    "LayerWeights",
    "PairReading",
    "PictureComparison",
    "PictureLayer",
    "PictureReading",
    "Reading",
    "ReadingComparison",
    "SideBySide",
    "Table",
    "Tokens",
    "WindowReading",
    "WordMove",
    "compare_pairs",
    "compare_pictures",
    "compare_readings",
    "corpus_statistics",
    "group_chinese_words",
    "layers_of",
    "mass_of_marks",
    "print_reading",
    "print_readings",
    "read",
    "read_file",
    "read_pair",
    "read_side_by_side",
    "statistics_of",
    "without_marks",
    "write_page",
]
