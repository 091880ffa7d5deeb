"""Precision of products on a device: what is supported, what is fastest for each kind of layer, and the messages.

Machines differ, so their measurements and missing features are replaced by fakes here.
"""

import pytest
import torch
from torch import nn

from regard.errors import OptionError, RefusedError
from regard.layers import precision
from regard.layers.precision import LAYERS, PRECISIONS, precisions
from regard.train.precision import autocast_dtype, choose_precision, say_if_unsupported

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Fake a CPU: ``products`` and ``lstm`` in bfloat16 or not, and bfloat16's ``share`` of float32's time."""

    def made(*, products=True, lstm=True, share=1.0):
        monkeypatch.setattr(precision, "_has_bf16_products", lambda: products)
        monkeypatch.setattr(precision, "has_lstm", lambda dtype: lstm)
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: (3.0, 3.0 * share))

    return made


def test_float32_needs_no_autocast():
    assert autocast_dtype("float32") is None
    assert autocast_dtype("bfloat16") == torch.bfloat16


class TestPrecisions:
    @pytest.mark.parametrize("layer", LAYERS)
    @pytest.mark.parametrize(
        ("share", "fastest", "slower"),
        [
            (0.5, "bfloat16", ()),  # Zen 5: pairs are multiplied in the time of one product
            (0.1, "bfloat16", ()),  # a matrix unit
            (0.95, "float32", ()),  # casts would take the time that is gained
            (1.8, "float32", ("bfloat16",)),  # an Intel Xeon without its matrix unit
        ],
    )
    def test_the_fastest_by_more_than_casts_cost(self, machine, layer, share, fastest, slower):
        machine(share=share)
        found = precisions(CPU, layer)
        assert (found.supported, found.fastest, found.slower) == (PRECISIONS, fastest, slower)
        assert f"{share:.2f}" in found.reason

    def test_each_kind_of_layer_is_measured_for_itself(self, machine, monkeypatch):
        machine()
        monkeypatch.setattr(
            precision, "_measure_seconds", lambda layer: (1.0, {"linear": 0.2, "gru": 0.5, "lstm": 1.1}[layer])
        )
        assert [precisions(CPU, layer).fastest for layer in LAYERS] == ["bfloat16", "bfloat16", "float32"]

    def test_a_processor_without_products_is_not_measured(self, machine, monkeypatch):
        machine(products=False)
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: pytest.fail("measured"))
        for layer in LAYERS:
            found = precisions(CPU, layer)
            assert (found.supported, found.fastest, found.slower) == (PRECISIONS, "float32", ("bfloat16",))
            assert "no products of bfloat16" in found.reason

    def test_without_an_lstm_in_bfloat16_there_is_float32_for_it_and_both_for_the_others(self, machine):
        machine(products=False, lstm=False)
        assert precisions(CPU, "lstm").supported == ("float32",)
        assert precisions(CPU, "gru").supported == precisions(CPU, "linear").supported == PRECISIONS

    def test_an_lstm_is_known_to_run_by_running_one(self, monkeypatch):
        tried = []

        def missing(self, *given):
            tried.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")

        precision.has_lstm.cache_clear()
        monkeypatch.setattr(nn.LSTM, "forward", missing)
        assert not precision.has_lstm(torch.bfloat16)
        assert tried == [(True, torch.bfloat16)]
        precision.has_lstm.cache_clear()
        monkeypatch.setattr(nn.LSTM, "forward", lambda self, *given: given)
        assert precision.has_lstm(torch.bfloat16)
        precision.has_lstm.cache_clear()

    def test_this_machine_is_measured(self, monkeypatch):
        monkeypatch.setattr(precision, "_TRIES", 1)
        for layer in LAYERS[:1] if not precision.has_lstm(torch.bfloat16) else LAYERS:
            assert all(0 < seconds < 60 for seconds in precision._measure_seconds.__wrapped__(layer))

    def test_a_device_of_another_kind_takes_float32(self):
        assert precisions(torch.device("meta")).fastest == "float32"

    def test_another_kind_of_layer_is_refused(self):
        with pytest.raises(OptionError, match="linear"):
            precisions(CPU, "convolution")


class TestChoosePrecision:
    """The precision that a training run chooses, and its message."""

    @pytest.mark.parametrize(("share", "chosen"), [(0.3, "bfloat16"), (1.2, "float32")])
    def test_auto_says_what_it_chose_and_why(self, machine, share, chosen):
        machine(share=share)
        said = []
        assert choose_precision("auto", CPU, said.append, layer="gru") == chosen
        assert len(said) == 1
        assert said[0].startswith(f"multiplying in {chosen}: ")
        assert "GRU" in said[0]

    def test_auto_takes_float32_where_nothing_else_runs(self, machine):
        machine(products=False, lstm=False)
        assert choose_precision("auto", CPU, lambda words: None, layer="lstm") == "float32"

    @pytest.mark.parametrize("asked", PRECISIONS)
    @pytest.mark.parametrize("share", [0.5, 0.95])
    def test_what_was_asked_for_is_taken_without_a_word_where_it_loses_nothing(self, machine, asked, share):
        machine(share=share)
        said = []
        assert choose_precision(asked, CPU, said.append) == asked
        assert said == []

    @pytest.mark.parametrize("layer", ["linear", "gru"])
    def test_what_takes_longer_is_taken_and_said(self, machine, layer):
        machine(products=False)
        said = []
        assert choose_precision("bfloat16", CPU, said.append, layer=layer) == "bfloat16"
        assert len(said) == 1
        assert "float32 is faster than bfloat16 here" in said[0]

    def test_what_does_not_run_is_refused(self, machine):
        machine(products=False, lstm=False)
        with pytest.raises(RefusedError, match="float32"):
            choose_precision("bfloat16", CPU, print, layer="lstm")
        assert choose_precision("float32", CPU, print, layer="lstm") == "float32"

    @pytest.mark.parametrize("wrong", ["int8", "", "Float32"])
    def test_what_is_no_precision_is_refused(self, wrong):
        with pytest.raises(OptionError, match="auto, bfloat16, float32"):
            choose_precision(wrong, CPU, print)

    def test_a_run_that_was_begun_elsewhere_goes_on_and_says_what_differs(self, machine):
        machine(products=False, lstm=False)
        said = []
        say_if_unsupported("float32", CPU, said.append, layer="lstm")
        say_if_unsupported("bfloat16", CPU, said.append, layer="gru")
        assert said == []
        say_if_unsupported("bfloat16", CPU, said.append, layer="lstm")
        assert len(said) == 1
        assert "last bits" in said[0]
