"""Sentence pairs as people have them: text files, tables, JSON lines, translation memories, gettext catalogues."""

from regard.text.pairs.pair import Found, LeftOut, Pair, Tally
from regard.text.pairs.read import FORMATS, Where, read_pairs

__all__ = ["FORMATS", "Found", "LeftOut", "Pair", "Tally", "Where", "read_pairs"]
