"""The task of transcription: labels, held-out sounds, losses, texts that no path writes, fine-tuning, and errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from quiet_report import QuietReport
from regard.errors import DataError, OptionError
from regard.log import notes_to
from regard.models import AudioEncoder
from regard.tasks.transcription import TranscriptionRecipe, TranscriptionTask
from regard.train import RankShard, RunContext, Schedule, Settings, run
from small_audio_models import audio_model
from sound_files import sound_bytes, tone
from spelled_tones import spell, write_spelled
from training_process import last_weights

TINY = {"layers": 1, "width": 8, "heads": 2, "inner": 7, "kernel": 3, "dropout": 0.0}


@pytest.fixture
def spelled(tmp_path):
    write_spelled(tmp_path / "letters", 23)
    return tmp_path / "letters"


def prepare(*paths, **options):
    said: list[str] = []
    task = TranscriptionTask(make_recipe(*paths, **options))
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(Settings(steps=1, precision="float32")))
    return task, "\n".join(said)


def make_recipe(*paths, **options):
    numbers = {} if "start" in options else {"hyperparameters": TINY}
    return TranscriptionRecipe(tuple(paths), **{**numbers, "batch": 7, **options})


def write_table(folder, rows):
    path = folder / "table.csv"
    path.write_text("path,text\n" + "".join(f"letters/{name},{text}\n" for name, text in rows))
    return path


def test_characters_and_held_out_sounds(spelled):
    task, said = prepare(spelled)
    assert task.model.labels == ("a", "b", "c")
    assert (task.model.config.head, task.model.head.out_features) == ("ctc", 4)
    assert "sounds: 21 for training; 2 held out for validation\n" in said
    assert "3 characters: 'a', 'b', 'c'" in said
    assert "the best model is chosen by the character error rate" in said
    assert task.unit == "characters"
    sounds = [*task.batches.examples.files, *task.held_out.examples.files]
    assert sorted(one.place for one in sounds) == sorted(str(one) for one in spelled.glob("*.wav"))
    found = np.concatenate([one.examples for one in task.epoch(0)])
    assert sorted(found.tolist()) == list(range(21))
    assert sum(map(task.tokens, task.epoch(0))) == sum(len(one.text) for one in task.batches.examples.files)
    assert task.recipe()["tokenizer"] == "characters"
    assert prepare(spelled)[0].recipe() == task.recipe()
    (spelled / "00.txt").write_text("cab")
    assert prepare(spelled)[0].recipe()["sounds"] != task.recipe()["sounds"]


def test_words_are_labels_with_their_space(spelled):
    rows = [(f"{index:02d}.wav", "go left" if index % 2 else "go") for index in range(9)]
    task, said = prepare(write_table(spelled.parent, rows), tokenizer="words")
    assert task.model.labels == (" go", " left")
    assert (task.unit, task.metric) == ("words", "wer")
    assert "the best model is chosen by the word error rate" in said


def test_loss_is_that_of_ctc_in_torch(spelled):
    """In evaluation mode, without augmentation; the shards of two processes add up, and an empty one is 0."""
    task, _ = prepare(spelled, augment="none")
    task.model.eval()
    batch = task.epoch(0)[0]
    inputs = task.batches.inputs(batch.examples, torch.device("cpu"))
    output = task.model(**inputs)
    texts = [task.batches.examples.files[index].text for index in batch.examples]
    expected = torch.nn.functional.ctc_loss(
        output.logits.log_softmax(2).transpose(0, 1),
        torch.tensor([1 + "abc".index(letter) for text in texts for letter in text]),
        output.visible.sum(dim=1),
        torch.tensor([len(text) for text in texts]),
        reduction="sum",
    )
    torch.testing.assert_close(task.loss(task.model, batch, RankShard()), expected)
    parts = sum(task.loss(task.model, batch, RankShard(rank, 2)) for rank in range(2))
    torch.testing.assert_close(parts, expected)
    task.model.train()
    before = {name: one.clone() for name, one in task.model.named_buffers()}
    nothing = task.loss(task.model, batch, RankShard(rank=20, of=21))
    nothing.backward()
    assert nothing.item() == 0
    assert all(one.grad is not None and not one.grad.any() for one in task.model.parameters())
    assert all(torch.equal(one, before[name]) for name, one in task.model.named_buffers())


def test_sounds_too_short_for_their_text_are_named(spelled):
    """0.19 seconds are 20 frames and 5 tokens: aabb needs two blanks between equal letters."""
    rows = [(f"{index:02d}.wav", "a") for index in range(9)]
    for name in ("fits", "equal", "long"):
        soundfile.write(spelled / f"{name}.wav", tone(0.19), 8000)
    table = write_table(spelled.parent, [*rows, ("fits.wav", "abcab"), ("equal.wav", "aabb"), ("long.wav", "abcabc")])
    with pytest.raises(DataError, match="2 of 12 sounds cannot be used") as error:
        prepare(table)
    assert "equal.wav (line 12 of" in str(error.value)
    assert "is too short for its text: it has 5 tokens, and the text needs 6" in str(error.value)
    assert "long.wav" in str(error.value)
    task, said = prepare(table, skip_bad=True)
    assert "skipped 2 because a sound cannot be used: letters/equal.wav" in said
    assert len(task.batches) + len(task.held_out) == 10
    with pytest.raises(DataError, match="1 of 1 sounds cannot be used"):
        prepare(spelled, validation=(write_table(spelled.parent, [("long.wav", "abcabc")]),))


def test_faster_sounds_keep_the_tokens_of_their_text(spelled):
    """The tempo changes by up to 90 %, and each text still has a path."""
    rows = [(f"{index}.wav", "abcab") for index in range(8)]
    for index, (name, _) in enumerate(rows):
        soundfile.write(spelled / name, tone(0.19, hertz=300.0 + 50 * index), 8000)
    task, _ = prepare(write_table(spelled.parent, rows), tempo=0.9)
    for number in range(20):
        for batch in task.epoch(number):
            features, mask = task.batches.augment(batch, np.arange(len(batch)))
            frames = mask.dense(1, features.shape[1])[:, 0, 0].sum(dim=1)
            assert int(frames.min()) >= 17  # the first frame of the fifth token
            assert task.loss(task.model, batch, RankShard()).isfinite()


def test_broken_sounds_and_unknown_characters(spelled):
    """Characters that only validation texts have count as errors, and have no loss."""
    (spelled / "cut.wav").write_bytes(sound_bytes(tone())[:300])
    (spelled / "cut.txt").write_text("x")
    with pytest.raises(DataError, match=r"cut\.wav is broken"):
        prepare(spelled)
    valid = write_table(spelled.parent, [("00.wav", "axb"), ("01.wav", "?a"), ("02.wav", "abc")])
    task, said = prepare(spelled, validation=(valid,), skip_bad=True)
    assert task.model.labels == ("a", "b", "c")
    assert "characters of validation texts that the training texts lack count as errors: 'x', '?'" in said
    assert "3 validation sounds also occur in the training data" in said
    assert [one is None for one in task.held_out.targets] == [True, True, False]
    with torch.no_grad():
        measured = task.validate(task.model.eval())
    assert measured.metrics.keys() == {"cer", "wer", "loss"}
    assert measured.score == -measured.metrics["cer"]
    assert task.describe(measured.score).startswith("character error rate ")
    only = write_table(spelled.parent, [("00.wav", "x")])
    with pytest.raises(DataError, match="no validation text has a loss"):
        prepare(spelled, validation=(only,), skip_bad=True, metric="loss")
    task, _ = prepare(spelled, validation=(only,), skip_bad=True)
    with torch.no_grad():
        assert task.validate(task.model.eval()).metrics.keys() == {"cer", "wer"}


def test_the_same_sound_with_two_texts_is_reported(spelled):
    rows = [("00.wav", "a"), ("00.wav", "b"), ("01.wav", "a"), ("02.wav", "b")]
    assert "1 sound occurs with different texts, the first are letters/00.wav (line 2" in prepare(
        write_table(spelled.parent, rows)
    )[1]  # fmt: skip


def test_fine_tuning_keeps_the_characters_and_adds_new_ones(spelled, tmp_path):
    audio_model(labels=("c", "b", "a", "z"), head="ctc").save(tmp_path / "more")
    task, said = prepare(spelled, start=str(tmp_path / "more"))
    loaded = AudioEncoder.load(tmp_path / "more")
    assert task.model.labels == ("c", "b", "a", "z")
    assert torch.equal(task.model.head.weight, loaded.head.weight)
    assert "the head of" not in said
    audio_model(labels=("b",), head="ctc").save(tmp_path / "fewer")
    task, said = prepare(spelled, start=str(tmp_path / "fewer"))
    loaded = AudioEncoder.load(tmp_path / "fewer")
    assert task.model.labels == ("b", "a", "c")
    assert torch.equal(task.model.head.weight[:2], loaded.head.weight)
    assert torch.equal(task.model.head.bias[:2], loaded.head.bias)
    assert "fewer gets random weights for new characters: 'a', 'c'" in said
    audio_model(labels=("a", "b"), head="classification").save(tmp_path / "classifier")
    task, said = prepare(spelled, start=str(tmp_path / "classifier"))
    assert (task.model.labels, task.model.config.head) == (("a", "b", "c"), "ctc")
    assert "it is replaced by a head with random weights for a, b, c" in said
    with pytest.raises(OptionError, match="cannot change what a label is"):
        prepare(spelled, start=str(tmp_path / "more"), tokenizer="words")
    with pytest.raises(OptionError, match="fine-tuning cannot change"):
        prepare(spelled, start=str(tmp_path / "more"), sample_rate=8000)


def test_interrupted_run_ends_with_the_same_weights(spelled, tmp_path):
    """With augmentation by random numbers."""
    settings = Settings(schedule=Schedule(peak=1e-3, warmup=2), steps=6, validate_every=3, precision="float32")
    recipe, options = make_recipe(spelled, augment="strong"), {"device": "cpu", "report": QuietReport()}
    run(TranscriptionTask(recipe), settings, tmp_path / "whole", **options)
    run(TranscriptionTask(recipe), replace(settings, steps=4), tmp_path / "cut", **options)
    run(TranscriptionTask(recipe), settings, tmp_path / "cut", resume=True, **options)
    assert last_weights(tmp_path / "cut.run") == last_weights(tmp_path / "whole.run")


@pytest.mark.parametrize(
    "wrong",
    [{"metric": "accuracy"}, {"tokenizer": "bpe"}, {"columns": ("path", "path")},
     {"model": "large"}, {"augment": "x"}, {"batch": 0}],
)  # fmt: skip
def test_invalid_recipes(wrong):
    with pytest.raises(OptionError):
        TranscriptionRecipe((Path("x"),), **wrong)


def test_stripes_of_frames_are_shorter_than_of_a_classifier():
    """Gulati et al. 2020, section 3.2: at most a twentieth of the sound; and as asked for."""
    assert TranscriptionRecipe(()).augmentation().mask_frames == 0.05
    assert TranscriptionRecipe((), augment="none").augmentation().mask_frames == 0.0
    assert TranscriptionRecipe((), mask_frames=0.25).augmentation().mask_frames == 0.25
    assert len(spell("ab", np.random.default_rng(0))) == 2 * 1600
