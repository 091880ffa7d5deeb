"""``regard train classify``, ``classify``, ``evaluate classify`` and ``view`` of a classifier: options and output."""

from __future__ import annotations

import json
import shutil

import pytest

import regard
from regard.classification import Classifier
from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError, RefusedError
from shell_command import error_message, output, run
from small_classifiers import NOUNS, TEXTS, classifier, write_texts

TRAIN = ["train", "classify", "--data", "texts.tsv", "--out", "new", "--steps", "1", "--dtype", "float32"]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("classifiers")
    classifier().save(folder / "m")
    classifier(several=True).save(folder / "several")
    return folder


@pytest.fixture(autouse=True)
def folder(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts.tsv", 60)
    shutil.copytree(models, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--model", "huge"], OptionError, "tiny"),
        (["--tokenizer", "wordpiece"], OptionError, "bpe"),
        (["--pooling", "max"], OptionError, "mean"),
        (["--class-weights", "some"], OptionError, "balanced"),
        (["--metric", "bleu"], OptionError, "accuracy"),
        (["--labels", "two"], OptionError, "several"),
        (["--columns", "0,1"], OptionError, "columns"),
        (["--columns", "text"], OptionError, "columns"),
        (["--columns", "body,label"], DataError, "no column 'body'"),
        (["--schedule", "cosine", "--steps", "5", "--warmup", "5"], OptionError, "more than the 5 of the warm-up"),
        (["--set", "layers"], OptionError, "name=value"),
        (["--set", "depth=4"], OptionError, "depth"),
        (["--attention", "none"], OptionError, "unknown mechanism 'none'"),
        (
            ["--attention", "linear", "--position", "alibi"],
            RefusedError,
            "attention with a state of constant size has no scores",
        ),
        (["--position", "circular"], OptionError, "rotary"),
        (["--from", "m", "--attention", "linear"], OptionError, "leave out --attention"),
        (["--from", "nowhere/at/all"], CheckpointError, "nowhere/at/all"),
        (["--from", "texts.tsv"], CheckpointError, "is a file"),
        (["--valid", "nowhere.tsv"], DataError, "nowhere.tsv"),
        (["--most-tokens", "1"], OptionError, "no room"),
        (["--resume"], OptionError, "no run"),
        (["--resume", "--overwrite"], OptionError, "contradict"),
        (["more.tsv"], OptionError, "unexpected argument more.tsv"),
    ],
)
def test_invalid_options_of_training_are_named(folder, arguments, kind, words):
    assert words in error_message(kind, *TRAIN, *arguments)
    assert sorted(path.name for path in folder.iterdir()) == ["m", "several", "texts.tsv"]


@pytest.mark.parametrize(
    "more",
    [
        ["--attention", "linear", "--position", "rotary"],
        ["--attention", "linformer", "--set", "mechanism_options.projected=8", "--pooling", "cls"],
        ["--tokenizer", "words", "--class-weights", "balanced", "--smoothing", "0.1"],
        ["--from", "m", "--metric", "loss"],
        ["--columns", "1,2", "--valid", "texts.tsv", "--batch-tokens", "100"],
        ["--labels", "several", "--set", "layers=1", "--accumulate", "2"],
    ],
    ids=" ".join,
)
def test_compatible_options_of_training_are_accepted(folder, more):
    result = run(*TRAIN, *more)
    assert result.exit_code == 0, result.exception
    is_learned = "try: regard classify --model new" in result.stderr
    assert is_learned is not ("nothing learned yet" in result.stderr)
    assert set(Classifier.load("new").labels) == set(NOUNS)


def test_finished_run_is_resumed_with_more_steps(folder):
    output(*TRAIN)
    output(*TRAIN, "--overwrite")
    more = [*TRAIN[:-4], "--steps", "3", "--dtype", "float32"]
    output(*more, "--resume")
    assert json.loads((folder / "new" / "about.json").read_text())["trained"]["steps"] <= 3
    assert "another --pooling" in error_message(OutputExistsError, *more, "--resume", "--pooling", "cls")


def test_output_formats(folder):
    actual = Classifier.load("m").classify(TEXTS[:2])
    rows = output("classify", "--model", "m", *TEXTS[:2]).splitlines()
    assert rows == [f"{one.label}\t{one.probabilities[one.label]:.4f}\t{one.text}" for one in actual]
    assert output("classify", "--model", "m", *TEXTS[:2], "--format", "labels").split() == [one.label for one in actual]
    records = [
        json.loads(line) for line in output("classify", "--model", "m", *TEXTS[:2], "--format", "jsonl").splitlines()
    ]
    assert [one["text"] for one in records] == TEXTS[:2]
    assert [one["labels"] for one in records] == [[one.label] for one in actual]
    for record, one in zip(records, actual, strict=True):
        assert record["probabilities"] == pytest.approx(dict(one.probabilities), abs=1e-6)


