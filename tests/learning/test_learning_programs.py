"""The programs that train one classifier with each mechanism: options, results, and short runs."""

from __future__ import annotations

import gzip
import json
import random
import sys

import pytest

from benchmarks.learning import results, train_listops, train_sst2
from benchmarks.learning.listops import write_tables
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options
from regard import catalogue
from regard.errors import OptionError


def test_mechanisms_by_name():
    assert choose_mechanisms("all") == [row.name for row in catalogue()]
    assert choose_mechanisms("linear,dot_product") == ["linear", "dot_product"]
    with pytest.raises(OptionError, match="unknown mechanism 'linaer'"):
        choose_mechanisms("linaer")


def test_options_of_mechanisms_cover_the_longest_text():
    """A projection of positions has the length of the data; others take the options that are given for them."""
    assert mechanism_options("dot_product", 33, ["linformer.projected=8"]) == ["--attention", "dot_product"]
    actual = mechanism_options("linformer", 33, ["linformer.projected=8", "local_p.window=3"])
    assert actual[:2] == ["--attention", "linformer"]
    assert actual[3::2] == ["mechanism_options.length=33", "mechanism_options.projected=8"]


def test_results_are_added_and_ranked(tmp_path):
    scores = {"macro_f1": 0.5, "calibration_error": 0.1, "seconds": 90.0, "memory GB": 0.5}
    results.add(tmp_path / "r.json", "linear", {"accuracy": 0.5, **scores})
    actual = results.add(tmp_path / "r.json", "dot_product", {"accuracy": 0.625, **scores})
    assert results.read(tmp_path / "r.json") == actual
    assert results.table(actual).splitlines()[2:] == [
        "| dot_product | 62.5 % | 0.500 | 0.100 | 1.5 | 0.50 |",
        "| linear | 50.0 % | 0.500 | 0.100 | 1.5 | 0.50 |",
    ]


@pytest.mark.slow
def test_a_short_run_of_listops(tmp_path, monkeypatch, capfd):
    """Trains, evaluates and reports; the same command resumes the finished run and evaluates it again."""
    write_tables(tmp_path / "data", {"train": 64, "valid": 16, "test": 16}, seed=1, min_length=5, max_length=30)
    options = ["--data", "data", "--out", "out", "--mechanism", "linformer", "--steps", "2", "--length", "30"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_listops", *options, "--warmup", "1", "--device", "cpu"])
    for _ in range(2):
        assert train_listops.main() == 0
        assert "| linformer |" in capfd.readouterr().out
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text()).values()
    assert result["texts"] == 16
    assert 0 <= result["accuracy"] <= 1
    assert result["training"]["trained"]["steps"] == 2
    config = json.loads((tmp_path / "out" / "linformer" / "config.json").read_text())
    assert config["encoder"]["mechanism_options"] == {"length": 31}


@pytest.mark.slow
def test_a_short_run_of_sentiment(tmp_path, monkeypatch, capfd):
    chance, words = random.Random(1), {"0": ["bad", "dull"], "1": ["good", "great"]}
    for name in ("train", "dev", "test"):
        rows = [(f"a {chance.choice(words[label])} film number {n}", label) for n in range(40) for label in "01"]
        content = "".join(f"{text}\t{label}\n" for text, label in rows)
        (tmp_path / f"sst2_{name}.tsv.gz").write_bytes(gzip.compress(content.encode()))
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--mechanism", "linear", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["train_sst2", *options, "--fine-tuning-epochs", "1", "--device", "cpu"])
    assert train_sst2.main() == 0
    assert "| minilm, fine-tuned |" in capfd.readouterr().out
    actual = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(actual) == {"linear", "minilm, fine-tuned"}
    assert {one["texts"] for one in actual.values()} == {80}
