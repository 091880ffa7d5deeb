"""Sounds to features: batches, normalisation, and what is refused."""

import numpy as np
import pytest
import torch

from regard import masks
from regard.audio import AudioProcessor, log_mel_spectrogram, mel_filter_bank
from regard.errors import DataError, OptionError
from small_audio_models import PROCESSOR
from sound_files import sound_bytes, tone


def test_features_of_a_sound_do_not_depend_on_its_batch():
    sounds = [tone(0.31), tone(0.113, hertz=900).astype(np.float32), tone(0.005)]
    features, mask = PROCESSOR(sounds)
    assert features.shape == (3, 32, 7)
    lengths = [32, 12, 1]
    assert torch.equal(mask.dense(1, 32), masks.padding(lengths).dense(1, 32))
    for number, sound in enumerate(sounds):
        alone, _ = PROCESSOR([sound])
        assert torch.equal(features[number, : lengths[number]], alone[0])
        assert (features[number, lengths[number] :] == 0).all()


def test_normalised_features_have_mean_zero_and_deviation_one():
    sound = np.random.default_rng(1).normal(size=4001)
    bank = mel_filter_bank(7, 256, 8000)
    plain = AudioProcessor(rate=8000, mels=7, fft=256, window=200, hop=80, normalise=False).to_features(sound)
    assert torch.equal(plain, log_mel_spectrogram(torch.from_numpy(sound).float(), bank, window=200, hop=80))
    features = PROCESSOR.to_features(sound).double().numpy()
    np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-4)
    np.testing.assert_allclose(PROCESSOR.to_features(sound * 7), features, atol=1e-5)


def test_files_are_resampled_to_the_rate_of_the_model():
    features = PROCESSOR.to_features(sound_bytes(tone(0.31, rate=44100), 44100))
    np.testing.assert_allclose(features.shape, (32, 7))
    assert PROCESSOR.to_features(sound_bytes(np.zeros(100))).abs().max() == 0


@pytest.mark.usefixtures("without_shape_checks")
def test_unusable_sounds_are_refused():
    for wrong, message in (
        (np.zeros((3, 5)), "array of a sound"),
        (np.zeros(5, np.int16), "array of a sound"),
        (np.zeros(0), "array of a sound"),
        (np.zeros(8000 * 60 + 1), "at most 60 seconds"),
        (np.array([np.nan]), "no finite numbers"),
        (np.array([1e300]), "no finite numbers"),
        (sound_bytes(tone(61.0)), "too long"),
        (7, "not a sound"),
    ):
        with pytest.raises(DataError, match=message):
            PROCESSOR([wrong])
    for wrong in ([], "sound.wav", b"", None):
        with pytest.raises(OptionError, match="list of sounds"):
            PROCESSOR(wrong)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options",
    [{"rate": 7}, {"window": 513}, {"fft": 511, "window": 5}, {"hop": 0}, {"scale": "bark"}, {"floor": 0.0},
     {"highest": 9000.0}, {"max_seconds": 1e9}, {"normalise": "yes"}, {"mels": 500}, {"mels": None}],
    ids=str,
)  # fmt: skip
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError):
        AudioProcessor(**options)
