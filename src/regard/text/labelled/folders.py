"""Labelled texts from a folder: one folder per label, with one text per file.

reviews/neg/0.txt  reviews/neg/1.txt  reviews/pos/0.txt ..      the labels are neg and pos
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from regard.errors import DataError
from regard.list_files import list_folders
from regard.text.labelled.labelled_text import LabelledOrSkipped, labels_of_cell, make_labelled
from regard.text.skip_counts import Skipped
from regard.text.text_file import list_texts, read_text_file


def read_folder(path: Path, *, split: bool) -> Iterator[LabelledOrSkipped]:
    """Read the texts of a folder, by the names of its files in order; hidden files and folders are ignored.

    Files are UTF-8, plain or gzip, and named .txt or without a suffix. Raises DataError for a folder without folders.
    """
    folders = list_folders(path)
    if not folders:
        raise DataError(
            f"{path} has no folders of texts",
            expected="one folder for each label, with one text per file",
            got=", ".join(sorted(one.name for one in path.iterdir())[:5]) or "an empty folder",
            do="arrange the files as LABEL/NAME.txt, or give a table: FILE.csv",
        )
    for folder in folders:
        labels = labels_of_cell(folder.name, split=split)
        for file, reason in list_texts(folder):
            if reason is not None:
                yield Skipped(str(file), reason)
                continue
            text, problem = read_text_file(file)
            made = make_labelled(text, labels, str(file), split=split)
            yield made if problem is None else Skipped(str(file), problem)
