"""What commands print in Chinese: no English is left but names, options, code and what users wrote."""

import re

import pytest
from test_audit import MODULE
from test_conform import KERNEL

from regard.language import use_language
from shell_command import run
from small_audio_models import audio_model
from small_classifiers import classifier, write_texts
from small_gatos import small_gato
from small_language_models import language_model, write_documents
from small_translators import transformer, write_pairs
from sound_files import sound_bytes, tone

NAMES = re.compile(
    r"--?[\w-]+|https?://\S+|regard( [a-z]+)*|\S*[_.(=\[/]\S*|"  # options, addresses, commands, code
    r"（[a-z0-9 ]+）|\([\w ,]+\)|"  # names that options take
    r"\b(minilm|PyTorch|JSON|CPU|kB|MB|ms|RoPE|ALiBi|BLEU|chrF|softmax|float\d+|bfloat16|numpy|NumPy|NaN|nan|inf|Inf|Layer|F1|"
    r"Embedding|Sequential|CLS|SEP|AVX|AMX|torch|exclusive|dot|product|BERT|GPT|ID|output|input|dropout|transformers|generate|strict|scale|softcap|sinks|bias|mask|tiny|sinusoidal|MLP)\b"
)
"""Names, units and terms that are the same in Chinese."""
TEXT = "我吃了一个苹果。"


def english_words(output: str, names: str = "") -> set[str]:
    """The words of Latin letters in an output, without names."""
    words = set(re.findall(r"[A-Za-z]{3,}", NAMES.sub(" ", output)))
    return words - set(names.split())


def chinese(*arguments: object, exit_code: int = 0) -> str:
    """Both streams of a command, on a terminal that breaks no line."""
    with use_language("zh"):
        result = run(*arguments, columns=1000)
    assert result.exit_code == exit_code, result.exception or result.output
    return str(result.output)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with functions to audit and to try, and texts to train on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "audited_in_chinese.py").write_text(MODULE.replace("DIAGONAL", "2"), encoding="utf-8")
    (tmp_path / "tried_in_chinese.py").write_text(KERNEL, encoding="utf-8")
    write_texts(tmp_path / "texts.tsv", 40)
    return tmp_path


def test_view_embed_and_list():
    assert english_words(chinese("view", TEXT)) == set()
    assert english_words(chinese("embed", TEXT, TEXT, "-o", "out.npy")) == set()
    costs = [line for line in chinese("list").splitlines() if "；状态：" in line]
    assert len(costs) > 20
    assert (
        english_words(
            "\n".join(costs),
            "log inner features heads window buckets block keys landmarks projected rounds stride tanh",
        )
        == set()
    )


@pytest.mark.slow
def test_conform_names_arguments_as_they_are_typed():
    output = chinese("conform", "tried_in_chinese:exclusive", exit_code=1)
    assert "参数：q, k, v, causal\n" in output
    assert english_words(output, "causal batch heads length") == set()


@pytest.mark.slow
def test_audit():
    output = chinese("audit", "audited_in_chinese:build", "--quick", exit_code=1)
    assert english_words(re.sub(r"未检验：[^（]*（", "", output)) == set()  # with the names that options take


@pytest.mark.slow
def test_training_prints_metrics_and_samples_in_chinese():
    output = chinese("train", "classify", "--data", "texts.tsv", "--out", "model", "--steps", "6", "--model", "tiny")
    assert "准确率 " in output
    assert "预测：" in output
    lines = [line for line in output.splitlines() if not line.startswith("  ")]  # samples are texts of users
    assert english_words("\n".join(lines), "animal plant vehicle model Transformer") == set()


STRAY_SPACE = re.compile(r"[，。：；！？）”] (?=[\u4e00-\u9fff“（])")
"""A space behind full-width punctuation."""


def test_generate_and_evaluate_a_language_model(folder):
    language_model().save(folder / "m")
    write_documents(folder / "documents")
    assert english_words(chinese("generate", "--model", "m", "我", "--max-tokens", 5, "--greedy")) == set()
    assert english_words(chinese("evaluate", "lm", "--model", "m", "--data", "documents")) == set()


def test_view_a_classifier_and_evaluate_it(folder):
    classifier().save("m")
    shown = chinese("view", "--model", "m", TEXT)
    assert english_words(shown, "animal plant vehicle jieba") == set()
    assert STRAY_SPACE.findall(shown) == []
    scores = chinese("evaluate", "classify", "--model", "m", "--data", "texts.tsv")
    assert english_words(scores, "animal plant vehicle") == set()


def test_evaluate_a_translator(folder):
    transformer().model.save(folder / "m")
    write_pairs(folder / "pairs.tsv")
    output = chinese("evaluate", "translate", "--model", "m", "--data", "pairs.tsv")
    assert "pairs.tsv：源文取自第 1 列，译文取自第 2 列；第一行是配对" in output
    signatures = [line for line in output.splitlines() if "version:" not in line]  # of sacrebleu
    assert english_words("\n".join(signatures), "chrF") == set()


def test_transcribe_and_evaluate_it(folder):
    audio_model(labels=(" ", "a", "b"), head="ctc").save("m")
    (folder / "tones").mkdir()
    for number, text in enumerate(("ab a", "b", "ba")):
        (folder / f"tones/{number}.wav").write_bytes(sound_bytes(tone(0.4, hertz=300.0 + 500 * number)))
        (folder / f"tones/{number}.txt").write_text(text)
    assert english_words(chinese("transcribe", "--model", "m", "tones"), "bbb") == set()
    output = chinese("evaluate", "transcribe", "--model", "m", "--data", "tones")
    assert english_words(output, "bbb") == set()
    assert "，每字符" in output
    assert "    文本" in output
    assert STRAY_SPACE.findall(chinese("view", "tones/0.wav", "--model", "m")) == []


@pytest.mark.slow
def test_play(folder):
    small_gato(texts=True, channels=1).save(folder / "m")
    output = chinese("play", "m", "CartPole-v1", "--episodes", 2, "--seed", 7)
    assert english_words(output, "CartPole") == set()
    assert re.search(r"[\d.]+ 到 [\d.]+", output)


@pytest.mark.slow
def test_bench():
    output = chinese("bench", "--mechanism", "linear,longformer", "--length", "64,128", "--seconds", "0.05")
    lines = [line for line in output.splitlines() if "cpu" not in line]  # the name of the processor
    assert len(lines) >= len(output.splitlines()) - 1
    assert english_words("\n".join(lines), "linear longformer") == set()


@pytest.mark.slow
def test_doctor():
    """Exit code 1: torch has faults on every machine, such as NaN behind a mask."""
    output = chinese("doctor", exit_code=1)
    lines = [line for line in output.splitlines() if "RuntimeError" not in line]  # messages of torch
    assert english_words("\n".join(lines), "MATH FLASH ATTENTION EFFICIENT MultiheadAttention") == set()
