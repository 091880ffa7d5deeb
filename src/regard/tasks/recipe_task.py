"""The skeleton of a task that trains a model by a recipe: what a task does whatever it learns.

A task says what it learns: its data and model (``prepare``), its batches, its loss, its validation, and what its
metadata are. Its folder has these files:

    recipe.py       the data and the model as a user names them; it imports no torch, so that the command reads it
    data.py         files read, split into training and validation data, encoded, and their batches
    new_model.py    a new model by the recipe, of a preset size (``tasks.presets``), or the trained one to start from
    validation.py   the metrics, and the loss
    task.py         these put together
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import OptionError
from regard.models.model import tokenizer_text
from regard.tasks.hyperparameters import find_hyperparameter
from regard.tasks.low_rank_adapters import merge_adapters
from regard.tasks.presets import Presets
from regard.tasks.recipe_fields import Recipe, default_fields
from regard.tasks.sentences import Indices
from regard.text.path_arguments import check_exists
from regard.text.tokenizer import Tokenizer
from regard.train import RankShard, RunContext, Settings, Task, Validation

AnyRecipe = TypeVar("AnyRecipe", bound=Recipe)
TOKENIZER_FILE = "tokenizer.json"
_ARGUMENTS = {
    "model.type": "model",
    "model.mechanism": "attention",
    "model.mechanisms": "attention",
    "model.position": "position",
}
"""The arguments that decide fields of a model in a recipe and have names of their own."""
_SIZED = {"batch": "batch", "block": "block", "tokens": "batch_tokens"}
"""The arguments of entries of a recipe that the size of a new model decides if they are None."""


class RecipeTask(Task, Generic[AnyRecipe]):
    """Training a model by ``recipe``."""

    model: Any
    batches: Any
    """The training examples, with the batches of each epoch (``numbered_batches.Epochs``)."""
    validation: Any
    """The measure of a model on the validation examples."""
    presets: ClassVar[Presets]
    """The sizes of new models, and the settings of fine-tuning."""
    size_field: ClassVar[str] = "model"
    """The field of the recipe that names the size of a new model."""
    data_kind: ClassVar[str] = ""
    """The contents of the files, such as "texts", if ``check`` checks that they exist; reading others says more."""

    def __init__(self, recipe: AnyRecipe) -> None:
        self._recipe = recipe
        self._size: Any = None

    def complete(self, settings: Settings) -> Settings:
        """Fill in the learning rate and the warm-up where they are None, and ``epochs`` of fine-tuning without a limit.

        Before the size of the model is known, the smallest counts.
        """
        size, tuning = self._size or self.presets.sizes[0], self.presets.fine_tuning
        rates, epochs = (size.peak, size.warmup), None
        if tuning is not None and self._recipe.start is not None:
            has_adapters = getattr(self._recipe, "lora", None) is not None
            rates, epochs = (tuning.lora_peak if has_adapters else tuning.peak, tuning.warmup), tuning.epochs
        settings = replace(settings, schedule=settings.schedule.complete(peak=rates[0], warmup=rates[1]))
        is_unlimited = (settings.epochs, settings.steps, settings.minutes) == (None, None, None)
        return replace(settings, epochs=epochs) if is_unlimited else settings

    def recipe_defaults(self) -> dict[str, Any]:
        """The defaults of the recipe, by which runs of earlier versions went."""
        return default_fields(type(self._recipe))

    def recipe_argument(self, name: str) -> str | None:
        """The argument that decides an entry of the recipe, or the two where the size of a new model may."""
        recipe: Any = self._recipe
        if name in _ARGUMENTS:
            return f"`{_ARGUMENTS[name]}`"
        if name in _SIZED:
            argument, is_given = f"`{_SIZED[name]}`", getattr(recipe, _SIZED[name]) is not None
        elif (setting := self._find_setting(name)) is not None:
            argument, is_given = f'`hyperparameters={{"{setting}": ...}}`', setting in recipe.hyperparameters
        else:
            return None
        return argument if is_given or recipe.start is not None else f"`{self.size_field}` or {argument}"

    def _find_setting(self, name: str) -> str | None:
        """The hyperparameter of a new model that an entry of the recipe holds, if any."""
        recipe: Any = self._recipe
        for prefix, (inner, config) in self.recorded_configs.items():
            found = find_hyperparameter(config, name.removeprefix(prefix)) if name.startswith(prefix) else None
            if found is not None and recipe.start is None:
                same = replace(recipe, hyperparameters={**recipe.hyperparameters, inner + found[0]: found[1]})
                with suppress(OptionError):  # a field that the data determine is no hyperparameter
                    self.check_hyperparameters(same)
                    return inner + found[0]
        return None

    @property
    def recorded_configs(self) -> Mapping[str, tuple[str, Any]]:
        """By the prefix of a config's fields in ``recipe``: their prefix in hyperparameters, and the config."""
        return {"model.": ("", self.model.config)}

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, DataError for a missing file."""
        recipe: Any = self._recipe
        recipe.check_effect()
        if recipe.start is None:
            self.check_hyperparameters(recipe)
        if self.data_kind:
            check_data_files((*recipe.data, *recipe.validation), kind=self.data_kind)

    @staticmethod
    def check_hyperparameters(recipe: Any) -> None:
        """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""

    def epoch(self, number: int) -> Sequence[Any]:
        """The batches of epoch ``number`` (from 0), in order."""
        batches: Sequence[Any] = self.batches.epoch(number)
        return batches

    def validate(self, model: nn.Module) -> Validation:
        """Measure the model on the validation examples."""
        found: Validation = self.validation.measure(model)
        return found

    def files(self) -> Mapping[str, str]:
        """The tokenizer of the model as a text, by file name; none of a model without one."""
        return tokenizer_text(self.model.text_tokenizer)

    @abstractmethod
    def metadata(self) -> dict[str, Any]:
        """The metadata about its data in the folder of the model, beside the metadata of every run."""

    def save(self, model: nn.Module, folder: Path, about: dict[str, Any]) -> None:
        """Write the model folder, with adapters merged, replacing an older model in it and keeping other files."""
        saved: Any = merge_adapters(model)
        saved.metadata = {**self.metadata(), **about}
        saved.save(folder, overwrite=True, keep_others=True)

    @property
    def _start_name(self) -> str | None:
        """The last part of the model that training starts from."""
        return None if self._recipe.start is None else Path(self._recipe.start).name


