"""The task of image classification: choices by the data, splits, batches, losses, heads, and errors."""

import dataclasses
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from picture_files import random_pixels, shape_picture, write_folders, write_idx
from regard.errors import CheckpointError, DataError, OptionError
from regard.log import notes_to
from regard.models import (
    ConvolutionInput,
    Deit,
    DeitConfig,
    ImageEncoder,
    ImageOutput,
    PixelInput,
    TrainedPixelInput,
    Vit,
    VitConfig,
)
from regard.tasks.image_classification import ImageClassificationRecipe, ImageClassificationTask
from regard.tasks.image_classification.data import PictureBatch
from regard.tasks.image_classification.new_model import check_hyperparameters, new_model
from regard.tasks.image_classification.presets import (
    MODELS,
    choose_convolutions,
    choose_model,
    choose_patch_size,
    choose_picture_size,
    choose_window,
)
from regard.tasks.image_classification.validation import picture_loss, teacher_pixels
from regard.train import RankShard, RunContext, Settings

TINY = {"layers": 1, "width": 12, "heads": 2, "inner": 13}


def prepare(*paths, **options):
    said: list[str] = []
    numbers = {} if "start" in options else {"hyperparameters": TINY}
    recipe = ImageClassificationRecipe(tuple(paths), **{**numbers, "batch": 7, **options})
    task = ImageClassificationTask(recipe)
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(Settings(steps=1, precision="float32")))
    return task, "\n".join(said)


@pytest.fixture
def shapes(tmp_path):
    write_folders(tmp_path / "shapes", count=11)
    return tmp_path / "shapes"


@pytest.mark.parametrize("kind", ["vit", "deit", "swin", "cct", "cvt", "perceiver"])
def test_a_run_of_pictures_keeps_no_tokenizer(kind, shapes):
    task, _ = prepare(shapes, model=f"{kind}-tiny" if kind in ("vit", "deit") else kind, hyperparameters={})
    assert task.files() == {}


def test_presets():
    """Tiny models of 28 x 28 have at most half a million weights, as their page says."""
    assert choose_model(60_000)[1].name == "tiny"
    assert choose_model(500_000, "deit")[0] == "deit"
    assert choose_model(500_000)[1].name == "small"
    assert choose_model(5, "deit-base") == ("deit", choose_model(5, "base")[1])
    assert choose_model(5, distilled=True)[0] == "deit"
    assert choose_model(5, "vit-small", distilled=True)[0] == "vit"
    assert choose_model(5, "swin-small") == ("swin", choose_model(5, "small")[1])
    assert choose_model(5, "cct")[0] == "cct"
    for name in MODELS:
        choose_model(0, name)


@pytest.mark.parametrize("kind", ["vit", "deit", "swin", "cct", "cvt", "perceiver"])
def test_tiny_models_have_at_most_half_a_million_weights(kind):
    recipe = ImageClassificationRecipe((Path("x"),), model=f"{kind}-tiny")
    model, _ = new_model(recipe, (28, 28), pictures=60_000, channels=1, labels=tuple("0123456789"))
    assert 0.3e6 < sum(weight.numel() for weight in model.parameters()) < 0.5e6
    assert model(torch.zeros(1, 1, 28, 28)).logits.shape == (1, 10)


def test_tokens_of_new_models():
    """Swin has about 16 x 16 patches, and windows of half of them; CCT about 8 x 8 tokens."""
    assert [choose_patch_size(edge, patches=16) for edge in (28, 32, 48, 64, 128)] == [2, 2, 3, 4, 8]
    assert [choose_window(rows, columns) for rows, columns in ((14, 14), (16, 16), (13, 18), (1, 5), (99, 99))] == [
        7, 8, 7, 2, 8
    ]  # fmt: skip
    assert [choose_convolutions(edge, 5) for edge in (8, 28, 32, 48, 64, 128)] == [1, 2, 2, 3, 3, 4]


