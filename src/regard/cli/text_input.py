"""Text input of a verb: arguments, ``--data FILE`` or standard input, by the same rules for every verb."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from regard.cli.stderr import say
from regard.errors import DataError, OptionError
from regard.language import abbreviate_names, count_noun

if TYPE_CHECKING:
    from regard.text.line import Line
    from regard.text.line_reader import LineReader


def check_text_options(texts: list[str], data: str | None, field: str | None) -> None:
    """Raise OptionError for contradictory options, or if there is no text to read."""
    if texts and data is not None:
        raise OptionError(
            "texts are given as arguments and as a file", expected="one of them", got="both", do="leave out one"
        )
    if texts and field is not None:
        raise OptionError(
            "--field only applies to JSON lines and tables",
            expected="--data FILE",
            got="texts as arguments",
            do="leave out --field",
        )
    if not texts and data is None and is_stdin_terminal():
        raise OptionError(
            "there is no text",
            expected="texts, --data FILE, or a pipe to standard input",
            got="nothing",
            do='give a text in quotes, such as "I ate an apple."',
        )


def is_stdin_terminal() -> bool:
    """Whether standard input is a terminal, not a file or a pipe."""
    return sys.stdin is not None and sys.stdin.isatty()


def is_path(text: str) -> bool:
    """Whether there is a file or folder with this path."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):  # not a valid path
        return False


def is_model_folder(text: str) -> bool:
    """Whether a text is the path of a model's folder."""
    try:
        return (Path(text) / "config.json").is_file()
    except (OSError, ValueError):  # not a valid path
        return False


@contextmanager
def open_texts(
    texts: list[str], data: str | None, field: str | None, *, reads_folder: bool = False
) -> Iterator[LineReader | Sequence[Line]]:
    """Open the lines of texts, and report texts that are paths.

    With ``reads_folder`` ``data`` may be a folder of texts. Raises as ``open_lines``, and OptionError for a text that
    is the path of a model.
    """
    if reads_folder and data is not None and Path(data).is_dir():
        yield _open_folder(Path(data), field)
        return
    for text in texts:
        if {".", "/"} & set(text):  # else it is a word, whatever else has this name
            _explain_path(text)
    with open_lines(texts, data, field) as lines:
        yield lines


def _explain_path(text: str) -> None:
    """Report a text that is a path. Raises OptionError for a model's folder."""
    if is_model_folder(text):
        raise OptionError(
            f"{text} is a model's folder, and a text is expected",
            expected='a text, such as "I ate an apple."',
            got=f"{text!r}",
            do=f"choose the model by --model {text}; give such a text by a pipe",
        )
    if is_path(text):
        texts = "the texts in the folder" if Path(text).is_dir() else "the texts of the file"
        say(f"{text!r} is read as a text; {texts}: --data {text}")


def _open_folder(folder: Path, field: str | None) -> Sequence[Line]:
    """Open the texts of a folder, and report what was left out. Raises OptionError for a ``field``."""
    from regard.text.text_file import TextFolder

    if field is not None:
        raise OptionError(
            "--field only applies to JSON lines and tables",
            expected="--data FILE",
            got=f"the folder {folder}, in which each file is a text",
            do="leave out --field, or name one file",
        )
    texts = TextFolder(folder)
    for sentence in texts.skipped:
        say(sentence)
    return texts


@contextmanager
def open_lines(texts: list[str], data: str | None, field: str | None) -> Iterator[LineReader | Sequence[Line]]:
    """Open the lines. Raises what ``check_text_options`` does, and DataError for an unreadable or empty file."""
    from regard.text.line_reader import LineReader, lines_from_arguments

    check_text_options(texts, data, field)
    if texts:
        yield list(lines_from_arguments(texts))
        return
    with closing(LineReader("-" if data is None else data, field=field)) as source:
        note = source.choose_field()
        if note is not None:
            say(note)
        yield source


def read_usable(
    lines: Iterable[Line], read: Callable[[Line], str], *, skipped: str | None = None
) -> tuple[list[str], DataError | None]:
    """Return the texts of lines up to the first unusable one, and its error.

    ``read`` returns the text of a line for the model, or raises DataError. With ``skipped`` an unusable line is an
    empty text, and is reported in these words.
    """
    found, problem = select_usable(lines, read, skipped=skipped)
    return ["" if text is None else text for text in found], problem


def select_usable(
    lines: Iterable[Line], read: Callable[[Line], str], *, skipped: str | None = None
) -> tuple[list[str | None], DataError | None]:
    """Return texts as ``read_usable`` does; the text of an unusable line is None."""
    texts: list[str | None] = []
    for line in lines:
        try:
            line.require_text()
            texts.append(read(line))
        except DataError as problem:
            if skipped is None:
                return texts, problem
            say(f"{skipped}: {problem.what}")
            texts.append(None)
    return texts, None


_MAX_PLACES = 5


@final
@dataclass
class TruncationCounts:
    """Counts truncated texts in constant memory."""

    texts: int = 0
    places: tuple[str, ...] = ()

    def add(self, place: str) -> None:
        """Count a text that was truncated."""
        self.texts += 1
        self.places = (*self.places, place)[:_MAX_PLACES]

    def report(self) -> None:
        """Report the truncated texts to the user; nothing if there are none."""
        if self.texts:
            listed = abbreviate_names(self.places, count=self.texts)
            say(f"truncated at the model's limit: {count_noun(self.texts, 'text')}, {listed}")
