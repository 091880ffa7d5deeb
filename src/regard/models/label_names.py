"""Names of a classifier's labels in the config.json of Hugging Face models: id2label and label2id."""

from __future__ import annotations

from typing import Any

from regard.errors import OptionError, short_repr
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field


def read_labels(config: ConfigFile, count: int) -> tuple[str, ...]:
    """Read the names of ``count`` labels, in the order of the logits; LABEL_0 and so on if the file has none.

    Raises CheckpointError for another number of names than labels.
    """
    named = config.fields.get("id2label")
    if named is None:
        return tuple(f"LABEL_{number}" for number in range(count))
    names = [named.get(str(number)) for number in range(count)] if isinstance(named, dict) else []
    strings = tuple(name for name in names if isinstance(name, str))
    if not isinstance(named, dict) or len(named) != count or len(strings) != count:
        expected = f'an object with the names of the {count} labels of the head, "0" to "{count - 1}"'
        raise config.field_error("id2label", expected)
    return strings


def label_fields(labels: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a config.json that name the labels; none without labels.

    Files of others may name two labels alike; ``label2id`` then has the last one.
    """
    if not labels:
        return {}
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def problem_fields(*, several: bool) -> dict[str, str]:
    """The field of a config.json that says whether an input may have several labels."""
    return {"problem_type": "multi_label_classification" if several else "single_label_classification"}


def labels_field(without: str = "a model without a head") -> Any:
    """The field of a config with the names of labels; ``without`` says what a model without any is."""
    return model_field(
        (),
        f"the names of the labels, in the order of the logits; () is {without}",
        check=lambda name, labels: check_labels(labels),
    )


def check_labels(labels: object) -> None:
    """Raise OptionError unless ``labels`` is a tuple of strings; empty is a model without a head."""
    if not isinstance(labels, tuple) or not all(isinstance(label, str) for label in labels):
        raise OptionError(
            "wrong labels",
            expected="a tuple of names, in the order of the logits; () is a model without a head",
            got=short_repr(labels),
            do='for example labels=("cat", "dog")',
        )
