"""Every program of the benchmarks parses its options, and every experiment lists its trainings from them."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks.learning.experiment import Experiment

ROOT = Path(__file__).resolve().parents[2]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__"): path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "benchmarks").rglob("*.py"))
}
EXPERIMENTS = [name for name, source in SOURCES.items() if "EXPERIMENT = Experiment(" in source]
PROGRAMS = [
    name
    for name, source in SOURCES.items()
    if '__name__ == "__main__"' in source and ("ArgumentParser(" in source or name in EXPERIMENTS)
]


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_has_a_help(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    for loaded in (name, f"{name}.__main__"):
        monkeypatch.delitem(sys.modules, loaded, raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: ")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_lists_its_trainings(name, tmp_path):
    experiment = importlib.import_module(name).EXPERIMENT
    assert isinstance(experiment, Experiment)
    assert experiment.program == name.rpartition(".")[2]
    source = SOURCES[name]
    required = [option for option in ("--data", "--text") if f'"{option}", type=Path, required=True' in source]
    given = [part for option in required for part in (option, str(tmp_path / "data"))]
    trainings = experiment.trainings(experiment.parse_options(["--out", str(tmp_path / "out"), *given]))
    assert trainings
    assert all(
        isinstance(options, dict) or all(isinstance(part, str) for part in options) for options in trainings.values()
    )
    assert not (tmp_path / "out").exists()
