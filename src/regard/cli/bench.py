"""``regard bench``: time, peak memory and error of mechanisms, for a shape or for a model and a text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.completion import complete_mechanism
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file
from regard.cli.progress import count_progress
from regard.cli.shared_options import DEFAULT_MODEL, Device, Field, ModelName, Overwrite, drop_none
from regard.cli.text_input import open_texts
from regard.cli.verb import Verb
from regard.errors import OptionError, check_parent_folder
from regard.fields import option_field

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
class _HowOptions:
    """The cases, the device and the time limits; None is the default of ``BenchSettings``."""

    heads: int | None = option_field(None, "Number of heads. Default: 8.", least=1)
    head_dim: int | None = option_field(None, "Size of a head. Default: 64.", least=1)
    batch: int = option_field(1, "Texts per call.", least=1)
    dtype: str = option_field(
        "float32", "Precision: float32, bfloat16, float16 or float64.", choices=DTYPES, metavar="DTYPE"
    )
    causal: bool = option_field(False, "Use a causal mask.")
    backward: bool = option_field(False, "Compute gradients too.")
    device: Device = None
    threads: int | None = option_field(None, "Number of threads. Default: that of torch.", least=1)
    seconds: float = option_field(
        2.0, "Time budget per mechanism and length; a longer call is stopped, though not before a second."
    )


@expand_option_groups()
def bench(
    mechanisms: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism",
            metavar="NAME,NAME",
            help="Mechanisms to measure, with options after colons: nystromformer:landmarks=32. Repeat for more. "
            "Default: all.",
            show_default=False,
            autocompletion=complete_mechanism,
        ),
    ] = None,
    lengths: Annotated[
        list[str] | None,
        typer.Option(
            "--length",
            metavar="N,N",
            help="Numbers of tokens. Default: 256,1024,4096,16384; with --data a quarter, a half and all of the "
            "model's maximum.",
            show_default=False,
        ),
    ] = None,
    *,
    how: _HowOptions,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Text for a model to read, plain or gzip; - is standard input.",
            show_default=False,
        ),
    ] = None,
    field: Field = None,
    model: ModelName = None,
    texts: Annotated[
        int, typer.Option("--texts", min=1, help="With --data: maximum number of windows to turn into vectors.")
    ] = 32,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write a page with plots (.html) or all numbers (.json) to this file.",
            show_default=False,
        ),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Measure time, peak memory and error of attention mechanisms against exact attention.

    Also tells from which length each is faster than exact attention on this machine.
    """
    _check_out(out, overwrite=overwrite)
    settings: dict[str, Any] = {"lengths": _parse_lengths(",".join(lengths))} if lengths else {}
    settings |= drop_none({**vars(how), "causal": how.causal or None})
    chosen = mechanisms or None
    if data is None:
        _check_no_text(field, model)
        _show(_run(chosen, settings), as_json=as_json, out=out)
    else:
        with open_texts([], data, field) as lines:
            found = [_text_of(line) for line in lines]
        _show(
            _run_on_text(found, DEFAULT_MODEL if model is None else model, chosen, texts, settings),
            as_json=as_json,
            out=out,
        )


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
        console.print("For a page with plots, add: -o bench.html", style="dim")
    else:
        console.print(f"Written: {escape_text(str(out))} ({out.stat().st_size / 1000:,.0f} kB)", soft_wrap=True)


def _check_out(out: Path | None, *, overwrite: bool) -> None:
    """Check the output before anything is measured. Raises OptionError for another suffix or a missing folder."""
    if out is None:
        return
    check_output_file(out, overwrite=overwrite)
    if out.suffix.lower() not in SUFFIXES:
        raise OptionError(
            f"the name {out.name!r} does not say what to write",
            expected="a name that ends in .html (a page with plots) or .json (all numbers)",
            got=f"the suffix {out.suffix!r}" if out.suffix else "no suffix",
            do=f"name it {out.with_suffix('.html').name}",
        )
    check_parent_folder(out)


def _check_no_text(field: str | None, model: str | None) -> None:
    """Raise OptionError for options that need a text."""
    for name, value in (("--model", model), ("--field", field)):
        if value is not None:
            raise OptionError(
                f"{name} needs a text", expected="--data FILE", got="no --data", do="for example --data book.txt"
            )


def _parse_lengths(text: str) -> list[int]:
    """Parse numbers of tokens, separated by commas. Raises OptionError for anything else."""
    parts = [part.strip().replace("_", "") for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise OptionError(
            "wrong --length", expected="numbers of 1 or more, separated by commas", got=text, do="for example 1024,4096"
        )
    return [int(part) for part in parts]


def _text_of(line: Any) -> str:
    """Return the text of a line. Raises its DataError if it has a problem."""
    if line.problem is not None:
        raise line.problem
    text: str = line.text
    return text
