"""Validations show other rows at each step, and a repeated run shows the same."""

from __future__ import annotations

import torch
from torch import nn

from regard.tasks.recipe_task import sample_rows
from regard.train import Schedule, Settings, Task, Validation, run
from regard.train.reports import Report


def test_rows_are_drawn_without_replacement_in_ascending_order():
    torch.manual_seed(0)
    for rows, count in ((0, 3), (2, 3), (3, 3), (101, 3)):
        drawn = sample_rows(rows, count)
        assert drawn == sorted(set(drawn))
        assert len(drawn) == min(rows, count)
        assert all(0 <= one < rows for one in drawn)


class Samples(Report):
    """Keeps the samples of each step."""

    def __init__(self):
        self.by_step = {}

    def numbers(self, step, kind, values):
        pass

    def samples(self, step, lines):
        self.by_step[step] = lines

    def say(self, message):
        pass

    def close(self):
        pass


class Rows(Task):
    """A task without dropout, which draws no random numbers while it trains."""

    def prepare(self, context):
        self.model = nn.Linear(1, 1)

    def recipe(self):
        return {}

    def epoch(self, number):
        return [torch.ones(1, 1)] * 2

    def tokens(self, batch):
        return 1

    def loss(self, model, batch, shard):
        return model(batch).square().sum()

    def validate(self, model):
        return Validation(0.0, samples=tuple(map(str, sample_rows(1009, 3))))


def show(out, steps, **options):
    report = Samples()
    settings = Settings(schedule=Schedule("constant"), steps=steps, validate_every=2, patience=0, precision="float32")
    run(Rows(), settings, out, device="cpu", report=report, **options)
    return report.by_step


def test_samples_differ_between_validations_and_not_between_runs(tmp_path):
    whole = show(tmp_path / "whole", 6)
    assert len(set(whole.values())) == len(whole) == 3
    resumed = show(tmp_path / "cut", 3) | show(tmp_path / "cut", 6, resume=True)
    assert {step: resumed[step] for step in whole} == whole
