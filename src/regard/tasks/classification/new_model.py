"""The encoder of a classifier: a new one of a preset size, with the recipe's hyperparameters, or a trained one.

Sizes of new classifiers and training hyperparameters, chosen by the number of texts.

    tiny     2 layers of 128     thousands of texts
    small    4 layers of 256     tens to hundreds of thousands
    base     6 layers of 512     millions

A Perceiver of the same size reads bytes: a layer more, as wide, and a quarter as many latents as a layer is wide.

Fine-tuning: Devlin et al. 2019, "BERT", appendix A.3, with a peak of 2e-5 to 5e-5, batches of 16 or 32 and 2 to 4
epochs. Low-rank adapters: the rate of Hu et al. 2021, "LoRA", appendix D, for RoBERTa.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from regard import masks
from regard.errors import CheckpointError
from regard.models import (
    Encoder,
    PerceiverTextEncoder,
    TextClassifier,
    TransformerEncoder,
    TransformerEncoderConfig,
    load,
)
from regard.models.layer_mechanism import options_for_length
from regard.tasks.classification.recipe import PERCEIVER, ClassificationRecipe, reads_bytes
from regard.tasks.hyperparameters import (
    apply_hyperparameters,
    describe_attention,
    describe_layers,
    describe_weights,
    determined_by,
    determined_by_tokenizer,
)
from regard.tasks.new_perceiver import DEFAULT_MOST_BYTES, TextPerceiverConfig
from regard.tasks.presets import FineTuning, Presets, Size, split_model_name

PRESETS = Presets(
    sizes=(
        Size("tiny", below=50_000, width=128, layers=2, heads=4, inner=256, dropout=0.2, peak=1e-3, warmup=200),
        Size("small", below=1_000_000, width=256, layers=4, heads=4, inner=1024, dropout=0.1, peak=5e-4, warmup=500),
        Size("base", width=512, layers=6, heads=8, inner=2048, dropout=0.1, peak=3e-4, warmup=1000),
    ),
    vocabularies=((5_000, 2_000), (50_000, 4_000), (500_000, 8_000), (math.inf, 16_000)),
    fine_tuning=FineTuning(peak=5e-5, warmup=200, epochs=4, lora_peak=4e-4),
)


DEFAULT_MOST_TOKENS = 512
_TOKENIZER_FIELDS = determined_by_tokenizer("vocabulary", "pad_id")
_TEXT_FIELDS = determined_by(
    "the longest text", ("max_length",), do="set the most bytes of a text with `most_tokens=...`"
)
"""Fields of a config that the tokenizer determines."""


def choose_size(texts: int, name: str | None) -> Size:
    """The size of the model ``name``, or the size for this number of texts."""
    return PRESETS.choose_size(texts, split_model_name(name, (PERCEIVER,), "")[1])


def load_start(recipe: ClassificationRecipe) -> Encoder | None:
    """Load the trained encoder or classifier that the recipe starts from; None if it trains a new one.

    Raises CheckpointError for a model that cannot be found, that is no encoder, or that has no tokenizer.
    """
    if recipe.start is None:
        return None
    model = load(recipe.start)
    if model.attends_through_latents:
        model = Encoder.part_of(model) or model
    if not isinstance(model, Encoder) or model.tokenizer is None:
        raise CheckpointError(
            f"a classifier cannot start from {recipe.start}",
            expected="an encoder with a tokenizer, such as a BERT, or a classifier",
            got=type(model).__name__ + ("" if not isinstance(model, Encoder) else " without tokenizer"),
            do='name another model: `start="minilm"`',
        )
    return model


def new_encoder(
    recipe: ClassificationRecipe, size: Size, *, vocabulary: int, pad_id: int
) -> TransformerEncoder | PerceiverTextEncoder:
    """Build an encoder with random weights. Raises OptionError for hyperparameters that it does not have."""
    if reads_bytes(recipe.model):
        return _make_perceiver_config(recipe, size).build()
    return TransformerEncoder(_make_config(recipe, size, vocabulary=vocabulary, pad_id=pad_id))


def check_hyperparameters(recipe: ClassificationRecipe) -> None:
    """Try hyperparameters before data is read, which decides the size of the encoder.

    Raises OptionError for those that no encoder accepts, RefusedError for a mechanism and a position that do not go
    together, which the first padded batch would show.
    """
    size = choose_size(0, recipe.model)
    if reads_bytes(recipe.model):
        with torch.device("meta"):
            _make_perceiver_config(recipe, size).build()
        return
    config = _make_config(recipe, size, vocabulary=8, pad_id=0)
    with torch.device("meta"):
        TransformerEncoder(config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        trial = TransformerEncoder(replace(config, layers=1))
        trial(torch.ones(2, 3, dtype=torch.long), mask=masks.padding([2, 3]))


def most_tokens(recipe: ClassificationRecipe, start: Encoder | None) -> int:
    """The most tokens of a text: the recipe's, else the limit of the classifier to start from or a default."""
    if start is None and reads_bytes(recipe.model):
        return _make_perceiver_config(recipe, choose_size(0, recipe.model)).max_length
    if start is None:
        config = _make_config(recipe, choose_size(0, recipe.model), vocabulary=8, pad_id=0)
        limit = config.max_length if config.position == "learned" else None
    else:
        limit = start.encoder.max_tokens if isinstance(start, TextClassifier) else start.max_tokens
    own = start.config.max_tokens if isinstance(start, TextClassifier) else None
    max_tokens = recipe.most_tokens or own or DEFAULT_MOST_TOKENS
    return max_tokens if limit is None else min(max_tokens, limit)


def describe_model(recipe: ClassificationRecipe, size: Size, model: TextClassifier) -> str:
    """Describe the model in a line."""
    config: Any = model.encoder.config
    kind = f"Perceiver {size.name} of bytes" if reads_bytes(recipe.model) else f"Transformer encoder {size.name}"
    name = f"the encoder of {recipe.start}" if recipe.start else kind
    layers = [describe_layers(config.layers, config.width), *describe_attention(config)]
    if hasattr(config, "position"):
        layers.append(f"positions {config.position}")
    return ", ".join([name, *layers, f"{model.config.pooling} pooling", describe_weights(model)])


def _make_config(recipe: ClassificationRecipe, size: Size, *, vocabulary: int, pad_id: int) -> TransformerEncoderConfig:
    numbers = size.numbers("width", "layers", "heads", "inner", "dropout")
    numbers |= {"vocabulary": vocabulary, "pad_id": pad_id, "max_length": recipe.most_tokens or DEFAULT_MOST_TOKENS}
    numbers |= {} if recipe.attention is None else {"mechanism": recipe.attention}
    numbers |= {} if recipe.position is None else {"position": recipe.position}
    config = apply_hyperparameters(TransformerEncoderConfig, numbers, recipe.hyperparameters, fixed=_TOKENIZER_FIELDS)
    options = options_for_length(config.mechanism, config.mechanism_options, config.max_length)
    return replace(config, mechanism_options=options)


def _make_perceiver_config(recipe: ClassificationRecipe, size: Size) -> TextPerceiverConfig:
    numbers = {
        "max_length": recipe.most_tokens or DEFAULT_MOST_BYTES,
        "input_width": size.width // 2,
        "latents": size.width // 4,
        "width": size.width,
        "layers": size.layers + 1,
        "heads": size.heads,
        "widening": size.inner // size.width,
        "dropout": size.dropout,
    }
    return apply_hyperparameters(TextPerceiverConfig, numbers, recipe.hyperparameters, fixed=_TEXT_FIELDS)
