"""The speed page agrees with the results."""

from __future__ import annotations

import runpy
import sys
from functools import partial
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks import kernel_sources, peaks, plot, plot_style, report, results
from benchmarks.accuracy import Deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.suites import SUITES


def test_page_agrees_with_the_results() -> None:
    assert report.PAGE.read_text(encoding="utf-8") == report.render_page(results.read_all())


def test_every_plot_has_both_colour_schemes_and_is_on_the_page() -> None:
    names = {
        f"speed-{one['slug']}-{name}-{scheme}.svg"
        for one in results.read_all()
        for name in plot.PLOTS
        if name in one["families"]
        for scheme in plot_style.SCHEMES
    }
    assert {file.name for file in report.ASSETS.glob("speed-*.svg")} == names


def test_results_are_merged_by_suite(tmp_path) -> None:
    file = tmp_path / "machine.json"
    results.write(file, {"forward": {"cases": [1.23456789]}, "short": {"cases": []}}, {"forward": "a1"})
    results.write(file, {"short": {"cases": [2]}}, {"forward": "b2"})
    merged = results.read(file)
    assert merged["families"] == {"forward": {"cases": [1.2346]}, "short": {"cases": [2]}}
    assert merged["kernel sources"] == {"forward": "b2"}
    assert [one.name for one in tmp_path.iterdir()] == ["machine.json"]


def _suite(name: str, run) -> Suite:
    contestant = Contestant(run, lambda: [Deviation("result", 0.0, 1.0)])
    prepared = PreparedCase(Work(1.0, "calls/s", step=1.0), {"native": lambda: contestant})
    return Suite(name, name, "", (Case(f"{name} case", "", lambda: prepared, ("native",)),))


def test_missing_suites_are_run_in_order_and_an_interruption_loses_only_the_running_one(monkeypatch, tmp_path) -> None:
    file, calls = tmp_path / "machine.json", []

    def interrupt() -> None:
        raise KeyboardInterrupt

    def run(*options: str) -> int:
        calls.clear()
        monkeypatch.setattr(sys, "argv", ["benchmarks", "--missing", "--seconds", "0.01", "--out", str(file), *options])
        return program.main()

    suites = [_suite(name, partial(calls.append, name)) for name in ("one", "two", "three")]
    monkeypatch.setattr(peaks, "measure_peaks", dict)
    monkeypatch.setattr(program, "SUITES", {suite.name: suite for suite in (suites[0], _suite("two", interrupt))})
    assert run() == 130
    assert list(results.read(file)["families"]) == ["one"]
    monkeypatch.setattr(program, "SUITES", {suite.name: suite for suite in suites})
    assert run("--minutes", "0.000001") == 0
    assert not calls
    assert run() == 0
    assert list(dict.fromkeys(calls)) == ["two", "three"]
    assert run() == 0
    assert not calls
    monkeypatch.setattr(kernel_sources, "hash_each", lambda suites: dict.fromkeys(suites, "other kernels"))
    assert run("three", "one") == 0
    assert list(dict.fromkeys(calls)) == ["three", "one"]


def test_the_hash_of_the_kernels_is_that_of_their_sources(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("\nint a;")
    (tmp_path / "README.md").write_text("words")
    before = kernel_sources.hash_sources(folder=tmp_path)
    (tmp_path / "README.md").write_text("other words")
    assert kernel_sources.hash_sources(folder=tmp_path) == before
    (tmp_path / "a.h").write_text("// a comment\nint a;  // another")
    assert kernel_sources.hash_sources(folder=tmp_path) == before
    (tmp_path / "a.h").write_text("int b;")
    assert kernel_sources.hash_sources(folder=tmp_path) != before


def test_the_sources_of_a_suite_are_its_files_and_what_they_include(tmp_path: Path) -> None:
    texts = {"a.cpp": '#include "b.h"', "b.h": '#include "a.cpp"', "b.cpp": "", "unrelated.h": '#include "b.h"'}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    before = kernel_sources.hash_sources(["a.cpp"], tmp_path)
    for name, is_used in {"a.cpp": True, "b.h": True, "b.cpp": True, "unrelated.h": False}.items():
        (tmp_path / name).write_text(texts[name] + "\nint changed;")
        assert (kernel_sources.hash_sources(["a.cpp"], tmp_path) != before) == is_used
        (tmp_path / name).write_text(texts[name])


def test_every_suite_names_files_that_exist() -> None:
    assert set(kernel_sources.hash_each(SUITES)) == set(SUITES)


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
    monkeypatch.delitem(sys.modules, program.__name__)  # or runpy warns that it is imported
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("benchmarks", run_name="__main__")
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(message)
