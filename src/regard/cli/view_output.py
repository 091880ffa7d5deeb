"""Output of ``regard view``: the page, the figure or the table, and the summary in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from regard.cli.progress import count_progress, indeterminate_progress, track
from regard.cli.shared_options import Overwrite
from regard.cli.stderr import say
from regard.cli.view_corpus import print_summary
from regard.cli.view_drawing import DrawingOptions, is_drawing
from regard.cli.view_texts import serve_texts
from regard.errors import OptionError
from regard.fields import option_field
from regard.language import translate_message

if TYPE_CHECKING:
    from rich.console import Console

    from regard.view import CorpusStatistics
    from regard.view.terminal import PrintedReading


@final
@dataclass(frozen=True)
class OutputOptions:
    """The page, the figure or the table to write, if any, and whether it is opened."""

    out: Path | None = option_field(
        None,
        "Write an interactive page to this file, such as attention.html; or a figure (.svg, .pdf, .png), or a table "
        "(.csv, .json).",
        option="--out -o",
        metavar="FILE",
        before=("model",),
    )
    overwrite: Overwrite = False
    open_page: bool = option_field(
        False, "Open the page in your browser. Without --out it is written to attention.html.", option="--open"
    )

    serve: bool = option_field(
        False,
        "Show texts from a server on this computer that computes any weight when you zoom; no file is written. It ends "
        "when the page is closed.",
    )

    @property
    def path(self) -> Path | None:
        """The file of the page, the figure or the table; None for the terminal alone."""
        return Path("attention.html") if self.open_page and self.out is None and not self.serve else self.out

    @property
    def is_page(self) -> bool:
        """Whether the file is a page."""
        return self.path is not None and not is_drawing(self.path)

    def check(self) -> None:
        """Raise what ``check_output_path`` raises, before a model is loaded."""
        from regard.view.output_path import VIEW, check_output_path

        if self.serve and self.out is not None:
            raise OptionError(
                "--serve writes no file", expected="--serve, or -o", got=f"--serve and -o {self.out}",
                do="leave out one of them",
            )  # fmt: skip
        if self.path is not None:
            check_output_path(self.path, VIEW, overwrite=self.overwrite)


def show_readings(
    readings: Sequence[PrintedReading],
    model: str,
    output: OutputOptions,
    drawing: DrawingOptions,
    *,
    example: str = "attention.html",
) -> None:
    """Write the page, figure or table, then print the summary: a broken pipe (``| head``) must not prevent the file.

    Without a file, tell how to write a page, such as ``example``.
    """
    from regard.cli.broken_pipe import PipedConsole
    from regard.view.fit_page import plan_page
    from regard.view.page import save_page
    from regard.view.page_size import has_many_tokens
    from regard.view.reading import Reading
    from regard.view.terminal import print_readings

    written = ""
    # The size of a page does not concern the terminal, which shows a summary of too many tokens alone.
    in_few_words = output.serve or any(map(has_many_tokens, readings))
    plan = plan_page(readings, always_summarize=output.serve)
    shown: Sequence[Any] = readings
    if in_few_words or output.is_page:
        if plan.sentence:
            say(plan.sentence)
        with count_progress(1000 * len(readings), "thousandths of a page") as advance:
            shown = plan.make(advance)
    printed = shown if in_few_words else readings
    _compare_words(printed)
    if output.path is not None and not output.is_page:
        written = drawing.write(readings, output.path, overwrite=output.overwrite)
    elif output.path is not None:
        with indeterminate_progress("writing the page"):
            path = save_page(shown, output.path, model=model, notice=plan.notice)
        written = f"Page: {path} ({path.stat().st_size / 1000:,.0f} kB); open it in any browser."
    console = PipedConsole(highlight=False, markup=False)
    print_readings(printed, console)
    if output.serve:
        serve_texts(
            [reading for reading in readings if isinstance(reading, Reading)], shown, model, opens=output.open_page
        )
        return
    _print_written(written, console, example=example)
    if output.open_page:
        typer.launch(str(output.path))


def show_summary(corpus: CorpusStatistics, output: OutputOptions) -> None:
    """Write the table, then print the named heads, as ``show_readings`` does."""
    from regard.cli.broken_pipe import PipedConsole
    from regard.escape_text import escape_text

    written = ""
    if output.path is not None:
        table = corpus.table()
        table.save(output.path, overwrite=output.overwrite)
        written = f"Table: {output.path} ({len(table):,} rows of heads)"
    console = PipedConsole(highlight=False, markup=False)
    print_summary(corpus, console)
    if written:
        console.print(escape_text(translate_message(written)), soft_wrap=True)
    else:
        console.print(translate_message("For all statistics of every head, add: -o heads.csv"), style="dim")


def _compare_words(readings: Sequence[PrintedReading]) -> None:
    """Find the pairs of words, which page and terminal show; of a long text they take longer than to run the model."""
    from regard.view.reading import PairReading, Reading
    from regard.view.word_pairs import word_pairs

    texts = [reading for reading in readings if isinstance(reading, Reading | PairReading)]
    with track(texts, "texts compared") as tracked:
        for text in tracked:
            for reading in text.attentions.values():
                if reading.keys is None:
                    word_pairs(reading)


def _print_written(written: str, console: Console, *, example: str) -> None:
    """Print what was written, or how to write a page, such as ``example``."""
    from regard.escape_text import escape_text

    if written:
        console.print(escape_text(translate_message(written)), soft_wrap=True)
    else:
        advice = f"For the page with every layer and head, add: -o {example}"
        console.print(translate_message(advice), style="dim")
