"""The task of sound classification: choices by the data, batches, losses, heads, and errors."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from regard.audio import AudioProcessor
from regard.errors import CheckpointError, OptionError
from regard.log import notes_to
from regard.models import AudioEncoder
from regard.tasks.new_conformer import PRESETS, choose_rate, make_processor
from regard.tasks.sound_classification import SoundClassificationRecipe, SoundClassificationTask
from regard.train import RankShard, RunContext, Settings
from small_audio_models import audio_model
from sound_files import tone

TINY = {"layers": 1, "width": 8, "heads": 2, "inner": 7, "kernel": 3, "dropout": 0.0}


@pytest.fixture
def tones(tmp_path):
    """Eleven tones of each of two labels, of 0.1 to 0.35 seconds."""
    for label, hertz in (("high", 1500), ("low", 300)):
        (tmp_path / label).mkdir()
        for index in range(11):
            samples = tone(0.1 + 0.025 * index, hertz=hertz + 7 * index)
            soundfile.write(tmp_path / label / f"{index}.wav", samples, 8000)
    return tmp_path


def prepare(*paths, **options):
    said: list[str] = []
    numbers = {} if "start" in options else {"hyperparameters": TINY}
    recipe = SoundClassificationRecipe(tuple(paths), **{**numbers, "batch": 7, **options})
    task = SoundClassificationTask(recipe)
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(Settings(steps=1, precision="float32")))
    return task, "\n".join(said)


def test_choices_by_the_data():
    assert choose_rate([8000, 44100, 8000]) == 8000
    assert choose_rate([44100]) == 16000
    assert [PRESETS.choose_size(count).name for count in (5, 50_000, 500_000)] == ["tiny", "small", "base"]
    assert PRESETS.choose_size(5, "base") is PRESETS.by_name["base"]
    for rate, mels in ((1000, 40), (8000, 64), (11025, 64), (16000, 80), (96000, 80)):
        processor = make_processor(rate, max_seconds=3.0)
        assert (processor.rate, processor.mels, processor.max_seconds) == (rate, mels, 3.0)
        assert processor.window == round(0.025 * rate)


def test_every_sound_is_in_one_batch_of_an_epoch(tones):
    task, said = prepare(tones)
    assert "sounds: 20 for training; 2 held out for validation" in said
    for number in range(2):
        found = np.concatenate([one.examples for one in task.epoch(number)])
        assert sorted(found.tolist()) == list(range(20))
    first, again = task.epoch(3)[0].examples, task.batches.epoch(3)[0].examples
    np.testing.assert_array_equal(first, again)
    examples = task.batches.examples
    lengths = [examples.decoded.lengths[examples.chosen[one.examples]] for one in task.epoch(0)]
    spans = sorted((one.min(), one.max()) for one in lengths)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))  # sorted by length


@pytest.mark.parametrize("memory", [0.0, 1.0])
def test_shards_have_the_same_augmented_rows(tones, memory):
    """Rows do not depend on which process makes them, nor on whether features are kept."""
    task, _ = prepare(tones, augment="strong", memory=memory)
    batch = task.epoch(1)[0]
    whole, mask = task.batches.augment(batch, np.arange(len(batch)))
    frames = mask.dense(1, whole.shape[1])[:, 0, 0].sum(dim=1)
    for rank in range(3):
        rows = RankShard(rank, 3).rows(np.arange(len(batch)))
        part, _ = task.batches.augment(batch, rows)
        for row, made in zip(rows.tolist(), part, strict=True):
            assert torch.equal(made[: frames[row]], whole[row, : frames[row]])


def test_loss_is_the_cross_entropy_of_the_batch(tones):
    """In evaluation mode, without augmentation; and of an empty shard it is 0, with gradients of 0."""
    task, _ = prepare(tones, augment="none")
    task.model.eval()
    batch = task.epoch(0)[0]
    inputs = task.batches.inputs(batch.examples, torch.device("cpu"))
    logits = task.model(**inputs).logits
    truth = torch.tensor(
        [task.model.labels.index(task.batches.examples.files[index].label) for index in batch.examples]
    )
    expected = torch.nn.functional.cross_entropy(logits, truth, reduction="sum")
    torch.testing.assert_close(task.loss(task.model, batch, RankShard()), expected)
    parts = sum(task.loss(task.model, batch, RankShard(rank, 2)) for rank in range(2))
    torch.testing.assert_close(parts, expected)
    task.model.train()
    before = {name: one.clone() for name, one in task.model.named_buffers()}
    nothing = task.loss(task.model, batch, RankShard(rank=20, of=21))
    nothing.backward()
    assert nothing.item() == 0
    assert all(one.grad is None or not one.grad.any() for one in task.model.parameters())
    assert all(torch.equal(one, before[name]) for name, one in task.model.named_buffers())


def test_rare_labels_weigh_more(tones):
    """By the number of sounds a label has in training: N / (labels count)."""
    for index in range(1, 8):
        (tones / "low" / f"{index}.wav").unlink()
    task, _ = prepare(tones, augment="none", class_weights="balanced")
    task.model.eval()
    labels = [task.batches.examples.files[index].label for batch in task.epoch(0) for index in batch.examples]
    weights = torch.tensor([len(labels) / 2 / labels.count(label) for label in task.model.labels])
    assert weights.max() > 1.5
    batch = task.epoch(0)[0]
    logits = task.model(**task.batches.inputs(batch.examples, torch.device("cpu"))).logits
    files = [task.batches.examples.files[index] for index in batch.examples]
    truth = torch.tensor([task.model.labels.index(file.label) for file in files])
    expected = torch.nn.functional.cross_entropy(logits, truth, weight=weights, reduction="sum")
    torch.testing.assert_close(task.loss(task.model, batch, RankShard()), expected)


def test_fine_tuning_keeps_the_head_of_the_same_labels(tones, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    audio_model(labels=("low", "high")).save(folder / "same")
    task, said = prepare(tones, start=str(folder / "same"))
    assert task.model.labels == ("low", "high")
    assert "same, a Conformer, 8,000 samples a second, 7 bands" in said
    loaded = AudioEncoder.load(folder / "same")
    assert torch.equal(task.model.head.weight, loaded.head.weight)
    audio_model(labels=("a", "b", "c"), head="ctc").save(folder / "ctc")
    assert "the head of" not in said
    task, said = prepare(tones, start=str(folder / "ctc"))
    assert "ctc has other labels (a, b, c): it is replaced by a head with random weights for high, low" in said
    assert (task.model.labels, task.model.config.head) == (("high", "low"), "classification")
    loaded = AudioEncoder.load(folder / "ctc")
    assert torch.equal(task.model.layers[0].state_dict()["norm.weight"], loaded.layers[0].state_dict()["norm.weight"])
    model = audio_model()
    model.processor = None
    model.save(folder / "bare")
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        prepare(tones, start=str(folder / "bare"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "vit"}, {"augment": "x"}, {"tempo": 2.0}, {"sample_rate": 3}, {"max_seconds": 0.0}, {"batch": 0},
        {"metric": "bleu"}, {"class_weights": "x"}, {"memory": -1.0}, {"smoothing": 2.0},
    ],
)  # fmt: skip
def test_invalid_recipes(wrong):
    with pytest.raises(OptionError):
        SoundClassificationRecipe((Path("x"),), **wrong)


def test_sounds_that_are_too_long_are_named(tones):
    soundfile.write(tones / "low" / "long.wav", tone(3.0), 8000)
    task, said = prepare(tones, max_seconds=2.0, skip_bad=True)
    assert "long.wav is too long" in said
    assert task.model.processor == AudioProcessor(rate=8000, mels=64, fft=512, window=200, hop=80, max_seconds=2.0)


@pytest.mark.parametrize("kept_bytes", [5, 60])
def test_labels_whose_sounds_are_all_broken_are_named(tones, kept_bytes):
    """Broken in the header, or behind it."""
    (tones / "middle").mkdir()
    for number in range(2):
        soundfile.write(tones / "middle" / f"{number}.flac", tone(0.2, hertz=700.0), 8000)
        whole = (tones / "middle" / f"{number}.flac").read_bytes()
        (tones / "middle" / f"{number}.flac").write_bytes(whole[:kept_bytes])
    task, said = prepare(tones, skip_bad=True)
    assert "the label middle is dropped: all of its 2 sounds are broken" in said
    assert {one.label for one in task.batches.examples.files} == {"high", "low"}
