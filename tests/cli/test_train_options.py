"""``regard train`` and ``regard evaluate`` with invalid options and data: the messages, and that no files remain."""

from __future__ import annotations

import json
import re

import pytest

from regard.errors import CheckpointError, DataError, OptionError, OutputExistsError, RefusedError
from regard.layers import precision
from regard.translation import Translator
from shell_command import error_message, run
from small_masked_language_models import masked_language_model
from small_translators import recurrent, transformer, write_pairs

TRAIN = ["train", "translate", "--data", "pairs.tsv", "--out", "m", "--steps", "1"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "pairs.tsv")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (["--model", "huge"], OptionError, "tiny"),
        (["--subwords", "wordpiece"], OptionError, "bpe"),
        (["--sharing", "both"], OptionError, "joint"),
        (["--dtype", "float16"], OptionError, "auto, bfloat16, float32"),
        (["--schedule", "linear"], OptionError, "cosine"),
        (["--optimizer", "sgd"], OptionError, "adamw, muon"),
        (["--model", "gru", "--optimizer", "muon"], RefusedError, "--optimizer adamw"),
        (["--schedule", "cosine", "--steps", "5", "--warmup", "5"], OptionError, "more than the 5 of the warm-up"),
        (["--columns", "0,1"], OptionError, "columns"),
        (["--set", "layers"], OptionError, "name=value"),
        (["--set", "depth=4"], OptionError, "depth"),
        (["--set", "layers=0"], OptionError, "layers"),
        (["--set", "decoder_layers=-2"], OptionError, "decoder_layers"),
        (["--set", "position=learned", "--set", "max_length=2"], DataError, "max_length"),
        (["--set", "vocabulary=300"], OptionError, "--vocabulary"),
        (["--set", "decoder_layers=two"], OptionError, "int or None"),
        (["--attention", "none"], OptionError, "unknown mechanism 'none'"),
        (
            ["--attention", "linformer"],
            OptionError,
            "to do:    --set decoder_mechanism=dot_product; --attention is then",
        ),
        (["--attention", "linear", "--set", "mechanism_options.window=3"], OptionError, "option of mechanism 'linear'"),
        (["--set", "mechanism_options=3"], OptionError, "mechanism_options.OPTION=value"),
        (["--set", "layers.more=3"], OptionError, "layers=value"),
        (["--device", "nonsense"], OptionError, "cpu"),
        (["--out", ".."], OptionError, "no folder name"),
        (["--resume"], OptionError, "no run"),
        (["--vocabulary", "17"], OptionError, "vocabulary"),
        (["--most-tokens", "1"], DataError, "too long"),
        (["--columns", "1,3"], DataError, "no usable pair"),
        (["train.de", "train.en"], OptionError, "unexpected argument train.de, train.en"),
    ],
)
def test_invalid_options_are_named_and_no_files_remain(folder, arguments, kind, words):
    assert words in error_message(kind, *TRAIN, *arguments)
    assert sorted(path.name for path in folder.iterdir()) == ["pairs.tsv"]


@pytest.mark.parametrize("start", [False, True])
def test_unsupported_precision_is_refused_before_the_data_is_read(folder, monkeypatch, start):
    monkeypatch.setattr(precision, "has_lstm", lambda dtype: False)
    if start:
        recurrent("additive", cell="lstm").model.save("old")
    model = ["--model", "old" if start else "lstm"]
    (folder / "pairs.tsv").write_text("no pairs\n")
    message = error_message(RefusedError, *TRAIN, *model, "--dtype", "bfloat16")
    assert "LSTM" in message
    assert "--dtype float32" in message
    assert sorted(path.name for path in folder.iterdir() if path.name != "old") == ["pairs.tsv"]


@pytest.mark.parametrize("task", ["translate", "classify", "lm", "mlm"])
def test_a_missing_file_is_refused_before_anything_is_timed(folder, monkeypatch, task):
    monkeypatch.setattr(precision, "precisions", None)
    message = error_message(DataError, "train", task, "--data", "nowhere.tsv", "--out", "m", "--steps", "1")
    assert "cannot read nowhere.tsv" in message
    assert sorted(path.name for path in folder.iterdir()) == ["pairs.tsv"]


def test_files_of_different_length_are_refused_with_both_counts(folder):
    (folder / "a.de").write_text("eins\nzwei\ndrei\n")
    (folder / "a.en").write_text("one\ntwo\n")
    message = error_message(DataError, "train", "translate", "--data", "a.de", "--data", "a.en", "--out", "m")
    assert "3" in message
    assert "2" in message


