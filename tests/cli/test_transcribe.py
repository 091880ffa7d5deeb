"""``regard transcribe``, ``evaluate transcribe`` and ``view`` with a model that writes the texts of sounds."""

import json

import pytest

from regard.errors import CheckpointError, DataError, OptionError
from regard.transcription import Transcriber, score_transcriptions
from shell_command import error_message, output, run, shell_message
from small_audio_models import audio_model
from sound_files import sound_bytes, tone

PATHS = ["tones/0.wav", "tones/1.wav", "tones/2.wav"]
TEXTS = ["ab a", "b", "ba"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = audio_model(labels=(" ", "a", "b"), head="ctc")
    built.save("m")
    (tmp_path / "tones").mkdir()
    for index, (path, text) in enumerate(zip(PATHS, TEXTS, strict=True)):
        (tmp_path / path).write_bytes(sound_bytes(tone(0.4 + 0.1 * index, hertz=300.0 + 500 * index)))
        (tmp_path / path).with_suffix(".txt").write_text(text)
    return built


def test_a_line_for_each_sound(model, tmp_path):
    expected = Transcriber(model).transcribe(PATHS)
    assert any(one.text for one in expected)
    assert output("transcribe", "--model", "m", "tones").splitlines() == [one.text for one in expected]
    rows = [f"{one.name}\t{one.text}" for one in expected]
    assert output("transcribe", "--model", "m", *PATHS, "--format", "tsv").splitlines() == rows
    (tmp_path / "paths.txt").write_text("\n".join(PATHS))
    said = output("transcribe", "--model", "m", "--data", "paths.txt", "--format", "jsonl", "-o", "out.jsonl")
    assert said == ""
    records = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(one["sound"], one["text"]) for one in records] == [(one.name, one.text) for one in expected]
    for record, one in zip(records, expected, strict=True):
        assert [label["text"] for label in record["characters"]] == [label.text for label in one.labels]
        times = [time for label in record["characters"] for time in (label["start"], label["end"])]
        assert times == pytest.approx([time for label in one.labels for time in (label.start, label.end)], abs=1e-3)
        assert times == sorted(times)


def test_words_are_named_so(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    audio_model(labels=(" yes", " no"), head="ctc").save("m")
    (tmp_path / "a.wav").write_bytes(sound_bytes(tone(0.4)))
    record = json.loads(output("transcribe", "--model", "m", "a.wav", "--format", "jsonl"))
    assert record.keys() == {"sound", "text", "words"}
    assert {one["text"] for one in record["words"]} <= {"yes", "no"}
    assert record["text"] == " ".join(one["text"] for one in record["words"])


def test_broken_sounds_stop_or_have_no_text(model, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    stopped = run("transcribe", "--model", "m", PATHS[0], "bad.wav", PATHS[1])
    assert isinstance(stopped.exception, DataError)
    assert "bad.wav is not a sound that can be read" in shell_message(stopped.exception)
    assert len(stopped.stdout.splitlines()) == 1
    skipped = run("transcribe", "--model", "m", PATHS[0], "bad.wav", PATHS[1], "--skip-bad", "--format", "tsv")
    assert [line.split("\t")[0] for line in skipped.stdout.splitlines()] == [PATHS[0], "bad.wav", PATHS[1]]
    assert skipped.stdout.splitlines()[1] == "bad.wav\t"
    assert "without a text: bad.wav is not a sound" in skipped.stderr
    assert "1 sound without a text" in skipped.stderr


def test_evaluate_compares_with_texts(model, tmp_path):
    """Of a folder and of a table; what the command wrote as a table is read, and has no errors."""
    texts = [one.text for one in Transcriber(model).transcribe(PATHS)]
    expected = score_transcriptions(texts, TEXTS)
    scores = json.loads(output("evaluate", "transcribe", "--model", "m", "--data", "tones", "--format", "json"))
    assert (scores["sounds"], scores["exact"]) == (3, expected.exact)
    assert scores["word_error_rate"] == pytest.approx(expected.words.rate)
    assert scores["character_error_rate"] == pytest.approx(expected.characters.rate)
    assert scores["loss"] > 0
    assert scores["without_loss"] == 0
    rates = [one["errors"] / len(one["reference"]) for one in scores["worst"]]
    assert rates == sorted(rates, reverse=True)
    assert sum(one["errors"] for one in scores["worst"]) == sum(expected.errors)
    shown = output("evaluate", "transcribe", "--model", "m", "--data", "tones", "--worst", "1")
    assert f"word error rate {expected.words.rate:.4f}" in shown
    assert "per character" in shown
    assert shown.count("    text   ") == 1
    (tmp_path / "heard.tsv").write_text(output("transcribe", "--model", "m", "tones", "--format", "tsv"))
    again = json.loads(output("evaluate", "transcribe", "--model", "m", "--data", "heard.tsv", "--format", "json"))
    assert (again["character_error_rate"], again["worst"]) == (0, [])


def test_evaluate_counts_texts_that_the_model_cannot_write(model, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    rows = ["where,said", "tones/0.wav,a", "tones/1.wav,axb", f"tones/2.wav,{'ab' * 50}", "bad.wav,a"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    command = ["evaluate", "transcribe", "--model", "m", "--data", "t.csv", "--columns", "where,said"]
    assert "bad.wav (line 5 of t.csv) is not a sound" in error_message(DataError, *command)
    result = run(*command, "--skip-bad")
    assert "skipped 1 because a sound cannot be used: bad.wav" in result.stderr
    assert "2 of the texts cannot be written by the model, and have no loss" in result.stdout


def test_other_commands_with_the_model(model, tmp_path):
    said = output("view", PATHS[0], "--model", "m", "-o", "page.html")
    assert "A token has 40 ms" in said
    assert "Times are those of the tokens for which the model wrote a label." in said
    assert "data:image/png" in (tmp_path / "page.html").read_text()
    assert "regard transcribe" in error_message(CheckpointError, "classify", "--model", "m", PATHS[0])
    audio_model(labels=("high", "low")).save("classifier")
    assert "regard classify" in error_message(CheckpointError, "transcribe", "--model", "classifier", PATHS[0])
    assert "--model FOLDER" in error_message(OptionError, "transcribe", PATHS[0])
    assert "format" in error_message(OptionError, "transcribe", "--model", "m", PATHS[0], "--format", "srt")
    assert "wrong columns of path and text" in error_message(
        OptionError, "evaluate", "transcribe", "--model", "m", "--data", "tones", "--columns", "text,text"
    )


@pytest.mark.parametrize(
    ("options", "kind", "facts"),
    [
        (["--tokenizer", "bpe"], OptionError, "unknown tokenizer"),
        (["--metric", "accuracy"], OptionError, "unknown metric"),
        (["--set", "head=classification"], OptionError, "head is determined by the data"),
        (["--columns", "text"], OptionError, "wrong --columns"),
        (["--from", "m", "--model", "tiny"], OptionError, "fine-tuning cannot change"),
        (["--data", "none"], DataError, "cannot read none"),
    ],
)
def test_training_refuses_what_does_not_fit(model, tmp_path, options, kind, facts):
    command = ["train", "transcribe", "--data", "tones", "--steps", "3", "--dtype", "float32", "--out", "new"]
    assert facts in error_message(kind, *command, *options)
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "new.run").exists()
