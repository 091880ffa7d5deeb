"""Tables of readings, as rows and as files of CSV or JSON.

heads       statistics of each head: ``head_statistics``
findings    the notable pairs of words of texts: ``findings``
weights     every weight of one head, or the mean of all heads of a layer
"""

from __future__ import annotations

import csv
import html
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, TypeAlias, final, get_args

from regard.arguments import explain_arguments
from regard.atomic_write import write_text_file
from regard.errors import OptionError, RefusedError, check_choice, check_flag, check_kind, short_repr
from regard.language import translate
from regard.view.findings import findings
from regard.view.head_statistics import statistics_of
from regard.view.head_weights import find_attention, find_place, head_weights
from regard.view.output_path import TABLE, check_output_path
from regard.view.reading import PairReading, Reading
from regard.view.word_pairs import word_pairs

TableKind: TypeAlias = Literal["heads", "findings", "weights"]
Row: TypeAlias = Mapping[str, Any]
_ROWS_IN_NOTEBOOK = 30


@final
@explain_arguments
class Table(Sequence[Row]):
    """Rows with the same columns, each a dict: ``save`` writes them, a notebook shows the first ones.

    ``pandas.DataFrame(table)`` makes a data frame.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        self.columns = tuple(dict.fromkeys(name for row in rows for name in row))
        self._rows = [{name: row.get(name) for name in self.columns} for row in rows]

    def __repr__(self) -> str:
        return f"Table({len(self)} rows of {', '.join(self.columns)}; .save('table.csv') writes them)"

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the rows as .csv or .json, and return the path.

        Raises OptionError for another name, OutputExistsError if ``path`` exists and ``overwrite`` is False,
        OutputError if it cannot be written.
        """
        check_kind("path", path, (str, Path), do='"heads.csv"')
        path = Path(path)
        check_flag("overwrite", overwrite)
        check_output_path(path, TABLE, overwrite=overwrite)
        text = self._to_csv() if path.suffix.lower() == ".csv" else self._to_json()
        write_text_file(text, path, what=f"the table {path}")
        return path

    def _to_csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(row.values() for row in self._rows)
        return out.getvalue()

    def _to_json(self) -> str:
        rows = ",\n".join(json.dumps(row, ensure_ascii=False, allow_nan=False) for row in self._rows)
        return f"[\n{rows}\n]\n"

    def _repr_html_(self) -> str:
        cells = [self.columns, *(row.values() for row in self._rows[:_ROWS_IN_NOTEBOOK])]
        lines = [
            "".join(f"<{tag}>{html.escape(_short(cell))}</{tag}>" for cell in row)
            for row, tag in zip(cells, ["th", *["td"] * len(self)], strict=False)
        ]
        more = len(self) - _ROWS_IN_NOTEBOOK
        note = f"<p>{translate('{more} more rows', more=f'{more:,}')}</p>" if more > 0 else ""
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>{note}"


def _short(cell: Any) -> str:
    return f"{cell:.4g}" if isinstance(cell, float) else "" if cell is None else str(cell)


def make_table(
    readings: Sequence[Any],
    kind: TableKind = "heads",
    *,
    text: int = 0,
    layer: int | None = None,
    head: int | str | None = None,
    attention: str | None = None,
    words: bool = False,
) -> Table:
    """Make a table of texts and translations: see ``AttentionView.table``."""
    check_choice("kind of table", kind, get_args(TableKind))
    check_flag("words", words)
    for reading in readings:
        if not isinstance(reading, Reading | PairReading):
            raise RefusedError(
                "tables are made of texts and translations", expected="readings of texts or of translations",
                got=f"a {type(reading).__name__}", do="compute its numbers: reading.layers[0].attention.weights()",
            )  # fmt: skip
    if kind == "weights":
        return Table(list(_weight_rows(readings[text], attention, layer, head, words=words)))
    for name, value in (("layer", layer), ("head", head), ("words", words or None)):
        if value is not None:
            raise OptionError(
                f"`{name}` has no effect on a table of {kind}", expected='`kind="weights"`', got=short_repr(value),
                do=f"leave out `{name}`",
            )  # fmt: skip
    rows = _head_rows if kind == "heads" else _finding_rows
    numbered = [
        {"text": number, **row}
        for number, reading in enumerate(readings)
        for row in rows(find_attention(reading, attention))
    ]
    return Table(numbered)


def _head_rows(shown: Reading) -> Iterator[Row]:
    """Statistics of each head; positions in two texts are not comparable, so there is no distance between them."""
    for head in statistics_of(shown):
        row = asdict(head)
        special, patterns = row.pop("special"), row.pop("patterns")
        if shown.keys is not None:
            row = {name: row[name] for name in ("layer", "head", "entropy")}
        row |= {f"share of {name}": share for name, share in special.items()}
        row |= {"pattern": None if head.pattern is None else head.pattern.name}
        yield row | {f"score of {pattern['name']}": pattern["score"] for pattern in patterns}


def _finding_rows(shown: Reading) -> Iterator[Row]:
    if shown.keys is not None:
        return
    pairs = word_pairs(shown)
    for rank, finding in enumerate(findings(pairs), start=1):
        for look in finding.looks:
            yield {
                "rank": rank,
                "from": pairs.query_words[finding.query_word].label,
                "to": pairs.key_words[finding.key_word].label,
                "layer": look.layer,
                "head": look.head,
                "weight": look.weight,
                "usual": look.usual,
                "first_choice": finding.first_choice,
                "heads": finding.heads,
            }


def _weight_rows(
    reading: Reading | PairReading, attention: str | None, layer: Any, head: Any, *, words: bool
) -> Iterator[Row]:
    shown = find_attention(reading, attention)
    place = find_place(reading, shown, layer=layer, head=head, token=None)
    weights = head_weights(shown, place, words=words)
    for query, (query_token, row) in enumerate(zip(weights.rows, weights.weights, strict=True)):
        for key, (key_token, weight) in enumerate(zip(weights.columns, row, strict=True)):
            yield {
                "layer": place.layer,
                "head": "mean" if place.head is None else place.head,
                "query": query,
                "query_token": query_token,
                "key": key,
                "key_token": key_token,
                "weight": float(weight),
            }