def test_existing_output_folder_is_not_changed(folder):
    (folder / "m").mkdir()
    (folder / "m" / "thesis.txt").write_text("years of work")
    for more in ([], ["--overwrite"]):
        error_message(OutputExistsError, *TRAIN, *more)
    assert (folder / "m" / "thesis.txt").read_text() == "years of work"


def test_evaluate_explains_how_to_pass_two_files(folder):
    message = error_message(OptionError, "evaluate", "translate", "--model", "m", "--data", "test.de", "test.en")
    assert "unexpected argument test.en" in message
    assert "--data train.de --data train.en" in message


def test_evaluate_skips_the_hypothesis_of_a_skipped_pair(folder):
    """A pair without a source is skipped together with its translation."""
    rows = [("eins", "one little thing"), ("", "nothing at all"), ("drei", "three little things")]
    (folder / "test.tsv").write_text("".join(f"{one}\t{other}\n" for one, other in rows))
    (folder / "mine.en").write_text("one little thing\nwrong\nthree little things\n")
    arguments = ["--data", "test.tsv", "--hypotheses", "mine.en", "--format", "json"]
    result = run("evaluate", "translate", *arguments)
    assert result.exit_code == 0, result.exception
    scores = json.loads(result.stdout)
    assert scores["sentences"] == 2
    assert scores["chrf"] == 100


def test_evaluate_refuses_a_wrong_number_of_hypotheses(folder):
    (folder / "test.tsv").write_text("eins\tone\n\tnothing\ndrei\tthree\n")
    (folder / "mine.en").write_text("one\n" * 4)
    message = error_message(DataError, "evaluate", "translate", "--data", "test.tsv", "--hypotheses", "mine.en")
    assert "3 lines, one for each pair, or 2 for those that were not skipped" in message
    assert "got:      4" in message


def test_evaluate_names_the_line_of_an_overlong_text(folder):
    transformer().model.save(folder / "m")
    rows = ["Zwei Hunde\tTwo dogs", "\tno source", "Zwei Hunde " * 3000 + "\tTwo", "Zwei\t" + "Two dogs " * 3000]
    (folder / "test.tsv").write_text("".join(f"{row}\n" for row in rows))
    arguments = ["evaluate", "translate", "--model", "m", "--beam", "1", "--data"]
    assert "the source in line 3 of test.tsv is too long" in error_message(DataError, *arguments, "test.tsv")
    (folder / "long.tsv").write_text(f"{rows[0]}\n{rows[3]}\n")
    (folder / "gold").write_text("0-0\n0-0\n")
    assert "the target in line 2 of long.tsv is too long" in error_message(
        DataError, *arguments, "long.tsv", "--gold", "gold"
    )


def test_evaluate_accepts_gold_links_of_skipped_pairs(folder):
    transformer().model.save(folder / "m")
    (folder / "test.tsv").write_text("Zwei Hunde\tTwo dogs\n\tno source at all\nHunde\tdogs\n")
    (folder / "gold").write_text("0-0 1-1\n0-2\n0-0\n")
    arguments = ["--model", "m", "--beam", "1", "--data", "test.tsv", "--gold", "gold", "--format", "json"]
    result = run("evaluate", "translate", *arguments)
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout)["sentences"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--hypotheses", "mine.en", "--beam", "9", "--device", "cpu"],
            "--beam, --device has no effect without --model",
        ),
        (["--hypotheses", "mine.en", "--length-penalty", "1"], "--length-penalty has no effect without --model"),
        (["--hypotheses", "mine.en", "--batch-tokens", "64"], "--batch-tokens has no effect without --model"),
        (["--model", "m", "--gold-first", "0"], "--gold-first has no effect without --gold"),
        (["--model", "m", "--beam", "1", "--length-penalty", "nan"], "wrong length_penalty"),
    ],
)
def test_evaluate_refuses_options_without_effect(folder, arguments, words):
    assert words in error_message(OptionError, "evaluate", "translate", "--data", "pairs.tsv", *arguments)


def test_evaluate_checks_options_and_data_before_translating(folder, monkeypatch):
    """Steps that follow hours of translating are checked before it."""
    transformer().model.save(folder / "m")
    recurrent("none").model.save(folder / "blind")
    (folder / "test.tsv").write_text("Zwei Hunde\tTwo dogs\nHunde\tdogs\n")
    (folder / "gold").write_text("0-0\n7-7\n")
    monkeypatch.setattr(Translator, "stream", lambda *_, **__: pytest.fail("it translates"))
    with_model = ["evaluate", "translate", "--data", "test.tsv", "--model", "m"]
    assert "tokenization" in error_message(OptionError, *with_model, "--tokenize", "chars")
    assert "link 7-7 points to a word that does not exist" in error_message(DataError, *with_model, "--gold", "gold")
    blind = ["evaluate", "translate", "--data", "test.tsv", "--model", "blind", "--gold", "gold"]
    assert "without attention" in error_message(RefusedError, *blind)
    (folder / "test.tsv").write_text("Zwei Hunde\tTwo dogs\n" * 2000 + "Zwei Hunde " * 3000 + "\tTwo\n")
    assert "the source in line 2001 of test.tsv is too long" in error_message(DataError, *with_model)


