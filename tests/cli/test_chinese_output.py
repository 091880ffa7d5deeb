"""What commands print in Chinese: no English is left but names, options, code and what users wrote."""

import re

import pytest
from test_audit import MODULE
from test_conform import KERNEL

from regard.language import use_language
from shell_command import run
from small_classifiers import write_texts

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
