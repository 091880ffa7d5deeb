"""A new translator: a Transformer or a T5 of a preset size, or a recurrent model, with the recipe's hyperparameters.

Subwords for sentence pairs: a vocabulary for each language, or a joint one if the two share most letters.

    joint    if at least half of the letters in the targets, counted with repetition, occur in the sources

Sennrich et al. 2016, "Neural machine translation of rare words with subword units", section 3.2: joint subwords split
names and loan words in the same way on both sides.

The model that a recipe fine-tunes, if it names a folder, and the size and languages that follow from it.

Model sizes and training hyperparameters, chosen by the number of pairs.

    tiny    4 + 4 layers of 128     thousands of pairs: Wu et al. 2021, "Good for misconceived reasons", table 2
    small   3 + 3 layers of 256     up to half a million
    base    6 + 6 layers of 512     millions: Vaswani et al. 2017, table 3
    big     6 + 6 layers of 1,024   tens of millions

Araabi and Monz 2020, "Optimizing Transformer for low-resource NMT": with few pairs, few layers, a small vocabulary and
much dropout. Nguyen and Salazar 2019, "Transformers without tears": with few pairs, norms before the sublayers. With
norms after them, as published in 2017, a model of some thousands of pairs needs many epochs to learn to attend to its
source.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch

from regard.errors import check_choice, renamed_arguments, unknown_name_error
from regard.log import log
from regard.models import T5, EncoderDecoder, Recurrent, RecurrentConfig, T5Config, Transformer, TransformerConfig
from regard.models.config_file import ConfigFile
from regard.tasks.hyperparameters import (
    apply_hyperparameters,
    describe_attention,
    describe_layers,
    describe_weights,
    determined_by_tokenizer,
)
from regard.tasks.presets import Presets, Size
from regard.tasks.translation.recipe import CELLS, KINDS, SIZES, T5_MODEL, TranslationRecipe
from regard.text.placeholders import ProtectedPair
from regard.text.subword_training import cover_characters
from regard.text.subwords import Subwords
from regard.translation import Translator

PRESETS = Presets(
    sizes=(
        Size("tiny", below=20_000, width=128, layers=4, heads=4, inner=256, dropout=0.3, peak=2e-3, warmup=500,
             batch=2048, own={"norm": "pre"}),
        Size("small", below=500_000, width=256, layers=3, heads=8, inner=1024, dropout=0.3, peak=1.5e-3, warmup=500,
             batch=4096, own={"attention_dropout": 0.3, "inner_dropout": 0.3}),
        Size("base", width=512, layers=6, heads=8, inner=2048, dropout=0.1, peak=7e-4, warmup=4000, batch=8192),
        Size("big", width=1024, layers=6, heads=16, inner=4096, dropout=0.3, peak=5e-4, warmup=4000, batch=8192),
    ),
    vocabularies=((5_000, 2_000), (20_000, 4_000), (200_000, 8_000), (1_000_000, 16_000), (math.inf, 32_000)),
)  # fmt: skip
_FINE_TUNING_PEAK, _FINE_TUNING_WARMUP = 3e-4, 100
"""Learning rate and warm-up for a pretrained T5. Raffel et al. 2020, section 3.1.3, have a constant rate of 1e-3 for
Adafactor, whose steps are relative to the size of the weights; Adam's need a lower one."""
_FEW_PAIRS = 10_000
"""Training from scratch with fewer pairs does not give a useful translator: Koehn and Knowles 2017, section 3.2."""


def load_start(recipe: TranslationRecipe) -> EncoderDecoder | None:
    """Load the model to fine-tune, whose metadata has the prefix of the recipe; None if the recipe trains a new one.

    Raises OptionError for a name that is neither a folder here nor a kind of model, or for a prefix to a model that has
    a single task; CheckpointError if a path is no folder, and for another kind of model.
    """
    if recipe.start is None:
        return None
    if Path(recipe.start).name == recipe.start and not Path(recipe.start).expanduser().is_dir():
        raise unknown_name_error("model to train", recipe.start, KINDS, "or the folder of a model")
    translator = Translator.load(recipe.start, prefix=recipe.prefix)
    translator.model.metadata = {**translator.model.metadata, "prefix": translator.prefix}
    return translator.model


def layer_kind(recipe: TranslationRecipe) -> str:
    """The kind of layer in which the model spends most of its time, as ``Task.layer``. Reads no data and no weights.

    Raises CheckpointError if the config.json of the model to fine-tune cannot be read.
    """
    if recipe.start is None:
        return str(recipe.model) if recipe.model in CELLS else "linear"
    folder = Path(recipe.start).expanduser()
    if not folder.is_dir():
        return "linear"  # ``load_start`` will refuse it
    config = ConfigFile.read(folder)
    return config.choice("cell", CELLS, default="gru") if config.model_type == Recurrent.model_type else "linear"


