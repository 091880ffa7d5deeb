"""Tokenizer: positions in the original text, limits, padding."""

import json

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from hypothesis_examples import examples
from regard.errors import CheckpointError, DataError, OptionError
from regard.models.model_folder import resolve_folder
from regard.text import Tokenizer

PATH = resolve_folder("minilm") / "tokenizer.json"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.from_file(PATH, limit=512)


@pytest.fixture(scope="module")
def peer():
    return AutoTokenizer.from_pretrained(resolve_folder("minilm"))


def test_a_known_sentence(tokenizer):
    read = tokenizer.encode("I ate an apple.")
    assert read.tokens == (("[CLS]", "i", "ate", "an", "apple", ".", "[SEP]"),)
    assert read.spans == (((0, 0), (0, 1), (2, 5), (6, 8), (9, 14), (14, 15), (0, 0)),)
    assert read.special == ((True, False, False, False, False, False, True),)
    assert (read.lengths, read.truncated, read.mask) == ((7,), (), None)
    assert read.ids.dtype == torch.long


def test_padding_and_truncation_of_the_packaged_file_are_disabled(tokenizer):
    stored = json.loads(PATH.read_text())
    assert stored["padding"]["strategy"] == {"Fixed": 128}
    assert stored["truncation"]["max_length"] == 128
    assert tokenizer.encode("word").ids.shape == (1, 3)
    assert tokenizer.encode("word " * 200).ids.shape == (1, 202)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("😀 猫 eats", "eats"),
        ("𠀀x eats", "eats"),
        ("שלום eats", "eats"),
        ("a\u0301e\u0301 Éats", "Éats"),
        ("\x00a \ufeffeats", "eats"),
    ],
)
def test_spans_count_characters_of_the_original(tokenizer, text, word):
    """Spans count code points, not bytes, also with accents removed and control characters dropped."""
    (spans,) = tokenizer.encode(text).spans
    start, end = text.index(word), text.index(word) + len(word)
    inside = [span for span in spans if start <= span[0] and span[1] <= end and span[0] < span[1]]
    assert (inside[0][0], inside[-1][1]) == (start, end)


@examples(60)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50))
def test_any_text_is_encoded_as_by_transformers(tokenizer, peer, text):
    read = tokenizer.encode(text)
    theirs = peer(text, return_offsets_mapping=True)
    assert read.ids[0].tolist() == theirs["input_ids"]
    assert [list(span) for span in read.spans[0]] == [list(span) for span in theirs["offset_mapping"]]
    assert all(0 <= start <= end <= len(text) for start, end in read.spans[0])


def test_padding(tokenizer):
    read = tokenizer.encode(["one two three", "", "one"])
    assert read.lengths == (5, 2, 3)
    assert read.ids[1].tolist() == [101, 102, 0, 0, 0]
    expected = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]], dtype=torch.bool)
    assert torch.equal(read.mask.dense(5, 5).squeeze(), expected)
    assert tokenizer.encode(["one", "two"]).mask is None


def test_padding_token_in_a_text_is_not_masked(tokenizer):
    read = tokenizer.encode(["a [PAD] b", "a"])
    assert read.mask.dense(5, 5)[0].all()
    assert read.special[0] == (True, False, False, False, True)


def test_no_texts(tokenizer):
    assert tokenizer.encode([]).ids.shape == (0, 0)


class TestLimit:
    def test_text_at_the_limit(self, tokenizer):
        assert tokenizer.encode("word " * 510).lengths == (512,)

    def test_text_beyond_the_limit_is_refused(self, tokenizer):
        with pytest.raises(DataError, match=r"text 1 is too long[\s\S]*512[\s\S]*513 tokens[\s\S]*truncate=True"):
            tokenizer.encode(["short", "word " * 511])

    def test_truncation_is_reported(self, tokenizer):
        read = tokenizer.encode(["short", "word " * 600], truncate=True)
        assert (read.lengths, read.truncated) == ((3, 512), (1,))
        assert (read.tokens[1][0], read.tokens[1][-1]) == ("[CLS]", "[SEP]")
        assert read.texts[1].dropped == 602 - 512

    def test_truncation_agrees_with_transformers(self, tokenizer, peer):
        text = "The animal didn't cross the street. " * 100
        theirs = peer(text, truncation=True, max_length=512)["input_ids"]
        assert tokenizer.encode(text, truncate=True).ids[0].tolist() == theirs

    def test_limit_without_room_for_text_is_refused(self):
        with pytest.raises(OptionError, match="2 special tokens"):
            Tokenizer.from_file(PATH, limit=2)


class TestBadInput:
    def test_a_lone_surrogate(self, tokenizer):
        with pytest.raises(DataError, match="text 1 is not Unicode text"):
            tokenizer.encode(["fine", "half \ud83d"])

    @pytest.mark.parametrize("content", ["", "{}", "not JSON", '{"version": "1.0", "model": {"type": "Nonsense"}}'])
    def test_no_tokenizer_file(self, tmp_path, content):
        path = tmp_path / "tokenizer.json"
        path.write_text(content)
        with pytest.raises(CheckpointError, match="not a readable tokenizer"):
            Tokenizer.from_file(path)


def test_pad_id_of_the_file(tmp_path):
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "<pad>": 2}, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(tmp_path / "tokenizer.json"))
    read = Tokenizer.from_file(tmp_path / "tokenizer.json").encode(["a a", "a"])
    assert read.ids.tolist() == [[1, 1], [1, 2]]
    assert Tokenizer.from_file(tmp_path / "tokenizer.json", pad_id=0).encode(["a a", "a"]).ids[1].tolist() == [1, 0]
    bare = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    bare.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").pad_id == 0


def test_written_file_is_read_again(tokenizer, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
    again = Tokenizer.from_file(tmp_path / "tokenizer.json", pad_id=0, limit=512)
    assert torch.equal(again.encode("naïve 猫 😀").ids, tokenizer.encode("naïve 猫 😀").ids)
