"""``regard bench``: time, peak memory and error of mechanisms, for a shape or for a model and a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import typer

from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file
from regard.cli.progress import count_progress
from regard.cli.shared_options import DEFAULT_MODEL, Device, Field, ModelName, Overwrite, drop_none
from regard.cli.text_input import open_texts
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import OptionError, check_parent_folder
from regard.fields import option_field
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.bench import BenchReport, TextReport

DTYPES = ("float32", "bfloat16", "float16", "float64")
SUFFIXES = (".html", ".json")

NOTES = """
[bold]Times[/bold] are medians of calls in turns. [bold]Peak memory[/bold] is what one call adds to a new process at \
its highest point, or to a GPU's memory. [bold]Errors[/bold] compare the exact weights of sampled queries, so they \
work at 100,000 tokens. A mechanism that refuses a case is listed with the reason.

[bold]Without --data[/bold], tokens are random numbers. [bold]With --data[/bold], errors are those of a model's own \
queries, keys and values on the text, and the model computes vectors with each mechanism in place of its own.

[bold]Examples[/bold]

  regard bench --length 1024,4096,16384

  regard bench --mechanism nystromformer:landmarks=32,linear --causal -o linear.html

  regard bench --data book.txt --model minilm -o book.html

  regard bench --data book.txt --json > book.json
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("bench", cls=Verb, epilog=NOTES)(bench)


@final
@dataclass(frozen=True)
class _Cases:
    """The mechanisms and shapes to measure, and how; None is the default of ``BenchSettings``."""

    mechanisms: tuple[str, ...] = option_field(
        (),
        "Mechanisms to measure, with options after colons: nystromformer:landmarks=32. Repeat for more. Default: all.",
        option="--mechanism",
        metavar="NAME,NAME",
        completes="mechanisms",
    )
    lengths: tuple[str, ...] = option_field(
        (),
        "Numbers of tokens. Default: 256,1024,4096,16384; with --data a quarter, a half and all of the model's "
        "maximum.",
        option="--length",
        metavar="N,N",
    )
    heads: int | None = option_field(None, "Number of heads. Default: 8.", minimum=1)
    head_dim: int | None = option_field(None, "Size of a head. Default: 64.", minimum=1)
    batch: int = option_field(1, "Texts per call.", minimum=1)
    dtype: str = option_field(
        "float32", "Precision: float32, bfloat16, float16 or float64.", choices=DTYPES, metavar="DTYPE"
    )
    causal: bool = option_field(False, "Use a causal mask.")
    backward: bool = option_field(False, "Compute gradients too.")
    device: Device = AUTO
    threads: int | None = option_field(None, "Number of threads. Default: that of torch.", minimum=1)
    seconds: float = option_field(
        2.0, "Time budget per mechanism and length; a longer call is stopped, though not before a second."
    )

    def settings(self) -> dict[str, Any]:
        """The options of ``BenchSettings`` that were given. Raises OptionError for wrong lengths."""
        lengths = _parse_lengths(",".join(self.lengths)) if self.lengths else None
        given = drop_none({**vars(self), "lengths": lengths, "causal": self.causal or None})
        return {name: value for name, value in given.items() if name != "mechanisms"}


@final
@dataclass(frozen=True)
class _TextOptions:
    """The text that a model reads, if any."""

    data: str | None = option_field(
        None, "Text for a model to read, plain or gzip; - is standard input.", metavar="FILE"
    )
    field: Field = None
    model: ModelName = None
    texts: int = option_field(32, "With --data: maximum number of windows to turn into vectors.", minimum=1)

    def read(self) -> list[str] | None:
        """The lines of the text; None without ``--data``. Raises OptionError for options that need a text."""
        if self.data is not None:
            with open_texts([], self.data, self.field) as lines:
                return [line.require_text() for line in lines]
        for name, value in (("--model", self.model), ("--field", self.field)):
            if value is not None:
                raise OptionError(
                    f"{name} needs a text", expected="--data FILE", got="no --data", do="for example --data book.txt"
                )
        return None


