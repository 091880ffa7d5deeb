"""The settings that ``--help`` gives as examples of ``--set`` are those that the task's default model has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from regard.cli.app import app
from regard.parse_value import parse_assignments
from regard.tasks.classification import ClassificationRecipe
from regard.tasks.classification.new_model import check_hyperparameters as check_classify
from regard.tasks.clip import ClipRecipe
from regard.tasks.clip.new_model import check_hyperparameters as check_clip
from regard.tasks.gato import GatoRecipe
from regard.tasks.gato.new_model import check_hyperparameters as check_gato
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.language_modelling.new_model import check_hyperparameters as check_lm
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe
from regard.tasks.masked_language_modelling.new_model import check_hyperparameters as check_mlm
from regard.tasks.new_conformer import check_hyperparameters as check_transcribe
from regard.tasks.transcription import TranscriptionRecipe
from regard.tasks.translation import TranslationRecipe
from regard.tasks.translation.new_model import check_hyperparameters as check_translate

DATA = {"data": (Path("data"),)}
TASKS = {
    "translate": (check_translate, TranslationRecipe, DATA),
    "classify": (check_classify, ClassificationRecipe, DATA),
    "clip": (check_clip, ClipRecipe, DATA),
    "gato": (check_gato, GatoRecipe, {"environments": ("CartPole-v1",)}),
    "lm": (check_lm, LanguageModelRecipe, DATA),
    "mlm": (check_mlm, MaskedLanguageModelRecipe, DATA),
    "transcribe": (check_transcribe, TranscriptionRecipe, DATA),
}


def examples_of_settings():
    """The examples of ``--set`` in the help of each training command."""
    commands = typer.main.get_command(app).commands["train"].commands
    found = {}
    for task, command in commands.items():
        (option,) = [one for one in command.params if "--set" in one.opts]
        found[task] = re.findall(r"[\w.]+=\w[\w.]*", option.help)
    return found


EXAMPLES = examples_of_settings()


def test_every_task_has_examples():
    assert EXAMPLES.keys() == TASKS.keys()
    assert all(len(one) > 1 for one in EXAMPLES.values())


@pytest.mark.parametrize(("task", "example"), [(task, one) for task, found in EXAMPLES.items() for one in found])
def test_the_default_model_has_the_setting(task, example):
    check, recipe, options = TASKS[task]
    mechanism = {"attention": "linformer"} if "projected" in example and task == "classify" else {}
    settings = parse_assignments([example])
    if "projected" in example and task == "translate":
        mechanism = {"attention": "linformer"}
        settings["decoder_mechanism"] = "dot_product"
    check(recipe(**options, **mechanism, hyperparameters=settings))
