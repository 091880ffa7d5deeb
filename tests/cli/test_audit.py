"""``regard audit``: models of a folder and of a user's function, what it prints, and its exit codes."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import regard
from regard.cli.app import app
from regard.errors import OptionError, RefusedError
from unit.hf.model_types import MODEL_TYPES

MODULE = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.causal = nn.Linear(12, 36), True

    def forward(self, hidden):
        query, key, value = self.qkv(hidden).chunk(3, -1)
        later = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(DIAGONAL)
        return (query @ key.mT).masked_fill(later, float("-inf")).softmax(-1) @ value


def build():
    return nn.Sequential(nn.Embedding(50, 12), Layer()).eval(), torch.randint(0, 50, (1, 9))


def text():
    return "text"


def broken():
    raise ValueError("no weights")
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    for name, diagonal in (("sound_model", "1"), ("wrong_model", "2")):
        (tmp_path / f"{name}.py").write_text(MODULE.replace("DIAGONAL", diagonal), encoding="utf-8")
    (tmp_path / "cannot_import.py").write_text("1 / 0\n", encoding="utf-8")
    return lambda *words: CliRunner().invoke(app, ["audit", *words])


def test_a_leak_is_named_with_its_module_and_its_cause(run):
    result = run("wrong_model:build", "--skip", "bfloat16")
    assert result.exit_code == 1
    assert "begins in 1 (Layer)" in result.stdout
    assert "reads 1 token ahead" in result.stdout
    assert "4 of 6 properties leak" in result.stdout


def test_a_sound_model_ends_with_0_and_its_certificate_is_the_same_each_time(run, tmp_path):
    for name in ("first", "second"):
        result = run("sound_model:build", "--certificate", f"{name}.json", "--quick")
        assert (result.exit_code, result.stderr) == (0, f"{name}.json: written\n")
    first = (tmp_path / "first.json").read_text(encoding="utf-8")
    assert first == (tmp_path / "second.json").read_text(encoding="utf-8")
    certificate = json.loads(first)
    assert certificate["verdict"] == "holds"
    assert len(certificate["fingerprint"]["weights"]) == 64
    again = run("sound_model:build", "--certificate", "first.json", "--quick")
    assert "already exists" in str(again.exception)


def test_files_are_written_though_nobody_reads_the_table(run, tmp_path):
    del run  # it writes the modules
    words = ["wrong_model:build", "--only", "causal", "-o", "audit.html", "--certificate", "audit.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "regard", "audit", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    process.stdout.close()
    process.wait(60)
    assert "<title>" in (tmp_path / "audit.html").read_text(encoding="utf-8")
    assert json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))["verdict"] == "leaks"


def test_json_and_a_choice_of_properties(run):
    result = run("sound_model:build", "--only", "causal", "--json", "--length", "5")
    report = json.loads(result.stdout)
    assert [entry["name"] for entry in report["results"]] == ["causal", "causal in training mode"]
    assert report["length"] == 5
    assert run("sound_model:build", "--only", "padding", "--json").exit_code == 2  # nothing could be asked


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cannot_import:build", "ZeroDivisionError: division by zero"),
        ("no_such_module:build", "there is no module no_such_module"),
        ("sound_model:bulid", "a function of sound_model: Layer, broken, build, text"),
        ("sound_model:broken", "ValueError: no weights"),
        ("sound_model:text", "returned something else than a module and its inputs"),
        ("sound_model:build --only caussal", "unknown property"),
    ],
)
def test_what_cannot_be_audited_is_said_in_words(run, name, words):
    result = run(*name.split())
    assert isinstance(result.exception, OptionError)
    assert words in str(result.exception)


def test_a_model_larger_than_memory_is_refused_before_its_weights_are_read(run, monkeypatch):
    monkeypatch.setattr("regard.auditing.memory.available_memory", lambda: 2**20)
    error = run("minilm").exception
    assert isinstance(error, RefusedError)
    assert "at most 0.0 GiB of weights, which are free now" in str(error)
    assert "about 0.1 GiB of weights" in str(error)
    assert "audit a small model of the same type" in str(error)


@pytest.mark.slow
def test_a_folder_of_transformers(run, tmp_path):
    kind = next(kind for kind in MODEL_TYPES if kind.name == "llama")
    kind.build().save_pretrained(tmp_path / "model")
    result = run("model", "--json", "--only", "packed")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["model"]) == (1, "LlamaForCausalLM")
    assert [entry["name"] for entry in report["results"] if entry["leak"]] == ["packed by position_ids and ones"]
    assert json.loads(run("model", "--library", "regard", "--json", "--only", "batch").stdout)["model"] == "Llama"


def test_a_wrong_ending_and_too_little_memory_are_refused_before_the_model_runs(run, tmp_path, monkeypatch):
    result = run("sound_model:build", "-o", "audit.txt")
    assert isinstance(result.exception, OptionError)
    assert "ends in .html or .json" in str(result.exception)
    monkeypatch.setattr("regard.auditing.memory.available_memory", lambda: 1000)
    model, inputs = nn.Linear(100, 100), torch.zeros(1, 5, 100)
    with pytest.raises(RefusedError, match=r"(?s)no memory for a copy of the model.*at most 0\.0 GiB"):
        regard.audit(model, inputs)
    assert not (tmp_path / "audit.txt").exists()
