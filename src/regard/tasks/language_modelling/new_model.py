"""The language model to train: a new GPT-2 or Llama of a preset size, or a trained one from a folder.

Sizes of new language models and training hyperparameters: tiny up to two million characters
of data, such as a long book, small up to fifty million, base for more.

Fine-tuning: a tenth of the rate of a new model, as Radford et al. 2018 do (section 4.1: 2.5e-4 and 6.25e-5). Low-rank
adapters: the rate of Hu et al. 2021, "LoRA", appendix D, for GPT-2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from regard.errors import CheckpointError, OptionError, short_repr, unknown_name_error
from regard.mechanism_catalogue import catalogue, find_row
from regard.mechanisms import DeepSeekSparseAttention
from regard.models import CausalLanguageModel, Gpt2, Gpt2Config, Llama, LlamaConfig
from regard.models.layer_mechanism import MIXERS, options_of
from regard.models.llama_types import OWN_TYPE
from regard.tasks.hyperparameters import (
    Determined,
    apply_hyperparameters,
    describe_layers,
    describe_weights,
    determined_by_tokenizer,
    gated_inner,
)
from regard.tasks.language_modelling.recipe import LanguageModelRecipe
from regard.tasks.presets import MAX_START_BLOCK, FineTuning, Presets, Size
from regard.text.language_tokenizer import DOCUMENT_ID
from regard.text.tokenizer import Tokenizer

PRESETS = Presets(
    sizes=(
        Size("tiny", below=2_000_000, width=128, layers=4, heads=4, length=128, batch=16, peak=2e-3, warmup=100),
        Size("small", below=50_000_000, width=256, layers=6, heads=8, length=256, batch=16, dropout=0.1, peak=1e-3,
             warmup=200),
        Size("base", width=512, layers=8, heads=8, length=512, batch=16, dropout=0.1, peak=5e-4, warmup=500),
    ),
    vocabularies=((500_000, 500), (5_000_000, 2_000), (50_000_000, 8_000), (math.inf, 16_000)),
    fine_tuning=FineTuning(peak=6e-5, warmup=100, epochs=3, lora_peak=2e-4),
)  # fmt: skip


_TOKENIZER_FIELDS = determined_by_tokenizer("vocabulary", "pad_id", "start_id", "end_ids")
_BY_ATTENTION: Determined = {
    "mechanisms": (
        "mechanisms is no setting of its own",
        "name them for the layers in turn: `attention='gated_delta,dot_product'`",
    )
}
_OPTIONS_BY_ATTENTION: Determined = {
    "mechanism_options": (
        "mechanism_options is no setting of its own",
        "name the mechanism that has the option, too: `attention=...`",
    )
}
"""The fields of a Llama's mechanisms, without a mechanism also its options."""


def load_start(recipe: LanguageModelRecipe) -> CausalLanguageModel | None:
    """Load the model to fine-tune; None if the recipe trains a new one.

    Raises CheckpointError for a folder that holds no language model or no tokenizer.
    """
    if recipe.start is None:
        return None
    model = CausalLanguageModel.load(recipe.start)
    if model.tokenizer is None:
        raise CheckpointError(
            f"a language model cannot start from {recipe.start}",
            expected="a GPT-2 or a Llama-type decoder, with tokenizer.json",
            got=f"{type(model).__name__} without tokenizer",
            do="name the folder of a language model, or leave `start=...` out for a new one",
        )
    return model


def choose_block(recipe: LanguageModelRecipe, size: Size, start: CausalLanguageModel | None) -> int:
    """The tokens of a block: the recipe's, else the size's, or the context of the model to start from, at most 512.

    Raises OptionError for a block that is longer than the context of that model.
    """
    limit = None if start is None else start.max_tokens
    if recipe.block is None:
        return size.length if start is None else min(limit or MAX_START_BLOCK, MAX_START_BLOCK)
    if limit is not None and recipe.block > limit:
        raise OptionError(
            f"the block is longer than the context of {recipe.start}",
            expected=f"`block` of at most {limit} tokens",
            got=str(recipe.block),
            do="leave it out",
        )
    return recipe.block


def new_model(recipe: LanguageModelRecipe, size: Size, tokenizer: Tokenizer) -> CausalLanguageModel:
    """Build a model with random weights. Raises OptionError for hyperparameters that it does not have."""
    model = _make_model(_make_config(recipe, size, tokenizer.vocabulary))
    model.tokenizer = tokenizer.with_limit(model.max_tokens)
    return model


