"""Sentences that code puts together are Chinese as a whole: nothing but names is left in English."""

from __future__ import annotations

import re
from collections.abc import Iterator

from regard.conformance.attention_cases import Sizes, attention_cases
from regard.conformance.kernel import MASK_FORMS
from regard.conformance.other_cases import mechanism_cases, scan_cases
from regard.conformance.report import Finding
from regard.language import count_noun, translate_message, use_language
from regard.mechanism_catalogue import catalogue

NAMES = re.compile(r"\b(inf|nan|NaN|True|softcap|sinks?|output|query|key|softmax)\b|1e30")


def english_words(sentence: str) -> list[str]:
    with use_language("zh"):
        return re.findall(r"[A-Za-z]{2,}", NAMES.sub("", translate_message(sentence)))


def sentences() -> Iterator[str]:
    sizes = Sizes()
    cases = [*attention_cases(sizes), *scan_cases("kda", sizes, with_scale=True), *mechanism_cases("linformer", sizes)]
    yield from dict.fromkeys(case.name for case in cases)
    yield from MASK_FORMS.values()
    yield Finding("output", 0.1, 1e-5, "most at batch 0, head 1, token 3, channel 2").describe()
    yield Finding("gradient of key", float("inf"), 1e-5).describe()
    yield from ("2 right, 70 wrong, 15 not tried", "mask: True may attend")
    for row in catalogue():
        yield f"n; state: {row.state}; masks: {row.masks}"


def test_sentences_of_conformance_and_of_the_catalogue() -> None:
    assert {text: words for text in sentences() if (words := english_words(text))} == {}


def test_one_is_counted_with_the_template_of_several() -> None:
    counted = [count_noun(number, noun) for noun in ("query", "CPU thread", "batch") for number in (0, 1, 2_000)]
    assert counted[:3] == ["0 queries", "1 query", "2,000 queries"]
    assert counted[-2:] == ["1 batch", "2,000 batches"]
    with use_language("zh"):
        assert [translate_message(text) for text in counted[1:5]] == [
            "1 个查询",
            "2,000 个查询",
            "0 个 CPU 线程",
            "1 个 CPU 线程",
        ]
        assert translate_message("cut 1 of 3 texts at 1 token") == translate_message("cut 1 of 3 texts at 1 tokens")