def choose_model_size(recipe: TranslationRecipe, start: EncoderDecoder | None, pairs: int) -> Size:
    """Choose the preset: by the Transformer or T5 to fine-tune, by the recipe's name, or by the number of pairs."""
    if isinstance(start, Transformer | T5):
        size = next((size for size in PRESETS.sizes if size.width >= start.config.width), PRESETS.sizes[-1])
        is_t5 = isinstance(start, T5)
        return replace(size, peak=_FINE_TUNING_PEAK, warmup=_FINE_TUNING_WARMUP) if is_t5 else size
    return PRESETS.choose_size(pairs, recipe.model if recipe.model in SIZES else None)


def few_pairs_warning(pairs: int) -> str | None:
    """The warning for too few training pairs; None if there are enough."""
    if pairs >= _FEW_PAIRS:
        return None
    if pairs < 1000:
        return f"{pairs:,} pairs will not make a translator: it will memorise them. Tens of thousands are needed."
    return f"{pairs:,} pairs are few: expect good translations only of texts much like these."


def choose_languages(recipe: TranslationRecipe, start: EncoderDecoder | None) -> tuple[str | None, str | None]:
    """Source and target language of the recipe, else of the model to fine-tune; None where both leave it open."""
    source, target = (None, None) if start is None else start.languages
    return recipe.where.source or source, recipe.where.target or target


SHARING = ("auto", "joint", "separate")
_JOINT_THRESHOLD = 0.5

SubwordPair: TypeAlias = tuple[Subwords, Subwords]
"""The subwords of the source and of the target."""


@renamed_arguments(size="vocabulary")
def new_subwords(recipe: TranslationRecipe, pairs: Sequence[ProtectedPair]) -> SubwordPair:
    """Train the subwords of source and target; joint ones are the same object. Raises OptionError as ``Subwords``."""
    sharing, algorithm = recipe.sharing or "auto", recipe.algorithm or "bpe"
    check_choice("way of sharing subwords", sharing, SHARING)
    sides = [[pair.source for pair in pairs], [pair.target for pair in pairs]]
    joint = sharing == "joint" or recipe.model == T5_MODEL or (sharing == "auto" and _share_letters(*sides))
    groups = [sides[0] + sides[1]] if joint else sides
    size = PRESETS.choose_vocab_size(len(pairs))
    trained = [
        Subwords.train(texts, size=recipe.vocabulary or cover_characters(size, texts), algorithm=algorithm)
        for texts in groups
    ]
    log.info(
        f"{trained[0].vocabulary:,} subwords for both languages"
        if joint
        else f"{trained[0].vocabulary:,} subwords for the source, {trained[1].vocabulary:,} for the target"
    )
    return trained[0], trained[-1]


def _share_letters(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether at least half of the target's letters occur in the source, as for German and English."""
    source, target = (_count_letters(texts) for texts in (sources, targets))
    shared = sum(count for letter, count in target.items() if letter in source)
    return shared >= _JOINT_THRESHOLD * sum(target.values())


def _count_letters(texts: Sequence[str]) -> dict[str, int]:
    """Count each letter in a sample of some thousands of texts."""
    counts: dict[str, int] = {}
    for text in texts[:: max(1, len(texts) // 5000)]:
        for letter in text.lower():
            if unicodedata.category(letter).startswith("L"):
                counts[letter] = counts.get(letter, 0) + 1
    return counts


_RECURRENT_DEFAULTS = {"width": 256, "hidden": 512, "layers": 1, "dropout": 0.3}
"""For tens of thousands of pairs."""
_SUBWORD_FIELDS = determined_by_tokenizer("vocabulary", "target_vocabulary", "pad_id", "start_id", "end_id")
"""Fields of a config that the subwords determine."""
_T5_FIELDS = determined_by_tokenizer("vocabulary", "pad_id", "start_id", "end_ids")
"""The same of a T5, and the field that its folder needs."""


def new_model(recipe: TranslationRecipe, size: Size, subwords: SubwordPair) -> EncoderDecoder:
    """Build the model with random weights. Raises OptionError for hyperparameters that it does not have."""
    source, target = subwords
    return _make_model(_make_config(recipe, size, _subword_fields(source, target)))


def check_hyperparameters(recipe: TranslationRecipe) -> None:
    """Raise OptionError for hyperparameters that no new model accepts, before the data decide its size."""
    of_subwords = {"vocabulary": 1000, "target_vocabulary": None}
    with torch.device("meta"):
        _make_model(_make_config(recipe, choose_model_size(recipe, None, 0), of_subwords))


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
    numbers = size.numbers("width", "layers", "heads", "inner", "dropout")
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
        return ", ".join([recipe.model, f"attention {model.config.attention}", weights])
    config = model.config
    if recipe.model == T5_MODEL:
        return ", ".join([f"T5 {size.name}", describe_layers(config.layers, config.width), weights])
    layers = f"{describe_layers(config.layers, config.width)} ({config.norm}-norm)"
    return ", ".join([f"Transformer {size.name}", layers, *describe_attention(config), weights])
