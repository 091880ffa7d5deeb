"""A new medium needs the file that reads it and the file of a model: here tables of numbers, and nothing else."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import regard
from regard.classification import MediaClassifier, embed_files
from regard.errors import DataError
from regard.layers import MultiHeadAttention
from regard.media import Medium
from regard.models import DrawnInput, ImageOutput, MediaEncoder, TokenGrid
from regard.models.kinds import ModelKind
from regard.models.label_names import label_fields, read_labels
from regard.models.weight_names import WeightNames, same_names
from regard.view import read_file
from shell_command import output, run, shell_message

# The first file: what a table of numbers is, and how it is read.

TABLES = Medium("table", "tables", (".num",), ("path", "table"), "NAME.num", models="a Sums", batch=3, chunk=2)


class TableReader:
    """Reads a line of numbers."""

    def fields(self):
        return {"separator": " "}

    @classmethod
    def from_folder(cls, folder):
        return cls()

    def read(self, file, name=None):
        try:
            return np.array([float(one) for one in file.read_text().split()], np.float32)
        except (OSError, ValueError) as error:
            raise DataError(
                f"{name or file} is not a table", expected="numbers", got=str(error), do="check the file"
            ) from error


# The second file: a model of them.


@dataclass(frozen=True)
class SumsConfig:
    width: int = 6
    layers: int = 1
    labels: tuple[str, ...] = ()


class Sums(MediaEncoder):
    """Attention over the numbers of a table."""

    config_class = SumsConfig
    kind = ModelKind("a model of tables", "the folder of one", "check the path", "regard classify", reads=(TABLES,))
    inputs = "numbers"
    processor_class = TableReader

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Linear(1, config.width)
        self.attention = MultiHeadAttention(config.width, heads=2)
        self.head = nn.Linear(config.width, len(config.labels)) if config.labels else None

    def forward(self, numbers):
        hidden = self.attention(self.embedding(numbers[..., None]))
        pooled = hidden.mean(dim=1)
        return ImageOutput(hidden, pooled, None if self.head is None else self.head(pooled))

    @property
    def width(self):
        return self.config.width

    def make_input(self, file, *, name=None):
        return self.require_processor().read(file, name)

    def make_batches(self, inputs, *, batch):
        for one in inputs:
            yield {"numbers": torch.from_numpy(one)[None]}

    def draw_input(self, made):
        pixels = np.repeat(np.clip(made, 0, 255).astype(np.uint8)[None, None], 20, axis=1)
        return DrawnInput(
            pixels, TokenGrid(1, len(made), names=tuple(f"number {n}" for n in range(len(made)))), (20, 1)
        )

    @classmethod
    def read_config(cls, config):
        return SumsConfig(width=config.size("width"), labels=read_labels(config, 2))

    def config_fields(self):
        return {"model_type": "sums", "width": self.config.width, **label_fields(self.config.labels)}

    @classmethod
    def make_weight_names(cls, config):
        return WeightNames(same_names("embedding", "attention.{path}", "head"))


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules["regard.models.load"]._MODELS, "sums", Sums)
    monkeypatch.chdir(tmp_path)
    made = Sums(SumsConfig(labels=("few", "many"))).eval()
    made.processor = TableReader()
    made.save("model")
    for label, numbers in (("few", "1 2 3"), ("many", "200 90 81 70")):
        (tmp_path / "tables" / label).mkdir(parents=True)
        (tmp_path / "tables" / label / "0.num").write_text(numbers)
    (tmp_path / "bad.num").write_text("x")
    return made


PATHS = ["tables/few/0.num", "tables/many/0.num"]


def test_it_is_classified_and_evaluated(model, tmp_path):
    expected = MediaClassifier(model).classify([tmp_path / path for path in PATHS])
    lines = output("classify", "--model", "model", "tables", "--format", "jsonl").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["table"] for row in rows] == PATHS
    assert [tuple(row["labels"]) for row in rows] == [one.labels for one in expected]
    skipped = run("classify", "--model", "model", "bad.num", PATHS[0], "--skip-bad")
    assert "1 table without a label" in skipped.stderr
    scores = json.loads(output("evaluate", "classify", "--model", "model", "--data", "tables", "--format", "json"))
    right = [one.label == path.split("/")[1] for one, path in zip(expected, PATHS, strict=True)]
    assert (scores["tables"], scores["accuracy"]) == (2, np.mean(right))


def test_it_is_embedded(model, tmp_path):
    output("embed", "--model", "model", "tables", "-o", "v.npy")
    expected = embed_files(model, [tmp_path / path for path in PATHS]).numpy()
    assert np.array_equal(np.load("v.npy"), expected)
    rows = [json.loads(line) for line in output("embed", "--model", "model", *PATHS).splitlines()]
    assert [row["text"] for row in rows] == PATHS
    assert np.array_equal(np.array([row["vector"] for row in rows], np.float32), expected)
    skipped = run("embed", "--model", "model", "bad.num", *PATHS, "--skip-bad", "-o", "w.npy", "--batch", "1")
    assert "skipped: 1 table, line 1\n  bad.num is not a table\n  full list: w.npy.skipped.jsonl" in skipped.stderr
    assert np.array_equal(np.load("w.npy"), expected)
    assert "no table could be used" in shell_message(
        run("embed", "--model", "model", "bad.num", "--skip-bad").exception
    )


def test_its_interrupted_run_is_resumed(model):
    """Of three files, the chunk of the first two is complete when the third turns out to be broken."""
    stopped = run("embed", "--model", "model", *PATHS, "bad.num", "-o", "v.npy")
    assert isinstance(stopped.exception, DataError)
    assert "finished parts are kept in v.npy.parts" in stopped.stderr
    Path("bad.num").write_text("5 6 7")
    resumed = run("embed", "--model", "model", *PATHS, "bad.num", "-o", "v.npy", "--resume")
    assert "resuming after 2 tables" in resumed.stderr
    assert np.array_equal(np.load("v.npy"), embed_files(model, [Path(one) for one in (*PATHS, "bad.num")]).numpy())


def test_it_is_viewed(model, tmp_path):
    shown = output("view", *PATHS, "--model", "model", "-o", "page.html")
    assert "number 2" in shown
    assert "few" in shown
    assert (tmp_path / "page.html").read_text().count("data:image/png") == 2
    reading = read_file(model, tmp_path / PATHS[1])
    with regard.record(model) as seen, torch.no_grad():
        model(torch.tensor([[200.0, 90.0, 81.0, 70.0]]))
    np.testing.assert_allclose(reading.layers[0].attention.weights(), next(iter(seen)).weights()[0].numpy(), atol=1e-6)
    assert "tables/few/0.num is a table, and --model is missing" in shell_message(run("view", PATHS[0]).exception)
    wrong = run("view", "A sentence.", "--model", "model")
    assert "reads tables, not texts" in shell_message(wrong.exception)
