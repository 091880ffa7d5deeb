"""Input of a verb whose model decides what it reads: texts, or paths of pictures, sounds or other files.

Paths come from arguments, a file or standard input; a folder is all files in it. The verb answers with a line for each
input, in order, as soon as a chunk is read. Options of another medium are refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final

import typer

from regard.cli.completion import choice_completer
from regard.cli.output_file import open_output_file
from regard.cli.progress import count_progress, line_progress
from regard.cli.stderr import say
from regard.cli.text_input import open_lines, open_texts
from regard.errors import DataError, OptionError, check_choice
from regard.list_files import list_files

if TYPE_CHECKING:
    from regard.media import Medium
    from regard.text.line import Line
    from regard.text.line_reader import LineReader


KINDS = ("texts", "pictures", "sounds")

Kind = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="What the data is: texts, pictures or sounds. Default: recognised by the names of the files.",
        show_default=False,
        autocompletion=choice_completer(KINDS),
    ),
]

Entry = TypeVar("Entry")


@final
@dataclass(frozen=True)
class MediaInput:
    """An input: the text, or the path of the file; and the model input made of it, or the problem with it.

    A blank text has neither.
    """

    name: str
    content: Any
    problem: DataError | None = None


def are_picture_paths(paths: list[str], data: str | None) -> bool:
    """Whether the input of a model that reads texts and pictures is pictures: files or folders of them that exist."""
    from regard.vision.picture_file import is_picture_name

    if not paths:
        return data is not None and Path(data).is_dir() and any(map(is_picture_name, list_files(Path(data))))
    return all(os.path.isdir(path) or (os.path.isfile(path) and is_picture_name(Path(path))) for path in paths)  # noqa: PTH112, PTH113 (return False, without an error, for an invalid path)


def expand_folders(paths: list[str], medium: Medium) -> list[str]:
    """Replace folders by the files of this kind in them, by their names in order. Raises DataError if there is none."""
    expanded: list[str] = []
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 (returns False, without an error, for an invalid path)
            expanded.append(path)
            continue
        found = [str(file) for file in list_files(Path(path)) if medium.is_name(file)]
        if not found:
            raise DataError(
                f"{path} has no {medium.plural}",
                expected=f"{medium.plural}, such as {medium.example}",
                got="none",
                do="check the folder",
            )
        expanded += found
    return expanded


@contextmanager
def open_media(
    paths: list[str], data: str | None, field: str | None, medium: Medium
) -> Iterator[LineReader | Sequence[Line]]:
    """Open the lines of texts, or of paths of files. ``data`` may be a folder. Raises as ``open_lines``."""
    from regard.media import TEXTS

    if medium is TEXTS:
        with open_texts(paths, data, field, reads_folder=True) as lines:
            yield lines
        return
    if not paths and data is not None and Path(data).is_dir():
        paths, data = [data], None
    with open_lines(expand_folders(paths, medium), data, field) as lines:
        yield lines


def read_media(
    lines: LineReader | Sequence[Line], read: Callable[[Any, str], Any], medium: Medium, out: Path | None
) -> Iterator[list[MediaInput]]:
    """Read texts, or files in threads, chunk by chunk, as lines arrive, with a progress bar.

    ``read`` makes the model input of a text or a path, which messages call by a name. ``out`` is passed to
    ``line_progress``.
    """
    from regard.media import TEXTS
    from regard.text.line_reader import chunk_lines

    def read_line(line: Line) -> MediaInput:
        return _read_text(line, read) if medium is TEXTS else _read_file(line, read, medium)

    done = 0
    with ThreadPoolExecutor(thread_name_prefix="decode") as pool, line_progress(lines, out) as advance:
        for some in chunk_lines(lines, medium.chunk):
            yield list(map(read_line, some) if medium is TEXTS else pool.map(read_line, some))
            done += len(some)
            advance(done)


def read_entries(
    entries: Sequence[Entry], read: Callable[[Entry], Any], medium: Medium, *, skip_bad: bool
) -> Iterator[tuple[list[Entry], list[Any]]]:
    """Read the entries of data chunk by chunk, in threads, with a progress bar.

    Yields the usable entries of a chunk, and what ``read`` makes of them. Raises DataError with the names of the others
    at the end, unless ``skip_bad``, which reports them.
    """
    from regard.tasks.labelled_data import report_bad_files

    def read_or_problem(entry: Entry) -> Any:
        try:
            return read(entry)
        except DataError as error:
            return error

    problems: list[DataError] = []
    with (
        ThreadPoolExecutor(thread_name_prefix="decode") as pool,
        count_progress(len(entries), medium.plural) as advance,
    ):
        for begin in range(0, len(entries), medium.chunk):
            some = entries[begin : begin + medium.chunk]
            inputs = list(pool.map(read_or_problem, some))
            problems += [found for found in inputs if isinstance(found, DataError)]
            good = [number for number, found in enumerate(inputs) if not isinstance(found, DataError)]
            yield [some[number] for number in good], [inputs[number] for number in good]
            advance(begin + len(some))
    report_bad_files(problems, len(entries), medium, skip_bad=skip_bad)


def _read_text(line: Line, read: Callable[[str, str], Any]) -> MediaInput:
    try:
        text = line.require_text()
        return MediaInput(text, read(text, line.name))
    except DataError as error:
        return MediaInput("", None, error)


def _read_file(line: Line, read: Callable[[Path, str], Any], medium: Medium) -> MediaInput:
    from regard.media import read_file_of_line

    path, content = read_file_of_line(line, read, medium)
    return MediaInput(path, None, content) if isinstance(content, DataError) else MediaInput(path, content)


def write_answers(
    chunks: Iterable[list[MediaInput]],
    answer: Callable[[list[MediaInput]], list[str]],
    out: Path | None,
    medium: Medium,
    *,
    lacking: str,
    skip_bad: bool,
) -> None:
    """Write the lines that ``answer`` returns for the inputs of each chunk, and report how many were unusable.

    ``lacking`` is what an unusable one is without, such as "a label". Raises DataError for the first of them, after the
    lines of the inputs before it, unless ``skip_bad``.
    """
    broken = 0
    with open_output_file(out) as file:
        for some in chunks:
            good, problem = _select_usable(some, lacking=lacking, skip_bad=skip_bad)
            for line in answer(good):
                file.write(line)
            file.flush()  # a program at the other end of the pipe may wait for these
            if problem is not None:
                raise problem
            broken += sum(media_input.problem is not None for media_input in some)
    if broken:
        say(f"{medium.count(broken)} without {lacking}")
    if out is not None:
        say(f"{out}: written")


def _select_usable(
    some: list[MediaInput], *, lacking: str, skip_bad: bool
) -> tuple[list[MediaInput], DataError | None]:
    """The files up to the first broken one, and its error; with ``skip_bad`` all, broken ones reported.

    ``lacking`` is what a broken file is without, such as "a label".
    """
    for number, media_input in enumerate(some):
        if media_input.problem is not None:
            if not skip_bad:
                return some[:number], media_input.problem
            say(f"without {lacking}: {media_input.problem.what}")
    return some, None


def find_kind(kind: str | None, data: Sequence[Path]) -> str:
    """The kind of the data: as ``--kind`` says, or by the files. Raises OptionError for another kind."""
    if kind is not None:
        check_choice("kind of data", kind, KINDS)
        return kind
    from regard.audio.sound_file import SOUNDS
    from regard.media import describe_source
    from regard.vision.picture_file import PICTURES

    media = [medium for medium in (SOUNDS, PICTURES) if data and describe_source(data[0], medium) is not None]
    return media[0].plural if media else "texts"


def refuse_options(names: Sequence[str], what: str, other: str, *, kind: str | None = None) -> None:
    """Raise OptionError for options that have no effect on ``what``, such as "pictures", but on ``other``.

    ``kind`` is the kind of the data if the options were meant.
    """
    if names:
        raise OptionError(
            f"options of {other} have no effect on {what}",
            expected=f"options of {what}",
            got=", ".join(names),
            do=f"leave {', '.join(names)} out" + (f", or say what the data is: --kind {kind}" if kind else ""),
        )