def test_several_labels_and_their_threshold(folder):
    rows = output("classify", "--model", "several", TEXTS[0], "--threshold", "0").splitlines()
    labels, shares, _ = rows[0].split("\t")
    assert set(labels.split("|")) == set(NOUNS)
    assert [float(one) for one in shares.split("|")] == sorted((float(one) for one in shares.split("|")), reverse=True)
    assert output("classify", "--model", "several", TEXTS[0], "--threshold", "1") == f"\t\t{TEXTS[0]}\n"
    assert "--threshold has no effect" in error_message(
        OptionError, "classify", "--model", "m", "a", "--threshold", "0.3"
    )


def test_files_lines_and_fields(folder):
    (folder / "in.txt").write_text(f"{TEXTS[0]}\n\n{TEXTS[1]}\n")
    rows = output("classify", "--model", "m", "--data", "in.txt").splitlines()
    assert [row.split("\t")[2] for row in rows] == [TEXTS[0], "", TEXTS[1]]
    assert rows[1] == "\t\t"
    (folder / "in.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in TEXTS))
    result = run("classify", "--model", "m", "--data", "in.jsonl", "--field", "body", "-o", "out.tsv")
    assert result.exit_code == 0, result.exception
    assert (folder / "out.tsv").read_text() == output("classify", "--model", "m", *TEXTS)
    assert "out.tsv already exists" in error_message(
        OutputExistsError, "classify", "--model", "m", "--data", "in.txt", "-o", "out.tsv"
    )
    assert output("classify", "--model", "m", input="the small dog\n").startswith(tuple(NOUNS))


def test_a_folder_is_read_as_training_reads_it(folder):
    for name, text in (("a/0.txt", f"{TEXTS[0]}\n"), ("b.txt", TEXTS[1]), ("a/.ipynb_checkpoints/0.txt", "hidden")):
        (folder / "new" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "new" / name).write_text(text)
    (folder / "new" / "c.pdf").write_bytes(b"no text")
    result = run("classify", "--model", "m", "--data", "new")
    assert result.exit_code == 0, result.exception
    assert result.stdout.split("\n")[:-1] == [
        row.replace(TEXTS[0], f"{TEXTS[0]}{end}")
        for row, end in zip(output("classify", "--model", "m", *TEXTS[:2]).splitlines(), (" ", ""), strict=True)
    ]
    assert "a file is not named .txt: new/c.pdf" in result.stderr
    assert "--field" in error_message(OptionError, "classify", "--model", "m", "--data", "new", "--field", "body")
    (folder / "new" / "b.txt").write_bytes(b"\xff")
    assert "new/b.txt cannot be used" in error_message(DataError, "classify", "--model", "m", "--data", "new")
    assert output("classify", "--model", "m", "--data", "new", "--skip-bad").splitlines()[1] == "\t\t"


def test_invalid_lines(folder):
    (folder / "in.txt").write_bytes(b"the small dog\n\xff\n" + b"the dog and " * 50 + b"\nthe oak\n")
    assert "line 2 of in.txt is not UTF-8" in error_message(DataError, "classify", "--model", "m", "--data", "in.txt")
    skipped = run("classify", "--model", "m", "--data", "in.txt", "--skip-bad", "--format", "labels")
    assert [bool(line) for line in skipped.stdout.splitlines()] == [True, False, False, True]
    assert "without a label: line 3 of in.txt is too long for the model" in skipped.stderr
    cut = run("classify", "--model", "m", "--data", "in.txt", "--skip-bad", "--truncate", "--format", "labels")
    assert [bool(line) for line in cut.stdout.splitlines()] == [True, False, True, True]
    assert "truncated at the model's limit: 1 text, line 3 of in.txt\n" in cut.stderr


def test_validation_refuses_long_texts_or_reports_truncation(folder):
    rows = ["the small dog\tanimal", *["the dog and " * 50 + "\tanimal"] * 7]
    (folder / "long.tsv").write_text("\n".join(rows))
    command = ["evaluate", "classify", "--model", "m", "--data", "long.tsv"]
    assert "the text in line 2 of long.tsv is too long" in error_message(DataError, *command)
    places = ", ".join(f"line {number} of long.tsv" for number in range(2, 7))
    assert f"truncated at the model's limit: 7 texts, {places} and 2 more\n" in run(*command, "--truncate").stderr


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["classify", "a"], OptionError, "--model FOLDER"),
        (["classify", "--model", "nowhere", "a"], CheckpointError, "regard train classify"),
        (["classify", "--model", "m", "a", "--format", "text"], OptionError, "jsonl"),
        (["classify", "--model", "m", "a", "--data", "texts.tsv"], OptionError, "both"),
        (["evaluate", "classify", "--data", "texts.tsv"], OptionError, "--model FOLDER"),
        (["evaluate", "classify", "--model", "m", "--data", "nowhere.tsv"], DataError, "nowhere.tsv"),
        (["evaluate", "classify", "--model", "m", "--data", "texts.tsv", "--format", "html"], OptionError, "json"),
        (["evaluate", "classify", "--model", "m", "--data", "texts.tsv", "--threshold", "1"], OptionError, "no effect"),
        (["evaluate", "classify", "--model", "m", "--data", "texts.tsv", "--columns", "a"], OptionError, "columns"),
    ],
)
def test_invalid_options_are_named(arguments, kind, words):
    assert words in error_message(kind, *arguments)


