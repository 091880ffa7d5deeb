"""Texts for ``regard view``: collected from arguments, files and pipes, and read by an encoder or a language model."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from regard.cli.progress import count_progress
from regard.cli.text_input import check_text_options, is_model_folder, open_texts
from regard.cli.view_pairs import missing_source_error
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view.reading import Reading


MAX_TEXTS = 200
"""Maximum number of texts: the page holds every head of each text, about 250 kB per sentence."""


def read_texts(model: str | ModelFolder, named: list[tuple[str, str]], *, truncate: bool) -> list[Reading]:
    """Read named texts with an encoder or a language model, in order."""
    read = _make_text_reader(model)
    readings = []
    with count_progress(len(named), "texts") as advance:
        for name, text in named:
            readings.append(read(text, truncate=truncate, name=name))
            advance(len(readings))
    return readings


def _make_text_reader(model: str | ModelFolder) -> Callable[..., Reading]:
    """Load a model that reads texts, and return the function that captures its attention."""
    from regard.cli.checkpoint_folder import load_checkpoint
    from regard.models.load import find_class, load
    from regard.models.model_folder import ModelFolder
    from regard.view.read import read

    folder = ModelFolder.open(model)
    checkpoint = load_checkpoint(folder)
    if checkpoint is not None:
        if checkpoint.is_encoder_decoder:
            raise missing_source_error(model)
        from regard.hf.read_text import read_text

        return partial(read_text, checkpoint)
    if find_class(folder).kind.pairs:
        raise missing_source_error(model)
    return partial(read, load(folder))


def collect_texts(arguments: list[str], data: str | None, field: str | None) -> list[tuple[str, str]]:
    """Collect the name and text of each argument, or of each line that is not blank.

    Raises DataError for an empty argument, an unreadable line, or no text at all; OptionError for more than
    ``MAX_TEXTS`` texts.
    """
    check_text_options(arguments, data, field)
    if len(arguments) == 1 and is_model_folder(arguments[0]):
        raise OptionError(
            f"{arguments[0]} is a model's folder, and the text is missing",
            expected="a text, or --source for a translator",
            got="a folder alone",
            do=f'regard view {arguments[0]} --source "...", or regard view "..." --model {arguments[0]}',
        )
    with open_texts(arguments, data, field) as lines:
        named = map(_name_and_text, lines)
        collected = list(islice((one for one in named if arguments or one[1].strip()), MAX_TEXTS + 1))
    for name, text in collected:
        if not text.strip():
            raise DataError(f"{name} is empty", expected="a text", got=repr(text), do="give a text in quotes")
    if not collected:
        raise DataError(
            "there is no text to view",
            expected="one or more texts",
            got="only blank lines",
            do='try: regard view "I ate an apple."',
        )
    if len(collected) > MAX_TEXTS:
        file = "FILE" if data in (None, "-") else data
        some = ", from a file with fewer rows" if field else f": head -n 20 {file} | regard view"
        every = f"regard embed --data {file}" + (f' --field "{field}"' if field else "")
        raise OptionError(
            "there are too many texts to view",
            expected=f"at most {MAX_TEXTS}",
            got=f"more than {MAX_TEXTS}",
            do=f"view some of them{some}; or embed them all: {every}",
        )
    return collected


def hint_at_quotes(texts: list[str]) -> None:
    """Hint at missing quotes if all texts are single ASCII words (scripts without spaces are not ASCII)."""
    if len(texts) > 1 and all(text.isascii() and len(text.split()) == 1 for text in texts):
        from regard.escape_text import escape_text

        sentence = escape_text(" ".join(texts))
        print(f'These are {len(texts)} texts of one word. One sentence? Quote it: "{sentence}"', file=sys.stderr)


def _name_and_text(line: Line) -> tuple[str, str]:
    if line.problem is not None:
        raise line.problem
    return line.name, line.text
