"""Words of a text from its tokens' spans, in many scripts."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.chinese_words import ChineseWords
from regard.errors import MissingPackageError
from regard.text.alignments import word_weights
from regard.view.reading import Reading, Tokens
from regard.view.word_grouping import group_chinese_words
from regard.view.words_from_tokens import aggregate_by_word, unknown_words_note, words_note, words_of


def tokens(text: str, *pieces: str) -> Tokens:
    """Tokens of the pieces, which are adjacent in the text, between [CLS] and [SEP]."""
    spans, start = [(0, 0)], 0
    for piece in pieces:
        start = text.index(piece, start)
        spans.append((start, start + len(piece)))
        start += len(piece)
    return Tokens(text, ("[CLS]", *pieces, "[SEP]"), (*spans, (0, 0)), (True, *[False] * len(pieces), True))


@pytest.mark.parametrize(
    ("text", "pieces", "words"),
    [
        ("didn't go", ["didn", "'", "t", "go"], ["didn't", "go"]),
        ("a well-known fact.", ["a", "well", "-", "known", "fact", "."], ["a", "well-known", "fact", "."]),
        ("end- of", ["end", "-", "of"], ["end", "-", "of"]),
        ("'quoted'", ["'", "quoted", "'"], ["'", "quoted", "'"]),
        ("unaffable", ["un", "aff", "able"], ["unaffable"]),
        ("我吃了一个苹果。", list("我吃了一个苹果。"), ["我", "吃", "了", "一个", "苹果", "。"]),
        ("a猫b", ["a", "猫", "b"], ["a", "猫", "b"]),
        ("ありがとう 猫", ["ありが", "とう", "猫"], ["ありがとう", "猫"]),
        ("שָׁלוֹם עולם", ["שָׁ", "לוֹם", "עולם"], ["שָׁלוֹם", "עולם"]),
        ("नमस्ते", ["नम", "स्ते"], ["नमस्ते"]),
        ("wait...", ["wait", ".", ".", "."], ["wait", ".", ".", "."]),
        ("snake_case 3.5", ["snake", "_", "case", "3", ".", "5"], ["snake_case", "3", ".", "5"]),
    ],
)
def test_words(text: str, pieces: list[str], words: list[str]) -> None:
    actual = words_of(tokens(text, *pieces))
    assert [word.text for word in actual] == words
    assert all(word.is_word == any(map(str.isalnum, word.text)) for word in actual)


@pytest.mark.parametrize(
    ("chosen", "words", "note"),
    [
        ("jieba", ["我", "吃", "了", "一个", "苹果", "。"], "Chinese words are those that jieba finds."),
        ("characters", ["我", "吃", "了", "一", "个", "苹", "果", "。"], "Each Chinese character is a word."),
        ("spaces", ["我", "吃了", "一个", "苹果", "。"], "Chinese words are those that spaces separate in the text."),
    ],
)
def test_the_reader_chooses_what_chinese_words_are(chosen: ChineseWords, words: list[str], note: str) -> None:
    reading = group_chinese_words(Reading(tokens("我 吃了 一个 苹果 。", *"我吃了一个苹果。"), ()), chosen)
    assert [word.text for word in words_of(reading.tokens)] == words
    assert words_note(reading) == note


def test_without_jieba_each_chinese_character_is_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.chinese_words.find_spec", lambda name: None)
    reading = Reading(tokens("苹果", "苹", "果"), ())
    assert [word.text for word in words_of(reading.tokens)] == ["苹", "果"]
    assert "jieba, which finds words, is not installed" in words_note(reading)
    with pytest.raises(MissingPackageError, match=r"regard\[zh\]"):
        group_chinese_words(reading, "jieba")


def test_unknown_token_shows_its_text() -> None:
    unknown = Tokens(
        "see 🦔x", ("[CLS]", "see", "[UNK]", "[SEP]"), ((0, 0), (0, 3), (4, 6), (0, 0)), (True, False, False, True)
    )
    words = words_of(unknown)
    assert [(word.text, word.is_known) for word in words] == [("see", True), ("🦔x", False)]
    assert unknown_words_note(words) == "1 of 2 words is not in this model's vocabulary."
    assert unknown_words_note(words[:1]) == ""


def test_repeated_words_are_numbered() -> None:
    pieces = ["The", "cat", ",", "the", "dog", ",", "the", "Cat"]
    words = words_of(tokens(" ".join(pieces), *pieces))
    # "The" counts, but needs no number: no other word has this spelling.
    assert [word.label for word in words] == ["The", "cat", ",", "the (2)", "dog", ",", "the (3)", "Cat"]


def test_token_without_a_span_is_no_word() -> None:
    empty = Tokens("a", ("a", "</w>"), ((0, 1), (1, 1)), (False, False))
    assert [(word.text, word.is_word) for word in words_of(empty)] == [("a", True), ("</w>", False)]


def test_words_given_with_the_tokens_are_used() -> None:
    without_words = Tokens("Hund. läuft", ("Hund", ".", "läuft"), ((0, 4), (4, 5), (6, 11)), (False,) * 3)
    with_words = Tokens(
        without_words.text,
        without_words.pieces,
        without_words.spans,
        without_words.special,
        (("Hund.", (0, 1)), ("läuft", (2,))),
    )
    assert [word.text for word in words_of(without_words)] == ["Hund", ".", "läuft"]
    assert [(word.text, word.pieces, word.is_word) for word in words_of(with_words)] == [
        ("Hund.", (0, 1), True),
        ("läuft", (2,), True),
    ]


def test_word_weights_agree_with_those_of_alignments() -> None:
    weights = np.random.default_rng(3).random((2, 5, 5))
    owners = [0, 0, 1, 2, 2]
    words = words_of(Tokens("ab c de", tuple("abcde"), ((0, 1), (1, 2), (3, 4), (5, 6), (6, 7)), (False,) * 5))
    assert [word.text for word in words] == ["ab", "c", "de"]
    for head, found in zip(weights, aggregate_by_word(weights, words, words), strict=True):
        np.testing.assert_allclose(found, word_weights(torch.from_numpy(head), owners, owners).numpy())


@given(st.text(max_size=30))
def test_every_token_belongs_to_one_word(text: str) -> None:
    letters = Tokens(text, tuple(text), tuple((at, at + 1) for at in range(len(text))), (False,) * len(text))
    pieces = [piece for word in words_of(letters) for piece in word.pieces]
    assert pieces == list(range(len(text)))
