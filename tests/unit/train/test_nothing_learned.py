"""A run that learned nothing says so, and how to continue it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from quiet_report import QuietReport
from regard.cli.argument_options import Spelling, spell_for_shell
from regard.train import Schedule, Settings, Task, Validation, run
from regard.train.reports import advise_longer_run


class Guess(Task):
    """A task whose score is ``score`` at every validation; one that ignores the input has ``constant``."""

    def __init__(self, score, constant):
        self.score, self.constant = score, constant

    def prepare(self, context):
        self.model = nn.Linear(1, 1)

    def recipe(self):
        return {}

    def epoch(self, number):
        return [torch.ones(1, 1)]

    def tokens(self, batch):
        return 1

    def loss(self, model, batch, shard):
        return model(batch).sum() * 0.0

    def validate(self, model):
        return Validation(self.score)

    def describe(self, score):
        return f"accuracy {score:.2f}"

    def baseline(self):
        return self.constant


SETTINGS = Settings(schedule=Schedule("constant"), steps=2, precision="float32")


def finish(tmp_path, score, constant):
    report = QuietReport()
    result = run(Guess(score, constant), SETTINGS, tmp_path / "m", device="cpu", report=report)
    return result.learned, [one for one in report.messages if "nothing learned" in one]


@pytest.mark.parametrize(("score", "learned"), [(0.5, False), (0.4, False), (0.51, True)])
def test_a_score_that_needs_no_input_is_nothing_learned(tmp_path, score, learned):
    found, said = finish(tmp_path, score, 0.5)
    assert found is learned
    assert said == (
        []
        if learned
        else [
            "nothing learned yet, since a model that ignores its input has accuracy 0.50: "
            "continue with `resume=True, steps=20`"
        ]
    )


def test_a_task_without_a_baseline_gives_no_advice(tmp_path):
    assert finish(tmp_path, 0.0, None) == (True, [])


@pytest.mark.parametrize(
    ("settings", "ended_by", "advice"),
    [
        (Settings(minutes=2.0), "minutes", "continue with --resume --minutes 30"),
        (Settings(minutes=45.5), "minutes", "continue with --resume --minutes 91"),
        (Settings(epochs=3), "epochs", "continue with --resume --epochs 30"),
        (Settings(steps=7, patience=3), "patience", "continue with --resume --patience 30"),
        (Settings(schedule=Schedule("cosine", steps=60), steps=60), "steps",
         "train again for longer: --overwrite --steps 600"),
        (Settings(schedule=Schedule("cosine"), minutes=5.0), "minutes",
         "train again for longer: --overwrite --minutes 30"),
        (Settings(schedule=Schedule("cosine", steps=60), minutes=5.0), "minutes",
         "continue with --resume --minutes 30"),
    ],
)  # fmt: skip
def test_the_advice_raises_the_bound_that_ended_the_run(settings, ended_by, advice):
    options = {name: Spelling(f"--{name}", is_switch=True) for name in ("resume", "overwrite")}
    options |= {name: Spelling(f"--{name}") for name in ("steps", "epochs", "minutes", "patience")}
    assert spell_for_shell(advise_longer_run(settings, ended_by), options) == advice
