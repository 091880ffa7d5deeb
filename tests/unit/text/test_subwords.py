"""Subwords: every text is restored, typed text is never special, and training follows the papers."""

import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hypothesis_examples import examples
from regard.errors import CheckpointError, DataError, MissingPackageError, OptionError
from regard.text.placeholders import TOKENS
from regard.text.subword_training import min_vocab_size
from regard.text.subwords import Piece, Subwords
from regard.text.words import token_spans, word_spans, words

LISTED = "low lower lowest new newer newest wide wider widest eine einen einem der die das Straße 中国人 人民 我们 中国"
LISTED += (
    " house houses boat boats window windows garden gardens Haus Häuser Boot Boote Fenster Garten Gärten 我 你 他们"
)
WORDS = LISTED.split()
TEXTS = [" ".join(WORDS[(i * k) % len(WORDS)] for k in range(1, 3 + i % 5)) + "." for i in range(1, 401)]
TEXTS += ["1011 1011", "Room 101, 7 €", "a < b </s> <pad>", "<0x41><0x42>"] * 7
ALGORITHMS = ["bpe", "unigram"]
SIZE = 359
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]

ODD = ["</s>", "<s>", "<pad>", "<unk>", "<0x41>", "<0xE4>", "\u2581", "<", " <", "\u2585", "\0", "\ufffd", *TOKENS[:2]]
ODD += ["é", "e\u0301", "\u00a0", "\u2028", "\x1c", "\u3000", "\u200b", "\ufeff", "中国", "ｶﾞ", "ก", "😀", "\U0010ffff"]
ODD += ["lowest", "der", " ", "  ", "\n", "1", "٣", "²", "\U00011935\U00011930", "\u1100\u1161", "\x85"]
TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.sampled_from(ODD), max_size=12).map("".join),
)


@pytest.fixture(scope="module", params=ALGORITHMS)
def subwords(request):
    return Subwords.train(TEXTS, size=SIZE, algorithm=request.param)


def plain(text):
    """Normalize a text as subwords do: Unicode NFC, and one space for white space as Python defines it."""
    return " ".join(unicodedata.normalize("NFC", text).split())


class TestEncodeAndDecode:
    @examples(300)
    @given(text=TEXT)
    def test_every_text_is_restored(self, subwords, text):
        (ids,) = subwords.encode([text])
        assert subwords.decode(ids) == plain(text)
        assert not set(ids) & {0, 1, 2, 3}

    @examples(100)
    @given(text=TEXT)
    def test_normalized_text_has_the_same_ids(self, subwords, text):
        one, other = subwords.encode([text, f"\t{unicodedata.normalize('NFD', text)} \n"])
        assert one == other

    @examples(300)
    @given(data=st.data())
    def test_any_ids_decode_to_one_line(self, subwords, data):
        ids = data.draw(st.lists(st.integers(0, subwords.vocabulary - 1), max_size=12))
        text = subwords.decode(ids)
        assert text == plain(text)
        assert len(text.splitlines()) <= 1 or not set(text) & set("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")

    def test_special_tokens_are_dropped(self, subwords):
        (ids,) = subwords.encode(["new der"])
        assert subwords.decode([2, *ids[:1], 0, 1, *ids[1:], 3, 0]) == "new der"

    def test_incomplete_byte_sequences(self, subwords):
        byte = {value: 4 + value for value in range(256)}
        assert subwords.decode([byte[0xE4], byte[0xB8], byte[0xAD]]) == "中"
        assert subwords.decode([byte[0xE4], byte[0xB8]]) == "\ufffd"
        assert subwords.decode([byte[0x41], byte[0xFF], byte[0x0A], byte[0x42]]) == "A\ufffd B"

    def test_batches_of_texts(self, subwords):
        ids = subwords.encode(TEXTS)
        assert subwords.decode_batch(ids) == TEXTS
        assert [subwords.encode([text])[0] for text in TEXTS[:7]] == ids[:7]
        assert subwords.encode([]) == subwords.decode_batch([]) == []
        assert subwords.encode(["", " \n"]) == [[], []]


