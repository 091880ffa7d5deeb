"""Training and validation sources have nothing in common, in any spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from regard.log import notes_to
from regard.media import PAIRS
from regard.tasks.labelled_data import hold_out
from regard.tasks.translation import TranslationRecipe, TranslationTask
from regard.train import RunContext, Settings
from regard.translation import Translator

HYPERPARAMETERS = {"layers": 1, "width": 16, "inner": 19}


def hold_out_sources(sources, seed, limit=PAIRS.max_held_out):
    return hold_out(sources, [()] * len(sources), seed=seed, share=PAIRS.held_out, limit=limit)


@given(some.lists(some.sampled_from("abcdefgh"), max_size=97), some.integers(0, 5))
def test_repeated_sources_are_on_one_side_of_the_split(sources, seed):
    is_held_out = hold_out_sources(sources, seed)
    validation, training = (
        {one for one, out in zip(sources, is_held_out, strict=True) if out is side} for side in (True, False)
    )
    assert not validation & training
    assert len(validation) == min(max(1, round(0.05 * len(set(sources)))), max(0, len(set(sources)) - 1))


def test_maximum_number_of_held_out_sources():
    assert sum(hold_out_sources([str(number) for number in range(997)], 1, limit=7)) == 7


def prepare_task(folder, rows, seed=1, **options):
    """Return the prepared task, and its messages."""
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), encoding="utf-8")
    messages: list[str] = []
    recipe = TranslationRecipe(
        (folder / "pairs.tsv",), model="tiny", hyperparameters=HYPERPARAMETERS, vocabulary=300, **options
    )
    task = TranslationTask(recipe)
    with notes_to(messages.append):
        task.prepare(RunContext(Settings(seed=seed)))
    return task, messages


@pytest.mark.parametrize("twin", ["Cannot open {}", "Cannot  open %s", "Cannot\u00a0open %d", "Cannot open <b>"])
def test_sources_that_are_equal_after_normalization_stay_together(tmp_path, twin):
    """Codes become placeholders, and white space one space, so these two are the same sentence for a model."""
    rows = [(f"{word} open %s", f"kann {word}") for word in ("Cannot", "Must", "Shall")]
    rows += [(twin.replace("Cannot", word), f"kann {word}") for word in ("Cannot", "Must", "Shall")]
    for seed in range(5):
        task, _ = prepare_task(tmp_path, rows, seed=seed)
        assert len(task.validation.pairs) == 2
        assert len({pair.target for pair in task.validation.pairs}) == 1


def test_validation_sources_in_the_training_data_are_reported(tmp_path):
    (tmp_path / "valid.tsv").write_text("Haus  %d\thouse\nneu\tnew\n")
    rows = [("Haus %s", "house"), ("Hund", "dog"), ("Katze", "cat")]
    _, messages = prepare_task(tmp_path, rows, validation=(tmp_path / "valid.tsv",))
    assert "1 validation source also occurs in the training data, so scores are inflated" in messages


def test_overlong_validation_sources_are_skipped(tmp_path):
    rows = [("Haus", "house"), ("neu", "new"), ("alt", "old")]
    (tmp_path / "valid.tsv").write_text(f"{'Hund ' * 4200}\tdog\nKatze\tcat\n")
    task, messages = prepare_task(tmp_path, rows, validation=(tmp_path / "valid.tsv",), most_tokens=10_000)
    assert [pair.source for pair in task.validation.pairs] == ["Katze"]
    assert any("more than 4095 tokens" in message for message in messages)
    Translator(task.model).translate([pair.source for pair in task.validation.pairs])
