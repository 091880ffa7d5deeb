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
START, END = "<!-- table of types -->", "<!-- end of table -->"
HEAD = ("| type | kind | leaks | packed texts mixed by |", "| --- | --- | --- | --- |")
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


def read_rows() -> dict[str, str]:
    """The rows of the page by the names of types."""
    table = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def write_rows(rows: dict[str, str]) -> None:
    """Write the rows into the page, sorted by type."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    after = rest.partition(END)[2]
    table = "\n".join([*HEAD, *(rows[name] for name in sorted(rows))])
    PAGE.write_text(f"{before}{START}\n{table}\n{END}{after}", encoding="utf-8")


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
