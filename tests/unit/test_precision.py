"""In which numbers a training step multiplies: what was asked for, or the faster, and it is said which."""

import pytest
import torch

from regard.errors import OptionError
from regard.train import precision
from regard.train.precision import Choice, autocast_dtype, faster, settled

CPU = torch.device("cpu")


def test_float32_needs_no_autocast():
    assert autocast_dtype("float32") is None
    assert autocast_dtype("bfloat16") == torch.bfloat16


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_what_was_asked_for_is_taken_without_a_word(asked):
    said = []
    assert settled(asked, CPU, said.append) == asked
    assert said == []


def test_auto_says_what_it_chose_and_why():
    said = []
    chosen = settled("auto", CPU, said.append)
    assert chosen in ("float32", "bfloat16")
    assert len(said) == 1
    assert said[0].startswith(f"multiplying in {chosen}: ")


@pytest.mark.parametrize("wrong", ["int8", "", "Float32"])
def test_what_is_no_precision_is_refused(wrong):
    with pytest.raises(OptionError, match="auto, bfloat16, float32"):
        settled(wrong, CPU, print)


@pytest.mark.parametrize(
    ("float32", "bfloat16", "expected"),
    [
        (1.0, 0.5, "bfloat16"),  # Zen 5: pairs are multiplied in the time of one product
        (1.0, 0.1, "bfloat16"),  # a matrix unit
        (1.0, 1.8, "float32"),  # an Intel Xeon without its matrix unit
        (1.0, 0.95, "float32"),  # casts would take what is gained
    ],
)
def test_the_faster_by_more_than_casts_cost(monkeypatch, float32, bfloat16, expected):
    monkeypatch.setattr(precision, "_has_bf16_arithmetic", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(precision, "_seconds", lambda: (float32, bfloat16))
    found = faster(CPU)
    assert found.precision == expected
    assert f"{bfloat16 / float32:.2f}" in found.reason


def test_both_are_timed():
    assert all(0 < seconds < 60 for seconds in precision._seconds())


def test_a_processor_without_bfloat16_is_not_measured(monkeypatch):
    monkeypatch.setattr(precision, "_has_bf16_arithmetic", lambda: False)
    monkeypatch.setattr(precision, "_seconds", lambda: pytest.fail("measured"))
    assert faster(CPU) == Choice("float32", "bfloat16 is not multiplied by this processor itself")


def test_a_device_of_another_kind_takes_float32():
    assert faster(torch.device("meta")).precision == "float32"
