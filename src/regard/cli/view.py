"""``regard view``: what a model attends to in your text, in the terminal and as a page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.text.lines import Line
    from regard.view.reading import PairReading, Reading

DEFAULT = "minilm"

EXAMPLES = """
[bold]Examples[/bold]

  regard view "The animal didn't cross the street because it was too tired."

  regard view "The animal didn't cross the street because it was too tired." -o tired.html

  regard view "I ate an apple." "Apple released a new phone." -o apple.html --open

  regard view --data sentences.txt -o sentences.html

  regard view de-en/ --source "Ein Hund läuft." -o dog.html

  regard view de-en/ --source "Ein Hund läuft." --target "A dog runs." -o dog-given.html
"""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("view", epilog=EXAMPLES)(view)


def view(
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT", help="One or more texts; quote each. With --source: the model's folder.", show_default=False
        ),
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option("--source", help="A sentence for a translator; again for more.", show_default=False),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="Its translation, one for each --source; without it the model translates.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", help="A file of texts, one a line; - is standard input.", show_default=False),
    ] = None,
    field: Annotated[
        str | None,
        typer.Option("--field", help="The field that holds the text, if lines are JSON.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Write a page to look into, such as attention.html.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="A model's name or folder; else minilm.", show_default=False)
    ] = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts at the model's limit; without it, a long text is refused.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in your browser; writes attention.html without --out.")
    ] = False,
) -> None:
    """Show what every head of a model attends to: a summary here, and with --out a page to explore.

    With --source the model is a translator, and shown is which source words each word of the translation looked at.

    The page is one HTML file that loads nothing from the network, so it can be kept, sent and opened anywhere.
    """
    from regard.view.page import refuse_output

    path = Path("attention.html") if open_page and out is None else out
    if path is not None:
        refuse_output(path, overwrite=overwrite)
    if source or target:
        _refuse_beside_pairs(data, field, truncate=truncate)
        name = _translator_of(texts or [], model)
        readings: Sequence[Reading | PairReading] = _pairs(name, source or [], target or [])
    else:
        name = model or DEFAULT
        named = _texts(texts or [], data, field)
        _hint_at_quotes(texts or [])
        readings = _readings(name, named, truncate=truncate)
    _show(readings, name, path, overwrite=overwrite, open_page=open_page)


def _show(
    readings: Sequence[Reading | PairReading], model: str, path: Path | None, *, overwrite: bool, open_page: bool
) -> None:
    """The page first: the reader of our output may leave before its end (``| head``), and the page is to be there."""
    from regard.cli.pipe import PipedConsole
    from regard.view.page import write_page
    from regard.view.terminal import print_readings
    from regard.view.visible import visible

    written = None if path is None else write_page(readings, path, model=model, overwrite=overwrite)
    console = PipedConsole(highlight=False, markup=False)
    print_readings(readings, console)
    if written is None:
        console.print("For the page with every layer and head, add: -o attention.html", style="dim")
        return
    console.print(
        f"Page: {visible(str(written))} ({written.stat().st_size / 1000:,.0f} kB); open it in any browser.",
        soft_wrap=True,
    )
    if open_page:
        typer.launch(str(written))


def _readings(model: str, named: list[tuple[str, str]], *, truncate: bool) -> list[Reading]:
    from regard.models import SequenceToSequence, load
    from regard.view.read import read

    loaded = load(model)
    if isinstance(loaded, SequenceToSequence):
        raise _translator_without_source(model)
    return [read(loaded, text, truncate=truncate, name=name) for name, text in named]


def _pairs(model: str, sources: list[str], targets: list[str]) -> list[PairReading]:
    from regard.models import SequenceToSequence, load
    from regard.translation import Translator
    from regard.view.read_pair import read_pair

    _check_pairs(sources, targets)
    loaded = load(model)
    if not isinstance(loaded, SequenceToSequence):
        raise OptionError(
            f"{model} reads texts and does not translate, so it has no --source",
            expected="a folder that `regard train translate` wrote",
            got=f"a {type(loaded).__name__}",
            do=f'give the text alone: regard view "..." --model {model}',
        )
    translator = Translator(loaded)
    translator.check_attention()
    given: Sequence[str | None] = targets or [None] * len(sources)
    names = ["the source", "the target"] if len(sources) == 1 else ["source {}", "target {}"]
    return [
        read_pair(translator, source, target, source_name=names[0].format(number), target_name=names[1].format(number))
        for number, (source, target) in enumerate(zip(sources, given, strict=True), start=1)
    ]


def _translator_of(arguments: list[str], model: str | None) -> str:
    """The translator's folder: the argument or ``--model``. Raises OptionError unless exactly one was given."""
    named = [*arguments, *([] if model is None else [model])]
    if len(named) != 1:
        raise OptionError(
            "--source goes with one model",
            expected="the folder of one translator",
            got=", ".join(map(repr, named)) if named else "none",
            do='regard view model/ --source "..."; quote a sentence of several words',
        )
    return named[0]


