"""Learning rate schedules against the formulas of the papers."""

from __future__ import annotations

import math

import pytest

from regard.errors import OptionError
from regard.train.schedule import Schedule
from regard.train.settings import Settings


def test_inverse_square_root_agrees_with_the_paper():
    """Vaswani et al. 2017, equation 3, with width 512 and a warm-up of 4,000."""
    schedule = Schedule(peak=512**-0.5 * 4000**-0.5, warmup=4000)
    for step in (1, 17, 3999, 4000, 4001, 100_003):
        assert schedule.rate(step) == pytest.approx(512**-0.5 * min(step**-0.5, step * 4000**-1.5))


def test_cosine_decreases_to_its_floor():
    schedule = Schedule(name="cosine", peak=2.0, warmup=10, steps=110, floor=0.1)
    assert schedule.rate(5) == pytest.approx(1.0)
    assert schedule.rate(10) == pytest.approx(2.0)
    assert schedule.rate(60) == pytest.approx(2.0 * 0.55)
    assert schedule.rate(110) == pytest.approx(0.2)
    assert schedule.rate(500) == pytest.approx(0.2)


def test_cosine_that_ends_with_the_run():
    schedule = Schedule(name="cosine", peak=2.0, warmup=10, floor=0.1)
    assert schedule.rate(5, 0.0) == pytest.approx(1.0)
    assert schedule.rate(10, 0.25) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5 * (1 + math.sqrt(0.5))))
    assert schedule.rate(60, 0.5) == pytest.approx(2.0 * 0.55)
    assert schedule.rate(61, 1.0) == pytest.approx(0.2)
    for wrong in (-0.1, 1.1, math.nan):
        with pytest.raises(OptionError):
            schedule.rate(1, wrong)


def test_cosine_without_an_end_is_refused():
    with pytest.raises(OptionError, match="end"):
        Settings(schedule=Schedule("cosine"), steps=10)
    assert Settings(schedule=Schedule("cosine"), epochs=3).lasting()["cosine_epochs"] == 3
    assert Settings(schedule=Schedule("cosine", steps=10), epochs=3).lasting()["cosine_epochs"] is None


def test_a_default_warmup_takes_a_tenth_of_the_steps_at_most():
    assert Schedule(name="cosine", steps=70).complete(peak=1.0, warmup=200).warmup == 7
    assert Schedule(name="cosine", steps=70, warmup=50).complete(peak=1.0, warmup=200).warmup == 50
    assert Schedule(name="cosine", steps=7000).complete(peak=1.0, warmup=200).warmup == 200
    assert Schedule().complete(peak=1.0, warmup=200).warmup == 200


def test_constant_and_no_warmup():
    assert Schedule(name="constant", peak=3.0, warmup=0).rate(1) == 3.0
    assert Schedule(name="constant", peak=3.0, warmup=4).rate(1) == 0.75
    assert Schedule(peak=3.0, warmup=0).rate(4) == pytest.approx(1.5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "linear"},
        {"peak": 0.0},
        {"peak": math.inf},
        {"peak": math.nan},
        {"warmup": -1},
        {"name": "cosine", "steps": 1000, "warmup": 1000},
    ],
)
def test_invalid_schedules_are_refused(wrong):
    with pytest.raises(OptionError):
        Schedule(**wrong)
