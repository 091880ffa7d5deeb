"""``regard embed`` and ``regard classify`` with a CLIP: texts and pictures."""

import json
from pathlib import Path

import numpy as np
import pytest

from picture_files import write_folders
from regard.classification import ZeroShotClassifier
from regard.errors import OptionError
from shell_command import output, run, shell_message
from small_clips import small_clip
from small_image_models import image_classifier

PATHS = [f"shapes/{label}/{number:03}.png" for label in ("columns", "plain", "rows") for number in range(2)]
TEXTS = ["rows of stripes", "columns", "nothing at all"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A CLIP in the folder clip/, and pictures in shapes/."""
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "shapes", count=2)
    made = small_clip()
    made.save("clip")
    return made


def vectors(text):
    return np.array([json.loads(line)["vector"] for line in text.splitlines()])


def test_embed_texts_and_pictures_in_one_space(model):
    texts = vectors(output("embed", "--model", "clip", *TEXTS))
    pictures = vectors(output("embed", "--model", "clip", *PATHS))
    assert texts.shape == (3, 7)
    assert pictures.shape == (6, 7)
    np.testing.assert_allclose(np.linalg.norm(texts, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(pictures, axis=1), 1, atol=1e-5)
    expected = ZeroShotClassifier(model, TEXTS).probabilities(PATHS).numpy()
    scores = np.exp(np.exp(model.logit_scale.item()) * pictures @ texts.T)
    np.testing.assert_allclose(scores / scores.sum(axis=1, keepdims=True), expected, atol=1e-4)
    np.testing.assert_allclose(vectors(output("embed", "--model", "clip", "--data", "shapes")), pictures, atol=1e-6)
    output("embed", "--model", "clip", "-o", "v.npy", *TEXTS)
    np.testing.assert_allclose(np.load("v.npy"), texts, atol=1e-5)


def test_a_path_of_nothing_is_a_text(model):
    assert vectors(output("embed", "--model", "clip", "shapes/missing.png")).shape == (1, 7)
    mixed = vectors(output("embed", "--model", "clip", "a text", PATHS[0]))
    assert mixed.shape == (2, 7)


def test_token_vectors_are_hidden_states(model):
    record = json.loads(output("embed", "--model", "clip", "--tokens", "ab"))
    assert np.array(record["vectors"]).shape == (4, 20)


def test_a_tower_alone(model):
    model.text.save("text")
    model.vision.save("vision")
    assert output("embed", "--model", "text", *TEXTS) == output("embed", "--model", "clip", *TEXTS)
    model.vision.processor = model.processor
    assert output("embed", "--model", "vision", *PATHS) == output("embed", "--model", "clip", *PATHS)


def test_view_a_text(model):
    """The page has the layers of the text tower: tokens of bytes between the start and the end token."""
    shown = output("view", "a cat", "--model", "clip", "-o", "text.html")
    assert "a cat" in shown
    page = Path("text.html").read_text()
    data = json.loads(page.split('id="data">')[1].split("</script>")[0])
    (text,) = data["texts"][0]["attentions"]
    assert [len(layer["query"]) for layer in text["layers"]] == [5, 5]
    assert len(text["tokens"]) == 7
    assert "longformer" in output("view", "a cat", "--model", "clip", "--mechanism", "longformer:window=2")


def test_classify_by_labels(model):
    expected = ZeroShotClassifier(model, TEXTS, templates=["a photo of {}."]).classify(PATHS)
    arguments = ["classify", "--model", "clip", "--labels", ", ".join(TEXTS), "--template", "a photo of {}."]
    lines = output(*arguments, *PATHS).splitlines()
    assert lines == [f"{one.label}\t{one.probabilities[one.label]:.4f}\t{one.text}" for one in expected]


def test_options_that_do_not_fit(model):
    image_classifier().save("vit")
    for arguments, words in (
        (["--model", "clip"], "--labels"),
        (["--model", "clip", "--template", "{}"], "--labels"),
        (["--model", "clip", "--labels", ""], "labels is not"),
        (["--model", "vit", "--template", "{}"], "--labels"),
    ):
        result = run("classify", *arguments, PATHS[0])
        assert isinstance(result.exception, OptionError), result.exception
        assert words in shell_message(result.exception)


def test_evaluate_prints_recall(model, tmp_path):
    """Against the vectors of ``regard embed``; the first picture has two texts, and one text two pictures."""
    rows = [(PATHS[0], "columns"), (PATHS[0], "rows"), *((path, path) for path in PATHS[1:5]), (PATHS[5], "columns")]
    table = tmp_path / "table.csv"
    table.write_text("image,caption\n" + "".join(f"{path},{text}\n" for path, text in rows))
    found = json.loads(output("evaluate", "clip", "--model", "clip", "--data", table, "--format", "json"))
    texts = list(dict.fromkeys(text for _, text in rows))
    pictures, found_texts = (vectors(output("embed", "--model", "clip", *some)) for some in (PATHS, texts))
    products = pictures @ found_texts.T
    own = np.array([[(path, text) in rows for text in texts] for path in PATHS])
    assert (found["pairs"], found["pictures"], found["texts"]) == (7, 6, 6)
    for name, near, right in (("picture_to_text", products, own), ("text_to_picture", products.T, own.T)):
        for k in (1, 5, 10):
            chosen = np.argsort(-near, axis=1)[:, :k]
            assert found[name][f"recall@{k}"] == pytest.approx(np.take_along_axis(right, chosen, axis=1).any(1).mean())
    shown = output("evaluate", "clip", "--model", "clip", "--data", table)
    assert shown.startswith("7 pairs of 6 pictures and 6 different texts\npicture to text   recall@1 ")


def test_evaluate_refuses_what_is_no_clip(model, tmp_path):
    assert "no model was given" in shell_message(run("evaluate", "clip", "--data", "shapes").exception)
    model.vision.save("tower")
    assert "both towers" in shell_message(run("evaluate", "clip", "--model", "tower", "--data", "shapes").exception)
    (tmp_path / "clip" / "tokenizer.json").unlink()
    assert "has no tokenizer" in shell_message(run("evaluate", "clip", "--model", "clip", "--data", "shapes").exception)