def _check_pairs(sources: list[str], targets: list[str]) -> None:
    """Raises OptionError unless there are no targets or as many as sources, DataError for a text that is empty."""
    if targets and len(targets) != len(sources):
        raise OptionError(
            "sources and targets do not go together",
            expected="a --target for each --source, or none",
            got=f"{len(sources)} of --source, {len(targets)} of --target",
            do="leave --target out, and the model translates" if sources else 'add --source "..."',
        )
    for option, given in (("source", sources), ("target", targets)):
        for text in given:
            if not text.strip():
                raise DataError(
                    f"--{option} is empty", expected="some words", got=repr(text), do="give a sentence in quotes"
                )


def _refuse_beside_pairs(data: Path | None, field: str | None, *, truncate: bool) -> None:
    given = {"--data": data is not None, "--field": field is not None, "--truncate": truncate}
    named = [option for option, is_given in given.items() if is_given]
    if named:
        raise OptionError(
            f"{named[0]} does not go with --source",
            expected="texts for a BERT, or --source for a translator",
            got="both",
            do="give --source once for each sentence",
        )


def _translator_without_source(model: str) -> OptionError:
    return OptionError(
        f"{model} translates, and there is no --source",
        expected="--source, and --target where the translation is given",
        got="a text alone",
        do=f'regard view {model} --source "..."',
    )


def _texts(arguments: list[str], data: Path | None, field: str | None) -> list[tuple[str, str]]:
    """The name and text of each argument, then of each line of the file that is not blank.

    Raises DataError where an argument is empty, a line cannot be read, or there is no text at all.
    """
    from regard.text import lines

    found = [_checked(line) for line in lines.arguments(arguments)]
    if len(arguments) == 1 and data is None and _is_model_folder(arguments[0]):
        raise OptionError(
            f"{arguments[0]} is a model's folder, and there is no text",
            expected="a text, or --source for a translator",
            got="a folder alone",
            do=f'regard view {arguments[0]} --source "...", or regard view "..." --model {arguments[0]}',
        )
    for name, text in found:
        if not text.strip():
            raise DataError(f"{name} is empty", expected="some words", got=repr(text), do="give a text in quotes")
    if data is not None:
        with closing(lines.Source(data, field=field)) as source:
            source.check_field()
            found += [(name, text) for name, text in map(_checked, source) if text.strip()]
    if not found:
        raise DataError(
            "there is no text to view",
            expected="one or more texts, or a file of texts (standard input is read with --data -)",
            got="nothing" if data is None else f"only blank lines in {data}",
            do='try: regard view "I ate an apple."',
        )
    return found


def _is_model_folder(text: str) -> bool:
    try:
        return (Path(text) / "config.json").is_file()
    except (OSError, ValueError):  # a text that is no path at all
        return False


def _hint_at_quotes(texts: list[str]) -> None:
    """A sentence without quotes reaches us as many words; languages without spaces are not meant."""
    if len(texts) > 1 and all(text.isascii() and len(text.split()) == 1 for text in texts):
        from regard.view.visible import visible

        sentence = visible(" ".join(texts))
        print(f'These are {len(texts)} texts of one word. One sentence? Quote it: "{sentence}"', file=sys.stderr)


def _checked(line: Line) -> tuple[str, str]:
    if line.problem is not None:
        raise line.problem
    return line.name, line.text