def test_options_of_the_architectures():
    recipe = ImageClassificationRecipe(
        (Path("x"),), model="swin", hyperparameters={"depths": [1, 2, 1], "heads": [2] * 3}
    )
    model, _ = new_model(recipe, (28, 28), pictures=5, channels=1, labels=("a", "b"))
    assert model.config.depths == (1, 2, 1)
    for wrong, facts in (
        ({"depths": 2}, "a list of integers"),
        ({"heads": [1, 2, 3]}, "wrong number of sizes in heads"),
    ):
        with pytest.raises(OptionError, match=f"(?s){facts}"):
            check_hyperparameters(replace(recipe, hyperparameters=wrong))
    with pytest.raises(OptionError, match="one attention mechanism"):
        check_hyperparameters(replace(recipe, attention="performer"))
    for kind in ("cvt", "perceiver"):
        with pytest.raises(OptionError, match="one attention mechanism"):
            check_hyperparameters(ImageClassificationRecipe((Path("x"),), model=kind, attention="performer"))
    recipe = ImageClassificationRecipe((Path("x"),), model="cct", attention="performer", hyperparameters={"stride": 2})
    model, _ = new_model(recipe, (28, 28), pictures=5, channels=1, labels=("a", "b"))
    assert (model.config.mechanism, model.config.stride) == ("performer", 2)


def test_new_cvts():
    """The first of three stages has about 16 x 16 tokens; picture_size= 8 leaves one key, too few for a batch norm."""
    recipe = ImageClassificationRecipe((Path("x"),), model="cvt-tiny")
    for edge, rows in ((28, (14, 7, 4)), (32, (16, 8, 4)), (64, (16, 8, 4)), (128, (16, 8, 4))):
        model, _ = new_model(recipe, (edge, edge), pictures=5, channels=3, labels=("a", "b"))
        assert tuple(dict.fromkeys(grid.rows for grid in model.token_grids(edge, edge))) == rows
    assert (model.config.widths, model.config.depths, model.config.heads) == ((32, 64, 128), (1, 1, 2), (1, 2, 4))
    with pytest.raises(OptionError, match=r"(?s)more than one key.*8 x 8.*picture_size="):
        new_model(recipe, (8, 8), pictures=5, channels=3, labels=("a", "b"))
    with pytest.raises(OptionError, match="wrong number of members in widths"):
        check_hyperparameters(replace(recipe, hyperparameters={"depths": [1, 1]}))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("pixels", PixelInput), ("trained_pixels", TrainedPixelInput), ("convolution", ConvolutionInput)],
)
def test_new_perceivers(shapes, tmp_path, name, kind):
    """It is trained, saved with its processor, and read as a classifier that training continues from."""
    numbers = {"width": 12, "heads": 3, "layers": 1, "latents": 5, "bands": 3, "input_width": 6, "input": name}
    task, said = prepare(shapes, model="perceiver", hyperparameters=numbers)
    config = task.model.config
    assert (type(config.input), config.input.size, config.input.channels) == (kind, (12, 12), 1)
    assert (config.width, config.heads, config.layers, config.latents, config.output.labels) == (
        12, 3, 1, 5, ("columns", "plain", "rows")
    )  # fmt: skip
    assert "PerceiverImageEncoder tiny, grey pictures of 12 x 12, 0.0" in said
    task.loss(task.model, task.epoch(0)[0], RankShard(0, 1)).backward()
    assert all(weight.grad is not None for weight in task.model.parameters())
    task.save(task.model.eval(), tmp_path / "m", {})
    pixels = torch.randn(2, 1, 12, 12)
    again = ImageEncoder.load(tmp_path / "m")
    assert torch.equal(again(pixels).logits, task.model(pixels).logits)
    assert again.processor == task.model.processor
    tuned, _ = prepare(shapes, start=str(tmp_path / "m"))
    assert torch.equal(tuned.model.eval()(pixels).logits, task.model(pixels).logits)


def test_wrong_settings_of_a_perceiver():
    recipe = ImageClassificationRecipe((Path("x"),), model="perceiver")
    for wrong, facts in (
        ({"input": "patches"}, "convolution, pixels, trained_pixels"),
        ({"inner": 64}, "setting of a PicturePerceiver"),
        ({"heads": 5}, "do not divide into heads"),
        ({"labels": ["a"]}, "determined by the data"),
    ):
        with pytest.raises(OptionError, match=f"(?s){facts}"):
            check_hyperparameters(replace(recipe, hyperparameters=wrong))


@pytest.mark.parametrize(("edge", "patch"), [(28, 4), (32, 4), (48, 6), (64, 8), (96, 12), (128, 16), (30, 3), (29, 1)])
def test_patches_divide_the_edge(edge, patch):
    assert choose_patch_size(edge) == patch


def test_picture_sizes():
    assert choose_picture_size(28, 28, all_alike=True) == (28, 28)
    assert choose_picture_size(28, 36, all_alike=True) == (28, 36)
    assert choose_picture_size(29, 29, all_alike=True) == (32, 32)
    assert choose_picture_size(28, 28, all_alike=False) == (32, 32)
    assert choose_picture_size(480, 640, all_alike=True) == (128, 128)
    assert choose_picture_size(70, 100, all_alike=True) == (96, 96)