class TestVocabulary:
    def test_special_tokens_bytes_and_placeholders_come_first(self, subwords):
        assert (subwords.pad_id, subwords.unknown_id, subwords.start_id, subwords.end_id) == (0, 1, 2, 3)
        tokens = [piece.text for piece in subwords.pieces_of(range(4 + 256 + len(TOKENS)))]
        assert tokens == [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *TOKENS]

    def test_vocabulary_size_includes_all_tokens(self, subwords):
        assert subwords.vocabulary == SIZE
        highest = max(max(ids) for ids in subwords.encode(TEXTS))
        assert highest < SIZE

    @pytest.mark.parametrize("character", ["é", "猫", "😀", "\0", "\u2581", "q"])
    def test_unseen_character_is_encoded_in_bytes(self, subwords, character):
        (ids,) = subwords.encode([f"der{character}"])
        assert ids[-len(character.encode()) :] == [4 + byte for byte in character.encode()]

    def test_digits_are_separate_tokens(self, subwords):
        assert [piece.text.strip() for piece in subwords.pieces("x7101")][-4:] == list("7101")

    def test_placeholders_are_one_token_each(self, subwords):
        (ids,) = subwords.encode([f"new{TOKENS[0]}{TOKENS[1]} {TOKENS[15]}der"])
        assert [one for one in ids if 260 <= one < 276] == [260, 261, 275]

    def test_text_that_looks_like_a_special_token_is_ordinary_text(self, subwords):
        """Such text was frequent in training, and would make good pieces."""
        for text in ("</s>", "<pad>", "<0x41>", "a <s> b"):
            (ids,) = subwords.encode([text])
            assert len(ids) >= len("".join(text.split()).replace("pad", "p"))
            assert subwords.decode(ids) == text

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_pieces_cross_no_word_or_script_boundaries(self, algorithm):
        """Sentencepiece splits words as regard does, except in the last texts."""

        def kinds(piece):
            letters = piece.removeprefix(" ")
            return {unicodedata.name(c).split()[0] if c.isalpha() else c for c in letters}

        subwords = Subwords.train([*TEXTS, *["1011 1011 ٣٣٣ µ.µ.µ."] * 30], size=400, algorithm=algorithm)
        learnt = [piece.text for piece in subwords.pieces_of(range(276, subwords.vocabulary))]
        assert all(" " not in piece[1:] for piece in learnt)
        assert all(len(kinds(piece)) <= 1 for piece in learnt)
        assert all(len(piece.strip()) <= 1 for piece in learnt if any(map(str.isdigit, piece)))

    def test_too_large_a_vocabulary_size_is_lowered(self):
        for algorithm in ALGORITHMS:
            subwords = Subwords.train(["ab ab ab ab"], size=5003, algorithm=algorithm)
            assert 276 + 3 <= subwords.vocabulary <= 276 + 3 + 3  # a, b, space; ab, " a", " ab"

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_minimum_vocabulary_size(self, algorithm):
        texts = ["abc cab"] * 5
        minimum = 4 + 256 + 16 + len("abc ")
        assert min_vocab_size(texts) == minimum
        subwords = Subwords.train(texts, size=minimum, algorithm=algorithm)
        assert subwords.vocabulary == minimum
        assert [piece.text for piece in subwords.pieces("cab")] == [" ", "c", "a", "b"]
        with pytest.raises(OptionError, match=rf"too small[\s\S]*at least {minimum}:[\s\S]*the 4 characters"):
            Subwords.train(texts, size=minimum - 1, algorithm=algorithm)

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    def test_coverage_leaves_rare_characters_to_bytes(self, algorithm):
        texts = ["ab" * 50] * 10 + ["é"]
        assert (min_vocab_size(texts), min_vocab_size(texts, coverage=0.999)) == (276 + 4, 276 + 3)
        subwords = Subwords.train(texts, size=300, algorithm=algorithm, coverage=0.999)
        assert subwords.encode(["aé"])[0][-2:] == [4 + byte for byte in "é".encode()]

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("odd", ["\u2581", "\u2585", "\0", TOKENS[0], "\ufffd"])
    def test_unusual_characters_do_not_prevent_merges_in_their_text(self, algorithm, odd):
        subwords = Subwords.train([f"lowest{odd} {odd}lowest lower"] * 20, size=300, algorithm=algorithm)
        assert len(subwords.pieces("lowest")) < len("lowest") / 2
        assert subwords.decode(subwords.encode([f"lowest{odd}"])[0]) == f"lowest{odd}"

    @pytest.mark.parametrize("algorithm", ALGORITHMS)
    @pytest.mark.parametrize("text", ["a", "\u2581", "<", "\0", TOKENS[0], "٣", "\u0301", "😀", "x" * 5_003])
    def test_training_on_unusual_texts(self, algorithm, text):
        subwords = Subwords.train([text], size=997, algorithm=algorithm)
        assert subwords.decode(subwords.encode([text])[0]) == text


