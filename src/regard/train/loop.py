"""The training loop, for any ``Task``, in one process or in many.

    a step    of each of ``accumulate`` batches every process takes its share of the rows;
              gradient of (sum of the losses of all shares) / (tokens of all batches), cut to norm ``clip``;
              AdamW (Kingma and Ba 2015; Loshchilov and Hutter 2019) with betas 0.9 and 0.98, epsilon 1e-9, as in
              Vaswani et al. 2017, section 5.3, at the schedule's rate

So the loss does not depend on how batches are cut into shares. What decides a step is the weights, the optimizer, the
random numbers and the ``Progress``: a checkpoint holds all of them, and a run that goes on from one gives the same bits
as one that was never cut off. Processes and machines are Accelerate's: ``accelerate launch``, DDP or FSDP.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.errors import DataError
from regard.models.checkpoint_writer import recover_model
from regard.train import state_dicts
from regard.train.averaging import average_states
from regard.train.distributed import Processes
from regard.train.precision import autocast_dtype
from regard.train.progress import Progress
from regard.train.reports import Report
from regard.train.run_folder import Checkpoint, RunFolder
from regard.train.settings import Settings
from regard.train.signals import InterruptHandler
from regard.train.task import Task, Validation

_MIN_VALIDATE_EVERY, _MAX_VALIDATE_EVERY = 200, 2000
"""Steps between validations, where an epoch is shorter or longer."""
_REPORT_EVERY = 10
_MAX_NONFINITE_STEPS = 10
"""Steps in a row without a finite gradient, after which more of the same will not help."""


@final
class Trainer:
    """Learns ``task`` as ``settings`` say. The run is in ``folder``, the best model in ``out``.

    ``after`` is the checkpoint to go on from. The precision of the settings is chosen: "auto" would be float32.
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
        after: Checkpoint | None = None,
    ) -> None:
        self.task, self.settings, self.folder, self.out, self.report = task, settings, folder, out, report
        self.progress = Progress() if after is None else after.progress
        self._processes = processes
        self._tied = getattr(task.model, "tied_weights", {})
        self._full_model = copy.deepcopy(task.model).to(processes.device) if processes.is_sharded else task.model
        if after is None:
            torch.manual_seed(settings.seed + processes.rank)
        self.model, self.optimizer = processes.prepare(task.model, _make_optimizer(task.model, settings))
        self._unwrapped_model = processes.unwrap(self.model)
        if after is not None:
            self._load_checkpoint(after)
        self._autocast = autocast_dtype(settings.precision)
        self._steps_per_epoch = len(self._group_batches(0))
        self._validate_every = settings.validate_every or min(
            max(self._steps_per_epoch, _MIN_VALIDATE_EVERY), _MAX_VALIDATE_EVERY
        )
        self._loss, self._loss_tokens, self._tokens, self._nonfinite_steps = 0.0, 0, 0, 0
        self._previous_seconds, self._start_time = self.progress.seconds, time.monotonic()
        self._last_save_time = self._last_report_time = self._start_time

    def run(self) -> Progress:
        """Train until a bound is met or the score no longer rises, then choose the model to keep.

        Raises KeyboardInterrupt, once a checkpoint is written, where the process was asked to stop; DataError where the
        loss is no number any more.
        """
        if self._processes.is_main:
            recover_model(self.out)
        self._restore_model_folder()
        with InterruptHandler() as interruption:
            self._train(interruption)
            if self._processes.main_decides(interruption.stop_requested):
                self._save_checkpoint(self._gather_weights())
                raise KeyboardInterrupt
        self._restore_model_folder()
        self._choose_final_model()
        return self.progress

    def _train(self, interruption: InterruptHandler) -> None:
        while not self._is_over():
            for step in self._group_batches(self.progress.epoch)[self.progress.batch :]:
                self._train_step(step)
                self._validate_or_save()
                if self._processes.main_decides(interruption.stop_requested) or self._is_over():
                    return
            self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batch=0)

    def _group_batches(self, epoch: int) -> list[Sequence[Any]]:
        """The batches of each step of an epoch. Raises DataError where it has none: the run would never end."""
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
        """The setting whose bound is met; None while there is more to learn."""
        settings, progress = self.settings, self.progress
        if settings.epochs is not None and progress.epoch >= settings.epochs:
            return "epochs"
        if settings.steps is not None and progress.step >= settings.steps:
            return "steps"
        if settings.patience and progress.stale >= settings.patience:
            return "patience"
        if settings.minutes is not None and self._processes.main_decides(self._seconds >= 60 * settings.minutes):
            return "minutes"
        return None

    @property
    def _seconds(self) -> float:
        """Time spent, in this run and those before it."""
        return self._previous_seconds + time.monotonic() - self._start_time

    def _train_step(self, batches: Sequence[Any]) -> None:
        """One step."""
        self.model.train()
        rate = self.settings.schedule.rate(self.progress.step + 1)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        tokens = sum(self.task.tokens(batch) for batch in batches)
        if tokens <= 0:
            raise DataError(
                "a batch counts no tokens, and its loss cannot be divided by them",
                expected="a number of 1 or more from Task.tokens",
                got=str(tokens),
                do="leave out batches that nothing is learnt from, or count examples",
            )
        loss = 0.0
        for place, batch in enumerate(batches):
            with self._processes.no_sync(self.model) if place < len(batches) - 1 else nullcontext():
                loss += self._forward_backward(batch, tokens)
        norm = self._clip_gradients()
        self._check_finite(norm)
        if math.isfinite(norm):
            self.optimizer.step()
            self._loss, self._loss_tokens = self._loss + loss, self._loss_tokens + tokens
        self.optimizer.zero_grad()
        self._tokens += tokens
        self.progress = replace(
            self.progress,
            step=self.progress.step + 1,
            batch=self.progress.batch + 1,
            tokens=self.progress.tokens + tokens,
        )
        if self.progress.step % _REPORT_EVERY == 0:
            self._report(rate, norm)

    def _forward_backward(self, batch: Any, tokens: int) -> float:
        """The gradient of this process's share of a batch; the sum of its losses."""
        with self._autocast_context():
            loss = self.task.loss(self.model, batch, self._processes.shard)
        # Gradients are averaged over processes, and are to be summed.
        self._processes.backward(loss * (self._processes.shard.of / tokens))
        return float(loss.detach())

    def _autocast_context(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._processes.device.type, dtype=self._autocast)

    def _clip_gradients(self) -> float:
        """The norm of the gradient, which is no longer than ``clip`` afterwards."""
        return self._processes.clip(self.model, self.settings.clip or math.inf)

    def _check_finite(self, norm: float) -> None:
        """Raise DataError when step after step gives no number; a single one is left out."""
        self._nonfinite_steps = 0 if math.isfinite(norm) else self._nonfinite_steps + 1
        if self._nonfinite_steps >= _MAX_NONFINITE_STEPS:
            raise DataError(
                f"the loss was NaN or infinite for {self._nonfinite_steps} steps",
                expected="a finite gradient",
                got=f"{norm} at step {self.progress.step}",
                do="lower the learning rate, lengthen the warm-up, or train in float32",
            )

    def _report(self, rate: float, norm: float) -> None:
        now = time.monotonic()
        loss = self._processes.sum(self._loss) / self._loss_tokens if self._loss_tokens else math.nan
        done, left = self._estimate_remaining()
        numbers = {"loss": loss, "learning_rate": rate, "gradient_norm": norm, "epoch": float(self.progress.epoch)}
        numbers["tokens_per_second"] = self._tokens / (now - self._last_report_time)
        if left is not None:
            numbers |= {"done": done, "seconds_left": left}
        self._loss, self._loss_tokens, self._tokens, self._last_report_time = 0.0, 0, 0, now
        if self._processes.is_main:
            self.report.numbers(self.progress.step, "train", numbers)

    def _estimate_remaining(self) -> tuple[float, float | None]:
        """The share of the run that is done, and the seconds left, by the nearest of its bounds."""
        settings, progress = self.settings, self.progress
        shares = [0.0]
        if settings.steps is not None:
            shares.append(progress.step / settings.steps)
        if settings.minutes:
            shares.append(self._seconds / (60 * settings.minutes))
        if settings.epochs is not None:
            shares.append((progress.epoch + progress.batch / max(1, self._steps_per_epoch)) / settings.epochs)
        done = min(1.0, max(shares))
        return done, self._seconds * (1 - done) / done if done > 0 else None

    def _validate_or_save(self) -> None:
        """Validate and save, when it is time."""
        if self.progress.step % self._validate_every == 0:
            self._validate()
        elif self._processes.main_decides(time.monotonic() - self._last_save_time >= self.settings.save_seconds):
            self._save_checkpoint(self._gather_weights())

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
        self._last_report_time += time.monotonic() - began  # the speed that is reported is that of learning

    def _validate_weights(self, weights: dict[str, Tensor]) -> Validation:
        """The main process's answer, in all of them."""
        result = Validation(score=0.0)
        if self._processes.is_main:
            if self._full_model is not self.task.model:
                state_dicts.set_weights(self._full_model, weights, self._tied)
            result = self._run_validation()
        return replace(result, score=self._processes.broadcast(result.score))

    def _run_validation(self) -> Validation:
        """Of the plain model. The random numbers of training are not touched."""
        device = self._processes.device
        others = [] if device.type == "cpu" else [device]  # said outright: of several GPUs torch warns, and forks all
        self._full_model.eval()  # a step begins with train()
        with torch.no_grad(), torch.random.fork_rng(others, device_type=device.type if others else "cuda"):
            return self.task.validate(self._full_model)

    def _save_model(self, result: Validation) -> None:
        """Write the model's folder, in place of a worse one's."""
        trained = {"steps": self.progress.step, "tokens": self.progress.tokens, "minutes": round(self._seconds / 60, 1)}
        self.task.save(self._full_model, self.out, {"trained": trained, "validation": result.metrics})

    def _restore_model_folder(self) -> None:
        """Write the model of the best validation once more, where the folder was moved away.

        Nothing worse than what was kept would be written later, so there might be none in the end.
        """
        if not self.progress.best or self._processes.main_decides(self.out.expanduser().exists()):
            return
        weights = {
            name: tensor.clone() for name, tensor in self._gather_weights().items()
        }  # the model takes others below
        result = Validation(score=0.0)
        if self._processes.is_main:
            state_dicts.set_weights(self._full_model, self.folder.load_snapshot(self.progress.best[0].name), self._tied)
            result = self._run_validation()
        kept = self._processes.broadcast(result.score)
        if kept != self.progress.kept:  # it was the mean of several
            self.progress = replace(self.progress, kept=kept)
            self._save_checkpoint(weights)
        if self._processes.is_main:
            self._save_model(result)
            if self._full_model is self.task.model:
                state_dicts.set_weights(self._full_model, weights, self._tied)
        self._processes.wait()
        self._last_report_time = time.monotonic()

    def _choose_final_model(self) -> None:
        """Measure the last weights and the mean of the best, and keep what is best."""
        if self.progress.step != self.progress.validated_at:
            self._validate()
        best, kept = self.progress.best, self.progress.kept
        weights = {
            name: tensor.clone() for name, tensor in self._gather_weights().items()
        }  # the model takes others below
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
            self._save_checkpoint(weights)  # a run that goes on from here does not replace the model by a worse one

    def _gather_weights(self) -> dict[str, Tensor]:
        return state_dicts.get_weights(self._unwrapped_model, self._tied)

    def _save_checkpoint(self, weights: dict[str, Tensor]) -> None:
        """Write a checkpoint."""
        self.progress = replace(self.progress, seconds=self._seconds)
        checkpoint = Checkpoint(
            progress=self.progress,
            weights=weights,
            optimizer=state_dicts.get_optimizer_state(self._unwrapped_model, self.optimizer),
            random=self._processes.gather(state_dicts.get_rng_states(self._processes.device)),
        )
        if self._processes.is_main:
            self.folder.save(checkpoint)
        self._processes.wait()
        self._last_save_time = time.monotonic()

    def _load_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint."""
        state_dicts.set_weights(self._unwrapped_model, checkpoint.weights, self._tied)
        state_dicts.set_optimizer_state(self._unwrapped_model, self.optimizer, checkpoint.optimizer)
        state_dicts.set_rng_states(self._processes.select_own(checkpoint.random), self._processes.device)


def _make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=settings.weight_decay, fused=True
    )
