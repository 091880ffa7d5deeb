"""Words that are not in a vocabulary: they become one token, and a warning reports them."""

from __future__ import annotations

import warnings

import pytest
import tokenizers
import torch

from regard.errors import OptionError, UnknownWordsWarning
from regard.models import Bert, BertConfig
from regard.text import Embedder, Tokenizer
from regard.text.unknown_words import is_mostly_unknown
from regard.view.findings import findings, strongest_finding_per_word
from regard.view.read import read
from regard.view.word_pairs import word_pairs

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "sat", "on", "mat", ".", "。"]


@pytest.fixture(scope="module")
def model() -> Bert:
    """Random weights, and a vocabulary of a few English words, in which each Chinese character is unknown."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: i for i, name in enumerate(NAMES)}, "[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    backend.normalizer = tokenizers.normalizers.BertNormalizer()
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    with torch.random.fork_rng():
        torch.manual_seed(13)
        bert = Bert(BertConfig(vocabulary=len(NAMES), width=22, layers=2, heads=2, inner=13, max_length=31))
    bert.tokenizer = Tokenizer(backend, pad_id=0, limit=31)
    return bert.eval()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a cat sat on a mat.", False),
        ("a cat sat, 苹果", False),  # two of five
        ("a cat 苹果很", True),  # three of five
        ("苹果很贵。", True),
        ("a [UNK]", False),  # half is not most
        ("。。。", False),
        ("🦔", True),  # without words: every token
        ("🦔.", False),
        ("", False),
    ],
)
def test_is_mostly_unknown(model: Bert, text: str, expected: bool) -> None:
    (tokenized,) = model.tokenizer.tokenize([text])
    assert is_mostly_unknown(tokenized) == expected


@pytest.mark.usefixtures("without_shape_checks")
def test_texts_of_unknown_words_are_reported(model: Bert) -> None:
    embedder = Embedder(model)
    with pytest.warns(UnknownWordsWarning, match=r"most words of 2 texts \(the first of them text 1\)") as caught:
        vectors = embedder.sentences(["a cat sat", "苹果很贵。", "股票跌停。"])
    # The same tokens; a product of matrices may add the last rows of a batch in another order than the others.
    torch.testing.assert_close(vectors[1], vectors[2], rtol=0, atol=1e-5)
    assert "multilingual" in str(caught[0].message)
    with pytest.warns(UnknownWordsWarning, match=r"1 text \(text 0\)"):
        embedder.tokens("苹果很贵。")


def test_no_warning_if_the_words_are_known(model: Bert) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Embedder(model).sentences(["a cat sat on a mat", "", "。"])


def test_texts_from_any_iterable(model: Bert) -> None:
    texts = ["a cat sat", "on a mat", "a mat"]
    embedder = Embedder(model)
    expected = embedder.sentences(texts)
    assert expected.shape == (3, 22)
    for iterable in (tuple(texts), (text for text in texts), dict.fromkeys(texts).keys(), iter(texts)):
        assert torch.equal(embedder.sentences(iterable), expected)
    assert [len(one) for one in embedder.tokens(text for text in texts)] == [5, 5, 4]
    assert model.tokenizer.encode(text for text in texts).ids.shape == (3, 5)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("wrong", [None, 3, b"a cat", {"text": "a cat"}, torch.ones(4, 4)])
def test_values_that_are_no_texts_are_refused(model: Bert, wrong: object) -> None:
    with pytest.raises(OptionError, match="these are not texts"):
        Embedder(model).sentences(wrong)


def test_mostly_unknown_words_give_no_findings(model: Bert) -> None:
    for text, readable in (("a cat sat on mat", True), ("a cat sat 苹 果 很 贵", False)):
        pairs = word_pairs(read(model, text))
        assert bool(strongest_finding_per_word(pairs)) == readable
        assert bool(findings(pairs, minimum=-1.0)) == readable