class RowTask(RecipeTask[AnyRecipe]):
    """Training a model whose loss is a sum over the rows of a batch, each of which is computed on its own."""

    def loss(self, model: nn.Module, batch: Any, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        rows = shard.rows(np.arange(len(batch)))
        return self.rows_loss(model, batch, rows) if len(rows) else self.empty_loss(model, batch)

    @abstractmethod
    def rows_loss(self, model: nn.Module, batch: Any, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""

    def empty_loss(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of a shard without rows, 0: every process takes part in each step."""
        return self.rows_loss(model, batch, np.arange(1)) * 0.0


def read_tokenizer(context: RunContext) -> Tokenizer | None:
    """The tokenizer of the run that is resumed; None for a new run, and for one without a tokenizer."""
    path = None if context.folder is None else context.folder / TOKENIZER_FILE
    return Tokenizer.from_file(path) if path is not None and path.exists() else None


def check_data_files(paths: Sequence[Path], *, kind: str) -> None:
    """Raise DataError for a path that does not exist; ``kind`` is what the files hold, such as "texts"."""
    for path in paths:
        check_exists(path, f"a file or a folder of {kind}")


def sample_rows(rows: int, count: int) -> list[int]:
    """Draw ``count`` of ``rows`` of the validation data to show, in ascending order; all of them if there are fewer.

    They come from torch's random number generator, which the training loop seeds for each validation
    (``regard.train.Task.validate``): others at each step, the same ones when a run is repeated.
    """
    return sorted(torch.randperm(rows)[:count].tolist())
