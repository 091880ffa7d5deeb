"""The table of docs/audit.md: what an audit finds in each text type of the installed ``transformers``.

PYTHONPATH=tests:tests/support:. python -m unit.auditing.type_table            audits all types, a small model of each
PYTHONPATH=tests:tests/support:. python -m unit.auditing.type_table llama bert   audits these, and keeps the other rows
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import regard
from regard.auditing import AuditReport
from tiny_transformers import build_tiny, find_text_types

PAGE = Path(__file__).parents[3] / "docs" / "audit.md"
HEAD = "| type | kind | leaks | packed texts mixed by |\n| --- | --- | --- | --- |"
KINDS = {"decoder of token ids": "decoder", "encoder of token ids": "encoder"}


def make_row(name: str, kind: str, leaks: Iterable[str]) -> str:
    """A row: the properties that leak, and the conventions for packed texts that mix them."""
    packed, others = [], []
    for leak in leaks:
        if leak.startswith("packed by "):
            packed.append(leak.removeprefix("packed by "))
        else:
            others.append(leak)
    kind = KINDS.get(kind, "encoder-decoder")
    return f"| `{name}` | {kind} | {', '.join(others) or 'none'} | {', '.join(packed) or 'none'} |"


def row_of(name: str, report: AuditReport) -> str:
    """The row of a report. Encoders and encoder-decoders are not asked about packed texts."""
    row = make_row(name, report.kind, [result.name for result in report.leaks])
    is_packed = any(
        result.name.startswith("packed") and result.verdict != "cannot be asked" for result in report.results
    )
    return row if is_packed else row.removesuffix("none |") + "- |"


def _cut_page(table: str) -> tuple[str, str, str]:
    """The page before the rows of a table, the rows, and the page behind them."""
    before, start, rest = PAGE.read_text(encoding="utf-8").partition(f"<!-- table of {table} -->")
    rows, end, behind = rest.partition("<!-- end of table -->")
    return before + start, rows, end + behind


def read_rows(table: str = "types") -> dict[str, str]:
    """The rows of a table of the page by the names of types."""
    return {line.split("`")[1]: line for line in _cut_page(table)[1].splitlines() if line.startswith("| `")}


def write_rows(rows: dict[str, str], table: str = "types", head: str = HEAD) -> None:
    """Write the rows into the page, sorted by type."""
    before, _, behind = _cut_page(table)
    body = "\n".join([head, *(rows[name] for name in sorted(rows))])
    PAGE.write_text(f"{before}\n{body}\n{behind}", encoding="utf-8")


def main(names: list[str]) -> None:
    types = find_text_types()
    for name in names or types:
        try:
            report = regard.audit(build_tiny(name))
        # A type whose small config cannot be built has no row.
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        print(name, [result.name for result in report.leaks])
        write_rows({**read_rows(), name: row_of(name, report)})


if __name__ == "__main__":
    main(sys.argv[1:])