def test_new_model_by_the_data(shapes):
    """Grey pictures of one size give a model of that size; one RGB picture makes it RGB."""
    task, said = prepare(shapes)
    assert (task.model.picture_size, task.model.channels, task.model.labels) == (
        (12, 12),
        1,
        ("columns", "plain", "rows"),
    )
    assert "Vit tiny, grey pictures of 12 x 12, patches of 2 x 2" in said
    Image.fromarray(random_pixels(40, 50)).save(shapes / "rows" / "x.png")
    task, _ = prepare(shapes)
    assert (task.model.picture_size, task.model.channels) == ((32, 32), 3)
    task, _ = prepare(shapes, picture_size=(20, 20), model="deit")
    assert isinstance(task.model, Deit)
    assert task.model.picture_size == (20, 20)
    task, _ = prepare(shapes, picture_size=(20, 20), hyperparameters={**TINY, "patch_size": [5, 4]})
    assert task.model.config.patch_size == (5, 4)


def test_every_picture_is_in_one_batch_of_an_epoch(shapes):
    task, _ = prepare(shapes)
    for number in range(2):
        epoch = task.epoch(number)
        assert sorted(np.concatenate([one.examples for one in epoch]).tolist()) == list(range(len(task.batches)))
        assert [len(one) for one in epoch] == [7] * (len(task.batches) // 7) + [len(task.batches) % 7]
    first, again = task.epoch(3)[0].examples, task.batches.epoch(3)[0].examples
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, task.epoch(4)[0].examples)


