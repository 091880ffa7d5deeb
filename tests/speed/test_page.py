"""The speed page agrees with the results."""

from __future__ import annotations

import runpy
import sys

import pytest

from benchmarks import plot, plot_style, report, results
from benchmarks.suites import SUITES


def test_page_agrees_with_the_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.render_page(report.read_all())


def test_every_plot_has_both_colour_schemes_and_is_on_the_page() -> None:
    names = {
        f"speed-{one['slug']}-{name}-{scheme}.svg"
        for one in report.read_all()
        for name in plot.PLOTS
        if name in one["families"]
        for scheme in plot_style.SCHEMES
    }
    assert {file.name for file in report.ASSETS.glob("speed-*.svg")} == names


def test_results_are_merged_by_suite(tmp_path) -> None:
    file = tmp_path / "machine.json"
    results.write(file, {"forward": {"cases": [1.23456789]}, "short": {"cases": []}})
    results.write(file, {"short": {"cases": [2]}})
    assert results.read(file)["families"] == {"forward": {"cases": [1.2346]}, "short": {"cases": [2]}}
    assert [one.name for one in tmp_path.iterdir()] == ["machine.json"]


def test_case_names_are_unique_and_scaling_cases_are_ordered_by_length() -> None:
    for suite in SUITES.values():
        names = [case.name for case in (*suite.cases, *suite.untimed)]
        assert len(set(names)) == len(names)
        for growth in suite.scaling:
            assert [suite.case(name).length for name in growth.cases] == sorted(
                suite.case(name).length for name in growth.cases
            )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["forwards"], "unknown suite 'forwards'"),
        (["forward", "--contestants", "spda"], "unknown contestant 'spda'"),
        (["forward", "--cases", "fp33"], "no case name contains all of these words"),
    ],
)
def test_invalid_arguments_give_a_message_without_a_traceback(
    arguments: list[str], message: str, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks", run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(message)
