"""Tokenizers of new text encoders: their tokens, spans and limits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from regard.errors import DataError, OptionError
from regard.text import Tokenizer
from regard.text.subword_training import SPECIAL_TOKENS
from regard.text.tokenizer_training import TOKENIZERS, train_text_tokenizer

TEXTS = ["two small dogs", "two dogs run  here", "<s> a < b </s>"] * 3


def train(kind, size=400, **options):
    return train_text_tokenizer(TEXTS, kind=kind, size=size, **options)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_texts_have_only_a_start_token(kind):
    (text,) = train(kind, size=340).tokenize(["<s> two </s> <pad> <unk>"])
    assert (text.tokens[0], text.ids[0], text.special[0], text.spans[0]) == ("<s>", 2, True, (0, 0))
    assert not any(text.special[1:])
    assert not {0, 2, 3} & set(text.ids[1:])


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_spans_point_into_the_text(kind):
    text = "two small dogs run"
    (actual,) = train(kind, size=340).tokenize([text])
    covered = {place for start, end in actual.spans for place in range(start, end)}
    assert {place for place, character in enumerate(text) if character != " "} <= covered
    assert [start for start, _ in actual.spans] == sorted(start for start, _ in actual.spans)


def test_words_are_separated_by_white_space():
    (actual,) = train("words").tokenize(["two\tcats\nrun"])
    assert actual.tokens == ("<s>", "two", "<unk>", "run")
    assert actual.unknown == (False, False, True, False)


def test_characters_include_white_space():
    (actual,) = train("characters").tokenize(["a do€"])
    assert actual.tokens == ("<s>", "a", " ", "d", "o", "<unk>")


def test_frequent_words_are_kept():
    tokenizer = train("words", size=7)  # < is the most frequent word
    (actual,) = tokenizer.tokenize(["two small dogs run"])
    assert tokenizer.vocabulary == 7
    assert actual.tokens == ("<s>", "two", "<unk>", "dogs", "<unk>")


@example(["é", "é s>"])
@given(st.lists(st.text("ab<>s \t\n\x0b\x1c\x1f\x85\xa0\u2003\u3000é", max_size=12), max_size=5))
def test_words_are_counted_as_the_library_splits_them(texts):
    """Python and the library agree on spaces, but not on all white space: \\x1c separates words in Python only."""
    texts = ["a <s> b", *texts]
    splitter = pre_tokenizers.WhitespaceSplit()
    words = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(text))
    ordinary = {word: count for word, count in words.items() if not word.startswith("<")}
    tokenizer = train_text_tokenizer(texts, kind="words", size=1000)
    found = [tokenizer.token_text(number) for number in range(len(SPECIAL_TOKENS), tokenizer.vocabulary)]
    known = [word for word in found if word in ordinary]
    assert sorted(known) == sorted(ordinary)
    # The special token <s> is split into two words, and the second may occur alone as well.
    counts = [ordinary[word] + (words["<s>"] if word == "s>" else 0) for word in known]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_training_is_reproducible_and_the_file_is_read_again(kind, tmp_path):
    one, other = train(kind, size=340), train(kind, size=340)
    assert one.to_json() == other.to_json()
    (tmp_path / "tokenizer.json").write_text(one.to_json(), encoding="utf-8")
    again = Tokenizer.from_file(tmp_path / "tokenizer.json")
    assert again.pad_id == one.pad_id == 0
    assert again.tokenize(TEXTS) == one.tokenize(TEXTS)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_encode_and_tokenize_agree(kind):
    tokenizer = train(kind, size=340, limit=4)
    for truncate in (False, True):
        expected = [list(one.ids) for one in tokenizer.tokenize(TEXTS, truncate=truncate)]
        assert tokenizer.ids(TEXTS, truncate=truncate) == expected
    assert max(map(len, tokenizer.ids(TEXTS, truncate=True))) == 4


def test_changed_limit_gives_a_new_tokenizer():
    tokenizer = train("words", limit=4)
    assert tokenizer.with_limit(3).limit == 3
    assert tokenizer.limit == 4
    with pytest.raises(OptionError, match="no room"):
        tokenizer.with_limit(1)


@pytest.mark.parametrize(
    ("texts", "kind", "size", "error"),
    [
        (["a"], "letters", 300, OptionError),
        (["a"], "words", 4, OptionError),
        (["a"], "words", 0, OptionError),
        ([" ", ""], "words", 10, DataError),
        ([], "bpe", 300, DataError),
        ("a text", "words", 10, OptionError),
    ],
)
def test_invalid_arguments_are_refused(texts, kind, size, error):
    with pytest.raises(error):
        train_text_tokenizer(texts, kind=kind, size=size)