class TestTraining:
    def test_each_bpe_merge_joins_a_most_frequent_pair(self):
        """Sennrich et al. 2016, figure 1, replayed on words of one script."""
        texts = [text for text in TEXTS if set(text) <= set("abcdefghijklmnopqrstuvwxyz ß.S")]
        model = json.loads(Subwords.train(texts, size=353).to_json())["model"]
        counts = Counter(f" {word}" for text in texts for word in text.removesuffix(".").split())
        counts.update(["."] * len(texts))
        splits = {word: list(word) for word in counts}
        assert len(model["merges"]) > 30
        for left, right in model["merges"]:
            pairs = Counter()
            for word, split in splits.items():
                for pair in pairwise(split):
                    pairs[pair] += counts[word]
            assert pairs[left, right] == max(pairs.values())
            for word, split in splits.items():
                splits[word] = apply_merge(split, left, right)

    def test_bpe_merges_in_the_order_of_training(self):
        subwords = Subwords.train(TEXTS, size=SIZE)
        merges = [tuple(pair) for pair in json.loads(subwords.to_json())["model"]["merges"]]
        for word in WORDS:
            split = list(f" {word}")
            while ranked := [merges.index(pair) for pair in pairwise(split) if pair in merges]:
                split = apply_merge(split, *merges[min(ranked)])
            assert [piece.text for piece in subwords.pieces(word)] == split

    def test_unigram_takes_the_likeliest_pieces(self):
        """Kudo 2018, equation 2, by exhaustive search."""
        subwords = Subwords.train(TEXTS, size=SIZE, algorithm="unigram")
        scores = dict(json.loads(subwords.to_json())["model"]["vocab"][276:])

        def best(text):
            if not text:
                return 0.0
            ends = (end for end in range(1, len(text) + 1) if text[:end] in scores)
            return max((scores[text[:end]] + best(text[end:]) for end in ends), default=float("-inf"))

        for word in WORDS:
            actual = sum(scores[piece.text] for piece in subwords.pieces(word))
            assert actual == pytest.approx(best(f" {word}"), abs=1e-9)

    def test_unigram_scores_are_log_probabilities(self):
        subwords = Subwords.train(TEXTS, size=SIZE, algorithm="unigram")
        scores = dict(json.loads(subwords.to_json())["model"]["vocab"][276:])
        assert all(score < 0 for score in scores.values())
        assert max(len(piece) for piece in scores) <= 16

    def test_training_is_reproducible(self, tmp_path):
        """In another process with another hash seed, and with another number of threads."""
        program = (
            "import json, sys; from regard.text.subwords import Subwords; texts = json.load(sys.stdin)\n"
            "for name in ('bpe', 'unigram'):\n"
            f"    open(name, 'w', encoding='utf-8').write(Subwords.train(texts, size={SIZE}, algorithm=name).to_json())"
        )
        environment = os.environ | {"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
        run = [sys.executable, "-c", program]
        result = subprocess.run(
            run, input=json.dumps(TEXTS), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        for algorithm in ALGORITHMS:
            here = Subwords.train(iter(TEXTS), size=SIZE, algorithm=algorithm).to_json()
            assert (tmp_path / algorithm).read_text(encoding="utf-8") == here


def apply_merge(split, left, right):
    results = []
    for piece in split:
        if results and (results[-1], piece) == (left, right):
            results[-1] += piece
        else:
            results.append(piece)
    return results


class TestWords:
    def test_word_of_each_piece(self, subwords):
        pieces = subwords.pieces("lowest  xyz, 101")
        assert "".join(piece.text for piece in pieces if not piece.text.startswith("<0x")).startswith(" lowest")
        assert [number for number, _ in Counter(piece.word for piece in pieces).items()] == [0, 1, 2]
        assert subwords.words_of(subwords.encode(["lowest  xyz, 101"])[0]) == ("lowest", "xyz,", "101")

    def test_special_tokens_have_no_word(self, subwords):
        (ids,) = subwords.encode(["new"])
        assert [piece.word for piece in subwords.pieces_of([*ids, 3])] == [0] * len(ids) + [None]
        assert subwords.pieces_of([2, 0]) == [Piece("<s>", None), Piece("<pad>", None)]

    def test_chinese_characters_of_one_piece_are_one_word(self, subwords):
        pieces = subwords.pieces("中国人民")
        words = subwords.words_of(subwords.encode(["中国人民"])[0])
        assert "".join(words) == "中国人民"
        assert len(words) == len({piece.word for piece in pieces if piece.text.strip()})

    def test_a_character_in_bytes_is_one_word(self, subwords):
        pieces = subwords.pieces("猫狗")
        assert [piece.word for piece in pieces] == [0] * (len(pieces) - 3) + [1] * 3

    @examples(200)
    @given(text=TEXT)
    def test_words_of_a_text(self, subwords, text):
        (ids,) = subwords.encode([text])
        assert subwords.words_of(ids, token_spans) == tuple(plain(text).split())
        numbers = [piece.word for piece in subwords.pieces(text, token_spans)]
        assert set(numbers) == set(range(len(text.split())))
        assert numbers == sorted(numbers)
        assert len(subwords.words_of(ids)) <= len(word_spans(plain(text)))

    @examples(300)
    @given(data=st.data())
    def test_words_of_any_ids(self, subwords, data):
        ids = data.draw(st.lists(st.integers(0, subwords.vocabulary - 1), max_size=12))
        pieces, actual = subwords.pieces_of(ids), subwords.words_of(ids)
        numbers = [piece.word for piece in pieces if piece.word is not None]
        assert numbers == sorted(numbers)
        assert set(numbers) == set(range(len(actual)))
        together = unicodedata.normalize("NFC", "".join(actual))
        assert together == unicodedata.normalize("NFC", subwords.decode(ids).replace(" ", ""))
        assert len(actual) <= len(words(subwords.decode(ids)))


class TestFile:
    def test_written_file_is_read_again(self, subwords, tmp_path):
        (tmp_path / "tokenizer.json").write_text(subwords.to_json(), encoding="utf-8")
        again = Subwords.from_file(tmp_path / "tokenizer.json")
        assert again.to_json() == subwords.to_json()
        assert again.encode(TEXTS) == subwords.encode(TEXTS)

    @examples(200)
    @given(text=TEXT)
    def test_tokenizers_library_agrees(self, subwords, text):
        alone = tokenizers.Tokenizer.from_str(subwords.to_json())
        (ids,) = subwords.encode([text])
        # Its tables of Unicode may be older than Python's.
        assert alone.encode(plain(text)).ids == alone.encode(f" \n{plain(text)}\t").ids == ids
        assert alone.decode(ids) == plain(text)

    def test_transformers_agrees(self, subwords, tmp_path):
        (tmp_path / "tokenizer.json").write_text(subwords.to_json(), encoding="utf-8")
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), eos_token="</s>")
        text = "lowest  Straße,\t中国 é 101 "
        (ids,) = subwords.encode([text])
        assert theirs(text)["input_ids"] == theirs(unicodedata.normalize("NFD", text))["input_ids"] == ids
        assert theirs.decode([*ids, 3], skip_special_tokens=True) == plain(text)


