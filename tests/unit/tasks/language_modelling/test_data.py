"""The split of documents into training and validation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.log import notes_to
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.language_modelling.data import MAX_HELD_OUT_CHARACTERS, hold_out_documents, split_documents


@given(texts=st.lists(st.text("abc", min_size=1, max_size=5), min_size=2, max_size=53), seed=st.integers(0, 5))
def test_all_copies_of_a_document_are_in_one_part(texts, seed):
    training, validation = hold_out_documents(texts, seed=seed)
    assert sorted(training + validation) == sorted(texts)
    assert not set(training) & set(validation)
    assert bool(validation) == (len(set(texts)) > 1)


def test_a_tenth_is_held_out_and_never_much():
    texts = [f"{number:07}" for number in range(1009)]
    _, validation = hold_out_documents(texts, seed=1)
    assert 95 <= len(validation) <= 101
    assert validation != hold_out_documents(texts, seed=2)[1]
    _, validation = hold_out_documents([f"{number:01009}" for number in range(5003)], seed=1)
    assert sum(map(len, validation)) <= MAX_HELD_OUT_CHARACTERS


def test_the_end_of_one_text_is_held_out(tmp_path):
    (tmp_path / "a.txt").write_text("".join(map(str, range(101))))
    whole, said = (tmp_path / "a.txt").read_text(), []
    with notes_to(said.append):
        training, validation = split_documents(LanguageModelRecipe(data=(tmp_path / "a.txt",)), seed=1)
    assert training[0] + validation[0] == whole
    assert len(validation[0]) == len(whole) // 10
    assert "held out" in said[-1]


@pytest.mark.parametrize("seed", range(5))
def test_a_book_beside_notes_is_not_held_out_whole(tmp_path, seed):
    book, notes = "".join(f"{number:05} " for number in range(5003)), ["a note of some words", "another note"]
    training, validation = hold_out_documents([notes[0], book, notes[1], book], seed=seed)
    assert training[::2] == notes
    assert training[1] == training[3] != book
    assert [training[1] + one for one in validation] == [book]
    assert len(validation[0]) == (len(book) + sum(map(len, notes))) // 10
    for number, text in enumerate([book, *notes]):
        (tmp_path / f"{number}.txt").write_text(text)
    said = []
    with notes_to(said.append):
        split_documents(LanguageModelRecipe(data=(tmp_path,)), seed=seed)
    assert f"; the end of the longest one, {len(validation[0]):,} characters, held out" in said[-1]


@pytest.mark.parametrize("seed", range(5))
def test_of_short_documents_the_shortest_is_held_out(seed):
    assert hold_out_documents(["abcdefgh", "ab", "abcdefg"], seed=seed) == (["abcdefgh", "abcdefg"], ["ab"])


def test_too_little_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(DataError, match="too short"):
        split_documents(LanguageModelRecipe(data=(tmp_path / "a.txt",)), seed=1)
    (tmp_path / "b.txt").write_text("abc")
    with pytest.raises(DataError, match="too few different documents"):
        split_documents(LanguageModelRecipe(data=(tmp_path,)), seed=1)


def test_validation_texts_that_occur_in_training_are_reported(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("two\nthree\n")
    recipe = LanguageModelRecipe(data=(tmp_path / "a.txt",), validation=(tmp_path / "b.txt",), lines=True)
    said = []
    with notes_to(said.append):
        assert split_documents(recipe, seed=1) == (["one", "two"], ["two", "three"])
    assert "1 validation document also occurs in the training data" in said[0]


def test_a_recipe_refuses_what_fine_tuning_cannot_change():
    recipe = LanguageModelRecipe(data=(), start="m", model="llama", tokenizer="bpe", vocabulary=300)
    with pytest.raises(OptionError, match="fine-tuning cannot change") as caught:
        recipe.check_effect()
    assert "leave out model, tokenizer, vocabulary" in str(caught.value)
    with pytest.raises(OptionError, match="unknown architecture"):
        LanguageModelRecipe(data=(), model="bert")
