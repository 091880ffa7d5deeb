"""The names of tokens that share the span of a character: markers of words, bytes, and spelled-out characters."""

import pytest
from tokenizers import pre_tokenizers

from regard.view.reading import Tokens, _byte_of_letter


def surfaces(text: str, pieces: list[str], spans: list[tuple[int, int]]) -> list[str]:
    tokens = Tokens(text, tuple(pieces), tuple(spans), (False,) * len(pieces))
    return [tokens.surface(at) for at in range(len(tokens))]


def test_the_marker_of_the_first_word_is_a_space():
    assert surfaces("7 of", ["▁", "7", "▁of"], [(0, 1), (0, 1), (2, 4)]) == ["␣", "7", "of"]
    assert surfaces("漢", [" ", "漢"], [(0, 1), (0, 1)]) == ["␣", "漢"]


def test_bytes_have_their_names():
    names = ["<0xE6>", "<0xBC>", "<0xA2>"]
    assert surfaces("漢x", [*names, "x"], [*[(0, 1)] * 3, (1, 2)]) == [*names, "x"]
    assert surfaces("漢x", ["æ", "¼", "¢", "x"], [*[(0, 1)] * 3, (1, 2)]) == [*names, "x"]
    assert surfaces("漢", ["æ¼", "¢"], [(0, 1)] * 2) == ["<0xE6><0xBC>", "<0xA2>"]
    assert surfaces("a漢", ["a", "▁", *names], [(0, 1), *[(1, 2)] * 4]) == ["a", "␣", *names]


def test_bytes_of_a_character_that_was_cut():
    assert surfaces("😀", ["ð", "Ł"], [(0, 1)] * 2) == ["<0xF0>", "<0x9F>"]
    assert surfaces("#x", ["##", "x"], [(0, 2)] * 2) == ["##", "x"]


def test_characters_that_are_spelled_out():
    assert surfaces("½", ["▁1", "⁄", "2"], [(0, 1)] * 3) == ["1", "⁄", "2"]
    assert surfaces("½", ["1", "##⁄", "##2"], [(0, 1)] * 3) == ["1", "⁄", "2"]


@pytest.mark.parametrize("text", ["É", "ﬁ", " "])
def test_a_span_of_its_own_shows_the_text(text):
    assert surfaces(text, ["e"], [(0, 1)]) == ["␣" if text == " " else text]


def test_letters_of_bytes_are_those_of_byte_level_tokenizers():
    assert set(_byte_of_letter()) == set(pre_tokenizers.ByteLevel.alphabet())
    for byte in range(256):
        text = bytes([byte]).decode("latin1")
        (((letters, _),)) = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        assert bytes(_byte_of_letter()[letter] for letter in letters) == text.encode()
