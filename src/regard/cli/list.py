"""``regard list``: every mechanism there is."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Adds the verb to the command."""
    app.command("list")(list_mechanisms)


def list_mechanisms(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """List the attention mechanisms: equation, paper, cost in time, and the masks each has a form for."""
    from regard.catalogue import catalogue

    rows = [
        {
            "name": entry.name,
            "equation": entry.equation,
            "paper": entry.paper,
            "cost": entry.cost,
            "masks": entry.masks,
            "exact": entry.exact,
            "bias": entry.bias,
            "options": list(entry.options),
        }
        for entry in catalogue()
    ]
    if as_json:
        import json

        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print_table(rows)


def _print_table(rows: list[dict[str, object]]) -> None:
    from rich import box
    from rich.table import Table

    from regard.cli.pipe import PipedConsole

    table = Table(box=box.SIMPLE_HEAD, caption="n queries and keys, head_dim d; use: regard.mechanism(name, ...)")
    for column in ("name", "equation", "paper", "cost", "masks"):
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[column]) for column in ("name", "equation", "paper", "cost", "masks")))
    PipedConsole(markup=False, highlight=False).print(table)
