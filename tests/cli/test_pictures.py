"""``regard classify``, ``regard evaluate classify`` and ``regard embed`` with a model that reads pictures."""

import json

import numpy as np
import pytest

from picture_files import write_folders
from regard.classification import MediaClassifier, embed_files
from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError
from shell_command import error_message, output, run
from small_image_models import image_classifier


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model in the folder model/, pictures in shapes/, and one broken file beside them."""
    monkeypatch.chdir(tmp_path)
    write_folders(tmp_path / "shapes", count=5)
    (tmp_path / "bad.png").write_bytes(b"x")
    made = image_classifier()
    made.save("model")
    return made


PATHS = [f"shapes/{label}/{number:03}.png" for label in ("columns", "plain", "rows") for number in range(5)]


def test_classify_writes_a_line_for_each_picture(model):
    expected = MediaClassifier(model).classify(PATHS)
    lines = output("classify", "--model", "model", *PATHS).splitlines()
    assert lines == [f"{one.label}\t{one.probabilities[one.label]:.4f}\t{one.text}" for one in expected]
    labels = [one.label for one in expected]
    assert output("classify", "--model", "model", "shapes", "--format", "labels").split() == labels
    assert output("classify", "--model", "model", "--data", "shapes", "--format", "labels").split() == labels
    with open("paths.txt", "w") as file:  # noqa: PTH123
        file.write("\n".join(PATHS))
    records = [
        json.loads(line)
        for line in output("classify", "--model", "model", "--data", "paths.txt", "--format", "jsonl").splitlines()
    ]
    assert [one["picture"] for one in records] == PATHS
    assert [one["labels"] for one in records] == [[label] for label in labels]


def test_hidden_files_are_left_out_and_paths_are_no_texts(model, tmp_path):
    expected = output("classify", "--model", "model", *PATHS)
    for name in ("._0.png", ".ipynb_checkpoints/0-checkpoint.png", "__MACOSX/._0.png", ".0.png"):
        (tmp_path / "shapes" / "rows" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "shapes" / "rows" / name).write_bytes(b"\0\5\x16\7")
    for arguments in (["shapes"], ["--data", "shapes"], PATHS):
        result = run("classify", "--model", "model", *arguments)
        assert (result.stdout, result.stderr) == (expected, "")
        assert run("embed", "--model", "model", *arguments).stdout.count("\n") == len(PATHS)
    assert run("embed", "--model", "model", PATHS[0]).stderr == ""
    scores = json.loads(output("evaluate", "classify", "--model", "model", "--data", "shapes", "--format", "json"))
    assert scores["pictures"] == 15


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_pictures_without_labels_are_advised_as_pictures(model, tmp_path, command):
    (tmp_path / "flat").mkdir()
    for number in range(3):
        (tmp_path / PATHS[number]).rename(tmp_path / "flat" / f"{number}.png")
    end = ["--out", "m"] if command == "train" else ["--model", "model"]
    message = error_message(DataError, command, "classify", "--data", "flat", *end)
    assert "flat has no folders of pictures" in message
    assert "LABEL/NAME.jpg" in message


def test_broken_pictures_end_the_output_or_have_no_label(model):
    arguments = ["classify", "--model", "model", PATHS[0], "bad.png", PATHS[1]]
    refused = run(*arguments)
    assert isinstance(refused.exception, DataError)
    assert len(refused.stdout.splitlines()) == 1
    skipped = run(*arguments, "--skip-bad")
    assert [line.split("\t")[2] for line in skipped.stdout.splitlines()] == [PATHS[0], "bad.png", PATHS[1]]
    assert skipped.stdout.splitlines()[1].startswith("\t\t")
    assert "without a label: bad.png" in skipped.stderr


def test_evaluate_scores_labelled_pictures(model):
    predicted = [one.label for one in MediaClassifier(model).classify(PATHS)]
    accuracy = np.mean([label == path.split("/")[1] for label, path in zip(predicted, PATHS, strict=True)])
    scores = json.loads(output("evaluate", "classify", "--model", "model", "--data", "shapes", "--format", "json"))
    assert scores["accuracy"] == pytest.approx(accuracy)
    assert scores["pictures"] == 15
    shown = output("evaluate", "classify", "--model", "model", "--data", "shapes")
    assert "15 pictures; always answering" in shown


def test_evaluate_with_broken_and_unknown_pictures(model, tmp_path):
    (tmp_path / "bad.png").rename(tmp_path / "shapes" / "rows" / "bad.png")
    arguments = ["evaluate", "classify", "--model", "model", "--data", "shapes", "--format", "json"]
    assert "bad.png" in error_message(DataError, *arguments)
    assert json.loads(output(*arguments, "--skip-bad"))["pictures"] == 15
    (tmp_path / "shapes" / "rows").rename(tmp_path / "shapes" / "dots")
    assert "'dots'" in error_message(DataError, *arguments)


@pytest.mark.parametrize("form", ["npy", "jsonl", "parquet"])
def test_embed_writes_the_pooled_vectors(model, form):
    expected = embed_files(model, PATHS).numpy()
    output("embed", "--model", "model", *PATHS, "bad.png", "--skip-bad", "-o", f"v.{form}")
    if form == "npy":
        found = np.load("v.npy")
    elif form == "jsonl":
        with open("v.jsonl") as file:  # noqa: PTH123
            records = [json.loads(line) for line in file]
        assert [one["text"] for one in records] == PATHS
        found = np.array([one["vector"] for one in records])
    else:
        import pyarrow.parquet

        table = pyarrow.parquet.read_table("v.parquet")
        assert table["text"].to_pylist() == PATHS
        found = np.array(table["vector"].to_pylist())
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert "already exists" in error_message(OutputExistsError, "embed", "--model", "model", *PATHS, "-o", f"v.{form}")


def test_options_of_texts_are_refused(model):
    for option in (["--truncate"], ["--threshold", "0.5"], ["--batch-tokens", "9"]):
        assert option[0] in error_message(OptionError, "classify", "--model", "model", PATHS[0], *option)
        arguments = ["evaluate", "classify", "--model", "model", "--data", "shapes"]
        assert option[0] in error_message(OptionError, *arguments, *option)
    for option in ("--tokens", "--truncate", "--resume"):
        assert option in error_message(OptionError, "embed", "--model", "model", PATHS[0], option)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--tokenizer", "bpe"], "--tokenizer"),
        (["--pooling", "cls"], "--pooling"),
        (["--lora", "4", "--from", "model"], "--lora"),
        (["--labels", "several"], "--labels"),
        (["--kind", "texts", "--mixup", "1"], "--mixup"),
        (["--kind", "texts", "--no-flip"], "--no-flip"),
        (["--model", "huge"], "deit-base"),
        (["--augment", "much"], "light"),
        (["--distill", "hard"], "--teacher"),
        (["--from", "model", "--picture-size", "8"], "--picture-size"),
    ],
)
def test_invalid_options_of_training(model, options, words):
    assert words in error_message(OptionError, "train", "classify", "--data", "shapes", "--out", "m", *options)


def test_folders_without_sounds_are_refused(model):
    message = error_message(DataError, "train", "classify", "--data", "shapes", "--out", "m", "--kind", "sounds")
    assert "has no sounds" in message


def test_models_without_a_head_do_not_classify(model):
    image_classifier(labels=()).save("encoder")
    assert "the model has no head" in error_message(CheckpointError, "classify", "--model", "encoder", PATHS[0])
    assert output("embed", "--model", "encoder", PATHS[0])
