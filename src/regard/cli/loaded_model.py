"""The model of a verb: its folder and kind, loaded, changed by the options, and described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.cli.shared_options import Device, Weights, drop_none
from regard.cli.stderr import say
from regard.device_names import AUTO
from regard.errors import OptionError, RegardError

if TYPE_CHECKING:
    from regard.classification import Classifier
    from regard.models.kinds import ModelKind
    from regard.models.model_folder import ModelFolder


@final
@dataclass(frozen=True)
class ModelLoading:
    """The format of a model's weights, and the device that computes it: arguments of ``regard.load``."""

    weights: Weights = None
    device: Device = AUTO


def require_model(model: str | ModelFolder, *, example: str) -> None:
    """Raise OptionError without ``--model``; the ``example`` is a command that trains one."""
    if not model:
        raise OptionError("no model was given", expected="--model FOLDER", got="no --model", do=f"train one: {example}")


def open_model(model: str | ModelFolder) -> tuple[str | ModelFolder, ModelKind | None]:
    """Open the folder of ``--model``, if it is not open yet, and find its kind.

    The name itself and None for a model that cannot be found or read, and for one with a short name: the verb loads it
    or says why not.
    """
    if isinstance(model, str) and not (model and (Path(model).expanduser().is_dir() or "/" in model)):
        return model, None
    from regard.models.load import find_kind
    from regard.models.model_folder import ModelFolder

    try:
        folder = ModelFolder.open(model)
        return folder, find_kind(folder)
    except RegardError:
        return model, None


def choose_numbers(device: str, dtype: str) -> dict[str, Any]:
    """The device and the dtype that two options stand for, as arguments of a model's ``load``.

    Raises DeviceError for a device that cannot be used.
    """
    from regard.devices import resolve_device
    from regard.layers.precision import choose_dtype

    target = resolve_device(device)
    return {"device": str(target), "dtype": choose_dtype(dtype, target)}


def load_classifier(
    folder: str | ModelFolder,
    numbers: Mapping[str, Any],
    weights: str | None,
    tokens: int | None,
    threshold: float | None,
) -> Classifier:
    """Load a classifier; ``numbers`` are those of ``choose_numbers``, or a device alone.

    Raises OptionError without a folder, and for a threshold that has no effect."""
    require_model(folder, example="regard train classify --data texts.csv --out model/")
    from regard.classification import Classifier

    given = drop_none({"tokens": tokens, "threshold": threshold})
    classifier = Classifier.load(folder, **numbers, weights=weights, **given)
    if threshold is not None and not classifier.model.config.several:
        raise OptionError(
            "--threshold has no effect: this model gives each text its most probable label",
            expected="a model with several labels per text",
            got=f"--threshold {threshold}",
            do="leave out --threshold",
        )
    return classifier


def report_prefix(prefix: str, option: str | None) -> None:
    """Report the prefix that the model adds by default."""
    if prefix and option is None:
        say(f"the model's prefix is put before each source: {prefix!r} (--prefix '' leaves it out)")
