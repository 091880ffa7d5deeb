"""A custom task: sentence classification with the public API only, with any number of processes and resumptions.

docs/training.md shows the same code.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import os
import signal
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from docs.pages import ROOT
from regard.errors import DataError, OptionError, OutputExistsError
from regard.layers import encoder_block
from regard.masks import padding_of
from regard.train import RankShard, Schedule, Settings, Task, Validation, run
from regard.train.interruption import InterruptHandler

NOUNS = {"animal": ["dog", "cat", "horse"], "vehicle": ["car", "bus", "train"], "plant": ["oak", "rose", "fern"]}
SIZES, VERBS = ["small", "big", "old"], ["sleeps", "runs", "waits", "falls"]
WORDS = ["<pad>", "the", *SIZES, *itertools.chain(*NOUNS.values()), *VERBS]


def sentences():
    """144 sentences as ids (144, 4), such as "the old oak falls", and the class of each (144,)."""
    rows, labels = [], []
    for label, nouns in enumerate(NOUNS.values()):
        for size, noun, verb in itertools.product(["", *SIZES], nouns, VERBS):
            ids = [WORDS.index(word) for word in ("the", size, noun, verb) if word]
            rows.append(ids + [0] * (4 - len(ids)))
            labels.append(label)
    return torch.tensor(rows), torch.tensor(labels)


class Classifier(nn.Module):
    """Logits of the classes for sentences of ids (batch, length): an encoder block, and the mean of its tokens."""

    def __init__(self, width):
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), width)
        self.encoder = encoder_block(width, heads=2, inner=2 * width, dropout=0.1)
        self.output = nn.Linear(width, len(NOUNS))

    def forward(self, ids):
        hidden = self.encoder(self.embedding(ids), mask=padding_of(ids, 0))
        present = (ids != 0)[..., None]
        return self.output((hidden * present).sum(1) / present.sum(1))


class Topics(Task):
    """Task that classifies the topic of a sentence. 100 sentences are for training, and 44 are held out."""

    def __init__(self, width=16):
        self.width = width

    def prepare(self, context):
        self.model = Classifier(self.width)
        self.ids, self.labels = (one.to(context.device) for one in sentences())
        self.order = torch.randperm(len(self.ids))

    def recipe(self):
        data = self.ids.cpu().numpy().tobytes() + self.labels.cpu().numpy().tobytes()
        return {"width": self.width, "data": hashlib.sha256(data).hexdigest()}

    def epoch(self, number):
        generator = torch.Generator().manual_seed(number)
        return self.order[:100][torch.randperm(100, generator=generator)].split(16)

    def tokens(self, batch):
        return len(batch)

    def loss(self, model, batch, shard):
        rows = shard.rows(batch)
        return nn.functional.cross_entropy(model(self.ids[rows]), self.labels[rows], reduction="sum")

    def validate(self, model):
        rows = self.order[100:]
        right = model(self.ids[rows]).argmax(-1) == self.labels[rows]
        accuracy = right.double().mean().item()
        return Validation(score=accuracy, metrics={"accuracy": accuracy})


SETTINGS = Settings(
    schedule=Schedule(peak=0.01, warmup=10),
    steps=60,
    validate_every=20,
    average=1,
    precision="float32",
)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """An uninterrupted run, and its folder."""
    folder = tmp_path_factory.mktemp("whole")
    return run(Topics(), SETTINGS, folder / "topics", device="cpu"), folder / "topics"


def checkpoint(out):
    return load_file(max((out.with_name(f"{out.name}.run") / "checkpoints").iterdir()) / "weights.safetensors")


def assert_same(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_it_learns(uninterrupted):
    result, out = uninterrupted
    assert (result.score, result.steps, result.ended_by, result.out) == (1.0, 60, "steps", out)
    model = Classifier(16)
    model.load_state_dict(load_file(out / "model.safetensors"))
    ids, labels = sentences()
    assert (model.eval()(ids).argmax(-1) == labels).double().mean() > 0.97
    about = json.loads((out / "about.json").read_text())
    assert about["recipe"]["width"] == 16
    assert about["validation"] == {"accuracy": 1.0}


def test_a_watched_run_measures_attention_and_keeps_its_bits(tmp_path, uninterrupted):
    run(Topics(), replace(SETTINGS, watch=25), tmp_path / "topics", device="cpu")
    assert_same(checkpoint(tmp_path / "topics"), checkpoint(uninterrupted[1]))
    lines = (tmp_path / "topics.run" / "metrics.jsonl").read_text().splitlines()
    measured = [line for line in map(json.loads, lines) if line["kind"] == "attention"]
    assert [line["step"] for line in measured] == [1, 25, 50]
    assert 0 < measured[0]["entropy/encoder.attention"] < 1.4
    assert {name.partition("/")[0] for name in measured[0]} == {
        *("step", "kind", "time", "entropy", "max_score", "sink_mass", "dead_heads", "diagonal_heads")
    }


def test_docs_page_contains_this_task():
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    for part in (sentences, Classifier, Topics):
        assert inspect.getsource(part) in page, part.__name__


class CutError(Exception):
    """Simulates a kill: nothing after it runs."""


def raise_cut_error():
    raise CutError


def send_interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def close_terminal():
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.fixture
def hears_its_terminal():
    """Also where the tests were started by ``nohup``, which their processes inherit."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


