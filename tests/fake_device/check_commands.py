"""Every command that runs a model on the fake device: "auto" takes it, and the output is that of the CPU."""

from __future__ import annotations

import re

import pytest
import torch
from accelerate.state import AcceleratorState, PartialState

from fake_device import device
from fake_device.device import DEVICE, DeviceTensor
from model_commands import CASES, write_models
from regard import devices
from regard.cli.out_of_memory import is_out_of_memory, out_of_memory_error
from shell_command import run, shell_message

PAIRS = [
    pytest.param(name, arguments, id=f"{name} {' '.join(map(str, arguments[1:3]))}")
    for name in CASES
    for arguments in CASES[name]
]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_models(tmp_path_factory.mktemp("commands"))


TIME = re.compile(r"\d+(?:\.\d+)? (?:ms|s|µs)(?!\w)")


def split_numbers(text):
    """The words and the numbers of an output, without times, by which columns are wider or narrower."""
    text = " ".join(TIME.sub("", text).split())
    return NUMBER.sub("#", text), [float(number) for number in NUMBER.findall(text)]


def assert_same_output(actual, expected):
    """The same words, and numbers that differ by rounding."""
    words, numbers = split_numbers(actual)
    expected_words, expected_numbers = split_numbers(expected)
    assert words == expected_words
    assert numbers == pytest.approx(expected_numbers, rel=2e-3, abs=2e-4)


