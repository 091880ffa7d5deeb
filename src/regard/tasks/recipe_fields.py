"""Recipes: what all of them do with their fields, and the fields that several tasks declare."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from regard.errors import OptionError
from regard.fields import check_fields, declare, declared_fields
from regard.parse_value import parse_assignments
from regard.tasks.presets import SIZES

LORA = declare(
    "With `start=...`: train low-rank adapters of this rank, which are added to the weights at the end, instead "
    "of all weights. Needs the extra lora.",
    minimum=1,
    metavar="RANK",
    before=("settings_precision",),
)
LORA_ALPHA = declare(
    "Scale of the adapters. Default: twice the rank.",
    above=0.0,
    noun="`lora_alpha`",
    before=("settings_precision",),
)
SMOOTHING = declare(
    "Label smoothing factor.", minimum=0.0, maximum=1.0, shell_range=(0.0, 0.99), before=("settings_clip",)
)
SKIP_BAD = declare("Leave broken files out, and report them.", panel="Pictures and sounds")
MEMORY = declare(
    "Decoded files to keep, in GB; more are decoded again in each epoch. Default: 2.",
    minimum=0.0,
    shell_range=(None, None),
    metavar="GB",
    panel="Pictures and sounds",
    is_saved=False,
)
DEFAULT_MEMORY = 2.0
"""Gigabytes of decoded pictures or of features of sounds that are kept."""


class Recipe(ABC):
    """The data and the model of a task: a dataclass, all fields of which are declared (``regard.fields``).

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    fields_are_options: ClassVar[bool] = True
    fixed: ClassVar[str] = "the architecture"
    """The part of a trained model that the fields of a new one would change, for messages."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    @abstractmethod
    def start(self) -> str | None:
        """The folder of the trained model that training starts from, or its name on the Hub; None for a new model."""

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values by name, except those that the data may decide and that change no weights.

        Of the folder of a model it is the last part.
        """
        declared = {field.name: field.facts for field in declared_fields(type(self))}
        values = asdict(self)  # type: ignore[call-overload]
        for name, facts in declared.items():
            if facts.get("completes") == "models" and values[name] is not None:
                values[name] = Path(values[name]).name
        return {name: to_json_value(value) for name, value in values.items() if declared[name].get("is_saved", True)}

    def check_effect(self) -> None:
        """Raise OptionError if training starts from a trained model, and a field was given that only a new one has."""
        given = [
            f"`{declared.name}`"
            for declared in declared_fields(type(self))
            if declared.facts.get("of_new_model") and getattr(self, declared.name) != declared.default
        ]
        if self.start is not None and given:
            raise OptionError(
                f"fine-tuning cannot change {self.fixed} of {self.start}",
                expected="settings that leave them as they are",
                got="settings that would change them",
                do=f"leave out {', '.join(given)}",
            )


def declare_data(text: str, example: str) -> dict[str, Any]:
    """Declare the files of a recipe, for ``example`` "pairs.tsv"."""
    return declare(text, example=f'for example data=(Path("{example}"),)')


def declare_start(text: str, **facts: Any) -> dict[str, Any]:
    """Declare the trained model that training starts from."""
    return declare(text, option="--from", metavar="MODEL", completes="models", **facts)


def declare_size(text: str) -> dict[str, Any]:
    """Declare the size of a new model."""
    return declare(text, choices=SIZES, metavar="SIZE", is_saved=False, of_new_model=True)


def declare_validation(text: str, example: str) -> dict[str, Any]:
    """Declare the validation files of a recipe, as ``declare_data``."""
    return declare(text, option="--valid", example=f'for example validation=(Path("{example}"),)')


def declare_hyperparameters(examples: str, *, first: str = "layers") -> dict[str, Any]:
    """Declare values that override the values of a new model's config, with ``examples`` that the default model has."""
    return declare(
        f"Override a model setting, for example {examples}; repeat for more.",
        example=f'for example hyperparameters={{"{first}": 4}}',
        option="--set",
        metavar="NAME=VALUE",
        parse=parse_assignments,
        shell_kind=list[str],
        is_saved=False,
        of_new_model=True,
    )


def declare_augmentation(text: str, panel: str) -> dict[str, Any]:
    """Declare the random changes of training data."""
    return declare(text, choices=("none", "light", "strong"), noun="augmentation", panel=panel)


def declare_attention(text: str) -> dict[str, Any]:
    """Declare the attention mechanism of a new model."""
    return declare(text, completes="mechanisms", is_saved=False, of_new_model=True)


def check_adapters(rank: int | None, alpha: float | None, *, start: str | None) -> None:
    """Raise OptionError for low-rank adapters where they have no effect: ``start`` is None, or there is no rank."""
    if rank is not None and start is None:
        raise OptionError(
            "low-rank adapters need a trained model",
            expected="`start=...` with `lora=...`",
            got="a new model with random weights",
            do="leave `lora` out, or name the model to fine-tune",
        )
    if alpha is not None and rank is None:
        raise OptionError(
            "`lora_alpha` has no effect without adapters",
            expected="`lora=...` as well",
            got=f"a scale of {alpha:g} without a rank",
            do="leave it out, or give the rank: `lora=8`",
        )


def default_fields(kind: type[Any]) -> dict[str, Any]:
    """The defaults of a dataclass' fields as JSON values by name, for ``Task.recipe_defaults``.

    A default that is a dataclass itself becomes an object of its fields.
    """
    defaults = {}
    for field in fields(kind):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if default is not MISSING:
            is_nested = is_dataclass(default) and not isinstance(default, type)
            defaults[field.name] = to_json_value(asdict(default) if is_nested else default)
    return defaults


def to_json_value(value: Any) -> Any:
    """Convert to JSON; a path becomes its file name, since the file may be elsewhere when the run is resumed.

    Any other object, such as one in the config of a model, becomes its ``repr``.
    """
    if isinstance(value, Path):
        return value.name
    if isinstance(value, tuple | list):
        return [to_json_value(part) for part in value]
    if isinstance(value, dict):
        return {name: to_json_value(part) for name, part in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)
