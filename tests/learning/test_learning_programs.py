"""The programs that train one classifier with each mechanism: options, results, and short runs."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.learning import (
    results,
    time_shakespeare,
    train_listops,
    train_pictures,
    train_pretraining,
    train_sst2,
    train_wikitext,
)  # fmt: skip
from benchmarks.learning.listops import write_tables
from benchmarks.learning.mechanisms import choose_mechanisms, mechanism_options
from benchmarks.translation.report import PAGE, read_all, render_page
from picture_files import shape_picture, write_idx
from regard import catalogue
from regard.errors import OptionError
from regard.models import load
from regard.train.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_of_results_is_that_of_the_published_results():
    assert PAGE.read_text(encoding="utf-8") == render_page(read_all())


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


def test_results_are_added_and_published_without_folders(tmp_path):
    linear, recall = {"options": "--data /home/somebody/train.tsv --rate 0.1"}, {"options": {"steps": 3}}
    results.add(tmp_path / "r.json", "linear", linear)
    actual = results.add(tmp_path / "r.json", "recall", recall)
    assert results.read(tmp_path / "r.json") == actual == {"linear": linear, "recall": recall}
    published = results.publish(tmp_path / "published.json", actual)
    assert published == {"linear": {"options": "--data train.tsv --rate 0.1"}, "recall": recall}


def test_sections_of_classifiers():
    """The best first, published accuracies beside ours, no time for a run that was interrupted."""
    one = {"macro_f1": 0.25, "calibration_error": 0.1, "memory GB": 2.0, "baseline": 0.17, "texts": 2000, "steps": 9}
    one |= {"machine": {"threads": 1, "processor": "P"}, "versions": {"regard": "1", "commit": "c", "torch": "2"}}
    found = {
        "linear": one | {"accuracy": 0.3, "processor seconds": None},
        "moba": one | {"accuracy": 0.4, "processor seconds": 120.0},
    }
    assert train_listops.REPORT.table(found).splitlines()[2:] == [
        "| moba | 40.0 % |  | 0.250 | 0.100 | 9 | 2 | 2.00 |",
        "| linear | 30.0 % | 16.1 % | 0.250 | 0.100 | 9 |  | 2.00 |",
    ]
    assert "published" not in train_sst2.REPORT.table(found)
    assert "right for 17.0 % of the 2,000 test texts" in "\n".join(train_listops.REPORT.render(found))
    assert "## ListOps" in "\n".join(train_listops.REPORT.render({}))
    of_pictures = "\n".join(train_pictures.REPORT.render({"vit-tiny": (found["moba"] | {"pictures": 10_000})}))
    assert "right for 17.0 % of the 10,000 test pictures" in of_pictures
    assert "| vit-tiny | 40.0 % | 0.250 | 0.100 | 9 | 2 | 2.00 |" in of_pictures
    assert "train_pictures" in "\n".join(train_pictures.REPORT.render({}))


@pytest.mark.slow
def test_a_short_run_of_listops(tmp_path, monkeypatch, capfd):
    """Trains, evaluates and reports; the same command keeps the result."""
    write_tables(tmp_path / "data", {"train": 64, "valid": 16, "test": 16}, seed=1, min_length=5, max_length=30)
    options = ["--data", "data", "--out", "out", "--mechanism", "linformer", "--steps", "2", "--length", "30"]
    monkeypatch.chdir(tmp_path)
    arguments = [*options, "--warmup", "1", "--device", "cpu"]
    for expected in ("linformer\n", "linformer: measured already"):
        assert train_listops.EXPERIMENT.main(arguments) == 0
        shown = capfd.readouterr()
        assert "| linformer |" in shown.out
        assert shown.err.startswith(expected)
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text()).values()
    assert result["texts"] == 16
    assert 0 <= result["accuracy"] <= 1
    assert result["steps"] == 2
    config = json.loads((tmp_path / "out" / "linformer" / "config.json").read_text())
    assert config["encoder"]["mechanism_options"] == {"length": 31}


@pytest.mark.slow
def test_a_short_run_of_sentiment(tmp_path, capfd):
    chance, words = random.Random(1), {"0": ["bad", "dull"], "1": ["good", "great"]}
    for name in ("train", "dev", "test"):
        rows = [(f"a {chance.choice(words[label])} film number {n}", label) for n in range(40) for label in "01"]
        content = "".join(f"{text}\t{label}\n" for text, label in rows)
        (tmp_path / f"sst2_{name}.tsv.gz").write_bytes(gzip.compress(content.encode()))
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--mechanism", "linear", "--epochs", "1"]
    options += ["--perceiver", "--fine-tuning-epochs", "1", "--device", "cpu"]
    assert train_sst2.EXPERIMENT.main(options) == 0
    assert "| minilm, fine-tuned |" in capfd.readouterr().out
    actual = json.loads((tmp_path / "out" / "results.json").read_text())
    assert set(actual) == {"linear", "perceiver, bytes", "minilm, fine-tuned"}
    assert {one["texts"] for one in actual.values()} == {80}


@pytest.mark.slow
def test_a_short_run_of_pictures(tmp_path, capfd):
    for part in ("train", "t10k"):
        labels = np.arange(48) % 3
        pixels = np.stack([shape_picture(("rows", "columns", "plain")[one], seed) for seed, one in enumerate(labels)])
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", labels)
    options = ["--data", str(tmp_path), "--out", str(tmp_path / "out"), "--steps", "3", "--set", "layers=1"]
    arguments = [*options, "--model", "vit-tiny,deit", "--device", "cpu"]
    assert train_pictures.EXPERIMENT.main(arguments) == 0
    assert "| deit |" in capfd.readouterr().out
    actual = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {one["pictures"] for one in actual.values()} == {48}
    assert {one["steps"] for one in actual.values()} == {3}


@pytest.mark.slow
def test_a_killed_table_is_resumed_to_the_same_results(tmp_path):
    """SIGKILL while the second model is trained: the first result is kept, and the second has the same bits."""
    write_tables(tmp_path / "data", {"train": 64, "valid": 16, "test": 16}, seed=1, min_length=5, max_length=30)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    command = [sys.executable, "-m", "benchmarks.learning.train_listops", "--data", str(tmp_path / "data")]
    command += ["--mechanism", "dot_product,linear", "--steps", "200", "--length", "30", "--batch", "7"]
    command += ["--warmup", "5", "--device", "cpu"]
    subprocess.run([*command, "--out", str(whole)], cwd=ROOT, check=True)

    process = subprocess.Popen([*command, "--out", str(killed)], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 300
    while not any((killed / "linear.run" / "checkpoints").glob("step-*")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = results.read(killed / "results.json")
    assert set(before) == {"dot_product"}
    interrupted = RunFolder(killed / "linear.run").load_last()
    assert interrupted is not None
    assert 0 < interrupted.progress.step < 200

    subprocess.run([*command, "--out", str(killed)], cwd=ROOT, check=True)
    expected, actual = (results.read(out / "results.json") for out in (whole, killed))
    assert actual["dot_product"] == before["dot_product"]
    for name in ("dot_product", "linear"):
        for score in ("accuracy", "macro_f1", "loss", "calibration_error", "steps"):
            assert actual[name][score] == expected[name][score]
        weights = [(out / name / "model.safetensors").read_bytes() for out in (whole, killed)]
        assert weights[0] == weights[1]
    assert actual["linear"]["seconds"] > interrupted.progress.seconds


def test_sections_of_language_models():
    """The best first; the time of the encoder beside that of its classifier; how to measure even without results."""
    one = {"machine": {"threads": 2, "processor": "P"}, "versions": {"regard": "1", "commit": "c", "torch": "2"}}
    one |= {"seconds": 90.0, "memory GB": 0.5, "steps": 1234}
    scores = {"perplexity": 61.0, "perplexity per word": 211.25}
    wikitext = {
        "gpt2": one | scores | {"bits_per_byte": 1.75},
        "llama": one | scores | {"bits_per_byte": 1.625},
    }
    validated = [one | {"training": {"validation": {"accuracy": accuracy}}} for accuracy in (0.625, 0.75)]
    pretraining = {
        "pre-trained, seed 1": validated[0] | {"accuracy": 0.75, "rate": "3e-4", "encoder": one},
        "pre-trained, seed 2": validated[1] | {"accuracy": 0.875, "rate": "3e-4", "encoder": one},
        "random, seed 1": validated[0] | {"accuracy": 0.625, "rate": "1e-3"},
    }
    lines = "\n".join(
        [*train_wikitext.REPORT.render(wikitext), *train_pretraining.REPORT.render(pretraining)]
    ).splitlines()
    rows = [line for line in lines if line.startswith("| ") and "minutes" not in line]
    assert rows == [
        "| llama | 61.0 | 211.2 | 1.625 | 1,234 | 1.5 | 0.50 |",
        "| gpt2 | 61.0 | 211.2 | 1.750 | 1,234 | 1.5 | 0.50 |",
        "| pre-trained | 81.2 % | 75.0 to 87.5 % | 68.8 % | 3e-4 | 1.5 | 1.5 |",
        "| random | 62.5 % | 62.5 to 62.5 % | 62.5 % | 1e-3 | 1.5 |  |",
    ]
    assert lines.count("On 2 threads of P.") == 2
    assert "train_pretraining" in "\n".join(train_pretraining.REPORT.render({}))


def test_section_of_shakespeare():
    one = {"machine": {"threads": 2, "processor": "P"}, "versions": {"regard": "1", "commit": "c", "torch": "2"}}
    one |= {"seconds": 90.0, "tokens per second": 12345}
    found = {"0.001": one | {"validation loss": 1.9162}, "0.003": one | {"validation loss": 1.75}}
    rates = {"regard, bfloat16": 3000, "regard, float32": 1100, "nanoGPT": 1000}
    speeds = {"P": {"tokens per second": rates, "chosen": "bfloat16"}}
    lines = "\n".join(time_shakespeare.render_section(found, speeds)).splitlines()
    assert [line for line in lines if line.startswith("| ")] == [
        "| learning rate | validation loss | minutes | tokens per second |",
        "| 0.003 | 1.750 | 1.5 | 12,345 |",
        "| 0.001 | 1.916 | 1.5 | 12,345 |",
        "| published, 1e-3 | 1.88 | | |",
        "| processor | precision | tokens per second | nanoGPT | ratio |",
        "| P | bfloat16, the default here | 3,000 | 1,000 | 3.00 |",
        "| P | float32 | 1,100 | 1,000 | 1.10 |",
    ]
    assert "train_shakespeare" in "\n".join(time_shakespeare.render_section({}, {}))


@pytest.mark.slow
def test_language_models_are_trained_and_measured(tmp_path):
    sentences = [f"{word} {noun} {number}\t{int(word == 'good')}" for number in range(7)
                 for word in ("good", "bad") for noun in ("film", "book", "song")]  # fmt: skip
    for part in ("train", "dev", "test"):
        (tmp_path / f"sst2_{part}.tsv.gz").write_bytes(gzip.compress("".join(f"{one}\n" for one in sentences).encode()))
    for part in ("valid", "test"):
        text = "".join(f" The {part} film {number} was <unk> .\n" for number in range(31))
        (tmp_path / f"wikitext2_{part}.txt.gz").write_bytes(gzip.compress(text.encode()))
    few = ["--mlm-steps", 3, "--epochs", 1, "--rates", "1e-3", "--seeds", 2]
    programs = {
        "train_pretraining": ["--out", tmp_path / "out", *few],
        "train_wikitext": ["--out", tmp_path / "wikitext", "--steps", 2, "--model", "llama"],
    }
    for program, options in programs.items():
        command = [sys.executable, "-m", f"benchmarks.learning.{program}", "--data", tmp_path, *map(str, options)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "| minutes |" in done.stdout
    encoder, untrained = (load(tmp_path / "out" / name) for name in ("encoder", "untrained-2"))
    assert encoder.config == untrained.config
    assert encoder.tokenizer.to_json() == untrained.tokenizer.to_json()
    assert not torch.equal(encoder.token_embedding.weight, untrained.token_embedding.weight)
    found = results.read(tmp_path / "out" / "results.json")
    assert {"encoder, 1e-3, seed-2", "untrained, 1e-3, seed-2"} <= found.keys()