@final
@dataclass(frozen=True)
class _Output:
    """The form of the report, and the file to write."""

    as_json: bool = option_field(False, "Print JSON, for programs.", option="--json")
    out: Path | None = option_field(
        None,
        "Write a page with plots (.html) or all numbers (.json) to this file.",
        option="--out -o",
        metavar="FILE",
    )
    overwrite: Overwrite = False

    def check(self) -> None:
        """Check the file before anything is measured. Raises OptionError for another suffix or a missing folder."""
        if self.out is None:
            return
        check_output_file(self.out, overwrite=self.overwrite)
        if self.out.suffix.lower() not in SUFFIXES:
            raise OptionError(
                f"the name {self.out.name!r} does not say what to write",
                expected="a name that ends in .html (a page with plots) or .json (all numbers)",
                got=f"the suffix {self.out.suffix!r}" if self.out.suffix else "no suffix",
                do=f"name it {self.out.with_suffix('.html').name}",
            )
        check_parent_folder(self.out)


@expand_option_groups()
def bench(cases: _Cases, text: _TextOptions, output: _Output) -> None:
    """Measure time, peak memory and error of attention mechanisms against exact attention.

    Also tells from which length each is faster than exact attention on this machine.
    """
    output.check()
    settings, mechanisms = cases.settings(), list(cases.mechanisms) or None
    lines = text.read()
    if lines is None:
        _show(_run(mechanisms, settings), as_json=output.as_json, out=output.out)
    else:
        report = _run_on_text(
            lines, DEFAULT_MODEL if text.model is None else text.model, mechanisms, text.texts, settings
        )
        _show(report, as_json=output.as_json, out=output.out)


def _run(mechanisms: list[str] | None, settings: dict[str, Any]) -> BenchReport:
    from regard.bench import BenchSettings, run
    from regard.bench.choose_mechanisms import choose_mechanisms

    total = len(choose_mechanisms(mechanisms)) * len(BenchSettings(**settings).lengths)
    with count_progress(total, f"of {total:,} cases") as advance:
        return run(mechanisms, advance=advance, **settings)


def _run_on_text(
    lines: list[str], model: str, mechanisms: list[str] | None, texts: int, settings: dict[str, Any]
) -> TextReport:
    from regard.bench import run_on_text
    from regard.bench.choose_mechanisms import choose_mechanisms
    from regard.bench.run_on_text import default_lengths

    lengths = settings.get("lengths") or default_lengths(None)
    total = len(choose_mechanisms(mechanisms)) * (len(set(lengths)) + 1)
    with count_progress(total, f"of {total:,} cases") as advance:
        return run_on_text(lines, model, mechanisms, texts=texts, advance=advance, **settings)


def _show(report: BenchReport | TextReport, *, as_json: bool, out: Path | None) -> None:
    """Write the file, then print: a broken pipe (``| head``) must not prevent the file."""
    from regard.atomic_write import write_text_file
    from regard.bench import TextReport
    from regard.bench.page import render_report, render_text_report
    from regard.bench.tables import describe_settings, report_tables
    from regard.bench.terminal import print_tables
    from regard.bench.text_tables import describe_text, text_report_tables
    from regard.cli.broken_pipe import PipedConsole
    from regard.escape_text import escape_text

    text = json.dumps(report.to_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if out is not None:
        is_page = out.suffix.lower() == ".html"
        page = render_text_report(report) if isinstance(report, TextReport) else render_report(report)
        write_text_file(page if is_page else text, out, what=f"the page {out}" if is_page else str(out))
    if as_json:
        print(text, end="")
        return
    console = PipedConsole(highlight=False, markup=False)
    if isinstance(report, TextReport):
        heading = f"{describe_text(report)}\n{describe_settings(report.shapes)}"
        print_tables(heading, text_report_tables(report), console)
    else:
        print_tables(describe_settings(report), report_tables(report), console)
    if out is None:
        console.print(translate_message("For a page with plots, add: -o bench.html"), style="dim")
    else:
        written = f"Written: {out} ({out.stat().st_size / 1000:,.0f} kB)"
        console.print(escape_text(translate_message(written)), soft_wrap=True)


def _parse_lengths(text: str) -> list[int]:
    """Parse numbers of tokens, separated by commas. Raises OptionError for anything else."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise OptionError(
            "wrong --length", expected="numbers of 1 or more, separated by commas", got=text, do="for example 1024,4096"
        )
    return [int(part) for part in parts]
