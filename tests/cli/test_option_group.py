"""A dataclass as one parameter of a command: its fields are options, in their order, with their defaults."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import regard.train
from regard.arguments import explain_arguments
from regard.audio.sound_augmentation import LEVELS as SOUND_LEVELS
from regard.cli.app import app
from regard.cli.option_group import expand_option_groups
from regard.errors import OptionError
from regard.fields import declare, declared_fields
from regard.tasks.classification import ClassificationRecipe
from regard.tasks.clip import ClipRecipe
from regard.tasks.gato import GatoRecipe
from regard.tasks.image_classification import ImageClassificationRecipe
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe
from regard.tasks.recipe_fields import Recipe, default_fields
from regard.tasks.sound_classification import SoundClassificationRecipe
from regard.tasks.transcription import TranscriptionRecipe
from regard.tasks.translation import TranslationRecipe
from regard.text.encoder_tokenizer import ENCODER_TOKENIZERS
from regard.text.language_tokenizer import LANGUAGE_TOKENIZERS
from regard.text.pooling import MODES
from regard.text.tokenizer_training import TOKENIZERS
from regard.train import Settings
from regard.train.reports import TerminalReport
from regard.transcription.text_labels import TOKENIZERS as LABEL_TOKENIZERS
from regard.vision.augmentation import LEVELS, POLICIES

RECIPES = {
    "translate": (TranslationRecipe,),
    "classify": (ClassificationRecipe, ImageClassificationRecipe, SoundClassificationRecipe),
    "clip": (ClipRecipe,),
    "gato": (GatoRecipe,),
    "lm": (LanguageModelRecipe,),
    "mlm": (MaskedLanguageModelRecipe,),
    "transcribe": (TranscriptionRecipe,),
}
OF_THE_RUN = {"--lang", "--out", "--device", "--resume", "--overwrite", "--kind", "--from"}
"""Options that no field of a recipe or of the settings declares, or that of a translator's ``model``."""


@dataclass(frozen=True)
class Shape:
    width: Annotated[int, typer.Option("--width", min=1)] = 3
    angle: float = 0.0
    colour: Annotated[str, typer.Option("--colour")] = "red"


@dataclass(frozen=True)
class Slanted(Shape):
    angle: Annotated[float, typer.Option("--angle")] = 0.5


@expand_option_groups()
def draw(name: str, *, shape: Shape, copies: int = 1) -> None:
    """Draw a shape."""
    print(name, shape, copies)


@expand_option_groups()
def slant(*, shape: Slanted) -> None:
    """Draw a slanted shape."""
    print(shape)


def run(command, *arguments):
    shell = typer.Typer()
    shell.command()(command)
    return CliRunner().invoke(shell, arguments)


def test_options_of_a_group_stand_at_its_place_and_reach_the_command():
    assert run(draw, "a", "--width", "7", "--copies", "2").output == "a Shape(width=7, angle=0.0, colour='red') 2\n"
    help_text = run(draw, "--help").output
    assert help_text.index("--width") < help_text.index("--colour") < help_text.index("--copies")
    assert "Draw a shape." in help_text


def test_a_field_is_an_option_only_where_a_class_declares_it_as_one():
    assert run(draw, "a", "--angle", "2").exit_code == 2
    assert run(slant, "--angle", "2").output == "Slanted(width=3, angle=2.0, colour='red')\n"
    help_text = run(slant, "--help").output
    assert help_text.index("--width") < help_text.index("--angle") < help_text.index("--colour")


