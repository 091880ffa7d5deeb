"""``regard view`` with pictures in the shell."""

from functools import partial

import pytest
from PIL import Image

import shell_command
from picture_files import random_pixels, write_folders
from regard.cli import view_media
from regard.errors import CheckpointError, DataError, OptionError
from shell_command import error_message
from small_classifiers import classifier
from small_clips import small_clip
from small_image_models import image_classifier

output = partial(shell_command.output, "view")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(random_pixels(13, 9)).save("cat.png")
    (tmp_path / "bad.png").write_bytes(b"x")
    image_classifier().save("vit")
    return tmp_path


def test_summary_and_page(folder):
    shown = output("cat.png", "--model", "vit", "-o", "cat.html")
    assert shown.startswith("cat.png\n")
    assert "Attention rollout of the class token" in shown
    assert "row 0, column 1" in shown
    assert "Page: cat.html" in shown
    page = (folder / "cat.html").read_text()
    assert page.count("data:image/png;base64,") == 1
    assert "<title>cat.png · regard</title>" in page


def test_folders_and_options(folder):
    write_folders(folder / "shapes", count=1)
    shown = output("shapes", "--model", "vit")
    assert shown.count("Attention rollout") == 3
    assert "shapes/columns/000.png" in shown
    assert output("--picture", "cat.png", "--model", "vit", "--label", "rows").startswith("cat.png\n")
    assert "no such label" in error_message(OptionError, "view", "cat.png", "--model", "vit", "--label", "zebra")
    beside = error_message(OptionError, "view", "a text", "--picture", "cat.png", "--model", "vit")
    assert "--picture cannot be used with texts" in beside


def test_texts_of_a_clip(folder):
    small_clip(channels=3).save("clip")
    shown = output("cat.png", "--model", "./clip", "--label", "a cat", "--label", "a dog", "-o", "texts.html")
    assert "a cat" in shown
    assert "a dog" in shown
    assert '"similarities": {"a cat":' in (folder / "texts.html").read_text().replace('":{"', '": {"')
    assert "class token" in output("cat.png", "--model", "./clip")  # without texts
    two = ["--label", "rows", "--label", "plain"]
    assert "more labels than the model takes" in error_message(OptionError, "view", "cat.png", "--model", "vit", *two)
    assert "a label twice" in error_message(
        OptionError, "view", "cat.png", "--model", "./clip", "--label", "a", "--label", "a"
    )


def test_texts_and_pictures_are_told_apart(folder):
    assert "reads pictures, not texts" in error_message(OptionError, "view", "A cat sat.", "--model", "vit")
    assert "--model is missing" in error_message(OptionError, "view", "cat.png")
    classifier().save("text-model")
    assert "the model reads no pictures" in error_message(OptionError, "view", "cat.png", "--model", "text-model")
    assert "no model 'none/such'" in error_message(CheckpointError, "view", "cat.png", "--model", "none/such")
    assert "--label belongs to pictures" in error_message(OptionError, "view", "A cat.", "--label", "a")
    assert "--mechanism cannot be used" in error_message(
        OptionError, "view", "cat.png", "--model", "vit", "--mechanism", "linear"
    )
    assert "--truncate cannot be used" in error_message(OptionError, "view", "cat.png", "--model", "vit", "--truncate")


def test_files_that_are_no_pictures(folder, monkeypatch):
    assert "bad.png is not a picture" in error_message(DataError, "view", "bad.png", "--model", "vit")
    assert "no picture to view" in error_message(DataError, "view", "--model", "vit")
    monkeypatch.setattr(view_media, "MAX_FILES", 1)
    assert "too many pictures" in error_message(OptionError, "view", "cat.png", "cat.png", "--model", "vit")


def test_pictures_are_compared_with_each_other_and_under_another_model(folder):
    write_folders(folder / "shapes", count=1)
    both = output("cat.png", "shapes/rows/000.png", "--model", "vit", "--compare", "-o", "both.html")
    assert both.startswith("picture 1: cat.png")
    assert (folder / "both.html").read_text().count("data:image/png;base64,") == 2
    assert "vit: cat.png" in output("cat.png", "--model", "vit", "--compare-model", "vit")
    assert "no figures of comparisons" in error_message(
        OptionError, "view", "cat.png", "--model", "vit", "--compare", "-o", "head.svg"
    )
