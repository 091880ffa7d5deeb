"""``regard classify``, ``embed``, ``evaluate`` and ``view`` with a model of sounds."""

import json

import numpy as np
import pytest
import soundfile

from regard.classification import MediaClassifier, embed_files
from regard.errors import DataError, OptionError, RefusedError
from shell_command import error_message, output, run, shell_message
from small_audio_models import audio_model
from small_checkpoints import save_checkpoint
from small_speech_models import save_speech_model
from sound_files import sound_bytes, tone

PATHS = ["tones/high/0.wav", "tones/low/0.wav", "tones/low/1.wav"]


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = audio_model(labels=("high", "low"))
    built.save("m")
    for label, index, hertz in (("high", 0, 1500), ("low", 0, 300), ("low", 1, 270)):
        (tmp_path / "tones" / label).mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "tones" / label / f"{index}.wav", tone(0.2 + 0.1 * index, hertz=hertz), 8000)
    return built


def test_classify_writes_a_line_for_each_sound(model):
    expected = MediaClassifier(model).classify(PATHS)
    lines = [json.loads(line) for line in output("classify", "--model", "m", "tones", "--format", "jsonl").splitlines()]
    assert [line["sound"] for line in lines] == PATHS
    assert [tuple(line["labels"]) for line in lines] == [one.labels for one in expected]
    assert [line["probabilities"] for line in lines] == [pytest.approx(one.probabilities, abs=1e-5) for one in expected]


def test_hidden_files_are_left_out_and_paths_are_no_texts(model, tmp_path):
    expected = output("classify", "--model", "m", "tones")
    (tmp_path / "tones" / ".trash").mkdir()
    for name in ("._0.wav", ".trash/0.wav"):
        (tmp_path / "tones" / name).write_bytes(b"\0\5\x16\7")
    for arguments in (["tones"], ["--data", "tones"], PATHS):
        result = run("classify", "--model", "m", *arguments)
        assert (result.stdout, result.stderr) == (expected, "")
    assert output("embed", "--model", "m", "tones").count("\n") == 3


def test_broken_sounds_stop_or_have_no_label(model, tmp_path):
    (tmp_path / "bad.wav").write_bytes(b"RIFF")
    stopped = run("classify", "--model", "m", PATHS[0], "bad.wav", PATHS[1])
    assert isinstance(stopped.exception, DataError)
    assert "bad.wav is not a sound that can be read" in shell_message(stopped.exception)
    assert len(stopped.stdout.splitlines()) == 1
    lines = output("classify", "--model", "m", PATHS[0], "bad.wav", PATHS[1], "--skip-bad", "--format", "labels")
    assert [line == "" for line in lines.splitlines()] == [False, True, False]
    for options, facts in ((["--threshold", "0.5"], "options of texts"), (["--labels", "a,b"], "options of a CLIP")):
        assert facts in error_message(OptionError, "classify", "--model", "m", PATHS[0], *options)


def test_evaluate_scores_labelled_sounds(model, tmp_path):
    found = MediaClassifier(model).classify(PATHS)
    right = [one.label == path.split("/")[1] for one, path in zip(found, PATHS, strict=True)]
    scores = json.loads(output("evaluate", "classify", "--model", "m", "--data", "tones", "--format", "json"))
    assert (scores["sounds"], scores["accuracy"]) == (3, pytest.approx(np.mean(right)))
    (tmp_path / "list.csv").write_text("audio,label\ntones/low/0.wav,middle\n")
    unknown = error_message(DataError, "evaluate", "classify", "--model", "m", "--data", "list.csv")
    assert "sounds have labels that the model lacks" in unknown
    assert "'middle'" in unknown


def test_embed_writes_pooled_vectors(model, tmp_path):
    output("embed", "--model", "m", *PATHS, "-o", "v.npy")
    np.testing.assert_allclose(np.load("v.npy"), embed_files(model, PATHS).numpy(), atol=1e-5)
    before = sorted(tmp_path.iterdir())
    assert "cannot read none.wav" in error_message(DataError, "embed", "--model", "m", "none.wav", "-o", "w.npy")
    assert sorted(tmp_path.iterdir()) == before


def test_view_shows_labels_and_times(model, tmp_path):
    said = output("view", PATHS[0], "--model", "m", "-o", "page.html")
    assert "0.00 s" in said
    assert "A token has 40 ms" in said
    assert "data:image/png" in (tmp_path / "page.html").read_text()
    for arguments, facts in (
        ([PATHS[0]], "--model is missing"),
        ([PATHS[0], "--model", "m", "--label", "low"], "--label belongs to pictures"),
        (["A sentence.", "--model", "m"], "reads sounds, not texts"),
        ([PATHS[0], "--model", "m", "--mechanism", "linear"], "--mechanism cannot be used with sounds"),
    ):
        assert facts in error_message(OptionError, "view", *arguments)


def test_view_with_a_speech_model_of_transformers(tmp_path, monkeypatch):
    """Words with their times in the terminal and a page; texts and other models are refused."""
    monkeypatch.chdir(tmp_path)
    save_speech_model("whisper", tmp_path / "whisper")
    (tmp_path / "talk.wav").write_bytes(sound_bytes(tone(0.8, rate=16000), 16000))
    said = output("view", "talk.wav", "--model", "whisper/", "-o", "talk.html")
    assert "dynamic time warping: layer " in said
    assert "Page: talk.html" in said
    assert "data:audio/wav" in (tmp_path / "talk.html").read_text()
    output("view", "talk.wav", "--model", "whisper/", "-o", "talk.svg", "--layer", "1", "--head", "2")
    assert (tmp_path / "talk.svg").exists()
    assert "reads sounds and not texts" in error_message(RefusedError, "view", "a text", "--model", "whisper/")
    save_checkpoint("gpt_neo", tmp_path / "neo")
    assert "reads no sounds" in error_message(RefusedError, "view", "talk.wav", "--model", "neo/")
    save_checkpoint("bert", tmp_path / "bert")
    assert "the model reads no sounds" in error_message(OptionError, "view", "talk.wav", "--model", "bert/")
