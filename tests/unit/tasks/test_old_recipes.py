"""A run that was started before a field of its recipe existed is resumed, if the field has its default now."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from quiet_report import QuietReport
from regard.errors import OutputExistsError
from regard.models import BertConfig, Gpt2Config
from regard.models.t5_config import T5Config
from regard.tasks.classification import ClassificationRecipe, ClassificationTask
from regard.tasks.clip import ClipRecipe, ClipTask
from regard.tasks.image_classification import ImageClassificationRecipe, ImageClassificationTask
from regard.tasks.language_modelling import LanguageModelRecipe, LanguageModelTask
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe, MaskedLanguageModelTask
from regard.tasks.recipe_fields import to_json_value
from regard.tasks.transcription import TranscriptionRecipe, TranscriptionTask
from regard.tasks.translation import TranslationRecipe, TranslationTask
from regard.train import Schedule, Settings, run
from regard.train.run_folder import RunFolder
from small_language_models import write_documents

DATA = (Path("data.txt"),)
TASKS = {
    "translation": (TranslationTask, TranslationRecipe(DATA), T5Config()),
    "classification": (ClassificationTask, ClassificationRecipe(DATA), None),
    "image_classification": (ImageClassificationTask, ImageClassificationRecipe(DATA), None),
    "clip": (ClipTask, ClipRecipe(DATA), None),
    "language_modelling": (LanguageModelTask, LanguageModelRecipe(DATA), Gpt2Config()),
    "transcription": (TranscriptionTask, TranscriptionRecipe(DATA), None),
    "masked_language_modelling": (MaskedLanguageModelTask, MaskedLanguageModelRecipe(DATA), BertConfig()),
}


def without(fields, name):
    """Fields without one, which is inside of another if its name has a dot."""
    first, _, rest = name.partition(".")
    return {
        key: without(value, rest) if key == first else value for key, value in fields.items() if rest or key != first
    }


def other_value(value):
    return not value if isinstance(value, bool) else "another" if isinstance(value, str | list) else (value or 0) + 7


@pytest.mark.parametrize("name", TASKS)
def test_each_field_may_be_missing(name, tmp_path):
    kind, recipe, config = TASKS[name]
    task, fields = kind(recipe), recipe.fields()
    if config is not None:
        task.model = SimpleNamespace(config=config)
        fields["model"] = to_json_value(vars(config))
    names = [one for one in fields if one not in ("data", "model", "where")]
    names += [f"{one}.{inner}" for one in ("model", "where") if one in fields for inner in fields[one]]
    assert len(names) > 7
    for number, missing in enumerate(names):
        folder = RunFolder(tmp_path / str(number))
        folder.begin({**without(fields, missing), "seed": 1}, {})
        folder.check_same({**fields, "seed": 1}, task.recipe_defaults())
        first, _, rest = missing.partition(".")
        value = fields[first][rest] if rest else fields[first]
        changed = {first: {**fields[first], rest: other_value(value)}} if rest else {first: other_value(value)}
        with pytest.raises(OutputExistsError, match=f"another {missing}"):
            folder.check_same({**fields, **changed, "seed": 1}, task.recipe_defaults())


def test_a_run_without_the_field_goes_on(tmp_path):
    write_documents(tmp_path / "texts", 97)
    settings = Settings(schedule=Schedule(peak=1e-3, warmup=1), steps=2, validate_every=2, precision="float32")
    recipe = LanguageModelRecipe(
        data=(tmp_path / "texts",), hyperparameters={"width": 16, "layers": 1, "heads": 2}, vocabulary=280, block=13
    )
    options = {"device": "cpu", "report": QuietReport()}
    run(LanguageModelTask(recipe), settings, tmp_path / "m", **options)
    (path,) = tmp_path.rglob("run.json")
    fields = json.loads(path.read_text())
    path.write_text(json.dumps(without(without(fields, "keep_adapters"), "model.epsilon")))
    resumed = run(LanguageModelTask(recipe), replace(settings, steps=3), tmp_path / "m", resume=True, **options)
    assert resumed.steps == 3
