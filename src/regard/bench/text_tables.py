"""The tables of a report on a text: the changed vectors, the errors by layer and head, and the usual ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regard.bench.choose_mechanisms import EXACT
from regard.bench.replacement import neighbour_count
from regard.bench.run_on_text import TextReport
from regard.bench.tables import Table, format_error, format_seconds, report_tables
from regard.bench.text_errors import HeadError
from regard.format_share import format_share
from regard.language import join_sentences, translate, translate_count, translate_message

_NEIGHBOURS = 5
"""The number of the column of the nearest texts, in the table of vectors."""


def text_report_tables(report: TextReport) -> tuple[Table, ...]:
    """Make all tables of the report, the tables about the text first."""
    tables = [_vector_table(report), _layer_table(report), _notes_table(report)]
    return (*(table for table in tables if table.rows), *report_tables(report.shapes))


def describe_text(report: TextReport) -> str:
    """Describe the model and the windows in a line."""
    return translate(
        "{model} on {texts} of {windows} of {tokens} of the text",
        model=report.model,
        texts=f"{report.texts:,}",
        windows=translate_count(report.available, "window"),
        tokens=translate_count(report.length, "token"),
    )


def _vector_table(report: TextReport) -> Table:
    rows: list[tuple[str, ...]] = []
    count = neighbour_count(report.texts)  # of 1, "nearest" says the same, and the column is left out
    for replacement in report.replacements:
        if replacement.time is None:
            continue
        change = replacement.change
        rows.append(
            (
                replacement.mechanism,
                *(
                    ("", "", "", "", "", "")
                    if change is None
                    else (
                        f"{change.cosine_mean:.3f}",
                        f"{change.cosine_min:.3f}",
                        format_error(change.token_error_mean),
                        _share(change.nearest),
                        _share(change.neighbours),
                        "–" if change.rank_correlation is None else f"{change.rank_correlation:.2f}",
                    )
                ),
                format_seconds(replacement.time.median),
            )
        )
    between = report.cosine_between_texts
    explanation = [
        translate(
            "{model} with each mechanism in place of its own, without training, on the same texts. Cosine: between the "
            "vectors of a text by both models, 1 if nothing changed.",
            model=report.model,
        ),
        ""
        if between is None
        else translate("The vectors of different texts here have a mean cosine of {mean}.", mean=f"{between:.3f}"),
        translate(
            "Token error: |h' - h| / |h| of the last hidden states, the mean. Nearest: texts whose nearest other text "
            "is the same."
        ),
        "" if count == 1 else translate("Nearest {count}: how many of the {count} nearest remain.", count=count),
        translate("Rank: Spearman's correlation of the cosines with all other texts."),
    ]
    header: tuple[str, ...] = (
        translate("mechanism"),
        translate("cosine"),
        translate("least"),
        translate("token error"),
        translate("nearest"),
        translate("nearest {count}", count=count),
        translate("rank"),
        translate("time of a text"),
    )
    if count == 1:
        header, rows = (
            (*header[:_NEIGHBOURS], *header[_NEIGHBOURS + 1 :]),
            [(*row[:_NEIGHBOURS], *row[_NEIGHBOURS + 1 :]) for row in rows],
        )
    return Table(translate("Vectors of the model"), header, tuple(rows), join_sentences(explanation))


def _layer_table(report: TextReport) -> Table:
    """Output errors by layer and head, at the length of the vectors."""
    rows = []
    for mechanism in report.shapes.mechanisms:
        heads = [head for head in report.heads if (head.mechanism, head.length) == (mechanism.label, report.length)]
        known = [head for head in heads if not math.isnan(head.measures.output_error)]
        if mechanism.label == EXACT or not known:
            continue
        known.sort(key=lambda head: head.measures.output_error)
        layers = sorted({head.layer for head in heads})
        means = {layer: _mean_error(known, layer) for layer in layers}
        best, worst = min(means, key=means.__getitem__), max(means, key=means.__getitem__)
        rows.append(
            (
                mechanism.label,
                f"{best}: {format_error(means[best])}",
                f"{worst}: {format_error(means[worst])}",
                f"{known[0].layer}.{known[0].head}: {format_error(known[0].measures.output_error)}",
                f"{known[-1].layer}.{known[-1].head}: {format_error(known[-1].measures.output_error)}",
            )
        )
    header = (
        translate("mechanism"),
        translate("best layer"),
        translate("worst layer"),
        translate("best head"),
        translate("worst head"),
    )
    explanation = translate(
        "Output error in each layer (the mean of its heads) and head, on the queries, keys and values of the model "
        "itself, in windows of {tokens}. Layers and heads are counted from 0; 3.1 is head 1 of layer 3. The JSON "
        "output has all of them.",
        tokens=translate_count(report.length, "token"),
    )
    return Table(translate("Output error by layer and head"), header, tuple(rows), explanation)


def _mean_error(heads: Sequence[HeadError], layer: int) -> float:
    errors = [head.measures.output_error for head in heads if head.layer == layer]
    return sum(errors) / len(errors) if errors else math.nan


def _notes_table(report: TextReport) -> Table:
    """Cases that were not trained, and mechanisms that cannot take the model's weights."""
    listed = {(case.mechanism, reason) for case in report.shapes.cases for reason in case.missing.values()}
    rows = []
    for replacement in report.replacements:
        notes = [note.removeprefix(f"{replacement.mechanism.partition(':')[0]}: ") for note in replacement.notes]
        if replacement.missing is not None and (replacement.mechanism, replacement.missing) not in listed:
            notes.append(f"not used: {replacement.missing}")
        if notes:
            rows.append((replacement.mechanism, translate("; ").join(map(translate_message, notes))))
    header = (translate("mechanism"), translate("reason"))
    return Table(translate("What the model has no trained weights for"), header, tuple(rows), "", text_columns=(1,))


def _share(share: float | None) -> str:
    return "–" if share is None else format_share(share)
