"""Words of a sentence: against str.split and the names of characters, and words of pieces by brute force."""

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard.text.words import group_into_words, token_spans, word_spans, words

ALONE = ("CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA LETTER", "KATAKANA LETTER", "THAI CHARACTER")
ALONE += ("LAO LETTER", "LAO VOWEL SIGN", "KHMER LETTER", "MYANMAR LETTER", "HALFWIDTH KATAKANA LETTER")
ANY = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
MIXED = st.text(st.sampled_from("ab é\u0301 中国かが\u3099ーไทย\u0e49 \t\u00a0\u2003。,<>1"), max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't  stop, Ærø!\n", ("Don't", "stop,", "Ærø!")),
        ("我用iPhone手机。", ("我", "用", "iPhone", "手", "机", "。")),
        ("コーヒー飲む", ("コ", "ー", "ヒ", "ー", "飲", "む")),
        ("น้ำ ดี", ("น้", "ำ", "ดี")),
        ("か\u3099x\u0301y 中\ufe00国", ("か\u3099", "x\u0301y", "中\ufe00", "国")),
        ("\u0301 a", ("\u0301", "a")),
        ("한국어 텍스트", ("한국어", "텍스트")),
        (" \t ", ()),
        ("", ()),
    ],
)
def test_known_sentences(text, expected):
    assert words(text) == expected


def test_single_character_words_are_of_scripts_without_white_space():
    """Checks characters by their names, in all Unicode planes that have some."""
    for code in (*range(0x40000), *range(0xE0000, 0xF0000)):
        character = chr(code)
        name = unicodedata.name(character, "")
        if unicodedata.category(character)[0] == "M":
            assert len(words(f"x{character}x")) in (1, 2), name
        elif name.startswith(ALONE) and "TAG" not in name:
            assert words(f"x{character}x") == ("x", character, "x"), name
        elif name.startswith(("LATIN", "GREEK", "CYRILLIC", "HEBREW", "ARABIC LETTER", "HANGUL SYLLABLE", "DIGIT")):
            assert words(f"x{character}x") == (f"x{character}x",), name


@given(st.one_of(ANY, MIXED))
def test_white_space_agrees_with_str_split(text):
    assert tuple(text[start:end] for start, end in token_spans(text)) == tuple(text.split())


@given(st.one_of(ANY, MIXED))
def test_words_are_the_text_without_white_space(text):
    spans = word_spans(text)
    assert "".join(words(text)) == "".join(text.split())
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(one[1] <= other[0] for one, other in pairwise(spans))


@given(st.one_of(ANY, MIXED))
@example("\u0300\u30990")  # marks without a character, which normalization puts in another order
def test_normalization_keeps_the_number_of_words(text):
    again = " ".join(unicodedata.normalize("NFC", text).split())
    assert len(words(again)) == len(words(text))


@given(MIXED, st.lists(st.integers(0, 40)))
def test_each_part_belongs_to_the_words_of_its_bytes(text, cuts):
    """Byte by byte: parts that share a word, and words that share a part, are joined."""
    data = text.encode()
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    parts = [data[one:other] for one, other in pairwise(bounds)]
    numbers, texts = group_into_words(parts)
    word_at = {}
    for number, (start, end) in enumerate(word_spans(text)):
        for byte in range(len(text[:start].encode()), len(text[:end].encode())):
            word_at[byte] = number
    touched = [{word_at[at] for at in range(*one) if at in word_at} for one in pairwise(bounds)]
    joined = [{number} for number in set(word_at.values())]
    for one in filter(None, touched):
        joined = [other for other in joined if not other & one] + [set().union(*(o for o in joined if o & one))]
    joined.sort(key=min)
    assert len(texts) == len(joined)
    for number, one in zip(numbers, touched, strict=True):
        if one:
            assert one <= joined[number]
    assert "".join("".join(texts).split()) == "".join(text.split())


@examples(50)
@given(st.lists(st.binary(max_size=3), max_size=8))
def test_parts_of_arbitrary_bytes(parts):
    numbers, texts = group_into_words(parts)
    assert [number is None for number in numbers] == [not part or not texts for part in parts]
    actual = [number for number in numbers if number is not None]
    assert actual == sorted(actual)
    assert set(actual) == set(range(len(texts)))


def test_white_space_at_the_end_of_a_part_does_not_join_words():
    assert group_into_words([b"a ", b"b"]) == ([0, 1], ("a", "b"))


def test_white_space_belongs_to_the_following_word():
    assert group_into_words([b" ", b"a", b" b", b"c", b"  ", b"", b" d", b" "]) == (
        [0, 0, 1, 1, 2, None, 2, 2],
        ("a", "bc", "d"),
    )


def test_words_covered_by_one_part_are_joined():
    assert group_into_words(["中国".encode(), "人".encode()]) == ([0, 1], ("中国", "人"))
    assert group_into_words([" 中 国".encode()], token_spans) == ([0], ("中 国",))


def test_incomplete_character_belongs_to_its_word():
    data = "né".encode()
    assert group_into_words([data[:2], data[2:], b" \xff", b"\xfe"]) == ([0, 0, 1, 1], ("né", "\ufffd\ufffd"))
