"""A new translator: a Transformer or a T5 of a preset size, or a recurrent model, with the recipe's hyperparameters."""

from __future__ import annotations

from typing import Any

import torch

from regard.models import T5, EncoderDecoder, Recurrent, RecurrentConfig, T5Config, Transformer, TransformerConfig
from regard.tasks.describe_size import describe_layers, describe_weights
from regard.tasks.hyperparameters import apply_hyperparameters
from regard.tasks.translation.new_subwords import SubwordPair
from regard.tasks.translation.presets import SIZES, Size, choose_size
from regard.tasks.translation.recipe import CELLS, T5_MODEL, TranslationRecipe
from regard.text.subwords import Subwords

_RECURRENT_DEFAULTS = {"width": 256, "hidden": 512, "layers": 1, "dropout": 0.3}
"""For tens of thousands of pairs."""
_SUBWORD_FIELDS = ("vocabulary", "target_vocabulary", "pad_id", "start_id", "end_id")
"""Fields of a config that the subwords determine."""
_T5_FIELDS = ("vocabulary", "pad_id", "start_id", "end_ids")
"""The same of a T5, and the field that its folder needs."""


def new_model(recipe: TranslationRecipe, size: Size, subwords: SubwordPair) -> EncoderDecoder:
    """Build the model with random weights. Raises OptionError for hyperparameters that it does not have."""
    source, target = subwords
    return _make_model(_make_config(recipe, size, _subword_fields(source, target)))


def check_hyperparameters(recipe: TranslationRecipe) -> None:
    """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""
    of_subwords = {"vocabulary": 1000, "target_vocabulary": None}
    with torch.device("meta"):
        _make_model(_make_config(recipe, choose_size(0, recipe.model if recipe.model in SIZES else None), of_subwords))


def _make_model(config: TransformerConfig | RecurrentConfig | T5Config) -> EncoderDecoder:
    if isinstance(config, T5Config):
        return T5(config)
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
) -> TransformerConfig | RecurrentConfig | T5Config:
    """Build the config; ``of_subwords`` comes from ``_subword_fields`` (no "target_vocabulary": a joint one)."""
    if recipe.model == T5_MODEL:
        return _make_t5_config(recipe, size, of_subwords)
    shared = {"shared": "all" if of_subwords["target_vocabulary"] is None else "target"}
    if recipe.model in CELLS:
        numbers = {"cell": recipe.model, "attention": recipe.attention or "additive", **_RECURRENT_DEFAULTS}
        return apply_hyperparameters(
            RecurrentConfig, {**of_subwords, **shared, **numbers}, recipe.hyperparameters, fixed=_SUBWORD_FIELDS
        )
    names = ("width", "layers", "heads", "inner", "dropout", "attention_dropout", "inner_dropout", "norm")
    numbers = {name: getattr(size, name) for name in names}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    return apply_hyperparameters(
        TransformerConfig, {**of_subwords, **shared, **numbers}, recipe.hyperparameters, fixed=_SUBWORD_FIELDS
    )


def _make_t5_config(recipe: TranslationRecipe, size: Size, of_subwords: dict[str, Any]) -> T5Config:
    """Build the config of a T5 whose heads divide its width, unless the recipe says otherwise."""
    numbers = {name: getattr(size, name) for name in ("width", "layers", "heads", "inner", "dropout")}
    width, heads = (recipe.hyperparameters.get(name, numbers[name]) for name in ("width", "heads"))
    if isinstance(width, int) and isinstance(heads, int) and heads > 0:  # else the config says what is wrong
        numbers["head_dim"] = max(1, width // heads)
    numbers |= {name: of_subwords[name] for name in ("vocabulary", "pad_id", "start_id") if name in of_subwords}
    numbers |= {"end_ids": (of_subwords["end_id"],)} if "end_id" in of_subwords else {}
    return apply_hyperparameters(T5Config, numbers, recipe.hyperparameters, fixed=_T5_FIELDS)


def describe_model(recipe: TranslationRecipe, size: Size, model: EncoderDecoder) -> str:
    """Describe the chosen model in a line."""
    weights = describe_weights(model)
    if recipe.model in CELLS:
        return f"{recipe.model}, attention {model.config.attention}, {weights}"
    config = model.config
    if recipe.model == T5_MODEL:
        return f"T5 {size.name}, {describe_layers(config.layers, config.width)}, {weights}"
    layers = f"{describe_layers(config.layers, config.width)}, {config.norm}-norm"
    layers += "" if config.mechanism == "dot_product" else f", attention {config.mechanism}"
    return f"Transformer {size.name}, {layers}, {weights}"
