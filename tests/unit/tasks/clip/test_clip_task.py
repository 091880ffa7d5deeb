"""The task of captioned pictures: pairs, what is held out, losses, fine-tuning, resuming, and errors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from captioned_files import write_captioned
from picture_files import write_folders
from quiet_report import QuietReport
from regard.errors import CheckpointError, DataError, OptionError
from regard.log import notes_to
from regard.models import Clip, contrastive_loss, load
from regard.tasks.clip import ClipRecipe, ClipTask
from regard.tasks.clip.new_model import PRESETS, choose_edge
from regard.tasks.clip.validation import pair_loss
from regard.train import RankShard, RunContext, Schedule, Settings, run
from small_clips import small_clip
from training_process import last_weights

TINY = {f"{tower}.{name}": value for tower in ("text", "vision")
        for name, value in {"layers": 1, "width": 16, "heads": 2, "inner": 13, "projection": 7}.items()}  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    write_captioned(tmp_path / "photos", 31)
    return tmp_path / "photos"


def make_recipe(*paths, **options):
    numbers = {} if "start" in options else {"hyperparameters": TINY}
    return ClipRecipe(tuple(paths), **{**numbers, "batch": 7, **options})


def prepare(*paths, **options):
    said: list[str] = []
    task = ClipTask(make_recipe(*paths, **options))
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(Settings(steps=1, precision="float32")))
    return task, "\n".join(said)


def write_table(folder, rows):
    path = folder / "table.csv"
    path.write_text("image,caption\n" + "".join(f"photos/{name},{text}\n" for name, text in rows))
    return path


def test_pairs_and_what_is_chosen(photos):
    task, said = prepare(photos)
    assert "pairs: 28 for training; 3 held out for validation" in said
    assert "a CLIP tiny, RGB pictures of 12 x 12 in 1 layer of 16, texts of at most 77 tokens in 1 layer of 16" in said
    assert task.model.config.text.projection == task.model.config.vision.projection == 7
    assert task.model.tokenizer.limit == task.model.config.text.max_length == 77
    assert (task.unit, task.tokens(task.epoch(0)[0])) == ("pairs", 7)
    found = np.concatenate([one.examples for one in task.epoch(0)])
    assert sorted(found.tolist()) == list(range(28))
    assert not np.array_equal(found, np.concatenate([one.examples for one in task.epoch(1)]))
    assert prepare(photos)[0].recipe() == task.recipe()
    (photos / "00.txt").write_text("another text")
    assert prepare(photos)[0].recipe()["pairs"] != task.recipe()["pairs"]


def test_pictures_with_several_texts_are_decoded_once_and_held_out_together(photos):
    rows = [(f"{index:02d}.png", f"text {number} of {index}") for number in range(3) for index in range(20)]
    task, said = prepare(write_table(photos.parent, rows))
    assert "pairs: 54 for training; 6 held out" in said
    pairs, held = task.batches.pairs, task.validation.batches.pairs
    assert len(pairs.pictures.decoded.files) == 20
    assert not set(pairs.pictures.chosen.tolist()) & set(held.pictures.chosen.tolist())
    assert len(set(held.pictures.chosen.tolist())) == 2
    assert task.baseline() == 1 / 2  # a guess finds one of the two
    measured = task.validate(task.model.eval())
    assert measured.metrics.keys() == {
        "recall", "picture_to_text_1", "picture_to_text_5", "text_to_picture_1", "text_to_picture_5"
    }  # fmt: skip
    assert measured.metrics["picture_to_text_5"] == 1.0  # of 6 texts a picture owns 3
    assert task.describe(0.5) == "recall@1 0.500 among 6 held-out pairs"


def test_loss_of_different_pairs_is_that_of_the_paper(photos):
    """And the shards of two processes of a batch, which compare all its pairs, add up."""
    rows = [(f"{index:02d}.png", f"text {index}") for index in range(31)]
    task, _ = prepare(write_table(photos.parent, rows), crop=0)
    task.model.eval()
    batch = task.epoch(0)[0]
    ids, mask = task.batches.read_texts(batch.examples)
    pixels = task.batches.normalise(task.batches.read(batch.examples, torch.device("cpu")))
    output = task.model(ids, pixels, mask=mask)
    expected = 7 * contrastive_loss(output.logits_per_image)
    torch.testing.assert_close(task.loss(task.model, batch, RankShard()), expected)
    for shards in (2, 8):  # one of eight is empty
        parts = 0.0
        for rank in range(shards):
            own = torch.arange(7)[rank::shards]
            same = torch.eye(7, dtype=torch.bool)[own]
            parts += pair_loss(output.image_embeddings, output.text_embeddings, output.scale, own, same)
        torch.testing.assert_close(parts, expected)


def test_equal_texts_and_pictures_are_not_compared():
    """A pair that is left out of both softmaxes: its logits have no influence, and no gradient."""
    torch.manual_seed(3)
    pictures, texts = (torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    scale, same = torch.tensor(2.0, dtype=torch.float64), torch.eye(4, dtype=torch.bool)
    same[0, 2] = same[2, 0] = True
    logits = (scale * pictures @ texts.T).detach().numpy()
    expected = 0.0
    for one in (logits, logits.T):
        for row in range(4):
            seen = [column for column in range(4) if column == row or {row, column} != {0, 2}]
            expected += (np.log(np.exp(one[row, seen]).sum()) - one[row, row]) / 2
    found = pair_loss(pictures, texts, scale, torch.arange(4), same)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    loss = pair_loss(pictures, texts, torch.tensor(1e9), torch.arange(4), same)
    torch.testing.assert_close(loss, pair_loss(pictures, texts, torch.tensor(100.0), torch.arange(4), same))


def test_equal_values_of_a_batch_are_found(photos):
    rows = [(f"{index % 9:02d}.png", f"text {index // 2}") for index in range(12)]
    task, _ = prepare(write_table(photos.parent, rows), validation=(photos,))
    batch = replace(task.epoch(0)[0], examples=np.array([0, 1, 9, 5]))
    assert task.batches.find_same(batch, np.arange(4)).int().tolist() == [
        [1, 1, 1, 0],  # 1 has its text, 9 has its picture
        [1, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 0, 0, 1],
    ]


def test_long_texts_are_cut(photos):
    rows = [(f"{index:02d}.png", "red rows " * (1 + 9 * (index % 2))) for index in range(12)]
    task, said = prepare(write_table(photos.parent, rows), most_tokens=9)
    assert "texts at 9 tokens" in said
    assert int(task.batches.ids.lengths.max()) == 9
    ids, _ = task.batches.read_texts(np.arange(9))
    assert bool((ids == task.model.config.text.end_id).any(dim=1).all())


def test_broken_pictures_and_texts_without_pictures(photos):
    (photos / "cut.png").write_bytes((photos / "00.png").read_bytes()[:80])
    (photos / "cut.txt").write_text("a picture")
    (photos / "alone.txt").write_text("no picture")
    (photos / "03.txt").write_text("  ")
    with pytest.raises(DataError, match="1 of 31 pictures cannot be used"):
        prepare(photos)
    _, said = prepare(photos, skip_bad=True)
    assert "there is no picture beside a text" in said
    assert "the text is empty" in said
    assert "pairs: 27 for training; 3 held out" in said


def test_folders_without_texts_are_refused(tmp_path):
    write_folders(tmp_path / "labelled", count=2)
    with pytest.raises(DataError, match="has no pictures with texts") as error:
        prepare(tmp_path / "labelled")
    assert "NAME.jpg, and its text in NAME.txt beside it" in str(error.value)


def test_fine_tuning_keeps_the_model_and_its_tokenizer(photos, tmp_path):
    small_clip(channels=3).save(tmp_path / "clip")
    task, said = prepare(photos, start=str(tmp_path / "clip"))
    before = load(tmp_path / "clip")
    assert isinstance(before, Clip)
    assert all(torch.equal(one, before.state_dict()[name]) for name, one in task.model.state_dict().items())
    assert "the CLIP" in said
    assert task.complete(Settings()).epochs == 10
    with pytest.raises(OptionError, match="fine-tuning cannot change"):
        prepare(photos, start=str(tmp_path / "clip"), vocabulary=100)
    before.vision.save(tmp_path / "tower")
    with pytest.raises(CheckpointError, match="both towers"):
        prepare(photos, start=str(tmp_path / "tower"))


def test_interrupted_run_ends_with_the_same_weights(photos, tmp_path):
    settings = Settings(schedule=Schedule(peak=1e-3, warmup=2), steps=6, validate_every=3, precision="float32")
    recipe, options = make_recipe(photos, flip=True, memory=0.0), {"device": "cpu", "report": QuietReport()}
    run(ClipTask(recipe), settings, tmp_path / "whole", **options)
    run(ClipTask(recipe), replace(settings, steps=4), tmp_path / "cut", **options)
    run(ClipTask(recipe), settings, tmp_path / "cut", resume=True, **options)
    assert last_weights(tmp_path / "cut.run") == last_weights(tmp_path / "whole.run")
    saved = load(tmp_path / "cut")
    assert isinstance(saved, Clip)
    assert saved.tokenizer.ids(["RED rows"]) == saved.tokenizer.ids(["red rows"])
    assert saved.processor.picture_size == (12, 12)


@pytest.mark.parametrize(
    "wrong",
    [{"model": "large"}, {"batch": 1}, {"columns": ("path", "path")}, {"crop": -1}, {"memory": -1.0},
     {"picture_size": 0}, {"most_tokens": 0}, {"vocabulary": True}],
)  # fmt: skip
def test_invalid_recipes(wrong):
    with pytest.raises(OptionError):
        ClipRecipe((Path("x"),), **wrong)


@pytest.mark.parametrize(
    ("name", "value"),
    [("layers", 2), ("vision.labels", 2), ("text.vocabulary", 99), ("audio.layers", 1), ("text.widht", 8)],
)
def test_invalid_hyperparameters_are_refused_before_data_is_read(photos, name, value):
    with pytest.raises(OptionError):
        ClipTask(make_recipe(photos, hyperparameters={name: value})).check()


def test_sizes():
    assert [PRESETS.choose_size(count).name for count in (10, 20_000, 10**6)] == ["tiny", "small", "base"]
    assert PRESETS.choose_size(10**7, "tiny").heads == 4
    assert choose_edge(12, 12, all_alike=True) == 12
    assert choose_edge(13, 13, all_alike=True) == 32  # 13 pixels cannot be cut into patches
    assert choose_edge(24, 36, all_alike=True) == 36
    assert choose_edge(480, 640, all_alike=False) == 128
