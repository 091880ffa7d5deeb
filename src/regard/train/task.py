"""The interface of a task: its batches, its loss and its validation. The training loop uses nothing else.

``regard.train.run`` calls a task in this order:

    layer       the kind of layer to measure if the precision is "auto"
    prepare     read the data, build the model
    complete    fill in settings that are None
    recipe      what must be the same when the run is resumed
    files       files of the task to store in the run's folder
    epoch, tokens, loss         for each step
    metrics                     at each report
    validate                    at each validation
    save                        whenever the model is the best so far
    describe, baseline          at the end

A task must implement the six abstract methods; the others have defaults.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr
from regard.models.checkpoint_writer import write_folder
from regard.train.settings import Settings

Rows = TypeVar("Rows", bound=Any)


@final
@explain_arguments
@dataclass(frozen=True)
class RankShard:
    """The part of a batch that one of ``of`` processes computes: rows ``rank``, ``rank + of``, ..

    With one process, the default, it is the whole batch.
    """

    rank: int = 0
    of: int = 1

    def rows(self, batch: Rows) -> Rows:
        """Select this process's rows of ``batch``, a tensor, an array or a list; none if ``batch`` is too short."""
        rows: Rows = batch[self.rank :: self.of]
        return rows


@final
@explain_arguments
@dataclass(frozen=True)
class Validation:
    """The result of a validation: ``score`` (higher is better) decides which weights are kept.

    ``metrics`` are numbers by name for metrics.jsonl and TensorBoard; without any, the score is reported. ``samples``
    are lines of text for people to look at.
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
@explain_arguments
@dataclass(frozen=True, eq=False)
class RunContext:
    """The facts about the run that ``Task.prepare`` gets.

    ``settings`` are the settings of the run, with the precision resolved. ``device`` is where the model will be trained
    and needs its batches. ``folder`` is the run's folder, which holds the files from ``Task.files``, if another process
    has started the run: an earlier one, or the main one of several. It is None if this process starts the run. Messages
    for the user go to the logger "regard" (``regard.log``), and from there to the report of the run.
    """

    settings: Settings
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    folder: Path | None = None


class Task(ABC):
    """A learning task: subclass it, implement the abstract methods, and pass an instance to ``regard.train.run``.

    A weight that the model has under two names is saved once if the model has an attribute ``tied_weights``, a mapping
    from its second name to its first.
    """

    model: nn.Module
    """The model to train, set by ``prepare``."""

    @property
    def layer(self) -> str:
        """The kind of layer in which the model spends most of its time: "linear", "gru" or "lstm".

        If the precision is "auto", this layer is timed in each precision. Read before ``prepare`` is called.
        """
        return "linear"

    def check(self) -> None:  # noqa: B027 (may be left as it is)
        """Raise an error for what can be refused at once, such as a missing file: before anything else takes time."""

    @abstractmethod
    def prepare(self, context: RunContext) -> None:
        """Read the data, and set ``self.model`` to a model with initial weights, on any device.

        Called once in each process, with torch's random number generator seeded with ``context.settings.seed``. Return
        what is expensive to compute from the data, such as subwords, from ``files``, and read it from
        ``context.folder`` when that is not None. Raises DataError for data that cannot be used.
        """

    def complete(self, settings: Settings) -> Settings:
        """Return the settings with a learning rate and a warm-up that suit the data where they are None.

        Called after ``prepare``. By default the settings are unchanged, and ``Schedule`` fills in its own defaults.
        """
        return settings

    @abstractmethod
    def recipe(self) -> Mapping[str, Any]:
        """Return everything that decides the training, as JSON values: options, hyperparameters, a hash of the data.

        Called after ``prepare``. A run can be resumed only with an equal recipe. Its names must differ from the names
        in ``Settings.lasting``, which are compared too. Identify files by name and content, not by their folder.
        """

    def recipe_defaults(self) -> Mapping[str, Any]:
        """Return the values with which runs went before a field of ``recipe`` existed, as JSON values.

        A run whose recipe lacks a field was started by an earlier version. It can be resumed if the field has this
        value now, or is None. A field without an entry must be None.
        """
        return {}

    def recipe_argument(self, name: str) -> str | None:
        """Return the argument by which a user knows an entry of ``recipe``, if it has another name.

        An example is "`model`" for "model.type". Called after ``prepare``, for the message about another recipe.
        """
        return None

    def files(self) -> Mapping[str, str]:
        """Return texts to store in the run's folder, by file name: results that ``prepare`` is slow to compute."""
        return {}

    @abstractmethod
    def epoch(self, number: int) -> Sequence[Any]:
        """Return the batches of epoch ``number`` (from 0), in order; they must depend on the number alone.

        A batch may be any object; usual are rows of a tensor, or indices of examples.
        """

    @abstractmethod
    def tokens(self, batch: Any) -> int:
        """Return the number of predictions in a batch, over all processes; the sum of its losses is divided by it."""

    @property
    def unit(self) -> str:
        """The unit of ``tokens``, in the plural, such as "texts": the unit of the speed that a run reports."""
        return "tokens"

    @abstractmethod
    def loss(self, model: nn.Module, batch: Any, shard: RankShard) -> Tensor:
        """Return the sum of the losses of this process's rows of a batch, a scalar with a gradient.

        ``model`` is ``self.model``, perhaps wrapped for several processes, in training mode, on its device. If the
        shard has no rows, run the model anyway and return 0 times its loss: every process takes part in each step.
        """

    def metrics(self) -> Mapping[str, float]:
        """Return numbers of training since the last call, by name, for the report of every ten steps.

        An example is the share of the time in which training waited for data. Called in the main process only.
        """
        return {}

    @abstractmethod
    def validate(self, model: nn.Module) -> Validation:
        """Return the score of the model on data that it is not trained on.

        ``model`` is not wrapped, and in evaluation mode; no gradients are recorded. Called in the main process only.
        torch's random number generator is seeded for this call with the seed of the run and the step, so samples drawn
        with it differ from one validation to the next, and are the same in a run that is repeated or resumed.
        """

    def baseline(self) -> float | None:
        """Return the score of a model that ignores its input, such as one that answers the most frequent label.

        A run whose model is not better ends with the advice to continue it. None, the default, gives no such advice.
        """
        return None

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the model folder, replacing an older model in it and keeping other files.

        ``about`` is metadata of the training: steps, minutes, metrics. By default the folder gets model.safetensors and
        about.json, which holds the recipe too; it is replaced atomically.
        """
        tied = getattr(model, "tied_weights", {})
        weights = {name: weight for name, weight in model.state_dict().items() if name not in tied}
        text = json.dumps({"recipe": self.recipe(), **about}, indent=2, ensure_ascii=False) + "\n"
        write_folder(folder, {"about.json": text}, weights, overwrite=True, keep_others=True)

    def describe(self, score: float) -> str:
        """Format a score for the last message of a run, such as "accuracy 0.93 on held-out sentences"."""
        return f"score {score:.4g}"
