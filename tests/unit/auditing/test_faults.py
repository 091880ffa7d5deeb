"""Each fault is found by its property, in its module and with its cause; sound models are not accused."""

from __future__ import annotations

import pytest

import regard
from unit.auditing.faults import FAULTS, build_source

QUICK = {0, 11, 24, 30, 46, 62, 88, 89}


def audit_source(built, **options):
    model, inputs, *arguments = built
    return regard.audit(model, inputs, **(arguments[0] if arguments else {}), **options)


@pytest.mark.parametrize("file", ["decoder", "encoder", "translator", "mixers", "prefix"])
def test_sound_models_hold(file):
    # A long convolution by FFT rounds all outputs to the largest input, so 1e30 in a later token is seen in all.
    report = audit_source(build_source(file), skip=["1e30 in later"] if file == "mixers" else [])
    assert report.leaks == (), str(report)
    assert report.exit_code == 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name, marks=[] if number in QUICK else pytest.mark.slow)
        for number, fault in enumerate(FAULTS)
    ],
)
def test_each_fault_is_found(fault):
    report = audit_source(fault.build(), only=[fault.leaking])
    leak = report[fault.leaking].leak
    assert leak is not None, str(report)
    assert leak.module == fault.module, str(report)
    assert fault.cause in leak.cause, str(report)


def test_there_are_enough_faults():
    assert len(FAULTS) >= 60
    assert len({(fault.file, fault.line, fault.wrong, fault.leaking) for fault in FAULTS}) == len(FAULTS)
