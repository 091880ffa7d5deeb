"""The model that a recipe fine-tunes, if it names a folder, and the size and languages that follow from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from regard.errors import unknown_name_error
from regard.models import T5, EncoderDecoder, Recurrent, Transformer
from regard.models.config_file import ConfigFile
from regard.tasks.translation.presets import FINE_TUNING_PEAK, FINE_TUNING_WARMUP, SIZES, Size, choose_size
from regard.tasks.translation.recipe import CELLS, KINDS, TranslationRecipe
from regard.translation import Translator


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
        size = next((size for size in SIZES.values() if size.width >= start.config.width), SIZES["big"])
        is_t5 = isinstance(start, T5)
        return replace(size, peak=FINE_TUNING_PEAK, warmup=FINE_TUNING_WARMUP) if is_t5 else size
    return choose_size(pairs, recipe.model if recipe.model in SIZES else None)


def choose_languages(recipe: TranslationRecipe, start: EncoderDecoder | None) -> tuple[str | None, str | None]:
    """Source and target language of the recipe, else those of the model to fine-tune; None where both leave it open."""
    source, target = (None, None) if start is None else start.languages
    return recipe.where.source or source, recipe.where.target or target
