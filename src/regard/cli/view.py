"""``regard view``: what a model attends to in your text, in the terminal and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from regard.errors import DataError

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
        Path | None, typer.Option("--data", help="A file of texts, one a line, UTF-8.", show_default=False)
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
    from rich.console import Console

    from regard.view.page import refuse_output, write_page
    from regard.view.terminal import print_reading, print_shared

    path = Path("attention.html") if open_page and out is None else out
    if path is not None:
        refuse_output(path, overwrite=overwrite)
    lines = _texts(texts or [], data)

    from regard.models import load
    from regard.view.read import read

    loaded = load(model)
    readings = [
        read(loaded, line, truncate=truncate, name="the text" if len(lines) == 1 else f"text {number}")
        for number, line in enumerate(lines, start=1)
    ]
    console = Console(highlight=False, markup=False)
    for number, reading in enumerate(readings, start=1):
        print_reading(reading, console, number=number if len(readings) > 1 else None)
        console.print()
    if len(readings) > 1:
        print_shared(readings, console)
    if path is None:
        console.print("For the page with every layer and head, add: -o attention.html", style="dim")
        return
    written = write_page(readings, path, model=model, overwrite=overwrite)
    console.print(f"Page: {written} ({written.stat().st_size / 1000:,.0f} kB); open it in any browser.", soft_wrap=True)
    if open_page:
        typer.launch(str(written))


def _texts(arguments: list[str], data: Path | None) -> list[str]:
    """The texts of the arguments, then those of the file. Raises DataError where one is empty or there is none."""
    for number, text in enumerate(arguments, start=1):
        if not text.strip():
            raise DataError(
                f"text {number} is empty", expected="some words", got=repr(text), do="give a text in quotes"
            )
    texts = arguments + (_lines(data) if data is not None else [])
    if not texts:
        raise DataError(
            "there is no text to view",
            expected="one or more texts, or a file of texts",
            got="nothing",
            do='try: regard view "I ate an apple."',
        )
    return texts


def _lines(data: Path) -> list[str]:
    """The lines of a UTF-8 file; blank ones are passed over."""
    try:
        raw = data.read_bytes()
    except OSError as error:
        raise DataError(
            "the file of texts cannot be read",
            expected="a text file, one text a line",
            got=f"{data}: {error.strerror}",
            do="check the path",
        ) from error
    lines = []
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        try:
            lines.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"line {number} of {data} is not UTF-8",
                expected="UTF-8 text",
                got=f"byte 0x{line[error.start]:02x} at place {error.start}",
                do="save the file as UTF-8",
            ) from error
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise DataError("the file of texts is empty", expected="one text a line", got=str(data), do="add a line")
    return texts
