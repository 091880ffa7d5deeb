"""``regard list``: all attention mechanisms, and the implementations available on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from regard.cli.verb import Verb
from regard.language import translate_message

Row = Mapping[str, Any]

EXAMPLES = """
[bold]Examples[/bold]

  regard list

  regard list --json > mechanisms.json
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("list", cls=Verb, epilog=EXAMPLES)(list_mechanisms)


def list_mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """List the attention mechanisms (equation, paper, cost, masks) and the implementations on this machine."""
    implementations = _implementation_rows()
    if as_json:
        import json

        rows = {"mechanisms": _mechanism_rows(), "implementations": implementations}
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    _print_mechanisms()
    shown = [
        {
            "impl": row["impl"],
            "available": translate_message("yes" if row["available"] else "no"),
            "details": translate_message(row["details"]),
        }
        for row in implementations
    ]
    of_implementations = "exact attention on this machine; use: regard.attention(..., impl=...)"
    _print_table(shown, ("impl", "available", "details"), of_implementations)


def _mechanism_rows() -> list[Row]:
    """Build one row per mechanism of the catalogue."""
    from regard.mechanism_catalogue import catalogue

    return [
        {
            "name": entry.name,
            "equation": entry.equation,
            "paper": entry.paper,
            "cost": entry.cost,
            "state": entry.state,
            "masks": entry.masks,
            "exact": entry.exact,
            "bias": entry.bias,
            "options": list(entry.options),
        }
        for entry in catalogue()
    ]


def _implementation_rows() -> list[Row]:
    """Build one row per implementation; ``details`` says what it computes with, or why it is unavailable."""
    from regard.kernels.select import BACKENDS

    rows: list[Row] = []
    for impl in BACKENDS.values():
        reason = impl.unavailable_reason()
        details = impl.details() if reason is None else reason
        rows.append({"impl": impl.name, "available": reason is None, "details": details})
    return rows


def _print_mechanisms() -> None:
    """Print each mechanism in three lines, since a row of a table would be wider than most terminals."""
    from rich import box
    from rich.table import Table

    from regard.cli.broken_pipe import PipedConsole
    from regard.mechanism_catalogue import catalogue

    caption = (
        "n queries and keys, head_dim d; state of decoding: the keys and values of all tokens, or of constant size; "
        "use: regard.mechanism(name, ...)"
    )
    table = Table(box=box.SIMPLE_HEAD, caption=translate_message(caption), show_lines=False, pad_edge=False)
    table.add_column(translate_message("name"), no_wrap=True)
    table.add_column(translate_message("equation, paper, time and masks"), overflow="fold")
    for entry in catalogue():
        costs = translate_message(f"{entry.cost}; state: {entry.state}; masks: {entry.masks}")
        table.add_row(entry.name, f"{translate_message(entry.equation)}\n{entry.paper}\n{costs}")
    PipedConsole(markup=False, highlight=False).print(table)


def _print_table(rows: Sequence[Row], columns: Sequence[str], caption: str) -> None:
    from rich import box
    from rich.table import Table

    from regard.cli.broken_pipe import PipedConsole

    table = Table(box=box.SIMPLE_HEAD, caption=translate_message(caption))
    for column in columns:
        table.add_column(translate_message(column), no_wrap=column in ("name", "impl"), overflow="fold")
    for row in rows:
        table.add_row(*(str(row[column]) for column in columns))
    PipedConsole(markup=False, highlight=False).print(table)