@pytest.mark.parametrize(("command", "arguments"), PAIRS)
def test_auto_takes_the_device_and_the_output_is_that_of_the_cpu(command, arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    here = run(*command.split(), *arguments, "--device", "cpu")
    made = []
    kept = DeviceTensor.__new__
    monkeypatch.setattr(DeviceTensor, "__new__", lambda cls, tensor: (made.append(tensor.shape), kept(cls, tensor))[1])
    there = run(*command.split(), *arguments)
    assert (here.exit_code, there.exit_code) == (0, 0), there.exception
    assert len(made) > 9
    assert "computing on fake_device (Fake Device 5000); --device cpu computes on the CPU" in there.stderr
    assert "computing on" not in here.stderr
    assert_same_output(there.stdout, here.stdout)


@pytest.mark.parametrize(("command", "arguments"), PAIRS)
def test_a_device_without_float64(command, arguments, folder, monkeypatch):
    monkeypatch.chdir(folder)
    here = run(*command.split(), *arguments, "--device", "cpu")
    monkeypatch.setattr(DeviceTensor, "has_float64", False)
    monkeypatch.setattr(devices, "_WITHOUT_FLOAT64", (DEVICE.type,))
    there = run(*command.split(), *arguments)
    assert (here.exit_code, there.exit_code) == (0, 0), there.exception
    assert_same_output(there.stdout, here.stdout)


HALF = [["embed", *CASES["embed"][0]], *(["classify", *arguments] for arguments in CASES["classify"])]


@pytest.mark.parametrize("words", HALF, ids=lambda words: " ".join(map(str, words[:3])))
def test_bfloat16_where_the_device_has_it(words, folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert "multiplying" not in run(*words).stderr
    monkeypatch.setattr(device._BackendModule, "multiplies_bf16", True)
    result = run(*words)
    assert "multiplying in bfloat16: this GPU multiplies it faster than float32" in result.stderr
    _, rounded = split_numbers(result.stdout)
    _, exact = split_numbers(run(*words, "--device", "cpu").stdout)
    assert rounded != exact
    assert rounded == pytest.approx(exact, abs=0.05)
    assert run(*words, "--device", "cpu").stdout == run(*words, "--device", "cpu", "--dtype", "float32").stdout
    assert_same_output(run(*words, "--dtype", "float32").stdout, run(*words, "--device", "cpu").stdout)


@pytest.mark.parametrize("command", ["translate", "transcribe", "generate"])
def test_texts_are_written_in_bfloat16_where_the_device_has_it(command, folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(device._BackendModule, "multiplies_bf16", True)
    made = []
    kept = DeviceTensor.__new__
    monkeypatch.setattr(DeviceTensor, "__new__", lambda cls, tensor: (made.append(tensor.dtype), kept(cls, tensor))[1])
    result = run(command, *CASES[command][0])
    assert result.exit_code == 0, result.exception
    assert "multiplying in bfloat16" in result.stderr
    assert made.count(torch.bfloat16) > 9
    made.clear()
    assert run(command, *CASES[command][0], "--dtype", "float32").exit_code == 0
    assert torch.bfloat16 not in made


_PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default)


@pytest.fixture
def small_device(monkeypatch):
    """A device with no memory for the result of a product."""
    compute = device._run_on_cpu

    def run_out(function, args, kwargs):
        if function in _PRODUCTS:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 79.10 GiB.")
        return compute(function, args, kwargs)

    monkeypatch.setattr(device, "_run_on_cpu", run_out)


@pytest.mark.parametrize(("command", "arguments"), PAIRS)
def test_memory_that_runs_out(command, arguments, folder, monkeypatch, small_device):
    """No command takes the error for another, such as that of a broken file."""
    monkeypatch.chdir(folder)
    assert_memory_ran_out(*command.split(), *arguments)


def test_memory_that_runs_out_in_training_and_audits(folder, monkeypatch, small_device):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(PartialState, "default_device", property(lambda self: DEVICE))
    AcceleratorState._reset_state(reset_partial_state=True)
    sizes = ["--set", "layers=1", "--set", "width=32", "--batch", 3, "--block", 7, "--vocabulary", 260]
    said = assert_memory_ran_out("train", "lm", "--data", "text.txt", *sizes, "--dtype", "float32", "--out", "new")
    assert "lower --batch (with a larger --accumulate)" in said
    assert_memory_ran_out("audit", "lm", "--library", "regard", "--quick", "--only", "causal")


def assert_memory_ran_out(*words):
    result = run(*words)
    assert result.exit_code != 0
    assert is_out_of_memory(result.exception), result.exception
    said = shell_message(out_of_memory_error(result.exception))
    assert "there is not enough memory on the device" in said
    assert "--device cpu computes in the memory of the machine" in said
    assert "GPU 0 has 79.10 GiB" in said
    return said


def test_audit(folder, monkeypatch):
    monkeypatch.chdir(folder)
    words = ["audit", "lm", "--library", "regard", "--quick", "--only", "causal", "--only", "padding"]
    here, there = run(*words, "--device", "cpu"), run(*words)
    assert (here.exit_code, there.exit_code) == (0, 0), there.exception
    assert "computing on fake_device" in there.stderr
    verdicts = [[line.split() for line in found.stdout.splitlines() if "holds" in line] for found in (here, there)]
    assert len(verdicts[0]) >= 2
    assert [words[:2] for words in verdicts[1]] == [words[:2] for words in verdicts[0]]


def test_bench():
    words = ["bench", "--mechanism", "linear", "--length", "37", "--heads", "2", "--head-dim", "7", "--seconds", "0.01"]
    result = run(*words)
    assert result.exit_code == 0, result.exception
    assert "Fake Device 5000" in result.stdout
    assert "computing on fake_device" in result.stderr


def test_devices_are_listed_where_one_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    error = run("embed", "--model", "encoder", "the old oak", "--device", "cuda").exception
    assert error.expected == "a device of this machine: cpu, fake_device:0; or auto"
    assert error.got == f"torch {torch.__version__} finds no device of the kind 'cuda'"


def test_a_device_that_cannot_be_used_is_left_out(folder, monkeypatch):
    monkeypatch.chdir(folder)

    def fail(cls, tensor):
        raise RuntimeError("the driver is too old")

    monkeypatch.setattr(DeviceTensor, "__new__", fail)
    result = run("embed", "--model", "encoder", "the old oak")
    assert result.exit_code == 0
    assert "computing on the CPU, since fake_device cannot be used: the driver is too old" in result.stderr
