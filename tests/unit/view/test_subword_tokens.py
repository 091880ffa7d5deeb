"""Subwords as displayed tokens: their text, their position, and their word."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.text.placeholders import TOKENS, protect
from regard.text.subwords import Subwords
from regard.view.subword_tokens import ids_to_tokens
from regard.view.words_from_tokens import words_of
from small_translators import JOINT_SUBWORDS

CHINESE = Subwords.train(["我喜欢猫和狗。", "猫喜欢鱼。", "שלום עולם", "a cat, a cat"] * 3, size=420)


def surfaces_and_texts(subwords: Subwords, text: str, **marks: str) -> tuple[list[str], list[str]]:
    """Return the surfaces of the tokens and the texts of the words."""
    protected = protect(text)
    tokens = ids_to_tokens(subwords, subwords.encode([protected.text])[0], protected.kept, **marks)
    return [tokens.surface(at) for at in range(len(tokens))], [word.text for word in words_of(tokens)]


def test_tokens_are_without_spaces_and_between_special_tokens() -> None:
    surfaces, words = surfaces_and_texts(JOINT_SUBWORDS, "Two  dogs run.", start="<s>", end="</s>")
    assert (surfaces[0], surfaces[-1]) == ("<s>", "</s>")
    assert "".join(surfaces[1:-1]) == "Twodogsrun."
    assert words == ["Two", "dogs", "run."]


def test_placeholder_shows_its_original_text() -> None:
    surfaces, words = surfaces_and_texts(JOINT_SUBWORDS, "run <b>%s</b> run")
    assert [one for one in surfaces if one in ("<b>", "%s", "</b>")] == ["<b>", "%s", "</b>"]
    assert words == ["run", "<b>%s</b>", "run"]
    assert not any(token in one for token in TOKENS for one in (*surfaces, *words))


def test_unused_placeholder_shows_its_number() -> None:
    (ids,) = JOINT_SUBWORDS.encode([f"run {TOKENS[2]}"])
    tokens = ids_to_tokens(JOINT_SUBWORDS, ids, ("<b>",))
    assert tokens.surface(len(tokens) - 1) == "⟨U+E003⟩"


def test_bytes_show_their_names_and_the_word_its_character() -> None:
    surfaces, words = surfaces_and_texts(JOINT_SUBWORDS, "run 😀")
    assert surfaces[-4:] == ["<0xF0>", "<0x9F>", "<0x98>", "<0x80>"]
    assert words == ["run", "😀"]


def test_token_of_only_a_space_is_visible() -> None:
    assert "␣" in surfaces_and_texts(JOINT_SUBWORDS, "run 😀 run")[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [("我喜欢猫。", list("我喜欢猫。")), ("שלום עולם", ["שלום", "עולם"]), ("a cat,cat", ["a", "cat,cat"])],
)
def test_words_are_those_of_alignments(text: str, words: list[str]) -> None:
    surfaces, actual = surfaces_and_texts(CHINESE, text)
    assert "".join(surfaces) == text.replace(" ", "")
    assert len(actual) <= len(words), "a piece may cover several Chinese words"
    assert "".join(actual) == "".join(words)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Co"]), max_size=24))
def test_every_token_is_in_the_text_and_belongs_to_one_word(text: str) -> None:
    protected = protect(text)
    (ids,) = JOINT_SUBWORDS.encode([protected.text])
    tokens = ids_to_tokens(JOINT_SUBWORDS, ids, protected.kept, end="</s>")
    assert tokens.text == protected.restore(JOINT_SUBWORDS.decode(ids))
    places = [place for place, special in enumerate(tokens.special) if not special]
    assert sorted(piece for word in words_of(tokens) for piece in word.pieces) == places
    ends = [0]
    for start, end in tokens.spans:
        assert ends[-1] <= start <= end <= len(tokens.text)
        ends.append(end)