def test_evaluate_skips_pairs_without_gold_links(folder):
    transformer().model.save(folder / "m")
    (folder / "test.tsv").write_text("Zwei Hunde\tTwo dogs\n" * 5)
    (folder / "all.naacl").write_text("".join(f"{number} 1 1\n{number} 2 2 P\n" for number in range(1, 6)))
    (folder / "some.naacl").write_text("2 1 1\n2 2 2 P\n")
    arguments = ["evaluate", "translate", "--model", "m", "--beam", "1", "--data", "test.tsv", "--format", "json"]
    every, some = (run(*arguments, "--gold", f"{name}.naacl") for name in ("all", "some"))
    assert some.exit_code == 0, some.exception
    assert "4 of 5 pairs do not count for AER: some.naacl has no line for them; the first is pair 1" in some.stderr
    rates = [json.loads(one.stdout)["alignment"]["error_rate"] for one in (every, some)]
    assert rates[0] == pytest.approx(rates[1])
    (folder / "test.tsv").write_text("Zwei Hunde\tTwo dogs\n\tno source\n")
    assert "aligns none of the pairs" in error_message(DataError, *arguments, "--gold", "some.naacl")


def test_tilde_in_out_is_the_home_directory(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    (folder / "m").mkdir()
    (folder / "m" / "thesis.txt").write_text("years of work")
    assert "thesis.txt" in error_message(OutputExistsError, *TRAIN[:-4], "--steps", "1", "--out=~/m", "--overwrite")
    assert (folder / "m" / "thesis.txt").exists()
    assert not (folder / "~").exists()
    assert "a home directory" in error_message(
        OptionError, *TRAIN[:-4], "--steps", "1", "--out=~nobody-has-this-name/m"
    )


@pytest.mark.parametrize("wrong", [["--schedule", "cosine"], ["--rate", "0"], ["--set", "layers=0"], ["--set", "x=1"]])
def test_invalid_numbers_are_refused_before_the_data_is_read(folder, wrong):
    arguments = ["train", "translate", "--data", "nowhere.tsv", "--out", "m", *wrong]
    error_message(OptionError, *arguments)


def test_resumed_run_refuses_changed_settings(folder):
    """Settings that the data or the version decided may be given explicitly, but not changed."""
    assert run(*TRAIN, "--dtype", "float32").exit_code == 0
    again = [*TRAIN[:-1], "3", "--dtype", "float32", "--resume"]
    result = run(*again, "--model", "tiny", "--warmup", "1", "--set", "layers=4")
    assert result.exit_code == 0, result.exception
    assert "another --warmup" in error_message(OutputExistsError, *again, "--warmup", "7")
    assert "another --set layers=...\n" in error_message(OutputExistsError, *again, "--set", "layers=2")
    assert "another --model or --batch-tokens\n" in error_message(OutputExistsError, *again, "--model", "small")
    sized = [*again, "--model", "small", "--batch-tokens", "2048"]
    assert "another --model or --set width=...\n" in error_message(OutputExistsError, *sized)
    assert "another --model" in error_message(OutputExistsError, *again, "--model", "gru")


def test_default_warmup_is_at_most_a_tenth_of_the_run(folder):
    """And that of the run where it is resumed with more steps; a warm-up that was asked for is kept."""
    result = run(*TRAIN[:-1], "20", "--dtype", "float32")
    assert "a warm-up of 2 steps in place of 500: the run has 20" in result.stderr
    assert json.loads((folder / "m.run" / "run.json").read_text())["warmup"] == 2
    assert run(*TRAIN[:-1], "31", "--dtype", "float32", "--resume").exit_code == 0
    assert json.loads((folder / "m.run" / "run.json").read_text())["warmup"] == 2
    run(*TRAIN[:-1], "3", "--dtype", "float32", "--warmup", "30", "--overwrite")
    assert json.loads((folder / "m.run" / "run.json").read_text())["warmup"] == 30


def test_resumed_run_keeps_unrelated_files_in_the_model_folder(folder):
    assert run(*TRAIN, "--dtype", "float32").exit_code == 0
    (folder / "m" / "dog.html").write_text("a page")
    (folder / "m" / ".DS_Store").write_bytes(b"")
    result = run(*TRAIN[:-1], "3", "--dtype", "float32", "--resume")
    assert result.exit_code == 0, result.exception
    assert (folder / "m" / "dog.html").read_text() == "a page"
    assert "dog.html" in error_message(OutputExistsError, *TRAIN, "--overwrite")


def test_resumed_cosine_schedule_refuses_another_number_of_steps(folder):
    """More steps would raise the learning rate again in the middle of a run."""
    cosine = ["--schedule", "cosine", "--warmup", "0", "--dtype", "float32"]
    assert run(*TRAIN, *cosine).exit_code == 0
    assert "another --steps" in error_message(OutputExistsError, *TRAIN[:-1], "3", *cosine, "--resume")
    assert run(*TRAIN, *cosine, "--resume").exit_code == 0


def test_resumed_cosine_schedule_refuses_other_epochs_that_end_it(folder):
    cosine = ["--schedule", "cosine", "--warmup", "0", "--dtype", "float32", "--epochs", "1"]
    assert run(*TRAIN[:-2], *cosine).exit_code == 0
    assert "another cosine_epochs" in error_message(OutputExistsError, *TRAIN[:-2], *cosine[:-1], "2", "--resume")
    result = run(*TRAIN[:-2], *cosine, "--resume")
    assert result.exit_code == 0
    assert "the end of its schedule" in result.stderr


def test_other_steps_are_named_where_the_warm_up_follows_from_them(folder):
    (folder / "texts.txt").write_text("a text of some words\n" * 90)
    small = ["--set", "layers=1", "--set", "width=32", "--block", "16", "--batch", "2", "--dtype", "float32"]
    arguments = ["train", "lm", "--data", "texts.txt", "--out", "m", "--tokenizer", "characters", *small]
    assert run(*arguments, "--steps", "10").exit_code == 0
    message = error_message(OutputExistsError, *arguments, "--steps", "30", "--resume")
    assert "another --steps" in message
    assert "expected: 10" in message


def test_an_encoder_is_no_start_of_a_language_model(folder):
    masked_language_model("bert").save("bert")
    (folder / "texts.txt").write_text("a text\n")
    arguments = ["train", "lm", "--data", "texts.txt", "--from", "bert", "--out", "m"]
    assert "regard train mlm --from" in error_message(CheckpointError, *arguments)
    message = error_message(OptionError, *arguments, "--lora", "2", "--lora-alpha", "-1")
    assert "wrong --lora-alpha\n" in message
    arguments = ["train", "mlm", "--data", "texts.txt", "--out", "m", "--mask-share", "2"]
    assert "wrong --mask-share\n" in error_message(OptionError, *arguments)


class TestFineTuning:
    @pytest.fixture
    def base_model(self, folder):
        model = transformer(width=24, heads=4).model
        model.metadata = {"languages": ["de", "en"]}
        model.save(folder / "old")
        return "old"

    @pytest.mark.parametrize(
        "option",
        [
            ["--set", "dropout=0.2"],
            ["--attention", "additive"],
            ["--vocabulary", "500"],
            ["--subwords", "unigram"],
            ["--sharing", "joint"],
        ],
        ids=" ".join,
    )
    def test_architecture_options_are_refused(self, folder, base_model, option):
        message = error_message(OptionError, *TRAIN, "--model", base_model, *option)
        assert "fine-tuning cannot change" in message
        assert option[0] in message
        assert not (folder / "m.run").exists()

    def test_languages_of_the_base_model_are_kept(self, folder, base_model):
        result = run(*TRAIN, "--model", base_model)
        assert result.exit_code == 0, result.exception
        assert json.loads((folder / "m" / "about.json").read_text())["languages"] == ["de", "en"]


def test_a_run_that_learned_nothing_advises_to_continue(folder):
    result = run(*TRAIN)
    assert result.exit_code == 0, result.exception
    lines = result.stderr.splitlines()
    advice = lines[lines.index("m: chrF 0.00 on held-out pairs, after 1 step") + 1]
    assert re.fullmatch(
        r"nothing learned yet, since a model that ignores its input has chrF [\d.]+ on held-out pairs: "
        "continue with --resume --steps 10",
        advice,
    )


def test_the_precision_is_said_after_the_data(folder):
    lines = run(*TRAIN).stderr.splitlines()
    (place,) = [index for index, line in enumerate(lines) if line.startswith("multiplying in ")]
    assert "pairs" in lines[0]
    assert any("the model: " in line for line in lines[:place])
