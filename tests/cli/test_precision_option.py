"""``--dtype bfloat16`` where float32 is faster: every command with this option reports it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from regard.cli.app import app
from regard.layers import precision
from regard.train import numeric_backends as precision_of_training
from regard.train import training
from small_audio_models import audio_model
from small_classifiers import classifier
from small_language_models import language_model
from small_masked_language_models import masked_language_model
from small_translators import transformer
from sound_files import sound_bytes, tone

REASON = "a product in bfloat16 takes 5.00 of float32's time on this processor"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("precision")
    language_model().save(folder / "lm")
    masked_language_model().save(folder / "mlm")
    classifier().save(folder / "classifier")
    transformer().model.save(folder / "translator")
    audio_model(labels=(" ", "a", "b"), head="ctc").save(folder / "sounds")
    (folder / "tone.wav").write_bytes(sound_bytes(tone(0.4)))
    (folder / "t.txt").write_text("a horse")
    for empty in ("none.tsv", "none.txt"):  # no training reads them (``run_with_dtype``)
        (folder / empty).touch()
    return folder


@pytest.fixture
def run_with_dtype(folder, monkeypatch, tiny_model):
    """Return a function that runs a command with --dtype and a faked measurement, and returns its stderr."""
    monkeypatch.chdir(folder)

    def run(verb, dtype, *, faster):
        slower = () if faster == "bfloat16" else ("bfloat16",)
        measured = precision.Precisions(precision.PRECISIONS, faster, slower, REASON)
        for place in (precision, precision_of_training):  # the second imported the function by name
            monkeypatch.setattr(place, "precisions", lambda device, layer="linear": measured)
        monkeypatch.setattr(precision, "multiplies", lambda dtype: False)  # so torch multiplies
        # A training reports its precision after its data, and ends here before its first step.
        monkeypatch.setattr(training, "_prepare_task", lambda task, context, folder: context.settings)
        monkeypatch.setattr(training, "_run_settings", lambda task, settings: exit(0))
        words = {
            "embed": ["embed", "a", "--model", tiny_model],
            "train translate": ["train", "translate", "--data", "none.tsv", "--out", "m"],
            "train classify": ["train", "classify", "--data", "none.tsv", "--out", "m"],
            "train clip": ["train", "clip", "--data", "none.tsv", "--out", "m"],
            "train transcribe": ["train", "transcribe", "--data", "none.tsv", "--out", "m"],
            "train lm": ["train", "lm", "--data", "none.txt", "--out", "m"],
            "train mlm": ["train", "mlm", "--data", "none.txt", "--out", "m"],
            "train gato": ["train", "gato", "--text", "none.txt", "--out", "m"],
            "classify": ["classify", "a", "--model", "classifier"],
            "translate": ["translate", "a", "--model", "translator"],
            "transcribe": ["transcribe", "tone.wav", "--model", "sounds"],
            "generate": ["generate", "a", "--model", "lm", "--max-tokens", "1"],
            "evaluate lm": ["evaluate", "lm", "--data", "t.txt", "--model", "lm"],
            "evaluate mlm": ["evaluate", "mlm", "--data", "t.txt", "--model", "mlm"],
        }
        return CliRunner().invoke(app, [*words[verb], "--dtype", dtype]).stderr

    return run


def commands_with_dtype(command, name=""):
    """Yield the name of each command or task that computes in --dtype; bench measures what a dtype costs."""
    for part, inner in getattr(command, "commands", {}).items():
        yield from commands_with_dtype(inner, f"{name} {part}".strip())
    if name != "bench" and any("--dtype" in one.opts for one in command.params):
        yield name


@pytest.mark.parametrize("verb", sorted(commands_with_dtype(typer.main.get_command(app))))
def test_reported_if_float32_is_faster(run_with_dtype, verb):
    said = run_with_dtype(verb, "bfloat16", faster="float32")
    assert "float32 is faster than bfloat16 here" in said
    assert REASON in said
    assert "is faster than" not in run_with_dtype(verb, "float32", faster="float32")
    assert "is faster than" not in run_with_dtype(verb, "bfloat16", faster="bfloat16")
