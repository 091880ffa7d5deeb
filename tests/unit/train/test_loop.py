"""The training loop with a task of known results: gradients by hand, bitwise resumption, durable checkpoints."""

from __future__ import annotations

import errno
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from quiet_report import QuietReport
from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError
from regard.log import notes_to
from regard.models import load
from regard.models.checkpoint_writer import write_folder
from regard.tasks.translation import TranslationRecipe, TranslationTask
from regard.train.distributed import Processes
from regard.train.loop import Trainer
from regard.train.progress import Progress
from regard.train.reports import FileReport, TerminalReport
from regard.train.run_folder import RunFolder, TrainingState
from regard.train.schedule import Schedule
from regard.train.settings import Settings
from regard.train.state_dicts import average_states
from regard.train.task import RankShard, RunContext, Task, Validation
from small_translators import write_pairs

ROWS, WIDTH = 97, 5


class Regression(Task):
    """y = x A with dropout on x; the rows of a batch are its numbers."""

    def __init__(self, seed: int = 0, dropout: float = 0.3):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Dropout(dropout), nn.Linear(WIDTH, 2))
        chance = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(ROWS, WIDTH, generator=chance)
        self.outputs = self.inputs @ torch.randn(WIDTH, 2, generator=chance)
        self.saved: list[dict] = []
        self.scores: list[float] = []

    def prepare(self, context) -> None:
        pass

    def recipe(self) -> dict:
        return {"digest": "the same"}

    def epoch(self, number: int) -> list[torch.Tensor]:
        order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(number))
        return list(order.split(11))

    def tokens(self, batch) -> int:
        return len(batch)

    def loss(self, model, batch, share: RankShard) -> torch.Tensor:
        own = batch[share.rank :: share.of]
        return (model(self.inputs[own]) - self.outputs[own]).square().sum()

    def validate(self, model) -> Validation:
        model.eval()
        with torch.no_grad():
            loss = (model(self.inputs) - self.outputs).square().mean()
        model.train()
        torch.rand(3)  # a task may draw random numbers without affecting training
        score = self.scores.pop(0) if self.scores else -float(loss)
        return Validation(score=score, metrics={"loss": float(loss)})

    def save(self, model, folder: Path, about: dict) -> None:
        folder.mkdir(exist_ok=True)
        save_file(dict(model.state_dict()), folder / "model.safetensors")
        self.saved.append(about)


def settings(**changed) -> Settings:
    schedule = Schedule(peak=0.01, warmup=5)
    return Settings(**{"schedule": schedule, "validate_every": 7, "patience": 0, "precision": "float32"} | changed)


def make_trainer(task, folder, settings, *, begin=True, report=None) -> Trainer:
    run = RunFolder(folder.with_name(f"{folder.name}.run"))
    if begin:
        run.begin(task.recipe(), {})
    return Trainer(
        task,
        settings,
        processes=Processes(device="cpu"),
        folder=run,
        out=folder,
        report=report or QuietReport(),
        after=None if begin else run.load_last(),
    )


def weights(task) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in task.model.parameters()]


def same(one, other) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_tasks_without_batches_or_tokens_are_refused(tmp_path):
    class Running(Regression):
        def epoch(self, number):
            return super().epoch(number) if number == 0 else []

    with pytest.raises(DataError, match="no batches"):
        make_trainer(Running(), tmp_path / "m", settings(steps=100)).run()

    class Counting(Regression):
        def tokens(self, batch):
            return 0

    with pytest.raises(DataError, match="counts no tokens"):
        make_trainer(Counting(), tmp_path / "n", settings(steps=2)).run()


def test_step_is_adamw_on_the_mean_over_all_tokens(tmp_path):
    """One step of AdamW moves each weight by the rate against the sign of its gradient, whatever its size."""
    task = Regression(dropout=0.0)
    before = weights(task)
    first = task.epoch(0)[0]
    loss = task.loss(task.model, first, RankShard()) / len(first)
    gradients = torch.autograd.grad(loss, list(task.model.parameters()))
    make_trainer(task, tmp_path / "m", settings(steps=1, schedule=Schedule(peak=0.01, warmup=0), average=1)).run()
    for old, new, gradient in zip(before, weights(task), gradients, strict=True):
        assert torch.allclose(new, old - 0.01 * gradient.sign(), atol=1e-6)