def check_hyperparameters(recipe: LanguageModelRecipe) -> None:
    """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""
    with torch.device("meta"):
        _make_model(_make_config(recipe, PRESETS.choose_size(0, recipe.size), vocabulary=8))


def describe_model(recipe: LanguageModelRecipe, size: Size, model: CausalLanguageModel, block: int) -> str:
    """Describe the model in a line."""
    config = model.config
    name = recipe.start or f"{type(model).__name__} {size.name}"
    mechanisms = getattr(config, "mechanisms", ())
    attention = [f"attention {' and '.join(_join_runs(mechanisms))}"] if mechanisms else []
    layers = [describe_layers(config.layers, config.width), *attention]
    parts = ", ".join([name, *layers, f"{config.vocabulary:,} tokens", describe_weights(model)])
    return f"{parts}; blocks of {block} tokens"


def _join_runs(names: Sequence[str]) -> Iterator[str]:
    """The names of mechanisms, layer by layer, each with the number of layers in a row that have it."""
    for name, layers in itertools.groupby(names):
        count = len(list(layers))
        yield name if count == 1 else f"{count} x {name}"


def untrained_note(model: CausalLanguageModel) -> str | None:
    """A note if the loss of the model does not train all of its weights; None if it does."""
    for module in model.modules():
        if isinstance(module, DeepSeekSparseAttention):
            return (
                "the loss of the model does not train the indexer of dsa, which chooses keys by random weights: train "
                "it by indexer_loss in Python, or choose another mechanism"
            )
    return None


def _options_of(name: str) -> tuple[str, ...]:
    """The options of a layer's mechanism or mixer. Raises OptionError for an unknown name, with those of decoders."""
    if find_row(name) is None and name not in MIXERS:
        causal = [row.name for row in catalogue() if row.masks == "any" or "causal" in row.masks]
        raise unknown_name_error("mechanism", name, [*causal, *MIXERS])
    return options_of(name)


def _make_model(config: Gpt2Config | LlamaConfig) -> CausalLanguageModel:
    return Llama(config) if isinstance(config, LlamaConfig) else Gpt2(config)


def _make_config(recipe: LanguageModelRecipe, size: Size, vocabulary: int) -> Gpt2Config | LlamaConfig:
    numbers = size.numbers("width", "layers", "heads")
    numbers |= {"vocabulary": vocabulary, "start_id": DOCUMENT_ID, "end_ids": (DOCUMENT_ID,)}
    block = recipe.block or size.length
    numbers |= {"max_length": block, "attention_dropout": size.dropout}
    if recipe.model == "llama" or recipe.attention is not None:
        numbers |= _attention_fields(recipe, size)
        width = recipe.hyperparameters.get("width", size.width)
        numbers |= {"inner": gated_inner(width if isinstance(width, int) else size.width), "tied": True}
        # The deviation of a narrow GPT-2 does not help this model: measured with two seeds.
        numbers |= {"deviation": LlamaConfig.deviation}
        fixed = _TOKENIZER_FIELDS | _BY_ATTENTION | (_OPTIONS_BY_ATTENTION if recipe.attention is None else {})
        config: Gpt2Config | LlamaConfig = apply_hyperparameters(
            LlamaConfig, numbers, recipe.hyperparameters, fixed=fixed
        )
    else:
        numbers |= {"dropout": size.dropout, "embedding_dropout": size.dropout}
        config = apply_hyperparameters(Gpt2Config, numbers, recipe.hyperparameters, fixed=_TOKENIZER_FIELDS)
    if config.max_length < block:
        raise OptionError(
            "the context of the model is shorter than a block",
            expected=f"max_length of at least {block}",
            got=str(config.max_length),
            do="set the block with `block=...`, which is the context too",
        )
    return config


def _attention_fields(recipe: LanguageModelRecipe, size: Size) -> dict[str, Any]:
    """The fields of a Llama's mechanisms, from the recipe's list of mechanisms, which its layers have in turn.

    Weights are dropped only if every mechanism has weights to drop.
    """
    names = ("dot_product",) if recipe.attention is None else tuple(map(str.strip, recipe.attention.split(",")))
    if not all(names):
        raise OptionError(
            "the name of a mechanism is missing",
            expected="names of mechanisms, separated by commas",
            got=short_repr(recipe.attention),
            do="for example `attention='gated_delta,dot_product'`",
        )
    options = [_options_of(name) for name in names]
    layers = recipe.hyperparameters.get("layers", size.layers)
    if type(layers) is int and len(names) > max(layers, 1):
        raise OptionError(
            "there are more mechanisms than layers",
            expected=f"at most {layers}, one for each layer",
            got=f"{len(names)}: {', '.join(names)}",
            do=f'name fewer, or make the model deeper: `hyperparameters={{"layers": {len(names)}}}`',
        )
    if set(names) == {"dot_product"} or type(layers) is not int:  # the config says what is wrong
        return {}
    fields = {"model_type": OWN_TYPE, "mechanisms": tuple(itertools.islice(itertools.cycle(names), layers))}
    return fields if all("dropout" in known for known in options) else fields | {"attention_dropout": 0.0}