def change_value(content, path, value):
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value(inner[path[-1]]) if callable(value) else value
    return content


DAMAGE = [
    (["model", "type"], "WordLevel"),
    (["model", "vocab"], {}),
    (["model"], None),
    (["added_tokens"], [{"id": 3, "content": "x", "special": True, "single_word": False, "lstrip": False,
                         "rstrip": False, "normalized": False}]),
    (["normalizer"], None),
    (["normalizer"], {"type": "Lowercase"}),
    (["pre_tokenizer"], None),
    (["pre_tokenizer", "pattern", "Regex"], "((("),
    (["decoder"], None),
    (["truncation"], {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}),
    (["model", "byte_fallback"], False),
]  # fmt: skip


class TestBadFiles:
    @pytest.mark.parametrize("content", ["", "{}", "[]", "no JSON", '{"model": {}}', "[" * 100_000, "\ufeff{}"])
    def test_files_without_a_tokenizer(self, tmp_path, content):
        (tmp_path / "tokenizer.json").write_text(content, encoding="utf-8")
        with pytest.raises(CheckpointError, match="no readable subwords"):
            Subwords.from_file(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
    def test_undecodable_or_missing_files(self, tmp_path, content):
        if content is not None:
            (tmp_path / "tokenizer.json").write_bytes(content)
        with pytest.raises(CheckpointError, match="no readable subwords"):
            Subwords.from_file(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize(("path", "value"), DAMAGE)
    def test_changed_normalization_or_decoding(self, subwords, tmp_path, path, value):
        content = change_value(json.loads(subwords.to_json()), path, value)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(CheckpointError, match="no readable subwords"):
            Subwords.from_file(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (["vocab", "</s>"], 4),
            (["vocab", "<0x00>"], 3),
            (["vocab", "der"], 5000),
            (["vocab", "der"], "x"),
            (["vocab"], lambda vocab: {name: number + 1 for name, number in vocab.items()}),
            (["vocab"], lambda vocab: {name.replace("pad", "PAD"): number for name, number in vocab.items()}),
            (["merges", 0], ["zz", "zz"]),
            (["merges", 3], ["<0x00>", "<0x01>"]),
            (["merges", 3], "e"),
            (["merges", 3], None),
            (["dropout"], 0.5),
            (["unk_token"], "</s>"),
        ],
    )
    def test_invalid_bpe_vocabularies(self, tmp_path, path, value):
        content = json.loads(Subwords.train([*TEXTS, "xder"] * 2, size=SIZE).to_json())
        (tmp_path / "tokenizer.json").write_text(json.dumps(change_value(content, ["model", *path], value)))
        with pytest.raises(CheckpointError, match="no readable subwords"):
            Subwords.from_file(tmp_path / "tokenizer.json")

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (["vocab", 3, 0], "</S>"),
            (["vocab", 290, 0], ""),
            (["vocab", 290, 0], "</s>"),
            (["vocab", 290, 0], "\ud800"),
            (["vocab", 290, 0], 5),
            (["vocab", 290, 1], 1.0),
            (["vocab", 290, 1], -1e308),
            (["vocab", 290, 1], float("nan")),
            (["vocab", 290], None),
            (["unk_id"], 0),
            (["unk_id"], 100_003),
        ],
    )
    def test_invalid_unigram_vocabularies(self, tmp_path, path, value):
        content = json.loads(Subwords.train(TEXTS, size=SIZE, algorithm="unigram").to_json())
        (tmp_path / "tokenizer.json").write_text(json.dumps(change_value(content, ["model", *path], value)))
        with pytest.raises(CheckpointError, match="no readable subwords"):
            Subwords.from_file(tmp_path / "tokenizer.json")