@pytest.mark.parametrize("task", ["lm", "mlm", "classify", "translate"])
def test_options_of_training_reach_the_settings_of_the_run(monkeypatch, task):
    seen = []
    monkeypatch.setattr(
        regard.train, "run", lambda task, settings, out, **options: seen.append((settings, out, options)) or exit(0)
    )
    numbers = {
        "accumulate": 3, "rate": 0.25, "warmup": 7, "clip": 2.5, "weight-decay": 0.125, "epochs": 11, "steps": 13,
        "minutes": 17.0, "patience": 19, "validate-every": 23, "average": 29, "save-seconds": 31.0, "seed": 37,
    }  # fmt: skip
    options = [word for name, number in numbers.items() for word in (f"--{name}", str(number))]
    words = ["--schedule", "constant", "--dtype", "float32", "--device", "cpu", "--resume", "--checkpoint-activations"]
    CliRunner().invoke(app, ["train", task, "--data", "texts", "--out", "model", *options, *words])
    ((settings, out, rest),) = seen
    schedule = settings.schedule
    assert (schedule.name, schedule.peak, schedule.warmup, schedule.steps) == ("constant", 0.25, 7, None)
    for name in numbers.keys() - {"rate", "warmup"}:
        assert getattr(settings, name.replace("-", "_")) == numbers[name], name
    assert settings.precision == "float32"
    assert settings.checkpoint_activations is True
    assert isinstance(rest.pop("report"), TerminalReport)
    assert (out, rest) == (Path("model"), {"resume": True, "overwrite": False, "device": "cpu"})


def declared_options(kind):
    """The declared fields of a dataclass that are options, by their first name in the shell."""
    found = {}
    for one in declared_fields(kind):
        if is_dataclass(one.kind):
            found |= declared_options(one.kind)
        elif one.facts.get("option") != "":
            found[one.facts.get("option", "--" + one.name.replace("_", "-")).split("/")[0]] = one
    return found


def with_options(text, declared):
    """A help text with the option of each argument that is marked in it."""
    names = {one.name: name for name, one in declared.items()}

    def spell(marked):
        return names[marked[1]] + ("" if marked[2] in (None, "...") else " " + marked[2].strip("'"))

    return re.sub(r"`(\w+)(?:=([^`]*))?`", spell, text)


@pytest.mark.parametrize("task", RECIPES)
def test_a_training_command_has_exactly_the_declared_options(task):
    """In the help a command says otherwise only what its schedule is, and what a validation counts as better."""
    parameters = {
        option.opts[0]: option for option in typer.main.get_command(app).commands["train"].commands[task].params
    }
    declared = declared_options(Settings)
    for recipe in reversed(RECIPES[task]):
        declared |= declared_options(recipe)
    assert parameters.keys() - OF_THE_RUN == declared.keys() - OF_THE_RUN
    for name, one in declared.items():
        if name not in ("--schedule", "--patience"):
            assert parameters[name].help == with_options(one.facts["help"], declared), name
        if parameters[name].default not in (None, [], one.default):
            assert (name, parameters[name].default) == ("--weight-decay", 0.01)


def words_of(name, one):
    """A value for an option in the shell, and the value of the field in Python; None for one of the file formats."""
    numbers = {int: ("3", 3), float: ("0.5", 0.5), bool: ("", True), str: ("a", "a"), Path: ("a", Path("a"))}
    if "parse" in one.facts:
        word = {"--set": "layers=4", "--weight": "text=2", "--picture-size": "7"}.get(name, "a,b")
        return word, one.facts["parse"]([word] if "=" in word else 7 if word == "7" else word)
    if "choices" in one.facts:
        value = next(iter(one.facts["choices"]))
        return value, value
    if one.kind in numbers:
        return numbers[one.kind]
    word, value = numbers[one.kind.__args__[0]]
    return word, (value,)


