"""What a task is: where batches come from, what their loss is, how good the model is. The loop knows no more.

``regard.train.run`` calls a task in this order:

    layer       which kind of layer to measure, where the precision is "auto"
    prepare     read the data, make the model
    complete    fill in the settings that were left open
    recipe      what a resumed run must have in common with this one
    files       what the run's folder keeps of the task
    epoch, tokens, loss         for each step
    validate                    now and then
    save                        whenever the model is the best so far
    describe                    at the end

The six abstract methods are all that a task must write.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from regard.errors import OptionError, short_repr
from regard.models.checkpoint_writer import write_folder
from regard.train.settings import Settings

Rows = TypeVar("Rows", bound=Any)


@final
@dataclass(frozen=True)
class RankShard:
    """The part of a batch that one of several processes computes: rows ``rank``, ``rank + of``, ..

    With one process, the default, it is the whole batch.
    """

    rank: int = 0
    of: int = 1

    def rows(self, batch: Rows) -> Rows:
        """The rows of this process. ``batch`` is a tensor, an array or a list; none are left where it is too short."""
        rows: Rows = batch[self.rank :: self.of]
        return rows


@final
@dataclass(frozen=True)
class Validation:
    """How good a model is: ``score`` (higher is better) decides which weights are kept.

    ``metrics`` are numbers by name, for metrics.jsonl and TensorBoard, by default the score. ``samples`` are lines of
    text to look at.
    """

    score: float
    metrics: dict[str, float] = field(default_factory=dict)
    samples: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise OptionError for a score that cannot be compared with others."""
        score: object = self.score
        if not isinstance(score, Real) or math.isnan(float(score)):
            raise OptionError(
                "the score of a validation is not a number",
                expected="a float, higher for a better model",
                got=short_repr(score),
                do="return a finite score from Task.validate, such as the negative of a loss",
            )


@final
@dataclass(frozen=True, eq=False)
class RunContext:
    """What a task is told of the run that it is prepared for.

    ``settings`` are those of the run, the precision chosen. ``say`` tells the user a sentence. ``device`` is where the
    model will be trained, and needs its batches. ``folder`` is the folder of the run if another process began it,
    earlier or as the main one of several, with what ``Task.files`` returned then; None if this process is to begin it.
    """

    settings: Settings
    say: Callable[[str], None] = print
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None


class Task(ABC):
    """Something to learn. Subclass it, write the abstract methods, and give an instance to ``regard.train.run``.

    A weight that stands in two places of the model is saved once if the model has ``tied``, a mapping from its second
    name to its first.
    """

    model: nn.Module
    """What is trained. ``prepare`` makes it."""

    @property
    def layer(self) -> str:
        """The kind of layer that takes most of the model's time: "linear", "gru" or "lstm".

        Where the precision is "auto", this layer is measured in each. Asked before ``prepare``.
        """
        return "linear"

    @abstractmethod
    def prepare(self, context: RunContext) -> None:
        """Read the data, and set ``self.model`` to a model with its first weights, on any device.

        Called once in each process, with torch's random numbers seeded by ``context.settings.seed``. What is made of
        the data at great cost, such as subwords, is returned by ``files`` and read again from ``context.folder``.
        Raises DataError for data that cannot be used.
        """

    def complete(self, settings: Settings) -> Settings:
        """The settings, with a learning rate and a warm-up that suit the data where they are None.

        Called after ``prepare``. By default nothing is changed, and ``Schedule`` has values of its own.
        """
        return settings

    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """All that decides what is learned, as JSON: choices, numbers of the model, a hash of the data.

        Called after ``prepare``. A run is resumed only with an equal recipe. Its names differ from those of
        ``Settings.lasting``, which are compared too. Of files give names and contents, not the folders they lie in.
        """

    def files(self) -> Mapping[str, str]:
        """Texts that the folder of the run keeps, by file name: what ``prepare`` would take long to make again."""
        return {}

    @abstractmethod
    def epoch(self, number: int) -> Sequence[Any]:
        """The batches of an epoch (the first is 0), in order: a function of the number alone.

        A batch may be anything; the rows of a tensor, or numbers of examples, are usual.
        """

    @abstractmethod
    def tokens(self, batch: Any) -> int:
        """How many predictions a batch makes, over all processes: the sum of its losses is divided by that."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, shard: RankShard) -> Tensor:
        """The sum of the losses of this process's rows of a batch, a scalar with a gradient.

        ``model`` is ``self.model``, perhaps wrapped for several processes, in training mode, on its device. Without
        rows the sum is 0, and has to go through the model all the same: every process takes part in each step.
        """

    @abstractmethod
    def validate(self, model: nn.Module) -> Validation:
        """How good the model is on data that it does not learn from.

        ``model`` is not wrapped, and in evaluation mode; no gradients are recorded. Only the main process calls.
        """

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the folder of a model that can be used, in place of one that is there; keep other files in it.

        ``about`` says how the model came about: steps, minutes, metrics. By default the folder has model.safetensors
        and about.json, which holds the recipe too. They are written aside and renamed.
        """
        tied = getattr(model, "tied_weights", {})
        weights = {name: weight for name, weight in model.state_dict().items() if name not in tied}
        text = json.dumps({"recipe": self.recipe(), **about}, indent=2, ensure_ascii=False) + "\n"
        write_folder(folder, {"about.json": text}, weights, overwrite=True, keep_others=True)

    def describe(self, score: float) -> str:
        """A score in words, for the last message of a run, such as "accuracy 0.93 on held-out sentences"."""
        return f"score {score:.4g}"
