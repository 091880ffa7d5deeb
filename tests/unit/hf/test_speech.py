"""Speech models of ``transformers``: cross-attention equals that of "eager", words have times; and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.errors import CheckpointError, DataError, RefusedError
from regard.hf.load_checkpoint import load_checkpoint
from regard.hf.speech_checkpoint import load_speech_checkpoint
from regard.transcription.attention_times import find_attention_times
from regard.view import read_file
from small_checkpoints import save_checkpoint
from small_speech_models import MULTILINGUAL, SIZES, SPECIAL, WORDS, save_speech_model
from sound_files import sound_bytes, tone

SECONDS = 1.3
SOUND = (tone(SECONDS, rate=16000) + 0.2 * np.random.default_rng(0).normal(size=20800)).astype(np.float32)


@pytest.fixture
def whisper(tmp_path: Path) -> Path:
    return save_speech_model("whisper", tmp_path / "whisper")


@pytest.mark.parametrize(
    ("kind", "frames", "seconds"),
    [("whisper", 65, 0.02), ("speech_to_text", 32, 1.3 / 32), ("moonshine", 52, 1.3 / 52)],
)
def test_weights_and_text_are_those_of_the_model(kind: str, frames: int, seconds: float, tmp_path: Path) -> None:
    assert set(SIZES) == {"whisper", "speech_to_text", "moonshine"}
    checkpoint = load_speech_checkpoint(save_speech_model(kind, tmp_path))
    reading = read_file(checkpoint, SOUND, name="talk.wav")
    model = transformers.AutoModelForSpeechSeq2Seq.from_pretrained(tmp_path, attn_implementation="eager").eval()
    inputs = checkpoint.extractor(SOUND, sampling_rate=16000, return_tensors="pt")[model.main_input_name]
    with torch.no_grad():
        whole = {"force_unique_generate_call": True} if kind == "whisper" else {}  # with the end
        written = model.generate(inputs, do_sample=False, num_beams=1, max_new_tokens=13, **whole)[0].tolist()
        written = written[1:] if written[0] == 1 else written
        output = model(inputs, decoder_input_ids=torch.tensor([[1, *written[:-1]]]), output_attentions=True)
    skipped = next(at for at, token_id in enumerate(written) if token_id >= len(SPECIAL))
    names = [WORDS[token_id] for token_id in written[skipped:]]
    assert [reading.layers[0].name_of(step) for step in range(len(names))] == names
    assert reading.track.text.replace(" ", "") == "".join(name for name in names if name not in SPECIAL)
    assert len(reading.layers) == len(output.cross_attentions) == 3
    for layer, weights in zip(reading.layers, output.cross_attentions, strict=True):
        np.testing.assert_allclose(layer.attention.weights(), weights[0, :, skipped:, :frames].double(), atol=1e-5)
        assert layer.key_grid.tokens == frames
    assert reading.axis.seconds_per_token == pytest.approx(seconds)
    assert reading.axis.seconds == pytest.approx(SECONDS)
    assert reading.layers[0].name_of_key(3) == f"{3 * seconds:.2f} s"


def test_times_come_from_the_heads_that_follow_or_that_the_model_names(whisper: Path) -> None:
    reading = read_file(load_speech_checkpoint(whisper), SOUND)
    weights = [layer.attention.weights() for layer in reading.layers]
    expected = find_attention_times(weights)
    labels = reading.track.labels
    assert [(label.start, label.end) for label in labels] == [
        pytest.approx(tuple(np.minimum(0.02 * expected.frames[label.queries.start], SECONDS))) for label in labels
    ]
    assert reading.track.best_head == expected.heads[0][:2]
    assert f"layer {expected.heads[0].layer} head {expected.heads[0].head} (" in reading.track.timing
    assert "No head follows it well" in reading.track.timing
    named = save_speech_model("whisper", whisper.with_name("named"), alignment_heads=[[1, 2], [0, 3]])
    track = read_file(load_speech_checkpoint(named), SOUND).track
    assert "which the model names for it" in track.timing
    assert track.best_head in ((1, 2), (0, 3))
    given = find_attention_times(weights, [(1, 2), (0, 3)])
    assert [label.start for label in track.labels] == pytest.approx(
        [0.02 * given.frames[label.queries.start, 0] for label in track.labels]
    )


def test_a_prompt_with_language_and_task_is_no_text(tmp_path: Path) -> None:
    """The steps are those after the four tokens of the prompt, with which the model is called again."""
    folder = save_speech_model("whisper", tmp_path, **MULTILINGUAL)
    checkpoint = load_speech_checkpoint(folder)
    prompts: list[list[int]] = []
    checkpoint.model.register_forward_pre_hook(
        lambda _, __, options: prompts.append(options["decoder_input_ids"][0].tolist()), with_kwargs=True
    )
    reading = read_file(checkpoint, SOUND)
    assert prompts[-1][:4] == [1, 3, 4, 5]
    steps = [WORDS[token_id] for token_id in prompts[-1][4:]]
    assert steps
    assert [reading.layers[0].name_of(step) for step in range(len(steps))] == steps
    assert reading.layers[0].grid.tokens == len(steps) + 1


def test_a_text_that_stops_at_the_limit_says_so(whisper: Path) -> None:
    written = load_speech_checkpoint(whisper).write(SOUND, name="talk.wav")
    assert written.is_complete == (2 in [WORDS.index(piece) for piece in written.tokens.pieces])
    timing = read_file(load_speech_checkpoint(whisper), SOUND).track.timing
    assert ("the most that the model writes" in timing) == (not written.is_complete)


def test_show_takes_a_folder_and_the_path_of_a_sound(whisper: Path, tmp_path: Path) -> None:
    (tmp_path / "talk.wav").write_bytes(sound_bytes(SOUND, 16000))
    for source in (whisper, load_speech_checkpoint(whisper)):
        view = regard.show(source, str(tmp_path / "talk.wav"))
        assert view.readings[0].track.words
    with pytest.raises(RefusedError, match="reads sounds and not texts"):
        regard.show(whisper, "a text")


def test_what_cannot_be_read_is_refused(whisper: Path, tmp_path: Path) -> None:
    checkpoint = load_speech_checkpoint(whisper)
    with pytest.raises(DataError, match="at most 2 seconds"):
        read_file(checkpoint, tone(2.1, rate=16000))
    with pytest.raises(RefusedError, match=r"(?s)speech model, which reads sounds.*regard view talk.wav --model"):
        load_checkpoint(whisper)
    with pytest.raises(RefusedError, match=r"(?s)reads no sounds.*'t5'"):
        load_speech_checkpoint(save_checkpoint("t5", tmp_path / "t5"))
    (whisper / "tokenizer.json").rename(whisper / "other.json")
    with pytest.raises(CheckpointError, match=r"has no tokenizer.json"):
        load_speech_checkpoint(whisper)
    (whisper / "other.json").rename(whisper / "tokenizer.json")
    (whisper / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match="cannot be loaded by transformers"):
        load_speech_checkpoint(whisper)


@pytest.mark.parametrize("heads", [7, [[1, 2, 3]], ["ab"], [[9, 0]]])
def test_wrong_heads_of_alignment_are_refused(heads: object, whisper: Path) -> None:
    folder = save_speech_model("whisper", whisper, alignment_heads=heads)
    with pytest.raises((CheckpointError, DataError), match="alignment_heads"):
        read_file(load_speech_checkpoint(folder), SOUND)


def test_a_sound_without_words_is_refused(whisper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_speech_checkpoint(whisper)
    monkeypatch.setattr(type(checkpoint), "_write_ids", lambda *_: torch.tensor([[1, 2]]))
    with pytest.raises(DataError, match=r"wrote no words for talk.wav"):
        read_file(checkpoint, SOUND, name="talk.wav")


def test_an_error_inside_the_model_is_explained(whisper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = load_speech_checkpoint(whisper)

    def fail(*_: object, **__: object) -> None:
        raise IndexError("index out of range")

    monkeypatch.setattr(type(checkpoint.model), "generate", fail)
    with pytest.raises(RefusedError, match=r"(?s)cannot read talk.wav.*IndexError"):
        read_file(checkpoint, SOUND, name="talk.wav")