def test_evaluate_agrees_with_the_predictions(folder):
    actual = json.loads(output("evaluate", "classify", "--model", "m", "--data", "texts.tsv", "--format", "json"))
    rows = [line.split("\t") for line in (folder / "texts.tsv").read_text().splitlines()[1:]]
    predicted = [one.label for one in Classifier.load("m").classify([text for text, _ in rows])]
    right = sum(one == label for one, (_, label) in zip(predicted, rows, strict=True))
    assert actual["texts"] == 60
    assert actual["accuracy"] == pytest.approx(right / 60)
    assert actual["confusion"]["labels"] == list(NOUNS)
    assert sum(map(sum, actual["confusion"]["true_by_predicted"])) == 60
    assert {one["label"]: one["predicted"] for one in actual["labels"]} == {
        label: predicted.count(label) for label in NOUNS
    }
    shown = output("evaluate", "classify", "--model", "m", "--data", "texts.tsv")
    assert f"accuracy {actual['accuracy']:.4f}" in shown
    assert "Confusion: true label in rows" in shown
    assert "Calibration: expected error" in shown


def test_evaluate_several_labels(folder):
    (folder / "s.tsv").write_text("the dog and the oak\tanimal|plant\nthe car\tvehicle\nnothing\t[]\n")
    arguments = ["evaluate", "classify", "--model", "several", "--data", "s.tsv"]
    actual = json.loads(output(*arguments, "--format", "json", "--threshold", "0.4"))
    assert [one["support"] for one in actual["labels"]] == [1, 1, 1]
    assert "confusion" not in actual
    assert "Confusion" not in output(*arguments)


def test_evaluate_refuses_unknown_labels_and_long_texts(folder):
    (folder / "u.tsv").write_text("the dog\tanimal\nthe rock\tmineral\n")
    message = error_message(DataError, "evaluate", "classify", "--model", "m", "--data", "u.tsv")
    assert "'mineral' in line 2 of u.tsv" in message
    (folder / "l.tsv").write_text("the dog\tanimal\n" + "the dog " * 50 + "\tanimal\n")
    arguments = ["evaluate", "classify", "--model", "m", "--data", "l.tsv"]
    assert "the text in line 2 of l.tsv is too long" in error_message(DataError, *arguments)
    assert "2 texts" in output(*arguments, "--truncate")


def test_view_shows_the_label_and_the_words_it_depends_on(folder):
    shown = output("view", "the small dog", "--model", "m", "-o", "dog.html")
    (actual,) = Classifier.load("m").classify(["the small dog"])
    assert f"{actual.label} " in shown
    assert f"{100 * actual.probabilities[actual.label]:.1f} %" in shown
    assert "The label is computed from the mean of all tokens" in shown
    assert "Label: " in (folder / "dog.html").read_text(encoding="utf-8")
    many = output("view", *TEXTS[:11], "--model", "m")
    assert "label" in many.splitlines()[0]


def test_encoder_without_a_head_embeds_but_does_not_classify(folder):
    regard.load("m").encoder.save("encoder")
    (row,) = output("embed", "a", "--model", "encoder").splitlines()
    assert len(json.loads(row)["vector"]) == 20
    assert "another kind of model" in error_message(CheckpointError, "classify", "--model", "encoder", "a")
