"""Tables of heads, findings and weights, as rows and as files."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from regard.errors import OptionError, OutputExistsError
from regard.view import AttentionView, Reading
from regard.view.findings import findings
from regard.view.from_weights import read_weights
from regard.view.head_statistics import statistics_of
from regard.view.word_pairs import word_pairs

WORDS = ["[CLS]", "cats", "like", "old", "</script>", "dogs", "[SEP]"]


def make_reading() -> Reading:
    weights = np.random.default_rng(3).random((2, 3, 7, 7)) ** 8
    return read_weights(weights / weights.sum(-1, keepdims=True), tokens=WORDS)


def test_heads_of_all_texts() -> None:
    reading = make_reading()
    table = AttentionView([reading, reading]).table()
    assert len(table) == 2 * 6
    expected = statistics_of(reading)
    for number, row in enumerate(table):
        head = expected[number % 6]
        assert (row["text"], row["layer"], row["head"]) == (number // 6, head.layer, head.head)
        assert (row["entropy"], row["previous"]) == (head.entropy, head.previous)
        assert row["share of [CLS]"] == head.special["[CLS]"]
        assert row["pattern"] == (None if head.pattern is None else head.pattern.name)


def test_findings() -> None:
    reading = make_reading()
    pairs = word_pairs(reading)
    rows = AttentionView(reading).table("findings")
    found = [look for finding in findings(pairs) for look in finding.looks]
    assert found
    assert [(row["layer"], row["head"], row["weight"]) for row in rows] == [
        (look.layer, look.head, look.weight) for look in found
    ]


def test_weights_of_a_head_and_of_the_mean() -> None:
    reading = make_reading()
    table = AttentionView(reading).table("weights", layer=1, head=2)
    assert len(table) == 49
    assert [row["weight"] for row in table] == reading.layers[1].weights()[2].reshape(-1).tolist()
    assert (table[8]["query_token"], table[8]["key_token"], table[9]["key"]) == ("cats", "cats", 2)
    mean = AttentionView(reading).table("weights", layer=1)
    assert mean[0]["head"] == "mean"
    np.testing.assert_allclose(mean[3]["weight"], reading.layers[1].weights()[:, 0, 3].mean())


def test_files_have_all_digits(tmp_path: Path) -> None:
    table = AttentionView(make_reading()).table("weights", layer=0, head=1)
    text = table.save(tmp_path / "a.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    assert [float(row["weight"]) for row in rows] == [row["weight"] for row in table]
    assert [row["key_token"] for row in rows[:7]] == WORDS
    assert json.loads(table.save(tmp_path / "a.json").read_text(encoding="utf-8")) == list(table)
    with pytest.raises(OutputExistsError):
        table.save(tmp_path / "a.csv")
    with pytest.raises(OptionError, match="CSV or JSON"):
        table.save(tmp_path / "a.xlsx")


def test_a_notebook_shows_text_as_text() -> None:
    table = AttentionView(make_reading()).table("weights", layer=0, head=1)
    html = table._repr_html_()
    assert "&lt;/script&gt;" in html
    assert "</script>" not in html
    assert "19 more rows" in html
    assert repr(table).startswith("Table(49 rows of layer, head, query,")


def test_arguments_without_effect_are_refused() -> None:
    view = AttentionView(make_reading())
    with pytest.raises(OptionError, match="unknown kind of table"):
        view.table("rows")
    with pytest.raises(OptionError, match="layer has no effect"):
        view.table("heads", layer=1)
    with pytest.raises(OptionError, match="words has no effect"):
        view.table("findings", words=True)
