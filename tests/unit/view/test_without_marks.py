"""A reading without its special tokens and the token that is kept apart."""

import numpy as np
import pytest
import torch

from regard.errors import DataError
from regard.view import LayerWeights, Reading, Tokens, mass_of_marks, without_marks
from regard.view.findings import findings
from regard.view.head_statistics import statistics_of
from regard.view.page import render_page
from regard.view.word_pairs import word_pairs

TOKENS = Tokens(
    "a bc d",
    ("[CLS]", "a", "b", "##c", "d", "[SEP]"),
    ((0, 0), (0, 1), (2, 3), (3, 4), (5, 6), (0, 0)),
    (True, False, False, False, False, True),
)


def random_weights(kind: str = "distribution", heads: int = 3) -> LayerWeights:
    generator = torch.Generator().manual_seed(5)
    scores = torch.randn(heads, 6, 6, generator=generator)
    weights = torch.softmax(scores, -1) if kind == "distribution" else scores
    return LayerWeights("one", weights, kind, "because")


def test_rows_are_scaled_to_the_sum_that_they_had() -> None:
    layer = random_weights()
    reading = Reading(TOKENS, (layer,), np.ones((2, 6, 3), dtype=np.float32))
    bare = without_marks(reading)
    rest = layer.matrices.double().numpy()[:, 1:5, 1:5]
    np.testing.assert_allclose(bare.layers[0].weights(), rest / rest.sum(-1, keepdims=True), rtol=1e-6)
    np.testing.assert_allclose(bare.layers[0].weights_of(2, [3, 0]), bare.layers[0].weights()[2, [3, 0]])
    np.testing.assert_allclose(mass_of_marks(reading), 1 - rest.sum(-1).mean(-1), rtol=1e-6)
    assert bare.tokens.pieces == ("a", "b", "##c", "d")
    assert not any(bare.tokens.special)
    assert bare.hidden is not None
    assert bare.hidden.shape == (2, 4, 3)


def test_signed_weights_keep_the_sum_of_their_absolute_values() -> None:
    layer = random_weights("signed")
    bare = without_marks(Reading(TOKENS, (layer,)))
    whole = layer.matrices.double().numpy()[:, 1:5]
    assert bare.layers[0].is_signed
    np.testing.assert_allclose(np.abs(bare.layers[0].weights()).sum(-1), np.abs(whole).sum(-1), rtol=1e-6)
    assert (np.sign(bare.layers[0].weights()) == np.sign(whole[..., 1:5])).all()


def test_the_token_that_is_kept_apart_is_a_mark_and_a_row_of_marks_alone_is_zero() -> None:
    tokens = Tokens("a b c", ("a", "b", "c"), ((0, 1), (2, 3), (4, 5)), (False,) * 3)
    weights = torch.tensor([[[1.0, 0, 0], [1, 0, 0], [0.5, 0.1, 0.4]]])
    reading = Reading(tokens, (LayerWeights("one", weights, "distribution", ""),), sink=0)
    bare = without_marks(reading)
    assert bare.sink is None
    np.testing.assert_allclose(bare.layers[0].weights(), [[[0, 0], [0.2, 0.8]]], rtol=1e-6)
    np.testing.assert_allclose(mass_of_marks(reading), [0.75], rtol=1e-6)


def test_statistics_pairs_and_pages_of_what_is_left() -> None:
    bare = without_marks(Reading(TOKENS, (random_weights(),)))
    (first, *_) = statistics_of(bare)
    assert first.special == {}
    weights = bare.layers[0].weights()[0]
    assert first.itself == pytest.approx(np.trace(weights) / 4)
    assert first.entropy == pytest.approx(-(weights * np.log(weights)).sum() / 4)
    assert [word.text for word in word_pairs(bare).words] == ["a", "bc", "d"]
    assert findings(word_pairs(bare)) is not None
    assert "the other weights are scaled" in render_page([bare])


def test_words_of_the_tokenizer_are_numbered_anew() -> None:
    named = (("a", (1,)), ("bc", (2, 3)), ("d", (4,)))
    tokens = Tokens(TOKENS.text, TOKENS.pieces, TOKENS.spans, TOKENS.special, named)
    assert without_marks(Reading(tokens, (random_weights(),))).tokens.words == (
        ("a", (0,)),
        ("bc", (1, 2)),
        ("d", (3,)),
    )


def test_a_text_of_marks_alone_is_refused() -> None:
    tokens = Tokens("", ("[CLS]", "[SEP]"), ((0, 0), (0, 0)), (True, True))
    layer = LayerWeights("one", torch.full((1, 2, 2), 0.5), "distribution", "")
    with pytest.raises(DataError, match="only marks"):
        without_marks(Reading(tokens, (layer,)))
