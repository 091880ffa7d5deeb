"""A medium, of which models read texts, pairs, pictures, sounds or another: the words for it, how its files are found,
and what is held out of it.

A new medium is a value in the file that reads it, such as ``PICTURES`` in ``vision.picture_file``, and a model that
makes its inputs (``models.media_encoder``). The commands that classify, embed and view it follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from regard.arguments import explain_arguments
from regard.language import count_noun
from regard.media.labelled_file import LabelledFile


@final
@explain_arguments
@dataclass(frozen=True)
class LabelledFormat:
    """A format of labelled files that only one medium has, beside folders and tables.

    Args:
        words: the format in messages, such as "IDX files, as of MNIST".
        describe: says what a source of this format holds, in words; None for another source.
        read: reads the files of a source.
        hint: what to add to the advice for a source that does not exist.
    """

    words: str
    describe: Callable[[Path], str | None]
    read: Callable[[Path], Iterator[LabelledFile]]
    hint: str = ""


@final
@explain_arguments
@dataclass(frozen=True)
class Medium:
    """A kind of inputs, and of the files that hold them.

    Args:
        singular, plural: what messages call them, such as "picture" and "pictures".
        suffixes: endings of their names, in lower case.
        columns: names by which the column of the path is found in a table, the usual one first.
        example: the name of a file, such as "NAME.jpg".
        models: models that read them, such as "a Conformer".
        accepts: the forms of one in Python, in words, such as "paths or bytes".
        text_names: names by which the column of its text is found in a table, the usual one first.
        by_header: whether a table with columns of path and label is of this medium whatever its paths are.
        formats: formats of labelled files beside folders and tables.
        chunk: how many are read at a time.
        batch: how many a model computes at a time, unless the user says another number.
        copies: singular and plural of that in which examples are copies of each other, if not of the whole.
        held_out: the share of different examples that is held out for validation.
        max_held_out: how many are held out at most, about.
    """

    singular: str
    plural: str
    suffixes: tuple[str, ...]
    columns: tuple[str, ...]
    example: str
    models: str = ""
    accepts: str = "paths"
    text_names: tuple[str, ...] = ("text",)
    by_header: bool = False
    formats: tuple[LabelledFormat, ...] = ()
    chunk: int = 64
    batch: int = 32
    copies: tuple[str, str] | None = None
    held_out: float = 0.1
    max_held_out: int = 2000

    def is_name(self, path: Path) -> bool:
        """Whether the name of a file has a suffix of this medium."""
        return path.suffix.lower() in self.suffixes

    def count(self, number: int) -> str:
        """A number of files in words, such as "1 picture" or "1,200 pictures"."""
        return count_noun(number, self.singular, self.plural)


TEXTS = Medium("text", "texts", (".txt",), ("text",), "NAME.txt", accepts="strings", chunk=1024)
"""Texts, which are lines of a file, or files."""
PAIRS = Medium(
    "pair",
    "pairs",
    (".tsv", ".csv", ".parquet", ".jsonl", ".ndjson", ".json", ".tmx", ".po", ".mo"),
    ("source", "src"),
    "FILE.tsv",
    models="a translator",
    accepts="pairs of strings",
    text_names=("target", "tgt"),
    copies=("source", "sources"),
    held_out=0.05,
    max_held_out=1000,
)
"""Pairs of a source and its translation, which are rows of a file."""
