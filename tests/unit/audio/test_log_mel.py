"""The log-mel spectrogram against loops in NumPy, and against the functions of transformers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracles import log_mel as oracle
from regard.audio import log_mel_spectrogram, mel_filter_bank
from regard.errors import OptionError, ShapeError

RATE, FFT, MELS = 7919, 62, 5


@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize("equal_area", [False, True])
def test_filter_bank_follows_the_equations(scale, equal_area):
    bank = mel_filter_bank(MELS, FFT, RATE, lowest=31.0, highest=3701.0, scale=scale, equal_area=equal_area)
    expected = oracle.filter_bank(MELS, FFT, RATE, 31.0, 3701.0, scale, equal_area)
    np.testing.assert_allclose(bank.numpy(), expected, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 211), st.integers(2, FFT), st.integers(1, 31), st.integers(0, 2**31))
def test_spectrogram_follows_the_equations(length, window, hop, seed):
    samples = torch.from_numpy(np.random.default_rng(seed).normal(size=length).astype(np.float32))
    bank = mel_filter_bank(MELS, FFT, RATE)
    computed = log_mel_spectrogram(samples, bank, window=window, hop=hop, floor=1e-7)
    expected = oracle.spectrogram(samples.double().numpy(), bank.numpy(), window, hop, 1e-7)
    assert computed.dtype == torch.float32
    np.testing.assert_allclose(computed.numpy(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("scale", ["htk", "slaney"])
def test_spectrogram_equals_that_of_transformers(scale):
    audio_utils = pytest.importorskip("transformers.audio_utils")
    samples = np.random.default_rng(3).normal(size=4001).astype(np.float32)
    bank = mel_filter_bank(80, 512, 16000, lowest=20.0, highest=7600.0, scale=scale, equal_area=True)
    theirs = audio_utils.mel_filter_bank(257, 80, 20.0, 7600.0, 16000, norm="slaney", mel_scale=scale)
    np.testing.assert_allclose(bank.numpy(), theirs.T, rtol=1e-9, atol=1e-12)
    window = audio_utils.window_function(400, "hann")
    expected = audio_utils.spectrogram(
        samples.astype(np.float64), window, 400, 160, fft_length=512, power=2.0, pad_mode="constant",
        mel_filters=theirs, mel_floor=1e-10, log_mel="log", dtype=np.float64,
    )  # fmt: skip
    computed = log_mel_spectrogram(torch.from_numpy(samples), bank, window=400, hop=160)
    # transformers keeps the transform in complex64.
    np.testing.assert_allclose(computed.numpy(), expected.T, rtol=0, atol=1e-5)


def test_silence_after_a_sound_changes_no_frame_of_it():
    samples = torch.randn(997)
    bank = mel_filter_bank(MELS, FFT, RATE)
    alone = log_mel_spectrogram(samples, bank, window=FFT, hop=13)
    longer = log_mel_spectrogram(torch.cat([samples, torch.zeros(101)]), bank, window=FFT, hop=13)
    assert torch.equal(longer[: len(alone)], alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fft": 61}, "odd"),
        ({"mels": 60}, "no frequency"),
        ({"scale": "bark"}, "mel scale"),
        ({"highest": 4000.0}, "above half"),
        ({"lowest": 3000.0, "highest": 2000.0}, "highest"),
        ({"rate": 0}, "rate"),
    ],
)
def test_wrong_filter_banks_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        mel_filter_bank(**({"mels": MELS, "fft": FFT, "rate": RATE} | options))


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_samples_are_refused():
    bank = mel_filter_bank(MELS, FFT, RATE)
    for samples in (torch.zeros(0), torch.zeros(2, 31), torch.zeros(31, dtype=torch.int16)):
        with pytest.raises(ShapeError, match="one sound"):
            log_mel_spectrogram(samples, bank, window=7, hop=3)
    with pytest.raises(OptionError, match="longer than the Fourier"):
        log_mel_spectrogram(torch.zeros(31), bank, window=FFT + 1, hop=3)
