"""Texts for ``regard view``: collected, and read by an encoder or a language model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from regard.cli.loaded_model import ModelLoading
from regard.cli.progress import track
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, is_model_folder, open_texts
from regard.errors import DataError, OptionError
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.chinese_words import ChineseWords
    from regard.models.model import Model
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view.fit_page import AnyReading
    from regard.view.read import TextModel
    from regard.view.reading import Reading


MAX_TEXTS = 200
"""Maximum number of texts: the page holds every head of each text, about 250 kB per sentence."""


def read_texts(
    model: str | ModelFolder,
    lines: list[Line],
    *,
    truncate: bool,
    chinese_words: ChineseWords | None = None,
    loading: ModelLoading,
) -> list[Reading]:
    """Read texts with an encoder or a language model, in order."""
    from regard.view.read import read
    from regard.view.word_grouping import group_chinese_words

    loaded = load_text_reader(model, pairs=False, loading=loading)
    readings = []
    with track(lines, "texts") as tracked:
        for line in tracked:
            reading = read(loaded, line.text, truncate=truncate, name=line.name)
            readings.append(group_chinese_words(reading, chinese_words))
    return readings


def serve_texts(readings: Sequence[Reading], summaries: Sequence[AnyReading], model: str, *, opens: bool) -> None:
    """Serve the page of texts, with all weights on demand, until it is closed or the command is interrupted."""
    import typer

    from regard.view.long_reading import LongReading
    from regard.view.serve import PageServer

    server = PageServer(readings, [summary for summary in summaries if isinstance(summary, LongReading)], model=model)
    print(translate_message(f"Page: {server.address}"), flush=True)
    say("The server ends when the page is closed, or with Ctrl-C.")
    if opens:
        typer.launch(server.address)
    with suppress(KeyboardInterrupt):
        server.serve()


def load_text_reader(model: str | ModelFolder, *, pairs: bool, loading: ModelLoading) -> Model | TextModel:
    """Load a model that reads texts, or one that reads ``pairs``: regard's own, or else a model of ``transformers``.

    Raises OptionError for a model of the other kind, RefusedError for one that cannot be loaded like this, and
    MissingPackageError without ``transformers``.
    """
    from regard.models.kinds import ENCODER, TRANSLATOR
    from regard.models.load import find_class, has_class
    from regard.models.model_folder import ModelFolder
    from regard.showing import load_text_model
    from regard.view.read import TextModel

    folder = ModelFolder.open(model, TRANSLATOR if pairs else ENCODER)
    if has_class(folder):
        _check_kind(model, find_class(folder).__name__, reads_pairs=find_class(folder).kind.pairs, pairs=pairs)
    loaded = load_text_model(folder, weights=loading.weights, device=loading.device)
    if isinstance(loaded, TextModel):
        _check_kind(model, loaded.name, reads_pairs=loaded.is_encoder_decoder, pairs=pairs)
    return loaded


def _check_kind(model: str | ModelFolder, got: str, *, reads_pairs: bool, pairs: bool) -> None:
    """Raise OptionError for texts without --source to an encoder-decoder, and for --source to another model."""
    if pairs and not reads_pairs:
        raise OptionError(
            f"{model} is not a translator, so it cannot be used with --source",
            expected="a folder that `regard train translate` wrote, or an encoder-decoder of transformers",
            got=f"a {got}",
            do=f'give the text alone: regard view "..." --model {model}',
        )
    if reads_pairs and not pairs:
        raise OptionError(
            f"{model} is an encoder-decoder, such as a translator, and --source is missing",
            expected="--source, and optionally --target",
            got="a text alone",
            do=f'regard view {model} --source "..."',
        )


def collect_texts(
    arguments: list[str], data: str | None, field: str | None, *, limit: int | None = MAX_TEXTS
) -> list[Line]:
    """Collect the arguments, or the lines that are not blank.

    Raises DataError for an empty argument, an unreadable line, or no text at all; OptionError for more than ``limit``
    texts.
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
        usable = (line for line in lines if line.require_text().strip() or arguments)
        collected = list(islice(usable, None if limit is None else limit + 1))
    for line in collected:
        if not line.text.strip():
            raise DataError(f"{line.name} is empty", expected="a text", got=repr(line.text), do="give a text in quotes")
    if not collected:
        raise DataError(
            "there is no text to view",
            expected="one or more texts",
            got="only blank lines",
            do='try: regard view "I ate an apple."',
        )
    if limit is not None and len(collected) > limit:
        file = "FILE" if data in (None, "-") else data
        some = ", from a file with fewer rows" if field else f": head -n 20 {file} | regard view"
        every = f"regard embed --data {file}" + (f' --field "{field}"' if field else "")
        raise OptionError(
            "there are too many texts to view",
            expected=f"at most {limit}",
            got=f"more than {limit}",
            do=f"view some of them{some}; or what each head does on all of them: --summary; or embed them: {every}",
        )
    return collected


def warn_about_missing_quotes(texts: list[str]) -> None:
    """Hint at missing quotes if all texts are single ASCII words (scripts without spaces are not ASCII)."""
    if len(texts) > 1 and all(text.isascii() and len(text.split()) == 1 for text in texts):
        from regard.escape_text import escape_text

        sentence = escape_text(" ".join(texts))
        say(f'These are {len(texts)} texts of one word. One sentence? Quote it: "{sentence}"')
