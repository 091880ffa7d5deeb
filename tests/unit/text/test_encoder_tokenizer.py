"""Tokenizers of masked language models: their special tokens, and what of a text they keep."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.text.encoder_tokenizer import ENCODER_TOKENIZERS, SPECIAL_TOKENS, train_encoder_tokenizer

TEXTS = ["The old oak was tall.", "Two oaks fall; the tallest one fell.", "Ein Wald, 你好 世界, été"] * 3
ROLES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}


@pytest.mark.parametrize("kind", ENCODER_TOKENIZERS)
def test_special_tokens_and_frame(kind):
    tokenizer = train_encoder_tokenizer(TEXTS, kind=kind, size=331)
    assert tokenizer.to_json() == train_encoder_tokenizer(TEXTS, kind=kind, size=331).to_json()
    assert [tokenizer.token_text(number) for number in range(5)] == list(SPECIAL_TOKENS)
    assert (tokenizer.pad_id, tokenizer.mask_id, tokenizer.special_ids) == (0, 4, (0, 1, 2, 3, 4))
    assert tokenizer.frame == ((2,), (3,))
    assert tokenizer.token_roles == ROLES
    assert tokenizer.vocabulary <= 331
    (ids,) = tokenizer.ids(["the [MASK] oak"])
    assert (ids[0], ids.count(4), ids[-1]) == (2, 1, 3)
    (ids,) = tokenizer.ids(["the [CLS] [SEP] [PAD]"])
    assert not {0, 2, 3} & set(ids[1:-1])


@pytest.mark.parametrize("kind", ENCODER_TOKENIZERS)
def test_lower_case(kind):
    tokenizer = train_encoder_tokenizer(TEXTS, kind=kind, size=331, lowercase=True)
    assert tokenizer.ids(["THE Oak"]) == tokenizer.ids(["the oak"])
    assert train_encoder_tokenizer(TEXTS, kind=kind, size=331).ids(["THE Oak"]) != tokenizer.ids(["the oak"])


def test_word_pieces():
    tokenizer = train_encoder_tokenizer(TEXTS, kind="wordpiece", size=331)
    pieces = [tokenizer.token_text(number) for number in tokenizer.ids(["tall oaks 你好"])[0]]
    assert "".join(pieces[1:-1]).replace("##", "") == "talloaks你好"  # each Chinese character is a word
    assert {"你", "好"} <= set(pieces)
    assert tokenizer.ids(["tall z"])[0][-2] == tokenizer.unknown_id
    small = train_encoder_tokenizer(TEXTS, kind="wordpiece", size=13)
    assert small.vocabulary <= 13


@given(text=st.text("abc \n.", max_size=17))
@pytest.mark.parametrize("kind", ["bpe", "bytes"])
def test_bytes_lose_nothing(kind, text):
    tokenizer = train_encoder_tokenizer(["abc. cab\n ba"], kind=kind, size=270)
    assert tokenizer.decode(tokenizer.plain_ids([text])[0]) == text


def test_invalid_arguments_are_refused():
    with pytest.raises(OptionError, match="unknown kind of tokenizer"):
        train_encoder_tokenizer(TEXTS, kind="words", size=331)
    for kind, size in (("wordpiece", 6), ("bpe", 260), ("characters", 5)):
        with pytest.raises(OptionError, match="the vocabulary is too small"):
            train_encoder_tokenizer(TEXTS, kind=kind, size=size)
    with pytest.raises(DataError, match="no text"):
        train_encoder_tokenizer([" \n"], kind="bytes", size=300)