def test_a_run_that_ignores_its_terminal_goes_on():
    """As ``nohup`` starts it."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with InterruptHandler() as interruption:
            close_terminal()
            assert not interruption.stop_requested
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize(
    ("end", "error"),
    [(raise_cut_error, CutError), (send_interrupt, KeyboardInterrupt), (close_terminal, KeyboardInterrupt)],
)
@pytest.mark.usefixtures("hears_its_terminal")
def test_resumed_run_ends_with_the_same_bits(tmp_path, uninterrupted, end, error):
    class Stopping(Topics):
        steps = 0

        def loss(self, model, batch, shard):
            self.steps += 1
            if self.steps == 33:
                end()
            return super().loss(model, batch, shard)

    out = tmp_path / "topics"
    with pytest.raises(error):
        run(Stopping(), replace(SETTINGS, save_seconds=0.0), out, device="cpu")
    torch.rand(17)
    result = run(Topics(), SETTINGS, out, resume=True, device="cpu")
    assert (result.steps, result.score) == (60, uninterrupted[0].score)
    assert_same(checkpoint(out), checkpoint(uninterrupted[1]))
    assert_same(load_file(out / "model.safetensors"), load_file(uninterrupted[1] / "model.safetensors"))


def test_losses_of_shards_sum_to_that_of_the_batch():
    task = Topics()
    task.order, (task.ids, task.labels) = torch.arange(144), sentences()
    model, batch = Classifier(8).double().eval(), torch.arange(7)
    losses = [task.loss(model, batch, RankShard(rank, 3)) for rank in range(3)]
    torch.testing.assert_close(sum(losses), task.loss(model, batch, RankShard()))


@pytest.mark.parametrize(
    ("task", "settings", "other"),
    [(Topics(width=8), SETTINGS, "width"), (Topics(), Settings(seed=2, steps=60, precision="float32"), "rate")],
)
def test_resume_with_changed_settings_is_refused(uninterrupted, task, settings, other):
    with pytest.raises(OutputExistsError, match=f"another {other}"):
        run(task, settings, uninterrupted[1], resume=True, device="cpu")


def test_existing_run_is_not_replaced_without_overwrite(uninterrupted):
    with pytest.raises(OutputExistsError, match="expected: resume=True or overwrite=True"):
        run(Topics(), SETTINGS, uninterrupted[1], device="cpu")
    with pytest.raises(OptionError, match="contradict"):
        run(Topics(), SETTINGS, uninterrupted[1], resume=True, overwrite=True, device="cpu")


def test_epoch_without_batches_is_refused(tmp_path):
    class Empty(Topics):
        def epoch(self, number):
            return []

    with pytest.raises(DataError, match="no batches"):
        run(Empty(), SETTINGS, tmp_path / "topics", device="cpu")


def test_files_of_a_task_are_saved_with_the_run(tmp_path):
    folders = []

    class Named(Topics):
        def prepare(self, context):
            folders.append(context.folder)
            super().prepare(context)

        def files(self):
            return {"classes.txt": "\n".join(NOUNS)}

    out, once = tmp_path / "topics", replace(SETTINGS, steps=1)
    for more in ({}, {"resume": True}, {"overwrite": True}):
        run(Named(), once, out, device="cpu", **more)
        assert (tmp_path / "topics.run" / "classes.txt").read_text().split() == list(NOUNS)
    assert folders == [None, tmp_path / "topics.run", None]


def test_task_completes_the_settings(tmp_path):
    class Choosing(Topics):
        def complete(self, settings):
            return replace(settings, schedule=settings.schedule.complete(peak=0.02, warmup=3))

    run(Choosing(), replace(SETTINGS, schedule=Schedule(warmup=5), steps=1), tmp_path / "topics", device="cpu")
    run_settings = json.loads((tmp_path / "topics.run" / "run.json").read_text())
    assert (run_settings["rate"], run_settings["warmup"], run_settings["precision"]) == (0.02, 5, "float32")


def test_recipe_with_a_name_of_the_settings_is_refused(tmp_path):
    class Seeded(Topics):
        def recipe(self):
            return {"seed": 3}

    with pytest.raises(OptionError, match="seed"):
        run(Seeded(), SETTINGS, tmp_path / "topics", device="cpu")
    assert not (tmp_path / "topics.run").exists()


@pytest.mark.parametrize("score", [float("nan"), None, "high"])
def test_incomparable_scores_are_refused(score, without_shape_checks):
    with pytest.raises(OptionError, match="score of a validation is not a number"):
        Validation(score)
