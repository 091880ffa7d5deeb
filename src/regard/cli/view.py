"""``regard view``: what a model attends to in your text, in the terminal and as a page."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.errors import DataError

if TYPE_CHECKING:
    from regard.text.lines import Line

EXAMPLES = """
[bold]Examples[/bold]

  regard view "The animal didn't cross the street because it was too tired."

  regard view "The animal didn't cross the street because it was too tired." -o attention.html

  regard view "I ate an apple." "Apple released a new phone." -o apple.html --open

  regard view --data sentences.txt -o sentences.html
"""


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("view", epilog=EXAMPLES)(view)


def view(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="One or more texts; quote each.", show_default=False)
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
    model: Annotated[str, typer.Option("--model", help="A model's name or folder.")] = "minilm",
    truncate: Annotated[
        bool, typer.Option("--truncate", help="Cut texts at the model's limit; without it, a long text is refused.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the page if it exists.")] = False,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in your browser; writes attention.html without --out.")
    ] = False,
) -> None:
    """Show what every head of a model attends to: a summary here, and with --out a page to explore.

    The page is one HTML file that loads nothing from the network, so it can be kept, sent and opened anywhere.
    """
    from regard.cli.pipe import PipedConsole
    from regard.view.page import refuse_output, write_page
    from regard.view.terminal import print_readings
    from regard.view.visible import visible

    path = Path("attention.html") if open_page and out is None else out
    if path is not None:
        refuse_output(path, overwrite=overwrite)
    named = _texts(texts or [], data, field)
    _hint_at_quotes(texts or [])

    from regard.models import load
    from regard.view.read import read

    loaded = load(model)
    readings = [read(loaded, text, truncate=truncate, name=name) for name, text in named]
    # The page first: the reader of our output may leave before its end (``| head``), and the page is to be there.
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


def _texts(arguments: list[str], data: Path | None, field: str | None) -> list[tuple[str, str]]:
    """The name and text of each argument, then of each line of the file that is not blank.

    Raises DataError where an argument is empty, a line cannot be read, or there is no text at all.
    """
    from regard.text import lines

    found = [_checked(line) for line in lines.arguments(arguments)]
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
