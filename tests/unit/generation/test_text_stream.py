"""Texts that arrive token by token: the text of a stream is that of all its tokens, also where bytes are no UTF-8."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from regard.generation.text_stream import TextStream
from regard.text.language_tokenizer import train_language_tokenizer
from regard.text.tokenizer import Tokenizer

WORDS = ["<unk>", "<s>", "</s>", "\u2581Hello", "\u2581", "a", "\u20ac", "<tool>"]


def byte_fallback() -> Tokenizer:
    """Words and the 256 bytes, with the decoder of models made from SentencePiece; <s> and </s> are special."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    vocabulary |= {f"<0x{byte:02X}>": len(WORDS) + byte for byte in range(256)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    backend.add_special_tokens(["<s>", "</s>"])
    backend.add_tokens(["<tool>"])
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("\u2581", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(" ", 1, 0),
        ]
    )
    return Tokenizer(backend, pad_id=0)


FALLBACK = byte_fallback()
BYTES = train_language_tokenizer(["any text"], kind="bytes", size=300)


def byte_ids(content):
    return [len(WORDS) + byte for byte in content]


def byte_level_ids(content):
    """Ids in the alphabet of GPT-2: printable bytes are characters of Latin-1, others those from 256 on, in order."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    vocabulary = json.loads(BYTES.to_json())["model"]["vocab"]
    return [vocabulary[chr(byte if byte in printable else 256 + others.index(byte))] for byte in content]


def stream_text(tokenizer, ids, before=()):
    stream = TextStream(tokenizer, before=before)
    return "".join(stream.push(token) for token in ids) + stream.close()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"\xf0", "\ufffd"),
        ("\u20ac".encode() + b"\xf0", "\u20ac\ufffd"),
        ("\U0001f600".encode() + b"\xf0\x9f\x98", "\U0001f600\ufffd"),
        (b"\xe2\x82", "\ufffd"),
        (b"\xe2\x82A", "\ufffdA"),
        (b"\xe2\x28\xa1", "\ufffd(\ufffd"),
        (b"\xc0\xaf", "\ufffd\ufffd"),  # overlong: no byte of it begins a sequence
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # half a surrogate
        (b"\xf1\x80\x80\xe1\x80\xc2", "\ufffd\ufffd\ufffd"),  # Unicode 16, table 3-11
        (b"\x80\xbf\xff", "\ufffd\ufffd\ufffd"),
    ],
)
def test_each_invalid_sequence_is_one_replacement_character(content, text):
    """As Unicode recommends, and as for tokenizers of bytes; characters beside it stay."""
    for before, after in (([], []), ([5], []), ([5], [3]), ([], [1, 5])):
        ids = [*before, *byte_ids(content), *after]
        expected = "a" * len(before) + text + FALLBACK.decode([5, *after])[1:]
        assert FALLBACK.decode(ids) == expected
        assert stream_text(FALLBACK, ids) == expected


def test_valid_bytes_are_decoded_as_by_the_library():
    backend = tokenizers.Tokenizer.from_str(FALLBACK.to_json())
    for text in ("\u20ac\U0001f600\u0301", "caf\u00e9 \n", "\ufffd"):
        ids = [3, *byte_ids(text.encode()), 4, 7, *byte_ids(text.encode())]
        for special in (False, True):
            assert FALLBACK.decode(ids, special=special) == backend.decode(ids, skip_special_tokens=not special)


def test_a_special_token_does_not_interrupt_the_bytes_of_a_character():
    first, rest = byte_ids(b"\xe2"), byte_ids(b"\x82\xac")
    assert FALLBACK.decode([5, *first, 2, *rest]) == "a\u20ac"
    assert stream_text(FALLBACK, [5, *first, 2, 1, 2, *rest]) == "a\u20ac"
    assert stream_text(FALLBACK, [5, *first, *[2] * 40, *rest]) == "a\u20ac"
    assert FALLBACK.decode([5, *first, 2, *rest], special=True) == "a\ufffd</s>\ufffd\ufffd"


CUT_CHARACTERS = st.lists(
    st.one_of(
        st.sampled_from([bytes([byte]) for byte in (0x80, 0xBF, 0xC0, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, 0x41)]),
        st.text(st.sampled_from("a\u00e9\u20ac\U0001f600"), max_size=2).map(str.encode),
    ),
    max_size=60,
).map(b"".join)


@given(content=CUT_CHARACTERS, places=st.lists(st.integers(0, 60), max_size=4), before=st.booleans())
def test_a_stream_gives_the_text_of_all_tokens(content, places, before):
    ids = byte_ids(content)
    for place in places:
        ids.insert(place, [1, 2, 3, 7][place % 4])
    context = [3] if before else []
    assert FALLBACK.decode(context) + stream_text(FALLBACK, ids, context) == FALLBACK.decode([*context, *ids])
    assert stream_text(BYTES, byte_level_ids(content)) == content.decode("utf-8", "replace")


@pytest.mark.parametrize("seed", range(7))
def test_a_stream_of_random_bytes_is_decoded_as_utf_8(seed):
    """Long runs of invalid bytes, beyond the tokens that are decoded together."""
    random = np.random.default_rng(seed)
    content = bytes(random.integers(0x80, 0x100, 211).tolist()) + "\u20ac".encode()
    expected = content.decode("utf-8", "replace")
    assert stream_text(FALLBACK, byte_ids(content)) == expected
    assert stream_text(BYTES, byte_level_ids(content)) == expected


def test_characters_are_returned_as_soon_as_they_are_certain():
    stream = TextStream(FALLBACK)
    parts = [stream.push(one) for one in byte_ids(b"\xf0\x9f" + "\u20ac".encode() + b"A\xff\xffA")]
    assert parts == ["", "", "\ufffd", "", "\u20ac", "A", "", "\ufffd", "\ufffdA"]
