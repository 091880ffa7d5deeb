"""``--weights`` of every command that runs a model: the model it runs is converted, and its answers are near."""

import json
from importlib import import_module

import numpy as np
import pytest
import typer

from captioned_files import write_captioned
from picture_files import write_folders
from regard.cli.app import app
from regard.errors import OptionError, RefusedError
from shell_command import error_message, output
from small_audio_models import audio_model
from small_classifiers import classifier, write_texts
from small_clips import small_clip
from small_gatos import TOY, register_toys, small_gato
from small_image_models import image_classifier
from small_language_models import documents, language_model
from small_masked_language_models import masked_language_model
from small_translators import transformer
from sound_files import sound_bytes, tone

MODELS = {
    "encoder": lambda: classifier().encoder,
    "classifier": classifier,
    "pictures": image_classifier,
    "clip": small_clip,
    "sounds": lambda: audio_model(labels=(" ", "a", "b"), head="ctc"),
    "translator": lambda: transformer().model,
    "lm": lambda: language_model("gpt2"),
    "mlm": masked_language_model,
    "gato": lambda: small_gato(texts=True, channels=1),
}
CASES = {
    "embed": [["--model", "encoder", "the old oak"], ["--model", "pictures", "shapes/rows/000.png"]],
    "classify": [
        ["--model", "classifier", "the old oak", "--format", "jsonl"],
        ["--model", "pictures", "shapes", "--format", "jsonl"],
        ["--model", "clip", "shapes", "--labels", "rows,columns", "--format", "jsonl"],
    ],
    "translate": [["--model", "translator", "Zwei Hunde laufen."]],
    "transcribe": [["--model", "sounds", "tones"]],
    "generate": [["--model", "lm", "the cat", "--greedy", "--max-tokens", 3]],
    "play": [["gato", TOY, "--episodes", 1]],
    "view": [
        ["--model", "encoder", "the old oak"],
        ["--model", "encoder", "the old oak", "--summary"],
        ["--model", "encoder", "the old oak", "--mechanism", "longformer:window=2"],
        ["--model", "pictures", "shapes/rows/000.png"],
        ["--model", "translator", "--source", "Zwei Hunde laufen."],
    ],
    "evaluate translate": [["--model", "translator", "--data", "pairs.tsv", "--beam", 1, "--format", "json"]],
    "evaluate classify": [
        ["--model", "classifier", "--data", "texts.tsv", "--format", "json"],
        ["--model", "pictures", "--data", "shapes", "--format", "json"],
    ],
    "evaluate clip": [["--model", "clip", "--data", "captions", "--format", "json"]],
    "evaluate lm": [["--model", "lm", "--data", "text.txt", "--format", "json"]],
    "evaluate mlm": [["--model", "mlm", "--data", "text.txt", "--format", "json"]],
    "evaluate transcribe": [["--model", "sounds", "--data", "tones", "--format", "json"]],
}
"""Arguments of each command that has the option."""
NEAR = {"embed": "vector", "classify": "probabilities", "evaluate lm": "loss", "evaluate mlm": "loss"}
"""Fields with the numbers of a model, which nothing rounds or chooses by."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    register_toys()
    folder = tmp_path_factory.mktemp("weights")
    for name, make in MODELS.items():
        make().save(folder / name)
    write_folders(folder / "shapes", count=2)
    write_captioned(folder / "captions", 4)
    (folder / "tones").mkdir()
    (folder / "tones/0.wav").write_bytes(sound_bytes(tone(0.4)))
    (folder / "tones/0.txt").write_text("ab a")
    (folder / "pairs.tsv").write_text("Zwei Hunde laufen.\tTwo dogs run.\n")
    write_texts(folder / "texts.tsv", 20)
    (folder / "text.txt").write_text("\n\n".join(documents()))
    return folder


def commands(group, before=()):
    """The names of the commands of a group, and the names of their options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*before, name))
        else:
            yield " ".join((*before, name)), {option for parameter in command.params for option in parameter.opts}


def test_commands_that_run_a_model_have_the_option():
    found = dict(commands(typer.main.get_command(app)))
    assert {name for name, options in found.items() if "--weights" in options} == set(CASES)
    others = {name for name, options in found.items() if "--device" in options} - set(CASES)
    assert {name.split()[0] for name in others} == {"bench", "conform", "train"}


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        pytest.param(name, arguments, id=f"{name} {' '.join(arguments[1:3])}")
        for name in CASES
        for arguments in CASES[name]
    ],
)
def test_the_model_is_converted(command, arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    module, converted = import_module("regard.models.load"), []  # regard.models has a function of this name
    convert = module.convert_weights
    monkeypatch.setattr(module, "convert_weights", lambda *given: (converted.append(given[1]), convert(*given)))
    words = command.split()
    rounded = output(*words, *arguments, "--weights", "int8")
    assert converted == ["int8"]
    if command in NEAR and "clip" not in arguments:
        exact = output(*words, *arguments)
        found, expected = (np.array(list(numbers(text, NEAR[command]))) for text in (rounded, exact))
        assert 0 < np.linalg.norm(found - expected) / np.linalg.norm(expected) < 0.05
    assert "format of weights" in error_message(OptionError, *words, *arguments, "--weights", "int3")


def test_a_model_that_transformers_reads_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    message = error_message(RefusedError, "view", "--model", tmp_path, "a text", "--weights", "int4")
    assert "is read by transformers, which has no int4 weights" in message
    assert "leave --weights out" in message


def numbers(text, field):
    """The numbers of a field, in all records of an output."""
    records = [json.loads(text)] if text.startswith("{\n") else map(json.loads, text.splitlines())
    for record in records:
        value = record[field]
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