class TestBadInput:
    def test_lone_surrogates(self, subwords):
        with pytest.raises(DataError, match="text 1 is not Unicode text"):
            subwords.encode(["fine", "half \ud83d"])
        with pytest.raises(DataError, match="text 1 is not Unicode text"):
            Subwords.train(["fine", "half \ud83d"])

    @pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
    def test_training_without_text(self, texts):
        with pytest.raises(DataError, match="no text to learn"):
            Subwords.train(texts)

    def test_unknown_algorithm(self):
        with pytest.raises(OptionError, match=r"one of bpe, unigram[\s\S]*did you mean 'unigram'"):
            Subwords.train(TEXTS, algorithm="unigrams")

    @pytest.mark.parametrize("coverage", [0.0, -1.0, 1.5, float("nan")])
    def test_invalid_coverage(self, coverage):
        with pytest.raises(OptionError, match="coverage"):
            Subwords.train(TEXTS, coverage=coverage)

    def test_text_instead_of_a_list(self, subwords):
        with pytest.raises(OptionError, match="list of strings"):
            subwords.encode("text")

    @pytest.mark.usefixtures("without_shape_checks")
    def test_items_that_are_no_text(self, subwords):
        with pytest.raises(OptionError, match="text 1 is not a string"):
            subwords.encode(["text", 5])

    @pytest.mark.parametrize("wrong", [-1, SIZE])
    def test_ids_of_another_vocabulary(self, subwords, wrong):
        with pytest.raises(DataError, match=f"ids from 0 to {SIZE - 1}"):
            subwords.decode([5, wrong])

    def test_without_sentencepiece(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "sentencepiece", None)
        with pytest.raises(MissingPackageError, match=r"regard\[train\]"):
            Subwords.train(TEXTS, algorithm="unigram")


@pytest.mark.parametrize("split", [3, "words", None])
def test_a_splitter_that_is_no_function_is_refused(split):
    with pytest.raises(OptionError, match=r"wrong split\n.*a function of a text"):
        Subwords.train(["hello world"] * 3, size=290).pieces("hello world", split)
