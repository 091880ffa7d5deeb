"""The energy meter, on a folder of counters as Linux has them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from regard.energy import EnergyMeter


def make_zone(folder: Path, name: str, label: str, counted: int, limit: int = 999) -> Path:
    """Write the files of one counter; return the file of its value in microjoules."""
    zone = folder / name
    zone.mkdir()
    (zone / "name").write_text(f"{label}\n")
    (zone / "max_energy_range_uj").write_text(f"{limit}\n")
    (zone / "energy_uj").write_text(f"{counted}\n")
    return zone / "energy_uj"


def test_the_packages_are_added_and_a_counter_that_starts_again_loses_nothing(tmp_path) -> None:
    first = make_zone(tmp_path, "intel-rapl:0", "package-0", 100)
    second = make_zone(tmp_path, "intel-rapl:1", "package-1", 990)
    for name, label in (("intel-rapl:0:0", "core"), ("intel-rapl:2", "psys"), ("intel-rapl", "")):
        make_zone(tmp_path, name, label, 0).write_text("700")  # parts of a package, and what contains packages
    meter = EnergyMeter(powercap=tmp_path)
    assert meter.missing_reason is None
    assert meter.read() == 0.0
    first.write_text("150")
    second.write_text("40")  # 990 to 999 and on to 0 and 40: 50
    assert meter.read() == pytest.approx(100e-6)
    second.write_text("10")  # once more: 970
    assert meter.read() == pytest.approx(1070e-6)


def test_a_machine_without_counters_says_so(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert (EnergyMeter(powercap=tmp_path).missing_reason or "").startswith("macOS tells only the administrator")
    monkeypatch.setattr(sys, "platform", "linux")
    for folder in (tmp_path, tmp_path / "missing"):
        meter = EnergyMeter(powercap=folder)
        assert meter.read() is None
        assert meter.missing_reason == "this system has no energy counters; virtual machines seldom have them"


def test_counters_that_only_the_administrator_may_read_are_named(tmp_path, monkeypatch) -> None:
    file = make_zone(tmp_path, "intel-rapl:0", "package-0", 100)
    read_text = Path.read_text

    def refuse(path: Path, **options) -> str:
        if path == file:
            raise PermissionError(13, "Permission denied")
        return read_text(path, **options)

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = EnergyMeter(powercap=tmp_path)
    assert meter.read() is None
    assert f"`sudo chmod a+r {file}`" in (meter.missing_reason or "")


def test_a_counter_that_vanishes_ends_the_measurement(tmp_path) -> None:
    file = make_zone(tmp_path, "intel-rapl:0", "package-0", 100)
    meter = EnergyMeter(powercap=tmp_path)
    file.unlink()
    assert meter.read() is None
    assert meter.missing_reason == "the energy counters of this system cannot be read"


def test_the_energy_of_a_gpu_is_that_of_its_uuid(monkeypatch) -> None:
    counted = {"GPU-17": 5000}
    nvml = SimpleNamespace(
        NVMLError=KeyError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetTotalEnergyConsumption=lambda handle: counted[handle],
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="17"))
    meter = EnergyMeter("cuda:1")
    counted["GPU-17"] = 7500
    assert meter.read() == pytest.approx(2.5)
    counted.clear()
    assert meter.read() is None
    assert meter.missing_reason == "this GPU does not count its energy"
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py" in (EnergyMeter("cuda").missing_reason or "")
