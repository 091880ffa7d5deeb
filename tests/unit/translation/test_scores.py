"""BLEU and chrF against their definitions, and errors."""

import logging
import math
import random
import sys
from collections import Counter

import pytest

from regard.errors import DataError, MissingPackageError, OptionError
from regard.translation.scores import TOKENIZATIONS, Scorer, choose_tokenization, score

WORDS = ["a", "girl", "in", "the", "red", "coat", "runs", "over", "A", "bridge"]


def sentences(count, seed, originals=None):
    """Random sentences of words; with ``originals``, these with some words replaced."""
    draw = random.Random(seed)
    if originals is None:
        return [" ".join(draw.choices(WORDS, k=draw.randint(4, 11))) for _ in range(count)]
    return [" ".join(w if draw.random() < 0.8 else draw.choice(WORDS) for w in one.split()) for one in originals]


def bleu(hypotheses, references):
    """BLEU (Papineni et al. 2002, sections 2.1 to 2.3) over words between spaces, without smoothing."""
    ours, theirs = [one.split() for one in hypotheses], [one.split() for one in references]
    total = 0.0
    for n in range(1, 5):
        right = written = 0
        for left, known in zip(ours, theirs, strict=True):
            grams = Counter(tuple(left[i : i + n]) for i in range(len(left) - n + 1))
            others = Counter(tuple(known[i : i + n]) for i in range(len(known) - n + 1))
            right += sum(min(times, others[gram]) for gram, times in grams.items())
            written += sum(grams.values())
        total += math.log(right / written) / 4
    length, reference = (sum(map(len, one)) for one in (ours, theirs))
    return 100 * math.exp(min(0.0, 1 - reference / length)) * math.exp(total)


def chrf(hypothesis, reference, beta=2, longest=6):
    """chrF (Popović 2015, section 2) of one sentence: mean precision and recall over n, without spaces."""
    ours, known = hypothesis.replace(" ", ""), reference.replace(" ", "")
    precisions, recalls = [], []
    for n in range(1, longest + 1):
        grams = Counter(ours[i : i + n] for i in range(len(ours) - n + 1))
        others = Counter(known[i : i + n] for i in range(len(known) - n + 1))
        right = sum(min(times, others[gram]) for gram, times in grams.items())
        precisions.append(right / sum(grams.values()))
        recalls.append(right / sum(others.values()))
    precision, recall = sum(precisions) / longest, sum(recalls) / longest
    return 100 * (1 + beta**2) * precision * recall / (beta**2 * precision + recall)


@pytest.mark.parametrize("seed", range(5))
def test_bleu_agrees_with_the_definition(seed):
    references = sentences(37, seed)
    hypotheses = sentences(37, seed + 100, originals=references)
    hypotheses[3] = " ".join(hypotheses[3].split()[:2])  # shorter, so that the brevity penalty applies
    actual = score(hypotheses, references, tokenize="none")
    assert actual.bleu == pytest.approx(bleu(hypotheses, references), abs=1e-9)
    assert actual.sentences == 37
    words = [sum(len(one.split()) for one in side) for side in (hypotheses, references)]
    assert actual.length_ratio == pytest.approx(words[0] / words[1])


@pytest.mark.parametrize("seed", range(3))
def test_lowercase_option(seed):
    references = sentences(11, seed)
    hypotheses = [one.title() for one in sentences(11, seed + 100, originals=references)]
    lowered = [[one.lower() for one in side] for side in (hypotheses, references)]
    actual = score(hypotheses, references, tokenize="none", lowercase=True)
    assert actual.bleu == pytest.approx(bleu(*lowered), abs=1e-9)
    assert actual.chrf == pytest.approx(score(*lowered).chrf, abs=1e-9)
    assert actual.bleu > score(hypotheses, references, tokenize="none").bleu


def test_chrf_agrees_with_the_definition():
    one, other = "the girl in the red coat runs", "a girl in a coat ran over the bridge"
    assert score([one], [other]).chrf == pytest.approx(chrf(one, other), abs=1e-9)


def test_scores_of_equal_and_of_disjoint_texts():
    references = sentences(7, 1)
    best = score(references, references)
    assert (best.bleu, best.chrf, best.length_ratio) == pytest.approx((100, 100, 1))
    worst = score(["xyz xyz xyz xyz"], ["a b c d"])
    assert (worst.bleu, worst.chrf) == (0, 0)


def test_signatures_name_the_settings():
    actual = score(["a b c d"], ["a b c d"], tokenize="intl", lowercase=True)
    assert {"nrefs:1", "case:lc", "tok:intl", "smooth:exp"} <= set(actual.bleu_signature.split("|"))
    assert {"nrefs:1", "case:lc", "nc:6", "nw:0"} <= set(actual.chrf_signature.split("|"))


