"""The devices of a machine. This one has a CPU alone; tests/fake_device has another device."""

from types import SimpleNamespace

import pytest
import torch

from regard import devices
from regard.copy_to_device import copy_to
from regard.devices import (
    counts_peak_bytes,
    describe_device,
    find_accelerator,
    launch_ahead,
    list_devices,
    resolve_device,
    to_float64,
    wait_for,
)
from regard.errors import DeviceError
from regard.layers import precision
from regard.layers.precision import choose_dtype, precisions
from regard.log import notes_to

CPU = torch.device("cpu")


@pytest.fixture
def fake_accelerator(monkeypatch):
    """Pretend that torch finds accelerators of a kind, with what its module says; no tensor can be made on them."""

    def find(kind, count=1, **functions):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
        monkeypatch.setattr(torch.accelerator, "device_count", lambda: count)
        monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(**functions))

    return find


class TestCpu:
    @pytest.fixture(autouse=True)
    def hide_accelerators(self, monkeypatch):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    def test_auto_is_the_cpu_without_a_word(self):
        notes = []
        with notes_to(notes.append):
            assert resolve_device("auto") == resolve_device(None) == resolve_device("cpu") == CPU
        assert notes == []
        assert (list_devices(), find_accelerator()) == (["cpu"], None)

    @pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps", "xpu"])
    def test_a_kind_that_is_missing_is_refused_with_those_that_are_there(self, name):
        with pytest.raises(DeviceError) as refused:
            resolve_device(name)
        kind = name.partition(":")[0]
        assert refused.value.expected == "a device of this machine: cpu; or auto"
        assert refused.value.got == f"torch {torch.__version__} finds no device of the kind {kind!r}"

    @pytest.mark.parametrize("name", ["gpu", "", "cuda:", 7.5, [CPU]])
    def test_no_device_at_all(self, name):
        with pytest.raises(DeviceError, match="cannot use device"):
            resolve_device(name)


def test_a_device_that_cannot_be_used_is_refused_in_torch_words(fake_accelerator):
    fake_accelerator("xpu", count=3)
    with pytest.raises(DeviceError) as refused:
        resolve_device("xpu:1")
    assert refused.value.expected == "a device of this machine: cpu, xpu:0, xpu:1, xpu:2; or auto"
    assert "xpu" in refused.value.got.lower()


def test_auto_takes_the_cpu_if_the_accelerator_does_not_work(fake_accelerator):
    fake_accelerator("cuda")
    notes = []
    with notes_to(notes.append):
        assert resolve_device("auto") == CPU
    (note,) = notes
    assert note.startswith("computing on the CPU, since cuda cannot be used: ")


def test_names_of_devices(fake_accelerator):
    assert describe_device("cpu") == "the CPU"
    assert describe_device("mps") == "the GPU of this Apple processor"
    fake_accelerator("cuda", get_device_name=lambda device: f"NVIDIA H200 number {device.index}")
    assert describe_device("cuda:1") == "NVIDIA H200 number 1"
    fake_accelerator("xpu")
    assert describe_device("xpu") == "xpu"


class TestCopies:
    def test_on_a_cpu_nothing_is_copied(self):
        tensor = torch.arange(7)
        assert copy_to(tensor, CPU) is tensor

    @pytest.mark.parametrize(("kind", "is_pinned"), [("cuda", True), ("xpu", True), ("mps", False), ("meta", False)])
    def test_from_a_cpu_memory_is_pinned_where_the_device_copies_from_it(self, kind, is_pinned, monkeypatch):
        calls = self.watch_copies(monkeypatch)
        copy_to(torch.arange(7), torch.device(kind))
        assert calls == (["pinned", (kind, True)] if is_pinned else [(kind, False)])

    def test_nothing_is_pinned_in_a_trace(self, monkeypatch):
        calls = self.watch_copies(monkeypatch)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        copy_to(torch.arange(7), torch.device("cuda"))
        assert calls == [("cuda", False)]

    @staticmethod
    def watch_copies(monkeypatch):
        calls = []

        def pin(tensor):
            calls.append("pinned")
            return tensor

        def move(tensor, device, non_blocking=False):
            calls.append((device.type, non_blocking))
            return tensor

        monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
        monkeypatch.setattr(torch.Tensor, "to", move)
        return calls