def test_copies_are_held_out_together(tmp_path):
    """Each picture occurs three times; no picture of the validation set is among the training pictures."""
    for label in ("rows", "plain"):
        (tmp_path / label).mkdir()
        for number in range(30):
            Image.fromarray(shape_picture(label, number // 3)).save(tmp_path / label / f"{number}.png")
    task, _ = prepare(tmp_path)
    held = task.held_out.examples
    assert len(held) == 6
    assert not set(held.digests) & set(task.batches.examples.digests)


def test_conflicts_and_known_pictures_are_reported(tmp_path, shapes):
    (shapes / "rows" / "000.png").replace(shapes / "plain" / "zz.png")
    (shapes / "rows" / "copy.png").write_bytes((shapes / "plain" / "zz.png").read_bytes())
    _, said = prepare(shapes, validation=(shapes,))
    assert "1 picture occurs with different labels" in said
    assert "validation pictures also occur in the training data" in said


def test_batches_read_the_pixels_and_labels(tmp_path):
    """Without augmentation a batch holds the pictures of its indices, and mixing blends their partners'."""
    pixels = random_pixels(23 * 12, 12, 1).reshape(23, 12, 12)
    write_idx(tmp_path / "train-images-idx3-ubyte", pixels)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.arange(23) % 3)
    for memory in (1.0, 0.0):
        task, _ = prepare(tmp_path, augment="none", memory=memory)
        batch = task.epoch(0)[0]
        made = task.batches.augment(batch, np.arange(0, 7, 2), torch.device("cpu"))
        chosen = task.batches.examples.chosen[batch.examples[::2]]
        np.testing.assert_allclose(made.pixels[:, 0] * 255, pixels[chosen], atol=1e-4)
        assert made.truth.int().argmax(1).tolist() == (chosen % 3).tolist()
        assert made.other is None
    task, _ = prepare(tmp_path, augment="none", mixup=1.0)
    batch = task.epoch(0)[1]
    whole = task.batches.augment(batch, np.arange(7), torch.device("cpu"))
    part = task.batches.augment(batch, np.array([5, 6]), torch.device("cpu"))
    torch.testing.assert_close(part.pixels, whole.pixels[5:])
    assert torch.equal(part.other, whole.other[5:])
    assert 0 < part.share < 1


def test_losses_of_shards_add_up(shapes):
    task, _ = prepare(shapes, augment="strong", flip=False, smoothing=0.1, class_weights="balanced")
    batch = task.epoch(0)[-1]
    whole = task.loss(task.model, batch, RankShard())
    parts = [task.loss(task.model, batch, RankShard(rank, 11)) for rank in range(11)]
    torch.testing.assert_close(sum(parts), whole)
    assert parts[-1] == 0  # the batch has fewer rows than processes
    assert task.tokens(batch) == len(batch) < 11


def log_softmax(logits):
    shifted = logits - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def test_loss_of_mixed_pictures_and_of_a_teacher():
    """The equations, in NumPy and float64."""
    generator = np.random.default_rng(1)
    logits, taught, teacher = generator.standard_normal((3, 5, 7))
    first, second, share = generator.integers(0, 7, 5), generator.integers(0, 7, 5), 0.3
    hidden = torch.zeros(5, 1, 1, dtype=torch.float64)

    def loss(output, **options):
        truth, other = (torch.from_numpy(np.eye(7, dtype=bool)[labels]) for labels in (first, second))
        batch = PictureBatch(torch.zeros(5, 1, 2, 2), truth, share, other)
        return picture_loss(output, batch, **options).item()

    def cross_entropy(values, labels):
        return -log_softmax(values)[np.arange(5), labels].sum()

    mixed = share * cross_entropy(logits, first) + (1 - share) * cross_entropy(logits, second)
    plain = ImageOutput(hidden, hidden[:, 0], torch.from_numpy(logits))
    assert loss(plain) == pytest.approx(mixed)
    hard = (mixed + cross_entropy(taught, teacher.argmax(1))) / 2
    mean = torch.from_numpy((logits + taught) / 2)
    both = dataclasses.replace(
        plain, logits=mean, class_logits=torch.from_numpy(logits), distillation_logits=torch.from_numpy(taught)
    )
    answers = torch.from_numpy(teacher)
    assert loss(both, teacher=answers, distill="hard") == pytest.approx(hard, rel=1e-5)
    t, z = log_softmax(teacher / 3), log_softmax(taught / 3)
    soft = 0.9 * mixed + 0.1 * 9 * (np.exp(t) * (t - z)).sum()
    assert loss(both, teacher=answers, distill="soft") == pytest.approx(soft, rel=1e-5)
    own = (mixed + cross_entropy(logits, teacher.argmax(1))) / 2
    assert loss(plain, teacher=answers, distill="hard") == pytest.approx(own, rel=1e-5)


def test_pixels_of_a_teacher():
    grey = torch.rand(2, 1, 8, 8)
    assert torch.equal(teacher_pixels(grey, 3, (8, 8)), grey.repeat(1, 3, 1, 1))
    assert teacher_pixels(grey.repeat(1, 3, 1, 1), 1, (16, 4)).shape == (2, 1, 16, 4)
    torch.testing.assert_close(
        teacher_pixels(torch.full((1, 3, 8, 8), 0.25), 3, (5, 13)), torch.full((1, 3, 5, 13), 0.25)
    )


@pytest.mark.parametrize("kind", ["vit", "deit"])
def test_head_is_kept_for_the_same_labels(kind):
    numbers = {"picture_size": (8, 8), "patch_size": (4, 4), "labels": ("b", "a"), **TINY}
    model = Vit(VitConfig(**numbers)) if kind == "vit" else Deit(DeitConfig(distillation_head=True, **numbers))
    other = model.with_labels(("a", "b", "c"))
    assert other.labels == ("a", "b", "c")
    for name, weight in other.state_dict().items():
        is_head = name.startswith(("head.", "distillation_head."))
        assert is_head != (name in model.state_dict() and torch.equal(weight, model.state_dict()[name]))
    pixels = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(other.eval()(pixels).hidden, model.eval()(pixels).hidden)


def test_saved_model_starts_and_teaches(shapes, tmp_path):
    task, _ = prepare(shapes)
    task.save(task.model, tmp_path / "m", {"steps": 1})
    loaded = ImageEncoder.load(tmp_path / "m")
    assert loaded.processor == task.model.processor
    assert task.validate(loaded).metrics == task.validate(task.model).metrics
    tuned, said = prepare(shapes, start=str(tmp_path / "m"))
    assert torch.equal(tuned.model.head.weight, task.model.head.weight)
    assert "a Vit" in said
    assert "the head of" not in said
    reversed_labels = loaded.with_labels(loaded.labels[::-1])
    reversed_labels.save(tmp_path / "r")
    tuned, said = prepare(shapes, start=str(tmp_path / "r"))
    assert tuned.model.labels == loaded.labels[::-1]
    assert torch.equal(tuned.model.head.weight, reversed_labels.head.weight)
    assert "the head of" not in said
    (shapes / "rows").rename(shapes / "lines")
    tuned, said = prepare(shapes, start=str(tmp_path / "m"))
    assert (
        f"the head of {tmp_path / 'm'} has other labels (columns, plain, rows): it is replaced by a head with random "
        "weights for columns, lines, plain"
    ) in said
    assert tuned.model.labels == ("columns", "lines", "plain")
    with pytest.raises(CheckpointError, match="does not know all labels"):
        prepare(shapes, teacher=str(tmp_path / "m"))
    (shapes / "lines").rename(shapes / "rows")
    student, _ = prepare(shapes, teacher=str(tmp_path / "m"), distill="soft")
    assert isinstance(student.model, Deit)
    assert student.loss(student.model.train(), student.epoch(0)[0], RankShard()).isfinite()
    assert student.recipe()["teacher_weights"] != task.recipe()["teacher_weights"]


@pytest.mark.parametrize("kept_bytes", [5, 40])
def test_labels_whose_pictures_are_all_broken_are_named(shapes, kept_bytes):
    """Broken in the header, or behind it: then the head has a row for the label, which no picture trains."""
    for picture in (shapes / "plain").iterdir():
        picture.write_bytes(picture.read_bytes()[:kept_bytes])
    task, said = prepare(shapes, skip_bad=True)
    assert "skipped 11 because a picture cannot be used" in said
    assert "the label plain is dropped: all of its 11 pictures are broken" in said
    assert "plain" not in {one.label for one in task.batches.examples.files}
    for picture in list((shapes / "plain").iterdir())[1:]:
        picture.unlink()
    _, said = prepare(shapes, skip_bad=True)
    assert "the label plain is dropped: its only picture is broken" in said
    write_folders(shapes, count=1, labels=("plain",))
    _, said = prepare(shapes, skip_bad=True)
    assert "is dropped" not in said


def test_data_that_cannot_be_used(tmp_path, shapes):
    for label in ("columns", "plain"):
        (shapes / label).rename(tmp_path / label)
    with pytest.raises(DataError, match="all have the same label"):
        prepare(shapes)
    (tmp_path / "plain").rename(shapes / "plain")
    for picture in (shapes / "plain").iterdir():
        picture.write_bytes(b"x")
    with pytest.raises(DataError, match="11 of 22 pictures cannot be used") as error:
        prepare(shapes)
    listed, _, more = str(error.value).partition("; and ")
    assert sum(picture.name in listed for picture in (shapes / "plain").iterdir()) + int(more.split()[0]) == 11
    with pytest.raises(DataError, match="all have the same label"):
        prepare(shapes, skip_bad=True)
    for picture in (shapes / "rows").iterdir():
        picture.write_bytes(b"x")
    with pytest.raises(DataError, match="22 of 22 pictures cannot be used"):
        prepare(shapes, skip_bad=True)


def test_validation_labels_must_be_known(tmp_path, shapes):
    write_folders(tmp_path / "other", count=2)
    (tmp_path / "other" / "rows").rename(tmp_path / "other" / "dots")
    with pytest.raises(DataError, match="'dots'"):
        prepare(shapes, validation=(tmp_path / "other",))


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    "options",
    [{"model": "huge"}, {"augment": "much"}, {"policy": "auto"}, {"erase": 2.0}, {"crop": -1}, {"batch": 0},
     {"distill": "hard"}, {"teacher": "m", "distill": "warm"}, {"metric": "f1"}, {"memory": -1.0},
     {"picture_size": (0, 3)}, {"smoothing": 1.5}, {"class_weights": "some"}, {"data": "x"}],
)  # fmt: skip
def test_recipes_out_of_range(tmp_path, options):
    with pytest.raises(OptionError):
        ImageClassificationRecipe(**{"data": (tmp_path,), **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hyperparameters": {"depth": 3}}, "depth"),
        ({"hyperparameters": {"channels": 3}}, "channels is determined by the data"),
        ({"attention": "linaer"}, "linear"),
        ({"hyperparameters": {"patch_size": 5}, "picture_size": (12, 12)}, "picture_size"),
        ({"hyperparameters": {"patch_size": [3, 4, 5]}}, "patch_size"),
        ({"start": "m", "model": "tiny"}, "leave out model"),
        ({"start": "m", "picture_size": (8, 8)}, "leave out picture_size"),
    ],
)
def test_wrong_hyperparameters_fail_before_data_is_read(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        prepare(tmp_path / "none", **options)


def test_shares_of_the_time(shapes):
    task, _ = prepare(shapes)
    batch = task.epoch(0)[0]
    task.loss(task.model, batch, RankShard())
    task.metrics()
    task.batches.examples.decoded.waited += 0.05
    time.sleep(0.1)
    found = task.metrics()
    assert 0.2 < found["waiting_for_data"] <= 0.5
    assert found["augmenting"] == 0
