"""A new translator: a Transformer of a preset size, or a recurrent model, with the recipe's hyperparameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import torch

from regard.errors import OptionError, unknown_name_error
from regard.models import EncoderDecoder, Recurrent, RecurrentConfig, Transformer, TransformerConfig
from regard.tasks.translation.new_subwords import SubwordPair
from regard.tasks.translation.presets import SIZES, Size, choose_size
from regard.tasks.translation.recipe import CELLS, TranslationRecipe
from regard.text.subwords import Subwords

_RECURRENT_DEFAULTS = {"width": 256, "hidden": 512, "layers": 1, "dropout": 0.3}
"""For tens of thousands of pairs."""
_SUBWORD_FIELDS = ("vocabulary", "target_vocabulary", "pad_id", "start_id", "end_id")
"""Fields of a config that the subwords determine."""

Config = TypeVar("Config", TransformerConfig, RecurrentConfig)


def new_model(recipe: TranslationRecipe, size: Size, subwords: SubwordPair) -> EncoderDecoder:
    """Build the model with random weights. Raises OptionError for hyperparameters that it does not have."""
    source, target = subwords
    return _make_model(_make_config(recipe, size, _subword_fields(source, target)))


def check_hyperparameters(recipe: TranslationRecipe) -> None:
    """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""
    of_subwords = {"vocabulary": 1000, "target_vocabulary": None}
    with torch.device("meta"):
        _make_model(_make_config(recipe, choose_size(0, recipe.model if recipe.model in SIZES else None), of_subwords))


def _make_model(config: TransformerConfig | RecurrentConfig) -> EncoderDecoder:
    return Recurrent(config) if isinstance(config, RecurrentConfig) else Transformer(config)


def _subword_fields(source: Subwords, target: Subwords) -> dict[str, Any]:
    """The config fields that the subwords determine; the same object for both sides means one vocabulary."""
    return {
        "vocabulary": source.vocabulary,
        "target_vocabulary": None if source is target else target.vocabulary,
        "pad_id": target.pad_id,
        "start_id": target.start_id,
        "end_id": target.end_id,
    }


def _make_config(
    recipe: TranslationRecipe, size: Size, of_subwords: dict[str, Any]
) -> TransformerConfig | RecurrentConfig:
    """Build the config; ``of_subwords`` comes from ``_subword_fields`` (no "target_vocabulary": a joint one)."""
    shared = {"shared": "all" if of_subwords["target_vocabulary"] is None else "target"}
    if recipe.model in CELLS:
        numbers = {"cell": recipe.model, "attention": recipe.attention or "additive", **_RECURRENT_DEFAULTS}
        return _apply_hyperparameters(RecurrentConfig, {**of_subwords, **shared, **numbers}, recipe)
    names = ("width", "layers", "heads", "inner", "dropout", "attention_dropout", "inner_dropout", "norm")
    numbers = {name: getattr(size, name) for name in names}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    return _apply_hyperparameters(TransformerConfig, {**of_subwords, **shared, **numbers}, recipe)


def _apply_hyperparameters(kind: type[Config], numbers: dict[str, Any], recipe: TranslationRecipe) -> Config:
    """Build the config from ``numbers``, overridden by the recipe's hyperparameters.

    Raises OptionError for a hyperparameter that the config does not have, or that the subwords determine.
    """
    free = [one.name for one in dataclasses.fields(kind) if one.name not in _SUBWORD_FIELDS]
    types = get_type_hints(kind)
    own: dict[str, Any] = {}
    for name, value in recipe.hyperparameters.items():
        name, dot, option = name.partition(".")
        if name in _SUBWORD_FIELDS:
            raise OptionError(
                f"{name} is determined by the subwords",
                expected=f"hyperparameters (--set) without {name}",
                got=repr(value),
                do="set the number of subwords with vocabulary=... (--vocabulary)",
            )
        if name not in free:
            raise unknown_name_error(f"setting of a {kind.__name__.removesuffix('Config')}", name, free)
        if (get_origin(types[name]) is Mapping) != bool(dot and option):
            raise OptionError(
                f"wrong {name}",
                expected=f"{name}.OPTION=value" if not dot else f"{name}=value",
                got=f"{name}{dot}{option}={value!r}",
                do="for example mechanism_options.projected=64",
            )
        if dot:
            own[name] = {**own.get(name, {}), option: value}
            continue
        wanted = get_args(types[name]) or (types[name],)
        if type(value) not in wanted and not (float in wanted and type(value) is int):
            words = " or ".join("None" if one is NoneType else one.__name__ for one in wanted)
            raise OptionError(
                f"wrong {name}", expected=words, got=repr(value), do=f"give {words} as the value of {name}"
            )
        own[name] = float(value) if types[name] is float else value
    return kind(**{**numbers, **own})


def describe_model(recipe: TranslationRecipe, size: Size, model: EncoderDecoder) -> str:
    """Describe the chosen model in a line."""
    count = sum(weight.numel() for weight in model.parameters()) / 1e6
    if recipe.model in CELLS:
        return f"{recipe.model}, attention {model.config.attention}, {count:.1f} million weights"
    config = model.config
    layers = f"{config.layers} layers of {config.width}, {config.norm}-norm"
    layers += "" if config.mechanism == "dot_product" else f", attention {config.mechanism}"
    return f"Transformer {size.name}, {layers}, {count:.1f} million weights"
