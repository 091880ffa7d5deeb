"""Hyperparameters are declared once: every field of every config is checked, documented, written and read back."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest

import regard.models
from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError
from regard.fields import DeclaredField, check_fields, declared_fields, format_table
from regard.models import (
    LlamaConfig,
    PerceiverConfig,
    T5Config,
    TransformerConfig,
    TransformerEncoderConfig,
    perceiver_inputs,
    perceiver_outputs,
)
from regard.models.config_file import ConfigFile
from regard.models.hyperparameters import model_field, read_published, size_field, write_published
from regard.models.llama_types import MODEL_TYPES, PLAIN

CONFIGS = {name: getattr(regard.models, name) for name in regard.models.__all__ if name.endswith("Config")}
UNCHECKED = {"norm", "activation"}
"""Fields of a Transformer that its layers check."""


def make(kind: type[Any], **values: Any) -> Any:
    """Build a config with the values that have no default."""
    needed = {"vocabulary": 8, "labels": ("a", "b"), "input": perceiver_inputs.TextInput()}
    required = [one.name for one in dataclasses.fields(kind) if is_required(one)]
    if kind is PerceiverConfig:
        values = {"output": perceiver_outputs.TextOutput(), **values}
    return kind(**{name: needed[name] for name in required} | values)


def is_required(one: dataclasses.Field[Any]) -> bool:
    return one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING


def find_stored_fields() -> Iterator[tuple[type[Any], DeclaredField, dict[str, Any]]]:
    """Every field with a name in published files, with the values of a config that can have it."""
    for kind in CONFIGS.values():
        for one in declared_fields(kind):
            if "stored" not in one.facts or one.name == "model_type":
                continue
            if kind is not LlamaConfig:
                yield kind, one, {"decoder_layers": 6} if kind is T5Config else {}
                continue
            free = [name for name, other in MODEL_TYPES.items() if one.name not in PLAIN or one.name in other.free]
            experts = {"experts": 4, "chosen_experts": 2} if "experts" in MODEL_TYPES[free[0]].free else {}
            yield kind, one, {"model_type": free[0], **MODEL_TYPES[free[0]].fixed, **experts}


STORED = list(find_stored_fields())
NAMES = [f"{kind.__name__}.{one.name}" for kind, one, _ in STORED]


def other_values(one: DeclaredField, now: Any) -> list[Any]:
    """Values of the type of a field that are not ``now``; the config may take some of them only."""
    if "choices" in one.facts or "stored_names" in one.facts:
        return sorted(set(one.facts.get("choices") or one.facts["stored_names"].values()) - {now})
    if get_origin(one.kind) is Mapping:
        return [{"impl": "reference", "log_rates": [0.5, None]}]
    if one.kind == tuple[str, ...]:
        return [("retention", "dot_product") * 16]
    if one.name == "attention_layers":
        return [(1, 2)]
    if one.kind == tuple[float, float] and now is None:
        return [(0.25, 0.5)]
    if get_origin(one.kind) is tuple:
        kind = get_args(one.kind)[0]
        if kind is bool:
            return [tuple(not part for part in now)]
        steps = (0.25,) if kind is float else (1, 2)
        scaled = [tuple(kind(factor * part) for part in now) for factor in (2, 0.5)]
        return [*scaled, *((now[0] + step, *now[1:]) for step in steps)] if now else [(3,)]
    if one.kind is bool:
        return [not now]
    return [0.25, 0.0625] if one.kind is float else [2 * (now or 4), (now or 4) - 1, 3]


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_every_field_is_declared_and_documented(kind: type[Any]) -> None:
    assert [one.name for one in declared_fields(kind)] == [one.name for one in dataclasses.fields(kind)]
    for one in declared_fields(kind):
        assert f"\n    {one.name}: {one.facts['help'].split()[0]}" in (inspect.getdoc(kind) or "")
        assert not one.facts["help"].endswith(".")


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_every_field_refuses_a_value_of_another_type(kind: type[Any]) -> None:
    for one in declared_fields(kind):
        if kind not in (TransformerConfig, TransformerEncoderConfig) or one.name not in UNCHECKED:
            config = object.__new__(kind)  # the type checks of the suite would see the wrong type first
            vars(config).update(vars(make(kind)) | {one.name: object()})
            with pytest.raises(OptionError):
                config.__post_init__()


@pytest.mark.parametrize(("kind", "one", "values"), STORED, ids=NAMES)
def test_every_stored_field_is_written_and_read_back(
    kind: type[Any], one: DeclaredField, values: dict[str, Any]
) -> None:
    config = make(kind, **values)
    read = {"tied": config.tied} if kind is T5Config else {}
    found = []
    now = getattr(config, one.name)
    for value in (other for other in other_values(one, now) if other != now):
        also = {"output_bias": value} if kind is LlamaConfig and one.name == "attention_bias" else {}
        try:
            changed = dataclasses.replace(config, **{one.name: value}, **also)
            written = changed.to_hugging_face()
            found.append(kind.from_hugging_face(ConfigFile(written, Path("config.json")), **read))
        except (OptionError, CheckpointError):  # another field does not go with the value
            continue
        assert written[one.facts["stored"]] != config.to_hugging_face().get(one.facts["stored"])
        assert getattr(found[-1], one.name) == value
        assert found[-1].to_hugging_face() == written
    assert found


@pytest.mark.parametrize(("kind", "one", "values"), STORED, ids=NAMES)
def test_every_stored_field_is_refused_by_name(kind: type[Any], one: DeclaredField, values: dict[str, Any]) -> None:
    unusable = "unusable" if get_origin(one.kind) is Mapping else {"unusable": 1}
    written = make(kind, **values).to_hugging_face() | {one.facts["stored"]: unusable}
    read = {"tied": True} if kind is T5Config else {}
    with pytest.raises(CheckpointError, match=f"unusable '{one.facts['stored']}'"):
        kind.from_hugging_face(ConfigFile(written, Path("config.json")), **read)


@explain_arguments
@dataclasses.dataclass(frozen=True)
class _Config:
    """The hyperparameters of a model."""

    vocabulary: int = size_field(8, "number of tokens", "vocab_size", required=True)
    shift: float = model_field(0.5, "shift of all scores", "score_shift", minimum=0.0, absent=1.0)

    def __post_init__(self) -> None:
        check_fields(self)


def test_a_new_hyperparameter_is_one_edit() -> None:
    written = write_published(_Config(shift=2.0))
    assert written == {"vocab_size": 8, "score_shift": 2.0}
    assert read_published(_Config, ConfigFile(written, Path("config.json"))) == _Config(shift=2.0)
    assert read_published(_Config, ConfigFile({"vocab_size": 8}, Path("config.json"))).shift == 1.0
    assert "shift: shift of all scores." in (_Config.__doc__ or "")
    assert "| `shift` | `0.5` | `score_shift` | shift of all scores |" in format_table(_Config)
    with pytest.raises(OptionError, match="wrong shift"):
        _Config(shift=-1.0)
    with pytest.raises(CheckpointError, match="unusable 'score_shift'"):
        read_published(_Config, ConfigFile({"vocab_size": 8, "score_shift": "x"}, Path("config.json")))
    with pytest.raises(CheckpointError, match="lacks the field 'vocab_size'"):
        read_published(_Config, ConfigFile({}, Path("config.json")))


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=CONFIGS)
def test_probabilities_are_below_1(kind: type[Any]) -> None:
    """By the names of the fields, and not by what they declare; a field may have a probability for each stage."""
    for one in dataclasses.fields(kind):
        if "dropout" in one.name or "stochastic_depth" in one.name:
            default = getattr(make(kind), one.name)
            for wrong in (1.0, -0.1):
                value = (wrong,) * len(default) if isinstance(default, tuple) else wrong
                with pytest.raises(OptionError, match="is a probability"):
                    make(kind, **{one.name: value})
