"""Training and validation sources have nothing in common, in any spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from regard.tasks.translation import TranslationRecipe, TranslationTask
from regard.tasks.translation.validation_split import hold_out
from regard.train import RunContext, Settings
from regard.translation import Translator

NUMBERS = {"layers": 1, "width": 16, "inner": 19}


@given(some.lists(some.sampled_from("abcdefgh"), max_size=97), some.integers(0, 5))
def test_all_places_of_a_source_go_one_way(sources, seed):
    held = hold_out(sources, seed=seed)
    kept, learnt = ({one for one, out in zip(sources, held, strict=True) if out is side} for side in (True, False))
    assert not kept & learnt
    assert len(kept) == min(max(1, round(0.05 * len(set(sources)))), max(0, len(set(sources)) - 1))


def test_no_more_are_held_out_than_asked_for():
    assert sum(hold_out([str(number) for number in range(997)], seed=1, most=7)) == 7


def prepare_task(folder, rows, seed=1, **options):
    """Return the prepared task, and its messages."""
    (folder / "pairs.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows), encoding="utf-8")
    said: list[str] = []
    recipe = TranslationRecipe(
        (folder / "pairs.tsv",), model="tiny", hyperparameters=NUMBERS, vocabulary=300, **options
    )
    task = TranslationTask(recipe)
    task.prepare(RunContext(Settings(seed=seed), said.append))
    return task, said


@pytest.mark.parametrize("twin", ["Cannot open {}", "Cannot  open %s", "Cannot\u00a0open %d", "Cannot open <b>"])
def test_sources_that_read_the_same_are_not_parted(tmp_path, twin):
    """Codes become placeholders, and white space one space, so these two are the same sentence for a model."""
    rows = [(f"{word} open %s", f"kann {word}") for word in ("Cannot", "Must", "Shall")]
    rows += [(twin.replace("Cannot", word), f"kann {word}") for word in ("Cannot", "Must", "Shall")]
    for seed in range(5):
        task, _ = prepare_task(tmp_path, rows, seed=seed)
        assert len(task.validation.pairs) == 2
        assert len({pair.target for pair in task.validation.pairs}) == 1


def test_sources_to_measure_with_that_are_learnt_too_are_told(tmp_path):
    (tmp_path / "valid.tsv").write_text("Haus  %d\thouse\nneu\tnew\n")
    rows = [("Haus %s", "house"), ("Hund", "dog"), ("Katze", "cat")]
    _, said = prepare_task(tmp_path, rows, validation=(tmp_path / "valid.tsv",))
    assert "1 validation source also occurs in the training data, so scores are inflated" in said


def test_nothing_is_measured_with_that_a_translator_would_refuse(tmp_path):
    rows = [("Haus", "house"), ("neu", "new"), ("alt", "old")]
    (tmp_path / "valid.tsv").write_text(f"{'Hund ' * 4200}\tdog\nKatze\tcat\n")
    task, said = prepare_task(tmp_path, rows, validation=(tmp_path / "valid.tsv",), most_tokens=10_000)
    assert [pair.source for pair in task.validation.pairs] == ["Katze"]
    assert any("more than 4095 tokens" in message for message in said)
    Translator(task.model).translate([pair.source for pair in task.validation.pairs])
