"""Rows of an unfinished suite of benchmarks: the next run goes on behind them, unless the kernels changed."""

import json

import pytest

from benchmarks import unfinished

MEASURED = {"kernel sources": "a1", "seconds a case": 5.0, "date": "2026-11-30"}
ROWS = [{"name": "fp32 dense 512", "times": {}}, {"name": "fp32 dense 1024", "times": {}}]


@pytest.fixture
def file(tmp_path):
    return unfinished.rows_path(tmp_path / "a-machine.json", "forward")


def test_rows_are_kept_beside_the_results_and_read_again(file):
    assert unfinished.read_rows(file, MEASURED) == []
    for count in (1, 2):
        unfinished.write_rows(file, MEASURED, ROWS[:count])
        assert unfinished.read_rows(file, MEASURED | {"date": "2026-12-01"}) == ROWS[:count]
    assert file.name == "a-machine.forward.part"
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("change", [{"kernel sources": "b2"}, {"seconds a case": 1.0}])
def test_rows_of_other_kernels_or_of_less_time_are_left(file, change):
    unfinished.write_rows(file, MEASURED, ROWS)
    assert unfinished.read_rows(file, MEASURED | change) == []
    assert json.loads(file.read_text(encoding="utf-8"))["cases"] == ROWS
