"""Precision of products on a device: what is supported, what is fastest for each kind of layer, and the messages.

Machines differ, so their measurements and missing features are replaced by fakes here.
"""

import pytest
import torch
from torch import nn

from regard.errors import OptionError, RefusedError
from regard.layers import precision
from regard.layers.precision import LAYERS, precisions
from regard.log import notes_to
from regard.number_formats import PRECISIONS
from regard.train.numeric_backends import autocast_dtype, choose_precision, note_if_unsupported

CPU = torch.device("cpu")


@pytest.fixture
def fake_cpu(monkeypatch):
    """Fake a CPU: ``products`` and ``lstm`` in bfloat16 or not, and bfloat16's ``share`` of float32's time."""

    def set_features(*, products=True, lstm=True, share=1.0):
        monkeypatch.setattr(precision, "_has_bf16_products", lambda: products)
        monkeypatch.setattr(precision, "has_lstm", lambda dtype: lstm)
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: (3.0, 3.0 * share))

    return set_features


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
    def test_bfloat16_is_fastest_if_it_saves_more_than_its_casts_cost(self, fake_cpu, layer, share, fastest, slower):
        fake_cpu(share=share)
        actual = precisions(CPU, layer)
        assert (actual.supported, actual.fastest, actual.slower) == (PRECISIONS, fastest, slower)
        assert f"{share:.2f}" in actual.reason

    def test_each_kind_of_layer_is_measured_separately(self, fake_cpu, monkeypatch):
        fake_cpu()
        monkeypatch.setattr(
            precision, "_measure_seconds", lambda layer: (1.0, {"linear": 0.2, "gru": 0.5, "lstm": 1.1}[layer])
        )
        assert [precisions(CPU, layer).fastest for layer in LAYERS] == ["bfloat16", "bfloat16", "float32"]

    def test_a_processor_without_products_is_not_measured(self, fake_cpu, monkeypatch):
        fake_cpu(products=False)
        monkeypatch.setattr(precision, "_measure_seconds", lambda layer: pytest.fail("measured"))
        for layer in LAYERS:
            actual = precisions(CPU, layer)
            assert (actual.supported, actual.fastest, actual.slower) == (PRECISIONS, "float32", ("bfloat16",))
            assert "no products of bfloat16" in actual.reason

    def test_missing_bfloat16_lstm_restricts_only_lstms(self, fake_cpu):
        fake_cpu(products=False, lstm=False)
        assert precisions(CPU, "lstm").supported == ("float32",)
        assert precisions(CPU, "gru").supported == precisions(CPU, "linear").supported == PRECISIONS

    def test_lstm_support_is_tested_by_running_one(self, monkeypatch):
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

    def test_measurement_of_this_machine(self, monkeypatch):
        monkeypatch.setattr(precision, "_TRIES", 1)
        for layer in LAYERS[:1] if not precision.has_lstm(torch.bfloat16) else LAYERS:
            assert all(0 < seconds < 60 for seconds in precision._measure_seconds.__wrapped__(layer))

    def test_unknown_device_uses_float32(self):
        assert precisions(torch.device("meta")).fastest == "float32"

    def test_unknown_layer_is_refused(self):
        with pytest.raises(OptionError, match="linear"):
            precisions(CPU, "convolution")


class TestChoosePrecision:
    """The precision that a training run chooses, and its message."""

    @pytest.mark.parametrize(("share", "chosen"), [(0.3, "bfloat16"), (1.2, "float32")])
    def test_auto_reports_its_choice_and_the_reason(self, fake_cpu, share, chosen):
        fake_cpu(share=share)
        messages = []
        with notes_to(messages.append):
            assert choose_precision("auto", CPU, layer="gru") == chosen
        assert len(messages) == 1
        assert messages[0].startswith(f"multiplying in {chosen}: ")
        assert "GRU" in messages[0]

    def test_auto_uses_float32_if_nothing_else_is_supported(self, fake_cpu):
        fake_cpu(products=False, lstm=False)
        assert choose_precision("auto", CPU, layer="lstm") == "float32"

    @pytest.mark.parametrize("requested", PRECISIONS)
    @pytest.mark.parametrize("share", [0.5, 0.95])
    def test_requested_precision_without_loss_of_speed_gives_no_message(self, fake_cpu, requested, share):
        fake_cpu(share=share)
        messages = []
        with notes_to(messages.append):
            assert choose_precision(requested, CPU) == requested
        assert messages == []

    @pytest.mark.parametrize("layer", ["linear", "gru"])
    def test_slower_requested_precision_is_used_and_reported(self, fake_cpu, layer):
        fake_cpu(products=False)
        messages = []
        with notes_to(messages.append):
            assert choose_precision("bfloat16", CPU, layer=layer) == "bfloat16"
        assert len(messages) == 1
        assert "float32 is faster than bfloat16 here" in messages[0]

    def test_unsupported_precision_is_refused(self, fake_cpu):
        fake_cpu(products=False, lstm=False)
        with pytest.raises(RefusedError, match="float32"):
            choose_precision("bfloat16", CPU, layer="lstm")
        assert choose_precision("float32", CPU, layer="lstm") == "float32"

    @pytest.mark.parametrize("wrong", ["int8", "", "Float32"])
    def test_unknown_precision_is_refused(self, wrong):
        with pytest.raises(OptionError, match="auto, bfloat16, float32"):
            choose_precision(wrong, CPU)

    def test_resume_with_an_unsupported_precision_is_reported(self, fake_cpu):
        fake_cpu(products=False, lstm=False)
        messages = []
        with notes_to(messages.append):
            note_if_unsupported("float32", CPU, layer="lstm")
        with notes_to(messages.append):
            note_if_unsupported("bfloat16", CPU, layer="gru")
        assert messages == []
        with notes_to(messages.append):
            note_if_unsupported("bfloat16", CPU, layer="lstm")
        assert len(messages) == 1
        assert "last bits" in messages[0]