class TestLaunchAhead:
    def log_order(self, kind):
        events = []

        def make_calls():
            for number in range(3):
                events.append(f"call {number}")
                yield number

        for result in launch_ahead(make_calls(), torch.device(kind)):
            events += [f"read {result}"]
        return events

    def test_a_cpu_computes_while_it_is_called(self):
        assert self.log_order("cpu") == ["call 0", "read 0", "call 1", "read 1", "call 2", "read 2"]

    def test_elsewhere_a_result_is_read_after_the_next_call(self):
        assert self.log_order("cuda") == ["call 0", "call 1", "read 0", "call 2", "read 1", "read 2"]

    def test_no_results(self):
        assert list(launch_ahead([], torch.device("cuda"))) == []


def test_waiting_for_a_device(fake_accelerator):
    waited = []
    fake_accelerator("cuda", synchronize=lambda: waited.append("cuda"))
    wait_for(CPU)
    wait_for(torch.device("meta"))
    wait_for(torch.device("cuda"))
    assert waited == ["cuda"]


def test_peak_memory_is_counted_where_torch_counts_it(fake_accelerator):
    assert not counts_peak_bytes(CPU)
    fake_accelerator("mps")
    assert not counts_peak_bytes(torch.device("mps"))
    state = {"now": 100, "peak": 100}

    def compute():
        state["peak"] = max(state["peak"], state["now"] + 37)

    fake_accelerator(
        "xpu",
        max_memory_allocated=lambda device: state["peak"],
        memory_allocated=lambda device: state["now"],
        reset_peak_memory_stats=lambda device: state.update(peak=state["now"]),
    )
    assert counts_peak_bytes(torch.device("xpu"))
    assert devices.measure_peak_bytes(compute, torch.device("xpu")) == 37


def test_float64():
    tensor = torch.tensor([0.1, 2.0])
    assert to_float64(tensor).dtype == torch.float64
    assert to_float64(tensor).tolist() == [float(number) for number in tensor]


class TestDtype:
    def test_auto_is_float32_on_a_cpu_which_is_not_measured(self, monkeypatch):
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: pytest.fail("measured"))
        assert choose_dtype("auto", CPU) == torch.float32

    def test_nothing_is_measured_where_our_kernels_multiply_bfloat16(self, monkeypatch):
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: pytest.fail("measured"))
        monkeypatch.setattr(precision, "multiplies", lambda dtype: True)
        notes = []
        with notes_to(notes.append):
            assert choose_dtype("bfloat16", CPU) == torch.bfloat16
        assert notes == []

    @pytest.mark.parametrize(("has_products", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
    @pytest.mark.parametrize("kind", ["cuda", "xpu"])
    def test_auto_is_bfloat16_where_the_device_multiplies_it(self, kind, has_products, dtype, fake_accelerator):
        def is_supported(including_emulation=True):
            return has_products or including_emulation

        fake_accelerator(kind, is_bf16_supported=is_supported)
        notes = []
        with notes_to(notes.append):
            assert choose_dtype("auto", torch.device(kind)) == dtype
        said = ["multiplying in bfloat16: this GPU multiplies it faster than float32"]
        assert notes == (said if has_products else [])
        assert choose_dtype("float32", torch.device(kind)) == torch.float32
        assert choose_dtype("bfloat16", torch.device(kind)) == torch.bfloat16

    def test_a_device_that_does_not_say_computes_in_float32(self, fake_accelerator):
        fake_accelerator("mps")
        assert choose_dtype("auto", torch.device("mps")) == torch.float32
        assert precisions(torch.device("mps")).reason == "torch does not say whether mps multiplies bfloat16"
