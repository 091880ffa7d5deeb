"""Decisions of the main process: how often several processes share them, and a signal that only one receives."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from regard.train.decisions import Decision, Decisions
from regard.train.task import RankShard
from script_process import run_script
from training_process import last_weights, two_ranks


def decide(seconds_of_steps, *, processes, every=10, first=0):
    """The steps after which processes decide, if step n takes the n-th of these seconds."""
    shared = SimpleNamespace(shard=RankShard(0, processes), broadcast_all=lambda *numbers: numbers)
    decisions = Decisions(shared, every=every, step=first, seconds=0.0)
    decisions.share(first, Decision(False, False, 0.0))
    now, found = 0.0, []
    for step, seconds in enumerate(seconds_of_steps, first + 1):
        now += seconds
        if decisions.is_due(step):
            found.append(step)
            assert decisions.share(step, Decision(True, False, now)) == (True, False, now)
            assert decisions.seconds == now
    return found


def test_one_process_decides_after_each_step():
    assert decide([0.001] * 25, processes=1) == list(range(1, 26))


@pytest.mark.parametrize(
    ("seconds", "steps"),
    [
        (0.01, [1, 10, 20, 30]),  # reports; nothing was measured before the first step
        (0.0, [1, 10, 20, 30]),  # the clock may stand still
        (0.3, [1, 4, 7, 10, 13, 16, 19, 20, 23, 26, 29, 30]),  # three steps take less than a second, four more
        (0.99, list(range(1, 31))),
        (70.0, list(range(1, 31))),
    ],
)
def test_several_processes_decide_at_reports_and_about_once_a_second(seconds, steps):
    assert decide([seconds] * 30, processes=2) == steps


def test_times_of_steps_may_change():
    assert decide([60.0] + [0.01] * 29, processes=2) == [1, 2, 10, 20, 30]
    assert decide([0.01] * 12 + [5.0] * 9, processes=2) == [1, 10, 20, 21]
    assert decide([0.01] * 17, processes=2, first=13) == [14, 20, 30]


SCRIPT = """
import json, os, signal, torch
from pathlib import Path
from regard.train import decisions
from unit.train import test_loop

decisions._MAX_SECONDS = 1e9  # on a busy machine, too, steps are short
folder, is_main = Path({folder!r}), os.environ["RANK"] == "0"
begin, broadcast = test_loop.RunFolder.begin, torch.distributed.broadcast
test_loop.RunFolder.begin = lambda *arguments: begin(*arguments) if is_main else None
calls, found = [], []


def count(*arguments, **options):
    calls.append(trainer.progress.step)
    return broadcast(*arguments, **options)


class Signalled(test_loop.Regression):
    def loss(self, model, batch, share):
        if is_main and trainer.progress.step == 23:
            os.kill(os.getpid(), signal.SIGINT)
        return super().loss(model, batch, share)


torch.distributed.broadcast = count
options = test_loop.settings(steps=40, validate_every=100, average=1)
for name, task, new in (
    ("whole", test_loop.Regression(), True),
    ("cut", Signalled(), True),
    ("cut", test_loop.Regression(), False),
):
    calls, stopped = [], False
    trainer = test_loop.make_trainer(task, folder / name, options, begin=new)
    try:
        trainer.run()
    except KeyboardInterrupt:
        stopped = True
    found.append([stopped, trainer.progress.step, calls])
print(json.dumps(found))
"""


def test_a_signal_to_one_of_two_processes(tmp_path):
    """Both stop at the same step, and resume with the same bits; in between they wait for each other at reports."""
    with two_ranks() as ranks, ThreadPoolExecutor(2) as together:
        script = SCRIPT.format(folder=str(tmp_path))
        runs = [together.submit(run_script, script, environment=os.environ | rank) for rank in ranks]
        result = [run.result() for run in runs]
    assert [one.returncode for one in result] == [0, 0], result[0].stderr + result[1].stderr
    main, other = (json.loads(one.stdout) for one in result)
    assert main == other
    whole, cut, resumed = main
    assert whole[:2] == resumed[:2] == [False, 40]
    assert [step for step in whole[2] if 0 < step < 40] == [1, 10, 20, 30]
    assert cut[:2] == [True, 30]  # the report after the signal
    assert last_weights(tmp_path / "cut.run") == last_weights(tmp_path / "whole.run")
