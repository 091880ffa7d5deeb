"""Spoken keywords: what the generator draws and records, and that the convolution has the size of the Conformer."""

import numpy as np
import pytest
import torch

from benchmarks.learning.keywords import RATE, draw_utterance, record, split_variants
from benchmarks.learning.sound_convolution import SoundConvolution, SoundConvolutionConfig, build_of_size
from benchmarks.learning.train_keywords import REPORT, build_convolution
from regard import masks
from regard.models.model_folder import ModelFolder
from regard.tasks.new_conformer import PRESETS, build_conformer
from regard.tasks.sound_classification import SoundClassificationRecipe


def test_voices_of_the_test_are_others():
    variants = [f"v{number}" for number in range(101)]
    training, test = split_variants(variants, 1)
    assert sorted(training + test) == sorted(variants)
    assert len(test) == 20
    drawn = {draw_utterance("yes", test, np.random.default_rng(seed)).voice.split("+")[1] for seed in range(200)}
    assert drawn <= set(test)
    assert len(drawn) > 15


@pytest.mark.parametrize("length", [100, RATE // 2, 2 * RATE])
def test_recordings_last_a_second(length):
    """With the same loudness, whatever the length and loudness of the voice; silence around the voice is cut."""
    voice = np.concatenate([np.zeros(77), np.sin(np.arange(length)), np.zeros(55)]).astype(np.float32)
    for seed in range(5):
        recorded = record(1e-3 * voice, np.random.default_rng(seed))
        assert recorded.shape == (RATE,)
        assert np.sqrt(np.square(recorded).mean()) == pytest.approx(0.1)
    assert not np.array_equal(recorded, record(voice, np.random.default_rng(0)))


def test_convolution_has_the_size_of_the_conformer():
    recipe = SoundClassificationRecipe(())
    for size in PRESETS.sizes:
        with torch.device("meta"):
            one = build_conformer(recipe, size, bands=80, labels=("a", "b"))
            other = build_convolution(recipe, size, bands=80, labels=("a", "b"))
        weights, others = (sum(part.numel() for part in model.parameters()) for model in (one, other))
        assert others == pytest.approx(weights, rel=0.02)


def test_padding_has_no_influence_on_the_convolution(tmp_path):
    torch.manual_seed(3)
    model = SoundConvolution(SoundConvolutionConfig(bands=7, width=6, layers=2, kernel=3, labels=("a", "b"))).eval()
    features = torch.randn(2, 19, 7)
    poisoned = features.clone()
    poisoned[1, 11:] = torch.nan
    expected = model(features[1:, :11]).logits
    torch.testing.assert_close(model(poisoned, mask=masks.padding([19, 11])).logits[1:], expected)
    model.save(tmp_path / "m")
    loaded = SoundConvolution.from_folder(ModelFolder.open(tmp_path / "m"), dtype=torch.float32)
    assert loaded.config == model.config
    assert torch.equal(loaded(features).logits, model(features).logits)
    assert len(build_of_size(1, bands=7, labels=("a",), width=6).layers) == 1


def test_section_of_the_results_page():
    assert "train_keywords" in "\n".join(REPORT.render({}))
