"""The masked language model to train: a new one of a preset size, or a trained one from a folder.

Sizes of new masked language models and training hyperparameters: tiny up to two million characters
of data, such as a long book, small up to fifty million, base for more.

Fine-tuning: the rate of Devlin et al. 2019, "BERT", appendix A.3. Low-rank adapters: the rate of Hu et al. 2021,
"LoRA", appendix D, for RoBERTa.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from regard.errors import CheckpointError, OptionError
from regard.models import (
    Bert,
    BertConfig,
    ModernBert,
    ModernBertConfig,
    Roberta,
    RobertaConfig,
)
from regard.models.masked_language_model import MaskedLanguageModel
from regard.tasks.hyperparameters import (
    apply_hyperparameters,
    describe_layers,
    describe_weights,
    determined_by_tokenizer,
    gated_inner,
)
from regard.tasks.masked_language_modelling.recipe import MaskedLanguageModelRecipe
from regard.tasks.presets import MAX_START_BLOCK, FineTuning, Presets, Size
from regard.text.encoder_tokenizer import PAD_ID
from regard.text.tokenizer import Tokenizer

PRESETS = Presets(
    sizes=(
        Size("tiny", below=2_000_000, width=128, layers=4, heads=4, length=128, batch=32, dropout=0.1, peak=1e-3,
             warmup=200),
        Size("small", below=50_000_000, width=256, layers=6, heads=8, length=256, batch=16, dropout=0.1, peak=5e-4,
             warmup=500),
        Size("base", width=512, layers=8, heads=8, length=512, batch=16, dropout=0.1, peak=3e-4, warmup=1000),
    ),
    vocabularies=((500_000, 2_000), (5_000_000, 8_000), (50_000_000, 16_000), (math.inf, 30_000)),
    fine_tuning=FineTuning(peak=5e-5, warmup=100, epochs=3, lora_peak=4e-4),
)  # fmt: skip


_FIXED_FIELDS = determined_by_tokenizer("vocabulary", "pad_id", "head", "pooler", "model_type")
"""Fields of a config that the tokenizer or the task determines."""
_MIN_VOCAB_SIZE = 8


def load_start(recipe: MaskedLanguageModelRecipe) -> MaskedLanguageModel | None:
    """Load the model to fine-tune; None if the recipe trains a new one.

    Raises CheckpointError for a model that is no encoder of these types, and for one without tokenizer or mask token.
    """
    if recipe.start is None:
        return None
    model = MaskedLanguageModel.load(recipe.start)
    if model.tokenizer is None or model.tokenizer.mask_id is None:
        raise CheckpointError(
            f"a masked language model cannot start from {recipe.start}",
            expected="a tokenizer.json with [MASK] or <mask>",
            got="no tokenizer" if model.tokenizer is None else "a tokenizer without a mask token",
            do="name another model, or leave `start=...` out for a new one",
        )
    return model


def with_head(model: MaskedLanguageModel) -> MaskedLanguageModel:
    """The model with a masked-language head, a new one if it has none, and without a pooler, which is not trained."""
    parts = dict.fromkeys(model.optional_parts, False) | {"head": True}
    if all(getattr(model.config, part) == present for part, present in parts.items()):
        return model
    make: Callable[[Any], MaskedLanguageModel] = type(model)
    trained = make(replace(model.config, **parts))
    known = {name: weight for name, weight in model.state_dict().items() if name in trained.state_dict()}
    trained.load_state_dict(trained.state_dict() | known)
    trained.tokenizer, trained.pooling, trained.notes = model.tokenizer, model.pooling, model.notes
    return trained


def choose_block(recipe: MaskedLanguageModelRecipe, size: Size, start: MaskedLanguageModel | None) -> int:
    """The tokens of a block: the recipe's, else the size's, or the limit of the model to start from, at most 512.

    Raises OptionError for a block that is longer than that limit, and for one without room for text.
    """
    if recipe.block is None:
        return size.length if start is None else min(start.max_tokens, MAX_START_BLOCK)
    if start is not None and recipe.block > start.max_tokens:
        raise OptionError(
            f"the block is longer than the texts that {recipe.start} reads",
            expected=f"`block` of at most {start.max_tokens} tokens",
            got=str(recipe.block),
            do="leave it out",
        )
    if recipe.block < 3:
        raise OptionError(
            "the block has no room for text",
            expected="`block` of 3 tokens or more, two of them special",
            got=str(recipe.block),
            do="leave it out",
        )
    return recipe.block


def new_model(recipe: MaskedLanguageModelRecipe, size: Size, tokenizer: Tokenizer) -> MaskedLanguageModel:
    """Build a model with random weights. Raises OptionError for hyperparameters that it does not have."""
    model = _make_model(recipe, size, tokenizer.vocabulary)
    model.tokenizer = tokenizer.with_limit(model.max_tokens)
    return model


def check_hyperparameters(recipe: MaskedLanguageModelRecipe) -> None:
    """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""
    with torch.device("meta"):
        _make_model(recipe, PRESETS.choose_size(0, recipe.size), _MIN_VOCAB_SIZE)


def describe_model(recipe: MaskedLanguageModelRecipe, size: Size, model: MaskedLanguageModel, block: int) -> str:
    """Describe the model in a line."""
    config = model.config
    name = recipe.start or f"{type(model).__name__} {size.name}"
    layers = describe_layers(config.layers, config.width)
    parts = ", ".join([name, layers, f"{config.vocabulary:,} tokens", describe_weights(model)])
    return f"{parts}; blocks of {block} tokens, {100 * recipe.mask_share:g} % masked"


def _make_model(recipe: MaskedLanguageModelRecipe, size: Size, vocabulary: int) -> MaskedLanguageModel:
    numbers = size.numbers("width", "layers", "heads")
    width = recipe.hyperparameters.get("width", size.width)
    width = width if isinstance(width, int) else size.width
    block = recipe.block or size.length
    numbers |= {"vocabulary": vocabulary, "pad_id": PAD_ID, "head": True, "max_length": block, "inner": 4 * width}
    numbers |= {"dropout": size.dropout, "attention_dropout": size.dropout}
    if recipe.model == "modernbert":
        numbers |= {"inner": gated_inner(width), "inner_dropout": size.dropout}
        model: MaskedLanguageModel = ModernBert(_apply(ModernBertConfig, numbers, recipe))
    elif recipe.model == "roberta":
        model = Roberta(_apply(RobertaConfig, numbers | {"pooler": False}, recipe))
    else:
        model = Bert(_apply(BertConfig, numbers | {"pooler": False}, recipe))
    if model.max_tokens < block:
        raise OptionError(
            "the longest text of the model is shorter than a block",
            expected=f"max_length of at least {block}",
            got=str(model.max_tokens),
            do="set the block with `block=...`, which is the longest text too",
        )
    return model


def _apply(kind: type[Any], numbers: dict[str, Any], recipe: MaskedLanguageModelRecipe) -> Any:
    return apply_hyperparameters(kind, numbers, recipe.hyperparameters, fixed=_FIXED_FIELDS)