def test_accumulated_batches_are_one_large_batch(tmp_path):
    class Whole(Regression):
        def epoch(self, number):
            parts = super().epoch(number)
            return [torch.cat(parts[first : first + 3]) for first in range(0, len(parts), 3)]

    parts, whole = Regression(dropout=0.0), Whole(dropout=0.0)
    make_trainer(parts, tmp_path / "a", settings(steps=13, accumulate=3)).run()
    make_trainer(whole, tmp_path / "b", settings(steps=13)).run()
    for one, other in zip(weights(parts), weights(whole), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_losses_of_shards_sum_to_that_of_the_batch():
    task = Regression(dropout=0.0)
    batch = task.epoch(0)[0]
    whole = task.loss(task.model, batch, RankShard())
    assert torch.allclose(sum(task.loss(task.model, batch, RankShard(rank, 3)) for rank in range(3)), whole)


class CutError(Exception):
    """Simulates a kill at any step: nothing after it runs."""


CUT = {"steps": 31, "save_seconds": 0.0, "average": 1}


@pytest.fixture(scope="module")
def uninterrupted_weights(tmp_path_factory):
    """The final weights of an uninterrupted run."""
    task = Regression()
    make_trainer(task, tmp_path_factory.mktemp("whole") / "m", settings(**CUT)).run()
    return weights(task)


# Before the first validation and at the end of an epoch; in slow tests also after later validations.
@pytest.mark.parametrize("cut_at", [3, 9, *(pytest.param(step, marks=pytest.mark.slow) for step in (8, 17, 23))])
def test_resumed_run_ends_with_the_same_bits(tmp_path, uninterrupted_weights, cut_at):
    class Breaking(Regression):
        steps = 0

        def loss(self, model, batch, share):
            self.steps += 1
            if self.steps > cut_at:
                raise CutError
            return super().loss(model, batch, share)

    with pytest.raises(CutError):
        make_trainer(Breaking(), tmp_path / "cut", settings(**CUT)).run()
    torch.manual_seed(12345)
    again = Regression(seed=99)  # other weights, which the checkpoint replaces
    torch.rand(17)
    run = make_trainer(again, tmp_path / "cut", settings(**CUT), begin=False)
    assert run.progress.step == cut_at
    run.run()
    assert same(uninterrupted_weights, weights(again))


def test_a_parameter_without_a_gradient_is_resumed_without_a_state(tmp_path):
    class Idle(Regression):
        def __init__(self, seed=0):
            super().__init__(seed)
            self.model.idle = nn.Parameter(torch.ones(3))

    whole, first, again = Idle(), Idle(), Idle(seed=99)
    for task in (whole, first, again):
        task.model.forward = task.model[1].forward
    make_trainer(whole, tmp_path / "whole", settings(**CUT)).run()
    make_trainer(first, tmp_path / "cut", settings(**CUT | {"steps": 9})).run()
    make_trainer(again, tmp_path / "cut", settings(**CUT), begin=False).run()
    assert same(weights(whole), weights(again))


def test_steps_after_the_last_checkpoint_are_repeated(tmp_path):
    """Checkpoints at validations only, every 7 steps: the steps after the last one are repeated."""
    whole = Regression()
    make_trainer(whole, tmp_path / "whole", settings(steps=24, average=1)).run()
    first = Regression()
    make_trainer(first, tmp_path / "cut", settings(steps=9, average=1, validate_every=7)).run()
    again = Regression(seed=5)
    make_trainer(again, tmp_path / "cut", settings(steps=24, average=1), begin=False).run()
    assert same(weights(whole), weights(again))


def test_damaged_checkpoint_is_named_and_unfinished_one_ignored(tmp_path):
    task = Regression()
    make_trainer(task, tmp_path / "m", settings(steps=14)).run()
    run = RunFolder(tmp_path / "m.run")
    (run.path / "checkpoints" / ".step-00000099.partial").mkdir()
    assert run.load_last().progress.step == 14
    last = run.path / "checkpoints" / "step-00000014"
    (last / "weights.safetensors").write_bytes(b"\x00" * 9)
    with pytest.raises(CheckpointError, match="damaged"):
        run.load_last()


def test_best_weights_are_kept_and_patience_stops_training(tmp_path):
    task = Regression()
    task.scores = [1.0, 3.0, 2.0, 2.5, 2.9, 0.0, 0.0, 0.0]
    report = QuietReport()
    progress = make_trainer(task, tmp_path / "m", settings(patience=3, average=2), report=report).run()
    assert progress.step == 5 * 7
    assert [(one.step, one.score) for one in progress.best] == [(14, 3.0), (35, 2.9)]
    validations = [step for step, kind, _ in report.records if kind == "validation"]
    assert validations == [7, 14, 21, 28, 35, 35]  # the last is the average of the two best


def test_average_of_the_best_is_saved_if_it_is_better(tmp_path):
    task = Regression()
    task.scores = [1.0, 2.0, 9.0]
    make_trainer(task, tmp_path / "m", settings(steps=14, average=2)).run()
    kept = load_file(tmp_path / "m" / "model.safetensors")
    snapshots = [load_file(path) for path in sorted((tmp_path / "m.run" / "snapshots").iterdir())]
    for name, weight in kept.items():
        assert torch.equal(weight, ((snapshots[0][name].double() + snapshots[1][name].double()) / 2).float())


def test_resumed_run_does_not_replace_the_model_by_a_worse_one(tmp_path):
    """The average of the best scores 9; later weights score less, though more than each of the earlier ones."""
    task = Regression()
    task.scores = [1.0, 2.0, 9.0]
    assert make_trainer(task, tmp_path / "m", settings(steps=14, average=2)).run().kept == 9.0
    kept = load_file(tmp_path / "m" / "model.safetensors")
    later = Regression()
    later.scores = [3.0, 4.0, 5.0]
    progress = make_trainer(later, tmp_path / "m", settings(steps=28, average=2), begin=False).run()
    assert progress.kept == 9.0
    assert [one.score for one in progress.best] == [4.0, 3.0]
    assert later.saved == []
    for name, weight in load_file(tmp_path / "m" / "model.safetensors").items():
        assert torch.equal(weight, kept[name])


def test_last_checkpoint_contains_the_last_weights_and_not_the_average(tmp_path):
    task = Regression()
    task.scores = [1.0, 2.0, 9.0]
    make_trainer(task, tmp_path / "m", settings(steps=14, average=2)).run()
    run = RunFolder(tmp_path / "m.run")
    last, snapshot = run.load_last(), run.load_snapshot("step-00000014.safetensors")
    assert last is not None
    assert all(torch.equal(last.weights[name], weight) for name, weight in snapshot.items())


def test_reason_for_the_end_of_a_run(tmp_path):
    task = Regression()
    task.scores = [3.0, 2.0, 1.0, 0.0, 0.0]
    make_trainer(task, tmp_path / "m", settings(patience=2, average=1)).run()
    for changed_settings, reason in (
        ({"patience": 2}, "patience"),
        ({"patience": 3}, None),
        ({"steps": 7}, "steps"),
        ({"epochs": 2}, "epochs"),
        ({"minutes": 1e-9}, "minutes"),
    ):
        again = make_trainer(Regression(), tmp_path / "m", settings(**{"average": 1, **changed_settings}), begin=False)
        assert again.ended_by() == reason, changed_settings


def test_finished_run_is_not_validated_again(tmp_path):
    """Resuming a finished run: the last weights are among the best once, and are not averaged twice."""
    make_trainer(Regression(), tmp_path / "m", settings(steps=9)).run()
    report = QuietReport()
    progress = make_trainer(Regression(), tmp_path / "m", settings(steps=9), begin=False, report=report).run()
    assert sorted(one.step for one in progress.best) == [7, 9]
    assert [step for step, kind, values in report.records if "averaged" not in values] == []


def test_average_of_states():
    states = [{"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([2.0, 6.0])}, {"a": torch.tensor([6.0, 1.0])}]
    assert average_states(states)["a"].tolist() == [3.0, 3.0]


def test_metrics_after_the_checkpoint_are_written_once(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({}, {})
    first = FileReport(run)
    for step in (10, 20, 30):
        first.numbers(step, "train", {"loss": 1.0})
    first.close()
    with run.metrics.open("a") as file:
        file.write('{"step": 40, "ki')  # the state after a kill
    again = FileReport(run, after=20)
    again.numbers(30, "train", {"loss": 0.5})
    again.close()
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(10, 1.0), (20, 1.0), (30, 0.5)]


def test_samples_after_the_checkpoint_are_written_once(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({}, {})
    first = FileReport(run)
    for step in (10, 20, 30):
        first.samples(step, ["source: one\n\nstep 99\ntwo", f"output: {step}"])
    first.close()
    with run.samples.open("a") as file:
        file.write("step 40\nsource: o")  # the state after a kill
    again = FileReport(run, after=20)
    again.samples(30, ["output: once more"])
    again.close()
    lines = run.samples.read_text().splitlines()
    assert [line for line in lines if line.startswith("step")] == ["step 10", "step 20", "step 30"]
    outputs = [line for line in lines if line.startswith("output")]
    assert outputs == ["output: 10", "output: 20", "output: once more"]


def test_missing_model_is_written_again_from_the_best_weights(tmp_path):
    """No better weights follow, so without this there would be no model at the end."""
    whole = Regression()
    make_trainer(whole, tmp_path / "whole", settings(steps=20, average=1)).run()
    task = Regression()
    task.scores = [1.0, 5.0]
    make_trainer(task, tmp_path / "m", settings(steps=14, average=1)).run()
    best = load_file(tmp_path / "m" / "model.safetensors")
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    later = Regression(seed=9)
    later.scores = [5.0, 4.0]  # scores of the best weights again, and of the last
    progress = make_trainer(later, tmp_path / "m", settings(steps=20, average=1), begin=False).run()
    assert (progress.kept, len(later.saved)) == (5.0, 1)
    assert all(torch.equal(one, best[name]) for name, one in load_file(tmp_path / "m" / "model.safetensors").items())
    assert same(weights(whole), weights(later))  # training was not affected


def test_model_moved_during_training_is_written_at_the_end(tmp_path):
    class Moving(Regression):
        def validate(self, model):
            if (tmp_path / "m").exists():
                (tmp_path / "m").rename(tmp_path / "elsewhere")
            return super().validate(model)

    task = Moving()
    task.scores = [9.0, 2.0, 9.0]
    make_trainer(task, tmp_path / "m", settings(steps=14, average=1)).run()
    kept, moved = (load_file(tmp_path / name / "model.safetensors") for name in ("m", "elsewhere"))
    assert all(torch.equal(kept[name], moved[name]) for name in moved)


def test_resumed_run_with_leftovers_of_a_kill_and_unknown_files(tmp_path):
    """A kill while the model was being replaced: the model has a hidden name, and contains a user's page."""

    class Saving(Regression):
        def save(self, model, folder, about):
            write_folder(folder, {"config.json": "{}"}, model.state_dict(), overwrite=True, keep_others=True)

    make_trainer(Saving(), tmp_path / "m", settings(steps=14, average=1)).run()
    (tmp_path / "m" / "dog.html").write_text("a page")
    (tmp_path / "m" / ".DS_Store").write_bytes(b"\0")
    (tmp_path / ".m.0a1b2c3d.partial").mkdir()
    (tmp_path / ".mine.0a1b2c3d.partial").mkdir()  # another name, so it does not belong to this run
    for more in (14, 28):  # once with no steps left, once with some
        (tmp_path / "m").rename(tmp_path / ".m.0a1b2c3e.replaced")
        make_trainer(Saving(), tmp_path / "m", settings(steps=more, average=1), begin=False).run()
        assert (tmp_path / "m" / "dog.html").read_text() == "a page"
        assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.0a1b2c3d.partial", "m", "m.run"]
    assert load_file(tmp_path / "m" / "model.safetensors")


def test_translator_is_saved_into_a_folder_with_other_files(tmp_path):
    write_pairs(tmp_path / "pairs.tsv")
    numbers = {"layers": 1, "width": 16, "inner": 19}
    task = TranslationTask(TranslationRecipe((tmp_path / "pairs.tsv",), model="tiny", hyperparameters=numbers))
    task.prepare(RunContext(Settings()))
    task.save(task.model, tmp_path / "m", {"steps": 1})
    (tmp_path / "m" / "dog.html").write_text("a page")
    task.save(task.model, tmp_path / "m", {"steps": 2})
    assert (tmp_path / "m" / "dog.html").read_text() == "a page"
    assert load(tmp_path / "m").metadata["steps"] == 2


def test_missing_average_does_not_prevent_saving_later_weights(tmp_path):
    task = Regression()
    task.scores = [1.0, 2.0, 9.0]
    make_trainer(task, tmp_path / "m", settings(steps=14, average=2)).run()
    (tmp_path / "m").rename(tmp_path / "elsewhere")
    later = Regression()
    later.scores = [2.0, 3.0, 1.0, 2.5]
    assert make_trainer(later, tmp_path / "m", settings(steps=28, average=2), begin=False).run().kept == 3.0
    assert RunFolder(tmp_path / "m.run").load_last().progress.kept == 3.0
    kept, best = load_file(tmp_path / "m" / "model.safetensors"), tmp_path / "m.run/snapshots/step-00000021.safetensors"
    assert all(torch.equal(kept[name], one) for name, one in load_file(best).items())


def test_validation_of_the_average_does_not_change_random_numbers(tmp_path):
    """A task may draw random numbers in validation; they do not affect the following checkpoint."""
    whole = Regression()
    whole.scores = [1.0, 2.0, 3.0, 4.0, 9.0]
    make_trainer(whole, tmp_path / "whole", settings(steps=28, average=2)).run()
    first, then = Regression(), Regression()
    first.scores, then.scores = [1.0, 2.0, 9.0], [3.0, 4.0, 9.0]
    make_trainer(first, tmp_path / "cut", settings(steps=14, average=2)).run()
    make_trainer(then, tmp_path / "cut", settings(steps=28, average=2), begin=False).run()
    ends = [RunFolder(tmp_path / f"{name}.run").load_last().weights for name in ("whole", "cut")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_nonfinite_losses_are_skipped_and_finally_an_error(tmp_path):
    class Broken(Regression):
        steps = 0

        def loss(self, model, batch, share):
            self.steps += 1
            bad = self.steps == 4 or self.steps > 15
            return super().loss(model, batch, share) * (math.nan if bad else 1.0)

    task = Broken()
    with pytest.raises(DataError, match="NaN or infinite for 10 steps"):
        make_trainer(task, tmp_path / "m", settings(steps=100)).run()
    assert all(torch.isfinite(weight).all() for weight in weights(task))


def test_validation_of_a_model_that_diverged_names_the_cause(tmp_path):
    class Broken(Regression):
        def loss(self, model, batch, share):
            return super().loss(model, batch, share) * math.nan

        def validate(self, model):
            return Validation(score=math.nan)

    with pytest.raises(DataError, match=r"(?s)NaN or infinite for 7 steps.*lower the learning rate"):
        make_trainer(Broken(), tmp_path / "m", settings(steps=100)).run()


def test_loss_of_a_skipped_step_is_not_reported(tmp_path):
    class Broken(Regression):
        steps = 0

        def loss(self, model, batch, share):
            self.steps += 1
            return super().loss(model, batch, share) * (math.nan if self.steps in (4, *range(21, 31)) else 1.0)

    listening = QuietReport()
    with pytest.raises(DataError):
        make_trainer(Broken(), tmp_path / "m", settings(steps=100), report=listening).run()
    losses = [values["loss"] for _, kind, values in listening.records if kind == "train"]
    assert len(losses) == 2
    assert all(map(math.isfinite, losses))


def test_terminal_report_of_a_validation_names_its_metrics(capsys):
    report = TerminalReport()
    report.numbers(1200, "validation", {"bleu": 31.416, "loss": 1.5})
    report.numbers(1200, "validation", {"bleu": 32.0, "averaged": 2.0})
    report.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["step 1,200: bleu 31.42, loss 1.50", "average of 2 checkpoints: bleu 32.00"]


def test_nonfinite_metrics_are_null_in_the_file(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({}, {})
    files = FileReport(run)
    files.numbers(10, "train", {"loss": math.nan, "gradient_norm": math.inf, "epoch": 1.0})
    files.close()
    (line,) = run.metrics.read_text().splitlines()
    actual = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert (actual["loss"], actual["gradient_norm"], actual["epoch"]) == (None, None, 1.0)


def test_speed_excludes_validation(tmp_path, monkeypatch):
    """A fake clock on which a step takes a second and a validation a thousand; validations are between two reports."""
    now = [0.0]
    monkeypatch.setattr("regard.train.loop.time.monotonic", lambda: now[0])

    class Slow(Regression):
        def loss(self, model, batch, share):
            now[0] += 1
            return super().loss(model, batch, share)

        def validate(self, model):
            now[0] += 1000
            return super().validate(model)

        @property
        def unit(self):
            return "points"

    listening, task = QuietReport(), Slow()
    make_trainer(task, tmp_path / "m", settings(steps=50, validate_every=7), report=listening).run()
    speeds = [values["points_per_second"] for _, kind, values in listening.records if kind == "train"]
    sizes = [len(batch) for epoch in range(9) for batch in task.epoch(epoch)]
    assert speeds == [pytest.approx(sum(sizes[first : first + 10]) / 10) for first in range(0, 50, 10)]


def test_reports_have_the_energy_since_the_start_where_the_machine_tells(tmp_path):
    listening = QuietReport()
    trainer = make_trainer(Regression(), tmp_path / "m", settings(steps=20), report=listening)
    readings = iter((3.5, None))
    trainer.meter.read = lambda: next(readings)
    trainer.run()
    assert [values.get("joules") for _, kind, values in listening.records if kind == "train"] == [3.5, None]


def test_changed_options_are_refused(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({"seed": 1, "columns": (1, 2)}, {"tokenizer.json": "{}"})
    run.check_same({"seed": 1, "columns": (1, 2)})
    with pytest.raises(OutputExistsError, match="another seed"):
        run.check_same({"seed": 2, "columns": (1, 2)})


def test_changed_nested_option_is_named(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({"model": {"layers": 3, "dropout": 0.1}}, {})
    run.check_same({"model": {"layers": 3, "dropout": 0.1}})
    with pytest.raises(OutputExistsError, match=r"another model\.dropout(.|\n)*0\.1(.|\n)*0\.3"):
        run.check_same({"model": {"layers": 3, "dropout": 0.3}})


def test_errors_of_damaged_files_do_not_advise_removing_the_run(tmp_path):
    task = Regression()
    make_trainer(task, tmp_path / "m", settings(steps=14)).run()
    run = RunFolder(tmp_path / "m.run")
    (run.path / "snapshots" / "step-00000014.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="damaged") as refused:
        run.load_snapshot("step-00000014.safetensors")
    assert "fine-tune the best model so far: start=..." in str(refused.value)
    (run.path / "checkpoints" / "step-00000014" / "progress.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be read") as refused:
        run.load_last()
    assert "step-00000014 away" in str(refused.value)
    with pytest.raises(CheckpointError, match="another version of regard"):
        run.read_setting("something new")
    (run.path / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match="damaged") as refused:
        run.read_setting("seed")
    assert "remove" not in str(refused.value)
    (run.path / "run.json").unlink()
    with pytest.raises(CheckpointError, match="all machines share"):
        run.read_setting("seed")


LOCKING = """
import sys, time, filelock
try:
    with filelock.FileLock(sys.argv[1], timeout=0):
        print("held", flush=True)
        time.sleep(60)
except filelock.Timeout:
    print("refused")
"""


def test_run_is_locked_by_one_process(tmp_path):
    """Another process cannot write the run; and it locks out others until it is killed. It only takes the lock."""
    run, command = RunFolder(tmp_path / "m.run"), [sys.executable, "-c", LOCKING, str(tmp_path / ".m.run.lock")]
    with run.lock():
        assert subprocess.run(command, capture_output=True, check=True, timeout=30).stdout == b"refused\n"
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(OutputExistsError, match="another process is training"), run.lock():
            pass
        other.kill()
    with run.lock():
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(errno.ENOLCK, "No locks available"), NotImplementedError("no flock")])
def test_disk_without_locks_gives_a_warning(tmp_path, monkeypatch, error):
    def acquire(self):
        raise error

    monkeypatch.setattr("regard.train.run_folder.FileLock.acquire", acquire)
    said: list[str] = []
    with notes_to(said.append), RunFolder(tmp_path / "m.run").lock():
        assert len(said) == 1
    assert "cannot be locked" in said[0]


def test_folder_with_other_files_is_not_replaced(tmp_path):
    (tmp_path / "m.run").mkdir()
    (tmp_path / "m.run" / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExistsError, match="would be lost"):
        RunFolder(tmp_path / "m.run").begin({}, {})


def test_the_earlier_of_equal_scores_is_the_best_one():
    """So patience counts validations without an improvement."""
    progress = Progress(step=1).after_validation(0.5, keep=2)
    for step, score in ((2, 0.5), (3, 0.25), (4, 0.5)):
        progress = replace(progress, step=step).after_validation(score, keep=2)
    assert [(one.step, one.score) for one in progress.best] == [(1, 0.5), (2, 0.5)]
    assert progress.stale == 3
    assert replace(progress, step=5).after_validation(0.75, keep=2).stale == 0


def test_last_two_checkpoints_and_their_snapshots_are_kept(tmp_path):
    run = RunFolder(tmp_path / "m.run")
    run.begin({}, {})
    tensors = {"a": torch.zeros(3)}
    progress = Progress()
    for step in (1, 2, 3):
        progress = Progress(step=step, best=progress.best).after_validation(float(step), keep=1)
        run.save_snapshot(progress.best[0].name, tensors)
        run.save(TrainingState(progress=progress, weights=tensors, optimizer=tensors, random=tensors))
    assert len(list((run.path / "checkpoints").iterdir())) == 2
    assert sorted(path.name for path in (run.path / "snapshots").iterdir()) == [
        "step-00000002.safetensors",
        "step-00000003.safetensors",
    ]


def rates(report) -> dict[int, float]:
    return {step: values["learning_rate"] for step, kind, values in report.records if kind == "train"}


def test_a_cosine_ends_with_the_epochs(tmp_path):
    """Nine batches are an epoch; a step's rate is that of the steps before it."""
    report, schedule = QuietReport(), Schedule("cosine", peak=0.01, warmup=5)
    changed = settings(schedule=schedule, epochs=7)
    make_trainer(Regression(), tmp_path / "m", changed, report=report).run()
    assert set(rates(report)) == {10, 20, 30, 40, 50, 60}
    for step, rate in rates(report).items():
        assert rate == pytest.approx(0.01 * 0.5 * (1 + math.cos(math.pi * (step - 1) / 63)))


def test_a_cosine_ends_with_the_minutes(tmp_path, monkeypatch):
    """The clock moves by a hundredth of a second whenever it is read."""
    now = iter(range(10**9))
    monkeypatch.setattr("regard.train.loop.time.monotonic", lambda: next(now) / 100)
    report, schedule = QuietReport(), Schedule("cosine", peak=0.01, warmup=5)
    make_trainer(Regression(), tmp_path / "m", settings(schedule=schedule, minutes=0.1), report=report).run()
    seen = list(rates(report).values())
    assert len(seen) >= 5
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0.1 * seen[0]


def test_epochs_and_minutes_limit_a_run(tmp_path):
    task = Regression()
    progress = make_trainer(task, tmp_path / "m", settings(epochs=2)).run()
    assert progress.step == 2 * math.ceil(ROWS / 11)
    assert progress.tokens == 2 * ROWS
    assert make_trainer(Regression(), tmp_path / "n", settings(minutes=1e-9)).run().step == 0


@pytest.mark.parametrize(
    "wrong", [{"precision": "int8"}, {"accumulate": 0}, {"minutes": -1.0}, {"minutes": 0.0}, {"clip": -1.0}]
)
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(OptionError):
        Settings(**wrong)


def test_settings_without_an_end_are_refused():
    with pytest.raises(OptionError, match="the training has no end"):
        Settings(patience=0)
