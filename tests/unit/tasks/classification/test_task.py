"""The classification task: what it prepares, says and refuses; and that it learns."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import pytest
import torch

import regard
from quiet_report import QuietReport
from regard.classification import Classifier
from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError, RegardError
from regard.log import notes_to
from regard.models import Perceiver, PerceiverConfig, PerceiverTextEncoder, TextInput, TextOutput
from regard.tasks.classification import ClassificationRecipe, ClassificationTask
from regard.tasks.numbered_batches import NumberedBatch
from regard.text.labelled import LabelFormat
from regard.train import RankShard, RunContext, Schedule, Settings, run
from slow_parameters import slow_except
from small_classifiers import NOUNS, classifier, labelled_texts, write_texts

SETTINGS = Settings(schedule=Schedule(peak=5e-3, warmup=5), steps=40, validate_every=20, average=1, precision="float32")
SMALL = {"width": 32, "layers": 1, "heads": 2, "inner": 37, "dropout": 0.0}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts.tsv")
    return tmp_path


def make_recipe(folder, name="texts.tsv", **options):
    options = {"hyperparameters": SMALL, "vocabulary": 350, **options}
    return ClassificationRecipe(data=(folder / name,), **options)


def prepare(recipe, settings=SETTINGS):
    """Prepare a task; return it and its messages."""
    task, said = ClassificationTask(recipe), []
    torch.manual_seed(1)
    with notes_to(said.append):
        task.prepare(RunContext(settings))
    return task, said


def test_trained_model_classifies(folder):
    result = run(ClassificationTask(make_recipe(folder)), SETTINGS, folder / "m", device="cpu", report=QuietReport())
    assert result.score > 0.95
    model = Classifier.load(folder / "m")
    texts = labelled_texts(97, seed=3)
    actual = model.classify([text for text, _ in texts])
    assert sum(one.label == label for one, (_, label) in zip(actual, texts, strict=True)) > 90
    about = json.loads((folder / "m" / "about.json").read_text())
    assert about["texts"] + about["held_out"] == 211
    assert set(about["validation"]) == {"accuracy", "macro_f1", "micro_f1", "loss", "calibration_error"}


@pytest.mark.parametrize(
    ("tokenizer", "pooling"),
    slow_except(
        {("bpe", "cls"), ("words", "mean"), ("characters", "mean")},
        product(("bpe", "words", "characters"), ("mean", "cls")),
        rows=True,
    ),
)
def test_tokenizers_and_pooling(folder, pooling, tokenizer):
    recipe = make_recipe(folder, tokenizer=tokenizer, pooling=pooling, vocabulary=None)
    task, _ = prepare(recipe)
    assert task.model.config.pooling == pooling
    run(ClassificationTask(recipe), replace(SETTINGS, steps=2), folder / "m", device="cpu", report=QuietReport())
    assert regard.load(folder / "m").tokenizer.to_json() == task.model.tokenizer.to_json()


BYTES = {"width": 32, "layers": 1, "heads": 2, "latents": 7, "input_width": 12, "dropout": 0.0}


@pytest.mark.parametrize("pooling", ["mean", pytest.param("cls", marks=pytest.mark.slow)])
def test_perceiver_reads_bytes(folder, pooling):
    """Its folder is read as a classifier, which gives the same numbers and can be trained further."""
    recipe = make_recipe(
        folder, model="perceiver-tiny", pooling=pooling, hyperparameters=BYTES, vocabulary=None, most_tokens=71
    )
    task, said = prepare(recipe)
    assert any("Perceiver tiny of bytes, 1 layer of 32" in one for one in said)
    assert isinstance(task.model.encoder, PerceiverTextEncoder)
    assert (task.model.tokenizer.vocabulary, task.model.tokenizer.limit, task.model.max_tokens) == (262, 71, 71)
    task.loss(task.model, task.epoch(0)[0], RankShard(0, 1)).backward()
    assert all(weight.grad is not None for weight in task.model.parameters())
    settings = replace(SETTINGS, steps=3)
    run(ClassificationTask(recipe), settings, folder / "m", device="cpu", report=QuietReport())
    model = Classifier.load(folder / "m")
    assert len(model.classify(["a small dog", "ein großer Hund"])[0].probabilities) == 3
    with pytest.raises(DataError, match="71"):
        model.classify(["x" * 99])
    again, _ = prepare(ClassificationRecipe((folder / "texts.tsv",), start=str(folder / "m")))
    expected = model.model.state_dict()
    assert {name: weight.tolist() for name, weight in again.model.state_dict().items()} == {
        name: weight.tolist() for name, weight in expected.items()
    }


def test_classifier_starts_from_a_masked_language_model_of_bytes(folder):
    perceiver = Perceiver(PerceiverConfig(
        TextInput(max_length=71, width=12), TextOutput(2, 6), latents=5, width=12, layers=1, heads=3, cross_heads=2
    ))  # fmt: skip
    perceiver.save(folder / "filler")
    task, _ = prepare(ClassificationRecipe((folder / "texts.tsv",), start=str(folder / "filler")))
    own = perceiver.state_dict()
    kept = task.model.encoder.perceiver.state_dict()
    assert set(own) - set(kept) == {"output.last.bias"}
    assert all(torch.equal(own[name], kept[name]) for name in kept)
    Perceiver.classifier(TextInput(max_length=71, width=12), ("a", "b"), width=12, heads=3).save(folder / "other")
    with pytest.raises(CheckpointError, match="cannot start from"):
        prepare(ClassificationRecipe((folder / "texts.tsv",), start=str(folder / "other")))


@pytest.mark.parametrize(
    "options",
    [{"attention": "linear"}, {"position": "rotary"}, {"tokenizer": "bpe"}, {"vocabulary": 300}],
)
def test_perceiver_refuses_options_of_other_encoders(folder, options):
    with pytest.raises(OptionError, match=f"(?s)reads the bytes.*{next(iter(options))}"):
        prepare(ClassificationRecipe((folder / "texts.tsv",), model="perceiver", **options))


def test_training_with_several_labels(folder):
    rows = [(f"{one} and {other}", f"{a}|{b}") for (one, a), (other, b) in zip(
        labelled_texts(400, seed=1), labelled_texts(400, seed=2), strict=True)]  # fmt: skip
    rows += [("nothing at all here", "[]"), ("it waits", "[]"), ("it runs here", "[]")] * 5
    (folder / "several.tsv").write_text("".join(f"{text}\t{labels}\n" for text, labels in rows))
    task, said = prepare(make_recipe(folder, "several.tsv"))
    assert task.model.config.several
    assert any("may have any number of labels" in one for one in said)
    assert any("15 texts have none" in one or "texts have none" in one for one in said)
    assert task.metric == "macro_f1"
    assert task.tokens(task.epoch(0)[0]) == 32 * 3
    assert task.unit == "predictions"
    result = run(
        ClassificationTask(make_recipe(folder, "several.tsv")), replace(SETTINGS, steps=120), folder / "m",
        device="cpu", report=QuietReport(),
    )  # fmt: skip
    assert result.score > 0.9
    (actual,) = Classifier.load(folder / "m").classify(["the small dog and the old oak waits"])
    assert set(actual.labels) == {"animal", "plant"}


def test_labels_of_a_single_text_are_in_the_training_data(folder):
    """A label with one text is in the training data, where it can be learnt, not among the validation texts."""
    rows = [(f"the text {n}", "often") for n in range(40)] + [(f"single {n}", f"label {n}") for n in range(30)]
    (folder / "single.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    task, _ = prepare(make_recipe(folder, "single.tsv"))
    assert len(task.model.labels) == 31
    assert {one.labels for one in task.held_out.entries} == {("often",)}


def test_text_too_long_for_the_mechanism_is_refused_before_training(folder):
    with (folder / "texts.tsv").open("a") as file:
        file.write("a dog " * 50 + "\tanimal\n")
    sizes = {**SMALL, "mechanism_options.length": 60}
    with pytest.raises(RegardError, match="60"):
        prepare(make_recipe(folder, attention="linformer", hyperparameters=sizes))
    prepare(make_recipe(folder, attention="linformer", hyperparameters={**SMALL, "mechanism_options.length": 130}))


@pytest.mark.parametrize("most", [97, 200])
def test_projections_of_positions_have_the_length_of_the_texts(folder, most):
    numbers = {**SMALL, "mechanism_options.projected": 8}
    task, _ = prepare(make_recipe(folder, attention="linformer", hyperparameters=numbers, most_tokens=most))
    config = task.model.encoder.config
    assert config.mechanism_options == {"projected": 8, "length": config.max_length}
    assert config.max_length >= most


def test_labels_are_sorted_numbers_first(folder):
    (folder / "n.tsv").write_text("".join(f"text {n} {i}\t{n}\n" for n in (10, 9, -1, "x", 2) for i in range(3)))
    task, _ = prepare(make_recipe(folder, "n.tsv"))
    assert task.model.labels == ("-1", "2", "9", "10", "x")


def test_messages_about_labels(folder):
    rows = [(f"the text {number}", "often") for number in range(300)] + [(f"other {n}", "rare") for n in range(6)]
    (folder / "rare.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in [*rows, ("other 1", "often")]))
    task, said = prepare(make_recipe(folder, "rare.tsv"))
    text = "\n".join(said)
    assert "2 labels: often 271 (98.2 %), rare 5 (1.8 %)" in text
    assert "fewer than 10 texts have the label rare (5)" in text
    assert "the labels are imbalanced: often has 54 times as many texts as rare" in text
    assert "always answering often is right for 96.8 % of the validation texts" in text
    assert "chosen by macro F1" in text
    assert "1 text occurs with different labels, the first are line " in text
    assert task.metric == "macro_f1"


def test_validation_texts_are_held_out_or_given(folder):
    task, said = prepare(make_recipe(folder))
    assert {label for one in task.held_out.entries for label in one.labels} == set(NOUNS)
    assert any("held out for validation" in one for one in said)
    write_texts(folder / "valid.tsv", 30)
    task, said = prepare(make_recipe(folder, validation=(folder / "valid.tsv",)))
    assert len(task.held_out.entries) == 30
    assert any("30 validation texts also occur in the training data" in one for one in said)


def test_long_texts_are_skipped_or_truncated(folder):
    with (folder / "texts.tsv").open("a") as file:
        file.write("the dog " * 50 + "\tanimal\n")
    task, said = prepare(make_recipe(folder, most_tokens=40))
    assert any("skipped 1 because the text has more than 40 tokens: line 213" in one for one in said)
    assert task.model.max_tokens == 40
    whole = len(task.batches) + len(task.held_out.entries)
    (folder / "long.tsv").write_text("a dog runs\tanimal\n" + "the dog " * 50 + "\tanimal\n")
    _, said = prepare(make_recipe(folder, most_tokens=40, validation=(folder / "long.tsv",)))
    (skipped,) = [one for one in said if one.startswith("skipped")]  # of training and validation together
    assert "skipped 2 because the text has more than 40 tokens: line 213" in skipped
    task, said = prepare(make_recipe(folder, most_tokens=40, truncate=True))
    assert any("cut 1 of" in one for one in said)
    assert len(task.batches) + len(task.held_out.entries) == whole + 1
    assert task.batches.lengths.max() == 40
    task, _ = prepare(make_recipe(folder, hyperparameters={**SMALL, "position": "learned", "max_length": 30}))
    assert task.model.max_tokens == 30


@pytest.mark.parametrize(
    ("content", "options", "error", "words"),
    [
        ("a\tx\nb\tx\nc\tx\n", {}, DataError, "all have the same label"),
        ("a\tx\na\ty\n", {}, DataError, "too few different texts"),
        ("a\tx|y\nb\tx|y\nc\tx|y\n", {}, DataError, "all have the same label"),
        ("a b c\tx\nd e f\ty\ng h\tx\ni j\ty\n", {"most_tokens": 2}, DataError, "every text is too long"),
        ("\tx\n", {}, DataError, "no usable text"),
        ("a\tx\n", {"attention": "none"}, OptionError, "unknown mechanism"),
        ("a\tx\n", {"position": "circular"}, OptionError, "position"),
        ("a\tx\n", {"model": "huge"}, OptionError, "unknown model"),
        ("a\tx\n", {"hyperparameters": {"depth": 3}}, OptionError, "depth"),
        ("a\tx\n", {"hyperparameters": {"vocabulary": 300}}, OptionError, "with vocabulary=..."),
        ("a\tx\n", {"start": "no/such/folder"}, CheckpointError, "no/such/folder"),
    ],
)
def test_invalid_data_and_options_are_refused(folder, content, options, error, words):
    (folder / "bad.tsv").write_text(content)
    with pytest.raises(error) as raised:
        prepare(make_recipe(folder, "bad.tsv", **({"hyperparameters": {}, "vocabulary": None} | options)))
    assert words in str(raised.value)


def test_validation_labels_without_training_texts_are_refused(folder):
    (folder / "valid.tsv").write_text("a dog\tanimal\na rock\tmineral\n")
    with pytest.raises(DataError, match="labels that the training data lacks") as raised:
        prepare(make_recipe(folder, validation=(folder / "valid.tsv",)))
    assert "'mineral' in line 2" in str(raised.value)


def test_a_vertical_bar_may_be_part_of_a_label(folder):
    (folder / "bar.tsv").write_text("".join(f"text {n}\t{'a|b' if n % 2 else 'c'}\n" for n in range(20)))
    task, _ = prepare(make_recipe(folder, "bar.tsv", where=LabelFormat(labels="one")))
    assert task.model.labels == ("a|b", "c")


def test_losses_of_shards_sum_to_that_of_the_batch(folder):
    task, _ = prepare(make_recipe(folder, class_weights="balanced"))
    model, batch = task.model.double().eval(), task.epoch(0)[0]
    losses = [task.loss(model, batch, RankShard(rank, 3)) for rank in range(3)]
    torch.testing.assert_close(sum(losses), task.loss(model, batch, RankShard()))
    assert task.loss(model, NumberedBatch(0, 0, batch.examples[:1]), RankShard(1, 2)).item() == 0


class TestFineTuning:
    @pytest.fixture
    def bert(self, folder):
        from regard.models import Bert, BertConfig

        torch.manual_seed(2)
        model = Bert(BertConfig(vocabulary=400, width=24, layers=1, heads=2, inner=13, max_length=33))
        model.tokenizer = classifier().tokenizer
        model.save(folder / "bert")
        return folder / "bert"

    def test_starts_from_the_weights_of_the_encoder(self, folder, bert):
        recipe = ClassificationRecipe(data=(folder / "texts.tsv",), start=str(bert))
        task, said = prepare(recipe)
        assert torch.equal(task.model.encoder.token_embedding.weight, regard.load(bert).token_embedding.weight)
        assert task.model.max_tokens == 33
        assert any("the encoder of" in one for one in said)
        settings = task.complete(Settings(precision="float32"))
        assert (settings.schedule.peak, settings.schedule.warmup, settings.epochs) == (5e-5, 200, 4)
        assert task.complete(Settings(precision="float32", minutes=3.0)).epochs is None
        run(ClassificationTask(recipe), replace(SETTINGS, steps=3), folder / "m", device="cpu", report=QuietReport())
        assert json.loads((folder / "m" / "config.json").read_text())["encoder"]["model_type"] == "bert"
        assert Classifier.load(folder / "m").classify(["the small dog"])[0].label in NOUNS

    def test_head_is_kept_for_the_same_labels(self, folder):
        start = classifier()
        start.save(folder / "old")
        task, said = prepare(ClassificationRecipe(data=(folder / "texts.tsv",), start="old"))
        assert torch.equal(task.model.head.weight, start.head.weight)
        assert not any("the head of" in one for one in said)
        (folder / "other.tsv").write_text("".join(f"text {n}\t{n % 3}\n" for n in range(30)))
        task, said = prepare(ClassificationRecipe(data=(folder / "other.tsv",), start="old"))
        change = f"other labels ({', '.join(start.labels)}): it is replaced by a head with random weights for 0, 1, 2"
        assert f"the head of old has {change}" in said
        assert not torch.equal(task.model.head.weight, start.head.weight)
        assert torch.equal(task.model.encoder.token_embedding.weight, start.encoder.token_embedding.weight)
        assert task.model.labels == ("0", "1", "2")

    def test_head_of_another_kind_is_replaced(self, folder):
        start = classifier()
        start.save(folder / "old")
        several = LabelFormat(labels="several")
        task, said = prepare(ClassificationRecipe(data=(folder / "texts.tsv",), start="old", where=several))
        assert not torch.equal(task.model.head.weight, start.head.weight)
        assert any("the head of old predicts in another way" in one for one in said)

    @pytest.mark.parametrize(
        "option",
        [
            {"model": "tiny"},
            {"hyperparameters": {"layers": 3}},
            {"attention": "linear"},
            {"position": "none"},
            {"tokenizer": "words"},
            {"vocabulary": 300},
        ],
        ids=str,
    )
    def test_architecture_options_are_refused(self, folder, bert, option):
        with pytest.raises(OptionError, match="fine-tuning cannot change"):
            prepare(ClassificationRecipe(data=(folder / "texts.tsv",), start=str(bert), **option))


def test_resume_with_changed_settings_is_refused(folder):
    options = {"device": "cpu", "report": QuietReport()}
    run(ClassificationTask(make_recipe(folder)), replace(SETTINGS, steps=2), folder / "m", **options)
    for change, name in (({"pooling": "cls"}, "pooling"), ({"class_weights": "balanced"}, "class_weights")):
        with pytest.raises(OutputExistsError, match=f"another {name}"):
            run(ClassificationTask(make_recipe(folder, **change)), SETTINGS, folder / "m", resume=True, **options)
    (folder / "texts.tsv").write_text((folder / "texts.tsv").read_text().replace("\tanimal", "\tplant", 1))
    with pytest.raises(OutputExistsError, match="data has changed"):
        run(ClassificationTask(make_recipe(folder)), SETTINGS, folder / "m", resume=True, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"data": ["a.tsv"]},
        {"data": ("a.tsv",)},
        {"where": None},
        {"batch": 0},
        {"smoothing": 2},
        {"tokenizer": "letters"},
        {"pooling": "max"},
        {"class_weights": "some"},
        {"metric": "bleu"},
        {"truncate": "yes"},
        {"most_tokens": 0},
        {"model": 3},
    ],
    ids=str,
)
def test_invalid_recipes_are_refused(tmp_path, options, without_shape_checks):
    with pytest.raises(OptionError):
        ClassificationRecipe(**{"data": (tmp_path / "a.tsv",), **options})


def test_a_header_with_other_names_is_told(tmp_path):
    rows = "".join(f"text {number},{'xy'[number % 2]}\n" for number in range(30))
    for header, told in (("foo,bar\n", True), ("text,label\n", False), ("foo,x\n", False)):
        (tmp_path / "a.csv").write_text(header + rows)
        _, said = prepare(make_recipe(tmp_path, "a.csv"))
        assert any("line 1 of" in one and "if it is a header" in one for one in said) == told
