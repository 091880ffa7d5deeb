"""A run of another model is refused by the argument that the user wrote: the hyperparameter, or the size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from regard.models import BertConfig, ClipConfig, ConformerConfig, Gpt2Config, LlamaConfig, VitConfig
from regard.models.gato_config import GatoConfig
from regard.tasks.clip import ClipRecipe, ClipTask
from regard.tasks.gato import GatoRecipe, GatoTask
from regard.tasks.image_classification import ImageClassificationRecipe, ImageClassificationTask
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe, MaskedLanguageModelTask
from regard.tasks.transcription import TranscriptionRecipe, TranscriptionTask

DATA = (Path("data.txt"),)
GPT2, BERT = (LanguageModelTask, LanguageModelRecipe), (MaskedLanguageModelTask, MaskedLanguageModelRecipe)
VIT, CLIP = (ImageClassificationTask, ImageClassificationRecipe), (ClipTask, ClipRecipe)


def argument_of(kind, config, name, **fields):
    task, recipe = kind
    made = task(recipe(DATA, **fields))
    made.model = SimpleNamespace(config=config)
    return made.recipe_argument(name)


@pytest.mark.parametrize(
    ("kind", "config", "name", "size", "setting"),
    [
        (GPT2, Gpt2Config(), "model.layers", "size", "layers"),
        (BERT, BertConfig(), "model.inner", "size", "inner"),
        (VIT, VitConfig(), "model.num_hidden_layers", "model", "layers"),
        (CLIP, ClipConfig(), "model.vision_config.num_hidden_layers", "model", "vision.layers"),
        (CLIP, ClipConfig(), "model.text_config.hidden_size", "model", "text.width"),
        ((TranscriptionTask, TranscriptionRecipe), ConformerConfig(), "model.kernel", "model", "kernel"),
        ((GatoTask, lambda data: GatoRecipe(data=data)), GatoConfig(), "model.layers", "size", "layers"),
    ],
)
def test_a_setting_of_a_new_model_is_named_with_the_size(kind, config, name, size, setting):
    assert argument_of(kind, config, name) == f'`{size}` or `hyperparameters={{"{setting}": ...}}`'


def test_a_setting_that_is_given_is_named_alone():
    config = Gpt2Config(layers=3)
    assert (
        argument_of(GPT2, config, "model.layers", hyperparameters={"layers": 3}) == '`hyperparameters={"layers": ...}`'
    )


def test_an_option_of_a_mechanism_is_named_whole():
    config = LlamaConfig(
        mechanisms=("moba",) * LlamaConfig.layers, mechanism_options={"block": 4}, model_type="regard-llama"
    )
    options = {"attention": "moba", "hyperparameters": {"mechanism_options.block": 4}}
    actual = argument_of(GPT2, config, "model.mechanism_options.block", **options)
    assert actual == '`hyperparameters={"mechanism_options.block": ...}`'


@pytest.mark.parametrize(
    ("kind", "config", "name"),
    [
        (GPT2, Gpt2Config(), "model.vocabulary"),
        (VIT, VitConfig(), "model.num_channels"),
        (GPT2, Gpt2Config(), "documents"),
    ],
)
def test_what_the_data_decide_is_no_setting(kind, config, name):
    assert argument_of(kind, config, name) is None


def test_the_size_decides_what_is_not_given():
    assert argument_of(GPT2, Gpt2Config(), "block") == "`size` or `block`"
    assert argument_of(GPT2, Gpt2Config(), "block", block=31) == "`block`"
    assert argument_of(VIT, VitConfig(), "batch") == "`batch`"


def test_a_trained_model_has_no_settings():
    assert argument_of(GPT2, Gpt2Config(), "model.layers", start="m") is None
    assert argument_of(GPT2, Gpt2Config(), "model.type", start="m") == "`model`"
