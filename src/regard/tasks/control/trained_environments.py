"""The environments that a model was trained on, as its metadata tells: a list of names, or a mapping from them.

    {"environments": {"CartPole-v1": {"spaces": {"observation observation": "..", "action": ".."}, ..}}}

The spaces, those of ``describe_spaces``, are optional; where they are known they must be those of the environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from regard.control import StepTokenizer
from regard.errors import OptionError
from regard.models import Gato
from regard.tasks.control.environments import describe_spaces


def trained_environments(model: Gato) -> tuple[str, ...]:
    """The names of the environments that ``model`` was trained on; () if it does not tell."""
    return tuple(_entries(model))


def check_spaces(model: Gato, name: str, tokenizer: StepTokenizer) -> None:
    """Raise OptionError if the environment has other spaces than in the training of the model."""
    entry = _entries(model).get(name)
    trained = entry.get("spaces") if isinstance(entry, Mapping) else None
    if not isinstance(trained, Mapping):
        return
    now = describe_spaces(tokenizer)
    changed = [key for key in sorted({*trained, *now}) if trained.get(key) != now.get(key)]
    if changed:
        raise OptionError(
            f"the environment {name} has other spaces than in the training of the model",
            expected="; ".join(f"{key} {trained.get(key, 'none')}" for key in changed),
            got="; ".join(f"{key} {now.get(key, 'none')}" for key in changed),
            do="use the versions of gymnasium and of the environment that the model was trained with",
        )


def _entries(model: Gato) -> Mapping[str, Any]:
    found = model.metadata.get("environments")
    if isinstance(found, Mapping):
        return {str(name): one for name, one in found.items()}
    is_list = isinstance(found, Sequence) and not isinstance(found, str)
    return {str(name): None for name in found} if is_list and found is not None else {}