@pytest.mark.parametrize(
    ("task", "kind", "recipe"),
    [
        ("classify", "texts", ClassificationRecipe),
        ("classify", "pictures", ImageClassificationRecipe),
        ("classify", "sounds", SoundClassificationRecipe),
        *((task, None, recipes[0]) for task, recipes in RECIPES.items() if task != "classify"),
    ],
)
def test_each_option_reaches_the_field_that_declares_it(monkeypatch, task, kind, recipe):
    seen = []
    monkeypatch.setattr(regard.train, "run", lambda task, settings, out, **options: seen.append(task) or exit(0))
    given = {name: (one.name, *words_of(name, one)) for name, one in declared_options(recipe).items()}
    given = {name: one for name, one in given.items() if not (task == "translate" and name == "--model")}
    valid = {"--sample-rate": ("sample_rate", "8000", 8000), "--crop": ("crop", "0", 0)}  # of resized crops
    given |= {name: one for name, one in valid.items() if name in given}
    words = [word for name, (_, word, _) in given.items() for word in ([name, word] if word else [name])]
    kinds = [] if kind is None else ["--kind", kind]
    result = CliRunner().invoke(app, ["train", task, "--out", "m", *kinds, *words])
    assert seen, result.exception
    made = seen[0]._recipe
    for name, value in ((name, value) for name, _, value in given.values()):
        if name in vars(made):
            assert getattr(made, name) == value, name
        elif kind in (None, "texts") or name != "labels":  # of the format
            assert getattr(made.where, name) == value, name


def test_declared_choices_are_those_of_the_library():
    """They are declared again, since the library behind imports torch."""
    declared = {
        (kind, one.name): tuple(one.facts.get("choices", one.facts.get("completions", ())))
        for kind in (Settings, *(recipe for recipes in RECIPES.values() for recipe in recipes))
        for one in declared_fields(kind)
    }
    assert declared[LanguageModelRecipe, "tokenizer"] == LANGUAGE_TOKENIZERS
    assert declared[MaskedLanguageModelRecipe, "tokenizer"] == ENCODER_TOKENIZERS
    assert declared[ClassificationRecipe, "tokenizer"] == TOKENIZERS
    assert declared[TranscriptionRecipe, "tokenizer"] == LABEL_TOKENIZERS
    assert declared[ClassificationRecipe, "pooling"] == MODES
    assert declared[ImageClassificationRecipe, "augment"] == LEVELS == SOUND_LEVELS
    assert declared[ImageClassificationRecipe, "policy"] == POLICIES


@explain_arguments
@dataclass(frozen=True)
class Polish(Recipe):
    """How a thing is polished."""

    start: str | None = field(
        default=None, metadata=declare("What is polished again.", option="--from", completes="models")
    )
    shine: str = field(
        default="dull", metadata=declare("How it shines.", choices=("dull", "bright"), of_new_model=True)
    )
    rounds: int = field(default=2, metadata=declare("Times; see `shine=...`.", minimum=1, is_saved=False))


@expand_option_groups()
def polish(*, recipe: Polish) -> None:
    """Polish a thing."""
    print(recipe)


def test_a_declared_field_is_checked_documented_an_option_completed_saved_and_refused_without_effect(monkeypatch):
    """All that a new option takes is its field."""
    assert "shine: How it shines." in Polish.__doc__
    assert "rounds: Times; see shine=...." in Polish.__doc__
    with pytest.raises(OptionError, match=r"unknown shine 'matt'\n.*bright, dull"):
        Polish(shine="matt")
    with pytest.raises(OptionError, match="an integer of 1 or more"):
        Polish(rounds=0)
    assert Polish(start="old/thing", rounds=7).fields() == {"start": "thing", "shine": "dull"}
    assert default_fields(Polish) == {"start": None, "shine": "dull", "rounds": 2}
    with pytest.raises(OptionError, match=r"cannot change the architecture of old(.|\n)*leave out shine"):
        Polish(start="old", shine="bright").check_effect()
    Polish(start="old", rounds=7).check_effect()
    assert run(polish, "--shine", "bright").output == "Polish(start=None, shine='bright', rounds=2)\n"
    assert run(polish, "--rounds", "0").exit_code == 2
    help_text = run(polish, "--help").output
    assert "How it shines." in help_text
    assert "[default: dull]" in help_text
    assert "see --shine." in help_text
    shell = typer.Typer()
    shell.command()(polish)
    monkeypatch.setenv("_POLISH_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "polish --shine b")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert CliRunner().invoke(shell, [], prog_name="polish").output == "bright\n"