@pytest.mark.parametrize(
    ("language", "tokenization"),
    [
        ("zh", "zh"),
        ("zh-Hans", "zh"),
        ("ZH_TW", "zh"),
        ("cmn", "zh"),
        ("zho_Hant", "zh"),
        ("yue", "zh"),
        ("ja", "char"),
        ("jpn", "char"),
        ("th", "char"),
        ("tha", "char"),
        ("de", "13a"),
        ("ko", "13a"),
    ],
)
def test_tokenization_of_each_language(language, tokenization):
    assert choose_tokenization(language) == tokenization
    assert f"tok:{tokenization}" in score(["天気"], ["天気"], language=language).bleu_signature.split("|")


@pytest.mark.parametrize(
    ("text", "tokenization"),
    [
        ("今天天气很好。", "zh"),
        ("请打开 JupyterLab 设置", "zh"),
        ("今日は天気がいいです。", "char"),
        ("ฉันรักแมว", "char"),
        ("ຂ້ອຍຮັກແມວ", "char"),
        ("ကျွန်တော် ကြောင်ချစ်တယ်", "char"),
        ("ខ្ញុំស្រលាញ់ឆ្មា", "char"),
        ("안녕하세요 여러분", "13a"),
        ("The sign 中 means middle.", "13a"),
        ("Guten Tag", "13a"),
        ("42", "13a"),
        ("", "13a"),
    ],
)
@pytest.mark.parametrize("language", [None, ""])
def test_language_is_recognized_by_its_script(text, tokenization, language):
    assert choose_tokenization(language, [text]) == tokenization
    assert f"tok:{tokenization}" in score(["?"], [text], language=language).bleu_signature.split("|")
    assert choose_tokenization("en", [text]) == "13a"


def test_languages_without_spaces_are_tokenized():
    hypothesis, reference = "今天天气很好我们走吧", "今天天气不好我们走吧"
    assert score([hypothesis], [reference], language="en").bleu == 0
    spaced = [" ".join(one) for one in (hypothesis, reference)]
    by_characters = bleu(spaced[:1], spaced[1:])
    assert score([hypothesis], [reference], language="zh").bleu == pytest.approx(by_characters)
    assert score([hypothesis], [reference], language="ja").bleu == pytest.approx(by_characters)
    assert score([hypothesis], [reference], language="zh", tokenize="none").bleu == 0


def test_no_warning_for_tokenized_text(caplog):
    with caplog.at_level(logging.DEBUG):
        score(["so it is ."] * 101, ["so it was ."] * 101, tokenize="none")
    assert not caplog.records


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], ["a", "b"]), (["a", "b", "c"], ["a"])])
def test_different_numbers_of_texts_are_refused(hypotheses, references):
    with pytest.raises(DataError, match=rf"{len(references)} translations, one[\s\S]*{len(hypotheses)}"):
        score(hypotheses, references)


def test_no_texts_are_refused():
    with pytest.raises(DataError, match="nothing to score"):
        score([], [])


def test_unknown_tokenization_error_lists_the_known_ones():
    with pytest.raises(OptionError, match=r"13a[\s\S]*did you mean 'intl'"):
        score(["a"], ["a"], tokenize="internl")


def test_scorer_checks_its_options_before_scoring(monkeypatch):
    with pytest.raises(OptionError, match="internl"):
        Scorer(["a"], tokenize="internl")
    with pytest.raises(DataError, match="2 translations, one"):
        Scorer(["a", "b"]).score(["a"])
    references = sentences(7, 1)
    assert Scorer(references, lowercase=True).score(references) == score(references, references, lowercase=True)
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingPackageError):
        Scorer(["a"])


def test_missing_sacrebleu(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'regard\[train\]'"):
        score(["a"], ["a"])


@pytest.mark.parametrize(("tokenization", "extra"), [("ja-mecab", "ja"), ("ko-mecab", "ko")])
def test_missing_tokenization_package(tokenization, extra, monkeypatch):
    monkeypatch.setattr(f"sacrebleu.tokenizers.tokenizer_{tokenization.replace('-', '_')}.MeCab", None)
    with pytest.raises(MissingPackageError, match=rf"pip install 'sacrebleu\[{extra}\]'"):
        score(["a"], ["a"], tokenize=tokenization)


def test_sacrebleu_has_all_offered_tokenizations():
    from sacrebleu.metrics.bleu import BLEU

    assert set(TOKENIZATIONS) <= set(BLEU.TOKENIZERS)


@pytest.mark.parametrize(("chinese", "tokenization"), [(2, "zh"), (1, "13a")])
def test_a_language_is_guessed_from_more_than_a_fifth_of_the_letters(chinese, tokenization):
    """2 of 9 letters are more than a fifth, 1 of 5 is not."""
    latin = {2: "sevenab", 1: "four"}[chinese]
    assert choose_tokenization(None, ["\u732b" * chinese + " 12 " + latin]) == tokenization
