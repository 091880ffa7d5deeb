"""The training loop, for any ``Task``, in one process or in many.

    a step    each process takes its shard of the rows of each of ``accumulate`` batches;
              gradient of (sum of the losses of all shards) / (tokens of all batches), clipped to norm ``clip``;
              AdamW or Muon (``optimizers``) at the schedule's learning rate

So the loss does not depend on how batches are sharded. A step depends on the weights, the optimizer state, the random
number generators and the ``Progress``: a checkpoint holds all of them, and a run resumed from one gives the same bits
as an uninterrupted run. Accelerate handles processes and machines: ``accelerate launch``, DDP or FSDP.

SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal closes): noted at once, acted on at the end of the step, or with
several processes at their next common decision (``decisions``).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from regard.energy import EnergyMeter
from regard.errors import DataError, RegardError
from regard.language import count_noun
from regard.models.checkpoint_writer import recover_model
from regard.recording import LayerStatistics, Watcher, watch
from regard.train import state_dicts
from regard.train.decisions import Decision, Decisions
from regard.train.distributed import Processes
from regard.train.interruption import InterruptHandler
from regard.train.numeric_backends import autocast_dtype
from regard.train.optimizers import make_optimizer, skips_without_waiting, step_if_finite
from regard.train.progress import Progress
from regard.train.reports import Report
from regard.train.run_folder import RunFolder, TrainingState
from regard.train.settings import Settings
from regard.train.state_dicts import average_states
from regard.train.step_totals import StepTotals, Totals
from regard.train.task import Task, Validation

_MIN_VALIDATE_EVERY, _MAX_VALIDATE_EVERY = 200, 2000
"""Limits of the steps between validations; within them, validation is once per epoch."""
_REPORT_EVERY = 10
_MAX_NONFINITE_STEPS = 10
"""Consecutive steps without a finite gradient after which training stops with an error."""


@final
class Trainer:
    """Trains ``task`` with ``settings``. Writes the run to ``folder`` and the best model to ``out``.

    ``after`` is the checkpoint to resume from. The precision in ``settings`` must be resolved: "auto" would be float32.
    """

    def __init__(
        self,
        task: Task,
        settings: Settings,
        *,
        processes: Processes,
        folder: RunFolder,
        out: Path,
        report: Report,
        after: TrainingState | None = None,
    ) -> None:
        self.task, self.settings, self.folder, self.out, self.report = task, settings, folder, out, report
        self.progress = Progress() if after is None else after.progress
        self._processes = processes
        self._tied = getattr(task.model, "tied_weights", {})
        self._full_model = copy.deepcopy(task.model).to(processes.device) if processes.is_sharded else task.model
        if after is None:
            torch.manual_seed(settings.seed + processes.rank)
        self._autocast = autocast_dtype(settings.precision)
        optimizer = make_optimizer(
            settings.optimizer,
            task.model,
            weight_decay=settings.weight_decay,
            dtype=self._autocast or torch.float32,
        )
        self.model, self.optimizer = processes.prepare(task.model, optimizer)
        self._unwrapped_model = processes.unwrap(self.model)
        if after is not None:
            self._load_checkpoint(after)
        self._steps_per_epoch = len(self._group_batches(0))
        self._validate_every = settings.validate_every or min(
            max(self._steps_per_epoch, _MIN_VALIDATE_EVERY), _MAX_VALIDATE_EVERY
        )
        self._totals, self._tokens = StepTotals(processes.device), 0
        self._waits = processes.is_sharded or not skips_without_waiting(processes.device)
        self._watcher: Watcher | None = None
        self._previous_seconds, self._start_time = self.progress.seconds, time.monotonic()
        self._last_save_time = self._last_report_time = self._start_time
        self._saved_step = -1
        self._decisions = Decisions(
            processes, every=_REPORT_EVERY, step=self.progress.step, seconds=self._previous_seconds
        )
        self.meter = EnergyMeter(str(processes.device) if processes.shard.of == 1 else "several devices")

    def run(self) -> Progress:
        """Train until a bound is met or the score no longer improves, then choose the model to keep.

        Raises KeyboardInterrupt, after writing a checkpoint, if the process received SIGINT, SIGTERM or SIGHUP;
        DataError if the gradient stays NaN or infinite.
        """
        if self._processes.is_main:
            recover_model(self.out)
        self._restore_model_folder()
        with InterruptHandler() as interruption, self._watch_attention():
            self._train(interruption)
            if self._processes.main_decides(interruption.stop_requested):
                self._save_checkpoint(self._gather_weights())
                raise KeyboardInterrupt
        self._restore_model_folder()
        self._choose_final_model()
        return self.progress

    @contextmanager
    def _watch_attention(self) -> Iterator[None]:
        """Measure the attention layers in the main process, if the settings say so."""
        if not self.settings.watch or not self._processes.is_main:
            yield
            return
        first_step, every = self.progress.step + 1, self.settings.watch
        model, report = self._unwrapped_model, self._report_attention
        with watch(model, every=every, count="step", first_step=first_step, callback=report) as self._watcher:
            yield

    def _report_attention(self, rows: Sequence[LayerStatistics]) -> None:
        numbers = {f"{name}/{row.layer}": value for row in rows for name, value in row.numbers.items()}
        self.report.numbers(rows[0].step, "attention", numbers)

    def _train(self, interruption: InterruptHandler) -> None:
        stop = self._decide(interruption).stop
        while not (stop or self._is_over()):
            for step in self._group_batches(self.progress.epoch)[self.progress.batch :]:
                self._train_step(step)
                if self.progress.step % self._validate_every == 0:
                    self._validate()
                if self._decisions.is_due(self.progress.step):
                    stop = self._stop_or_save(interruption)
                if stop or self._is_over():
                    return
            self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batch=0)

    def _stop_or_save(self, interruption: InterruptHandler) -> bool:
        """Write a checkpoint if one is due, and return whether to stop."""
        decision = self._decide(interruption)
        if decision.save and not decision.stop:  # a run that stops writes one
            self._save_checkpoint(self._gather_weights())
            decision = self._decide(interruption)  # writing takes time
        return decision.stop

    def _decide(self, interruption: InterruptHandler) -> Decision:
        """Return what the main process decides now."""
        is_save_due = time.monotonic() - self._last_save_time >= self.settings.save_seconds
        save = is_save_due and self._saved_step != self.progress.step
        opinion = Decision(stop=interruption.stop_requested, save=save, seconds=self._seconds)
        return self._decisions.share(self.progress.step, opinion)

    def _group_batches(self, epoch: int) -> list[Sequence[Any]]:
        """Group an epoch's batches into steps. Raises DataError for an epoch without batches, which would never end."""
        batches, size = self.task.epoch(epoch), self.settings.accumulate
        if not len(batches):
            raise DataError(
                "an epoch has no batches", expected="one batch or more", got="none", do="check Task.epoch and the data"
            )
        return [batches[first : first + size] for first in range(0, len(batches), size)]

    def _is_over(self) -> bool:
        """Whether a bound is met."""
        return self.ended_by() is not None

    def ended_by(self) -> str | None:
        """Return the setting whose bound is met ("epochs", "steps", "patience", "minutes"); None if none is."""
        settings, progress = self.settings, self.progress
        if settings.epochs is not None and progress.epoch >= settings.epochs:
            return "epochs"
        if settings.steps is not None and progress.step >= settings.steps:
            return "steps"
        if settings.patience and progress.stale >= settings.patience:
            return "patience"
        if settings.minutes is not None and self._decisions.seconds >= 60 * settings.minutes:
            return "minutes"
        return None

    @property
    def _seconds(self) -> float:
        """Training time in seconds, including the time of the runs that this one resumes."""
        return self._previous_seconds + time.monotonic() - self._start_time

    def _train_step(self, batches: Sequence[Any]) -> None:
        """Train on the batches of one step, and update the weights once."""
        self.model.train()
        done = self._part_of_schedule() if self.settings.schedule.ends_with_the_run else 0.0
        rate = self.settings.schedule.rate(self.progress.step + 1, done)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(self.task.tokens(batch) for batch in batches)
        if tokens <= 0:
            raise DataError(
                "a batch counts no tokens, so its loss cannot be averaged over them",
                expected="a number of 1 or more from Task.tokens",
                got=str(tokens),
                do="leave out batches without predictions, or count examples",
            )
        loss: Any = 0.0
        for place, batch in enumerate(batches):
            with self._processes.no_sync(self.model) if place < len(batches) - 1 else nullcontext():
                loss += self._forward_backward(batch, tokens)
        norm = self._clip_gradients()
        self._totals.add(loss, tokens, norm)
        if self._waits:
            self._check_finite()
            if math.isfinite(float(norm)):
                self.optimizer.step()
        else:
            step_if_finite(self.optimizer, norm)
        self.optimizer.zero_grad()
        self._tokens += tokens
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            batch=self.progress.batch + 1,
            tokens=self.progress.tokens + tokens,
        )
        if self._watcher is not None:
            self._watcher.step()
        if self.progress.step % _REPORT_EVERY == 0:
            self._report(rate, self._check_finite())

    def _forward_backward(self, batch: Any, tokens: int) -> Tensor:
        """Add the gradient of this process's shard of a batch, and return the sum of its losses."""
        with self._autocast_context():
            loss = self.task.loss(self.model, batch, self._processes.shard)
        # DDP and FSDP average gradients over processes; the factor makes that a sum.
        self._processes.backward(loss * (self._processes.shard.of / tokens))
        return self._totals.widened(loss)

    def _autocast_context(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._processes.device.type, dtype=self._autocast)

    def _clip_gradients(self) -> Tensor:
        """Clip the gradient to the norm ``clip``, and return its norm before clipping."""
        return self._processes.clip(self.model, self.settings.clip or math.inf)

    def _check_finite(self) -> Totals:
        """Return the sums, or raise DataError after too many consecutive steps with a NaN or infinite gradient.

        A single such step is skipped. It waits for the device, so on a GPU it is called once for each report.
        """
        totals = self._totals.read()
        if totals.nonfinite_steps >= _MAX_NONFINITE_STEPS:
            raise self._divergence_error(totals)
        return totals

    def _divergence_error(self, totals: Totals) -> DataError:
        return DataError(
            f"the loss was NaN or infinite for {count_noun(totals.nonfinite_steps, 'step')}",
            expected="a finite gradient",
            got=f"{totals.norm} at step {self.progress.step}",
            do="lower the learning rate, lengthen the warm-up, or train in float32",
        )

    def _report(self, rate: float, totals: Totals) -> None:
        report_time = time.monotonic()
        loss = self._processes.sum(totals.loss) / totals.tokens if totals.tokens else math.nan
        done, left = self._estimate_remaining()
        numbers = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": totals.norm,
            "epoch": float(self.progress.epoch),
        }
        numbers[f"{self.task.unit}_per_second"] = self._tokens / (report_time - self._last_report_time)
        joules = self.meter.read()
        if joules is not None:
            numbers["joules"] = joules
        if left is not None:
            numbers |= {"done": done, "seconds_left": left}
        self._totals.reset()
        self._tokens, self._last_report_time = 0, report_time
        if self._processes.is_main:
            self.report.numbers(self.progress.step, "train", numbers | dict(self.task.metrics()))

    def _part_of_schedule(self) -> float:
        """The part of the epochs or minutes that is over, the same in every process."""
        shares = [self._part_of_epochs()]
        if self.settings.minutes:
            shares.append(self._decisions.seconds / (60 * self.settings.minutes))
        return min(1.0, max(shares))

    def _part_of_epochs(self) -> float:
        settings, progress = self.settings, self.progress
        if settings.epochs is None:
            return 0.0
        return (progress.epoch + progress.batch / max(1, self._steps_per_epoch)) / settings.epochs

    def _estimate_remaining(self) -> tuple[float, float | None]:
        """Return the fraction of the run that is done and the seconds left, by the bound that is met first."""
        settings, progress = self.settings, self.progress
        shares = [self._part_of_epochs()]
        if settings.steps is not None:
            shares.append(progress.step / settings.steps)
        if settings.minutes:
            shares.append(self._seconds / (60 * settings.minutes))
        done = min(1.0, max(shares))
        return done, self._seconds * (1 - done) / done if done > 0 else None

    def _validate(self) -> None:
        """Measure the model, keep its weights if they are among the best, and write a checkpoint."""
        began = time.monotonic()
        weights = self._gather_weights()
        result = self._validate_weights(weights)
        kept = self.progress.kept
        self.progress = self.progress.after_validation(result.score, self.settings.average)
        if self._processes.is_main:
            self.report.numbers(self.progress.step, "validation", result.metrics or {"score": result.score})
            self.report.samples(self.progress.step, result.samples)
            for snapshot in self.progress.best:
                if snapshot.step == self.progress.step:
                    self.folder.save_snapshot(snapshot.name, weights)
            if self.progress.kept != kept:
                self._save_model(result)
        self._save_checkpoint(weights)
        self._last_report_time += time.monotonic() - began  # the speed excludes validation

    def _validate_weights(self, weights: dict[str, Tensor]) -> Validation:
        """Validate ``weights`` in the main process, and return its score in every process."""
        result = Validation(score=0.0)
        if self._processes.is_main:
            if self._full_model is not self.task.model:
                state_dicts.set_weights(self._full_model, weights, self._tied)
            result = self._run_validation()
        return replace(result, score=self._processes.broadcast(result.score))

    def _run_validation(self) -> Validation:
        """Validate the unwrapped model without changing the random number generators of training.

        The CPU's generator has a seed of its own at each step, so that a repeated or resumed run shows the same
        samples.
        """
        device = self._processes.device
        others = [] if device.type == "cpu" else [device]  # explicit: with several GPUs torch warns, and forks all
        self._full_model.eval()  # a step starts with train()
        with torch.no_grad(), torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
            torch.default_generator.manual_seed(self.settings.seed + self.progress.step)
            try:
                return self.task.validate(self._full_model)
            except RegardError as error:
                totals = self._totals.read()
                if totals.nonfinite_steps:
                    raise self._divergence_error(totals) from error
                raise

    def _save_model(self, result: Validation) -> None:
        """Write the model folder, replacing the folder of a worse model."""
        progress = self.progress
        trained = {"steps": progress.step, self.task.unit: progress.tokens, "minutes": round(self._seconds / 60, 1)}
        self.task.save(self._full_model, self.out, {"trained": trained, "validation": result.metrics})

    def _restore_model_folder(self) -> None:
        """Write the model of the best validation again if its folder was moved away.

        Later models are written only if they are better, so otherwise there might be no model at the end.
        """
        if not self.progress.best or self._processes.main_decides(self.out.expanduser().exists()):
            return
        weights = self._copy_weights()
        result = Validation(score=0.0)
        if self._processes.is_main:
            state_dicts.set_weights(self._full_model, self.folder.load_snapshot(self.progress.best[0].name), self._tied)
            result = self._run_validation()
        kept = self._processes.broadcast(result.score)
        if kept != self.progress.kept:  # the missing model was an average of several
            self.progress = replace(self.progress, kept=kept)
            self._save_checkpoint(weights)
        if self._processes.is_main:
            self._save_model(result)
            if self._full_model is self.task.model:
                state_dicts.set_weights(self._full_model, weights, self._tied)
        self._processes.wait()
        self._last_report_time = time.monotonic()

    def _choose_final_model(self) -> None:
        """Validate the last weights and the mean of the best ones, and keep the best model."""
        if self.progress.step != self.progress.validated_at:
            self._validate()
        best, kept = self.progress.best, self.progress.kept
        weights = self._copy_weights()
        if self._processes.is_main and len(best) > 1:
            mean = average_states(self.folder.load_snapshot(snapshot.name) for snapshot in best)
            state_dicts.set_weights(self._full_model, mean, self._tied)
            result = self._run_validation()
            self.report.numbers(self.progress.step, "validation", {**result.metrics, "averaged": float(len(best))})
            if kept is None or result.score >= kept:
                kept = result.score
                self._save_model(result)
        kept = None if kept is None else self._processes.broadcast(kept)
        if kept != self.progress.kept:
            self.progress = replace(self.progress, kept=kept)
            self._save_checkpoint(weights)  # so that a resumed run does not replace the model with a worse one

    def _gather_weights(self) -> dict[str, Tensor]:
        return state_dicts.get_weights(self._unwrapped_model, self._tied)

    def _copy_weights(self) -> dict[str, Tensor]:
        """Gather copies of the weights, for when the model's weights are replaced."""
        return {name: tensor.clone() for name, tensor in self._gather_weights().items()}

    def _save_checkpoint(self, weights: dict[str, Tensor]) -> None:
        """Write a checkpoint of ``weights``, the optimizer, the random number generators and the progress."""
        self.progress = replace(self.progress, seconds=self._seconds)
        checkpoint = TrainingState(
            progress=self.progress,
            weights=weights,
            optimizer=state_dicts.get_optimizer_state(self._unwrapped_model, self.optimizer),
            random=self._processes.gather(state_dicts.get_rng_states(self._processes.device)),
        )
        if self._processes.is_main:
            self.folder.save(checkpoint)
        self._processes.wait()
        self._last_save_time, self._saved_step = time.monotonic(), self.progress.step

    def _load_checkpoint(self, checkpoint: TrainingState) -> None:
        """Load weights, optimizer state and random number generators from a checkpoint."""
        state_dicts.set_weights(self._unwrapped_model, checkpoint.weights, self._tied)
        state_dicts.set_optimizer_state(self._unwrapped_model, self.optimizer, checkpoint.optimizer)
        state_dicts.set_rng_states(self._processes.select_own(checkpoint.random), self._processes.device)
