"""Train with the `regard train translate` command, so that the result is the one that users get."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.measured_process import run_and_measure
from benchmarks.translation.config import Config
from benchmarks.translation.prepare import PREPARE


def resolve_files(config: Config, names: tuple[str, ...], data: Path, model: Path) -> list[Path]:
    """Return the paths of a config's files."""
    folder = prepared_data_folder(model) if config.prepare else data
    return [folder / name for name in names]


def prepared_data_folder(model: Path) -> Path:
    """Return the folder of a model's prepared data."""
    return model.with_name(f"{model.name}.data")


def train_model(config: Config, data: Path, model: Path, *, minutes: float | None = None) -> float:
    """Train, or resume an interrupted run. Return the peak memory of the process in GB."""
    if config.prepare and not prepared_data_folder(model).exists():
        PREPARE[config.prepare](data, prepared_data_folder(model))
    command = [sys.executable, "-m", "regard", "train", "translate", "--out", str(model), *config.options]
    for option, names in (("--data", config.train), ("--valid", config.valid)):
        for path in resolve_files(config, names, data, model):
            command += [option, str(path)]
    command += ["--source", config.languages[0], "--target", config.languages[1]]
    if minutes is not None:
        command += ["--minutes", str(minutes)]
    if model.with_name(f"{model.name}.run").exists():
        command.append("--resume")
    memory, _ = run_and_measure(command)
    return memory
