"""The pages of all hyperparameters and training options, from the declarations of fields; ``make docs`` writes them."""

from __future__ import annotations

import importlib

import regard.models
from docs.pages import ROOT
from regard.fields import format_table
from regard.models.perceiver_inputs import PerceiverInput
from regard.models.perceiver_outputs import OutputQueries, PartOutput
from regard.train import Schedule, Settings

_HYPERPARAMETERS = """# Hyperparameters

Every field of the config of every model: its default, its name in the `config.json` of published models, and what it
is. A config without such names is that of a model that only regard reads; its `config.json` has the fields themselves.
Each field is declared once, in the class of the config: from the declaration follow the check, reading and writing of
`config.json`, the docstring and this page, which `make docs` writes.

`BertConfig(...)` takes the fields by name, and `regard train` by `--set NAME=VALUE`.
"""
_TRAINING_OPTIONS = """# Training options

What `regard train` and `regard.train.run` can be told: the settings of every task, and the recipe of each, which says
the data and the model. Each option is declared once, as a field of a class: from the declaration follow the check, the
option in the shell with its help and completions, the docstring, what a resumed run must have in common with the run
that was started, and this page, which `make docs` writes. The fields of `where` are those of
[`PairFormat` and `LabelFormat`](api.md#regardtextpairs).
"""
_TASKS = {
    "translation": "Translation",
    "classification": "Classification",
    "image_classification": "ImageClassification",
    "sound_classification": "SoundClassification",
    "transcription": "Transcription",
    "clip": "Clip",
    "language_modelling": "LanguageModel",
    "masked_language_modelling": "MaskedLanguageModel",
    "gato": "Gato",
}


def make_pages() -> dict[str, str]:
    """The texts of the pages, by the names of their files."""
    configs = [name for name in regard.models.__all__ if name.endswith("Config") or _is_part_of_perceiver(name)]
    tables = [f"## `{name}`\n\n{format_table(getattr(regard.models, name))}\n" for name in sorted(configs)]
    kinds = [Settings, Schedule]
    for folder, name in _TASKS.items():
        kinds.append(getattr(importlib.import_module(f"regard.tasks.{folder}"), f"{name}Recipe"))
    options = [f"## `{kind.__name__}`\n\n{format_table(kind, has_options=True)}\n" for kind in kinds]
    return {
        "hyperparameters.md": "\n".join([_HYPERPARAMETERS, *tables]),
        "training-options.md": "\n".join([_TRAINING_OPTIONS, *options]),
    }


def _is_part_of_perceiver(name: str) -> bool:
    """Whether a public name is a kind of input or output of a Perceiver."""
    kind = getattr(regard.models, name)
    bases = (PerceiverInput, OutputQueries, PartOutput)
    return isinstance(kind, type) and issubclass(kind, bases) and kind not in bases


if __name__ == "__main__":
    for name, text in make_pages().items():
        (ROOT / "docs" / name).write_text(text, encoding="utf-8")
