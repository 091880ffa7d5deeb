"""Tokenizers of language models: lossless, reproducible, and no text contains the token of documents."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.text.language_tokenizer import DOCUMENT_ID, DOCUMENT_TOKEN, split_text, train_language_tokenizer
from small_language_models import documents

KINDS = ("bpe", "bytes", "characters")
BPE, BYTES, CHARACTERS = (train_language_tokenizer(documents(), kind=kind, size=307) for kind in KINDS)
UNICODE = st.text(st.characters(exclude_categories=("Cs",)))


@pytest.mark.parametrize("tokenizer", [BPE, BYTES], ids=["bpe", "bytes"])
@given(text=UNICODE)
def test_bytes_lose_nothing(tokenizer, text):
    (ids,) = tokenizer.plain_ids([text])
    assert tokenizer.decode(ids) == text
    assert DOCUMENT_ID not in ids


@given(text=st.text(st.sampled_from("".join(documents()) + " \n\t")))
def test_characters_lose_nothing_of_their_alphabet(text):
    known = set("".join(documents()))
    (ids,) = CHARACTERS.plain_ids([text])
    assert len(ids) == len(text)
    assert [one == CHARACTERS.unknown_id for one in ids] == [character not in known for character in text]
    if set(text) <= known:
        assert CHARACTERS.decode(ids) == text


@pytest.mark.parametrize("tokenizer", [BPE, BYTES, CHARACTERS], ids=KINDS)
def test_no_text_contains_the_token_of_documents(tokenizer):
    (ids,) = tokenizer.plain_ids([f"a{DOCUMENT_TOKEN}b {DOCUMENT_TOKEN}"])
    assert DOCUMENT_ID not in ids
    assert tokenizer.ids(["a"])[0][0] == DOCUMENT_ID  # a prompt begins with it


def test_bytes_are_the_bytes_of_utf_8():
    text = "aé\n漢😀"
    assert BYTES.vocabulary == 257
    assert len(BYTES.plain_ids([text])[0]) == len(text.encode())


def test_subwords_are_shorter_than_bytes_and_cross_no_word():
    text = documents()[0]
    assert BPE.vocabulary == 307
    assert len(BPE.plain_ids([text])[0]) < 0.8 * len(text)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_tokenizer(kind):
    shuffled = documents()
    one, other = (train_language_tokenizer(shuffled, kind=kind, size=290).to_json() for _ in range(2))
    assert one == other


@given(words=st.lists(st.sampled_from(["ab ", "c\n", "defgh", " ", "\n\n"]), max_size=40), most=st.integers(1, 13))
def test_parts_join_to_the_text(words, most):
    text = "".join(words)
    parts = list(split_text(text, most))
    assert "".join(parts) == text
    assert all(len(part) <= most for part in parts)


def test_long_texts_are_encoded_in_parts():
    from regard.generation.scores import document_ids

    chance = random.Random(3)
    text = "".join(chance.choice(documents()) + chance.choice("\n ") for _ in range(3001))
    assert len(text) > 2 * 2**16
    ids = document_ids(text, BPE, start_id=0, end_id=0)
    assert (ids[0], ids[-1]) == (0, 0)
    assert BPE.decode(ids[1:-1].tolist()) == text


def test_unusable_arguments_are_refused():
    with pytest.raises(OptionError, match="at least 257"):
        train_language_tokenizer(["a"], kind="bpe", size=256)
    with pytest.raises(OptionError, match="unknown kind of tokenizer"):
        train_language_tokenizer(["a"], kind="words", size=300)
    with pytest.raises(DataError, match="no text"):
        train_language_tokenizer(["", ""], kind="bytes", size=300)
