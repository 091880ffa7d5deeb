"""Sentence pairs as people have them: text files, tables, JSON lines, translation memories, gettext catalogues."""

from regard.columns import PairFormat
from regard.text.pairs.pair import Pair, PairOrSkipped
from regard.text.pairs.read import FORMATS, read_pairs
from regard.text.skip_counts import SkipCounts, Skipped

__all__ = ["FORMATS", "Pair", "PairFormat", "PairOrSkipped", "SkipCounts", "Skipped", "read_pairs"]
