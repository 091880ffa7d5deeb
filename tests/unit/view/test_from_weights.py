"""Readings of weights that a program computed: shapes, tokens, checks, and the steps from queries and keys."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from regard.errors import DataError, DtypeError, OptionError, ShapeError
from regard.view import LayerReading, Tokens
from regard.view.from_weights import name_tokens, read_weights

LAYERS, HEADS, QUERIES, KEYS, HEAD_DIM = 2, 3, 5, 7, 11


def random_weights(keys: int = QUERIES) -> np.ndarray:
    """Weights in float64 (layers, heads, queries, keys)."""
    weights = np.random.default_rng(3).random((LAYERS, HEADS, QUERIES, keys))
    return weights / weights.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    "form",
    [
        lambda weights: weights,
        lambda weights: torch.from_numpy(weights),
        lambda weights: weights[:, None],
        lambda weights: list(weights),
        lambda weights: tuple(torch.from_numpy(weights)[:, None]),
        lambda weights: [torch.from_numpy(weights[0]), weights[1][None]],
    ],
    ids=["array", "tensor", "batch of one", "list", "transformers", "mixed"],
)
def test_every_form_gives_the_same_layers(form: Any) -> None:
    weights = random_weights()
    reading = read_weights(form(weights), tokens=list("abcde"))
    assert [layer.heads for layer in reading.layers] == [HEADS] * LAYERS
    for layer, expected in zip(reading.layers, weights, strict=True):
        np.testing.assert_allclose(layer.weights(), expected, atol=1e-7)


def test_one_layer_and_one_head() -> None:
    weights = random_weights()
    assert [layer.heads for layer in read_weights(weights[0]).layers] == [HEADS]
    (layer,) = read_weights(weights[1, 2]).layers
    np.testing.assert_allclose(layer.weights()[0], weights[1, 2], atol=1e-7)


def test_layers_may_have_different_numbers_of_heads() -> None:
    weights = random_weights()
    assert [layer.heads for layer in read_weights([weights[0], weights[1][:1]]).layers] == [HEADS, 1]


def test_weights_of_16_bits_may_miss_1_by_their_rounding() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        read_weights(torch.from_numpy(random_weights(64)).to(dtype), key_tokens=["x"] * 64)


def test_cross_attention_needs_the_tokens_of_both_texts() -> None:
    weights = random_weights(KEYS)
    reading = read_weights(weights, tokens=list("abcde"), key_tokens=list("tuvwxyz"))
    assert (len(reading.tokens), len(reading.key_tokens)) == (QUERIES, KEYS)
    assert reading.sink is None
    with pytest.raises(ShapeError, match="attention to another text"):
        read_weights(weights, tokens=list("abcde"))


def test_the_first_token_of_a_decoder_is_kept_apart() -> None:
    weights = np.tril(random_weights())
    weights /= weights.sum(-1, keepdims=True)
    assert read_weights(weights).sink == 0
    assert read_weights(random_weights()).sink is None


@pytest.mark.parametrize(
    ("pieces", "text", "surfaces", "special"),
    [
        (["[CLS]", "un", "##believ", "##able", "!", "[SEP]"], "unbelievable !", "[CLS] un believ able ! [SEP]",
         "100001"),
        (["<s>", "▁un", "believable", "!", "</s>"], "unbelievable!", "<s> un believable ! </s>", "10001"),
        (["Ġthe", "Ġcat", "s", "Ġ"], "the cats ", "the cat s Ġ", "0000"),
        (["the", "cat", ""], "the cat ", "the cat ", "000"),
        (["[UNK]", "cat"], "[UNK] cat", "[UNK] cat", "00"),
    ],
    ids=["word pieces", "sentencepiece", "bytes", "words", "unknown"],
)  # fmt: skip
def test_tokens_are_joined_as_their_vocabulary_spells_them(
    pieces: list[str], text: str, surfaces: str, special: str
) -> None:
    tokens = name_tokens("tokens", pieces, len(pieces))
    assert tokens.text == text
    assert [tokens.surface(at) for at in range(len(pieces))] == surfaces.split(" ")
    assert tokens.special == tuple(flag == "1" for flag in special)


def test_tokens_may_be_left_out_or_complete() -> None:
    assert name_tokens("tokens", None, 3).pieces == ("0", "1", "2")
    own = Tokens("ab", ("a", "b"), ((0, 1), (1, 2)), (False, True))
    assert name_tokens("tokens", own, 2) is own


def vectors(keys: int, *, key_heads: int = HEADS) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {
        "queries": torch.randn(LAYERS, HEADS, QUERIES, HEAD_DIM),
        "keys": torch.randn(LAYERS, key_heads, keys, HEAD_DIM),
        "values": torch.randn(LAYERS, key_heads, keys, 2),
    }


@pytest.mark.parametrize("scale", [None, 0.5])
@pytest.mark.parametrize("key_heads", [HEADS, 1])
@pytest.mark.parametrize("is_causal", [True, False])
def test_steps_compute_the_weights(scale: float | None, key_heads: int, is_causal: bool) -> None:
    given = vectors(QUERIES, key_heads=key_heads)
    scores = given["queries"] @ given["keys"].transpose(-1, -2) * (HEAD_DIM**-0.5 if scale is None else scale)
    if is_causal:
        scores = scores.masked_fill(torch.ones(QUERIES, QUERIES, dtype=torch.bool).triu(1), -torch.inf)
    weights = scores.softmax(-1)
    reading = read_weights(weights, scale=scale, **given)
    for layer, expected in zip(reading.layers, weights, strict=True):
        assert isinstance(layer, LayerReading)
        np.testing.assert_allclose(layer.weights(), expected, atol=1e-6)
    assert (reading.sink == 0) == is_causal


def test_weights_of_other_queries_and_keys_are_refused() -> None:
    given = vectors(QUERIES)
    weights = (given["queries"] @ given["keys"].transpose(-1, -2)).softmax(-1)
    with pytest.raises(DataError, match="not those of its queries and keys"):
        read_weights(weights, **given)
    read_weights(weights, scale=1, **given)


WEIGHTS = random_weights()
SHORT = vectors(QUERIES - 1)


@pytest.mark.parametrize(
    ("error", "match", "arguments"),
    [
        (DataError, r"do not sum to 1[^§]*0\.5 for head 1, query 2, and 0 more", {"weights": np.where(
            np.arange(LAYERS * HEADS * QUERIES).reshape(LAYERS, HEADS, QUERIES, 1) == 7, 0.5, 1) * WEIGHTS}),
        (DataError, "below 0", {"weights": -WEIGHTS}),
        (DataError, "below 0", {"weights": -WEIGHTS, "weights_are": "non-negative"}),
        (DataError, "not finite", {"weights": WEIGHTS * np.nan}),
        (DataError, "not finite", {"weights": WEIGHTS * np.inf, "weights_are": "signed"}),
        (DataError, "is empty", {"weights": []}),
        (DataError, "is empty", {"weights": np.zeros((0, 3, 5, 5))}),
        (DataError, "is empty", {"weights": np.zeros((1, 3, 5, 0))}),
        (ShapeError, r"wrong shape[^§]*\(2, 2, 3, 5, 5\)", {"weights": np.stack([WEIGHTS, WEIGHTS])}),
        (ShapeError, "numbers of tokens", {"weights": WEIGHTS, "tokens": ["a"]}),
        (ShapeError, "numbers of key_tokens", {"weights": WEIGHTS, "key_tokens": ["a"]}),
        (OptionError, r"split it[^§]*text.split\(\)", {"weights": WEIGHTS, "tokens": "a b c d e"}),
        (OptionError, "wrong tokens", {"weights": WEIGHTS, "tokens": [1, 2, 3, 4, 5]}),
        (DtypeError, "None for layer 1", {"weights": [WEIGHTS[0], None]}),
        (DtypeError, "unsupported dtype", {"weights": np.ones((1, 5, 5), dtype=int)}),
        (DtypeError, "no values", {"weights": torch.ones(1, 5, 5, device="meta")}),
        (OptionError, "no keys and no values", {"weights": WEIGHTS, "queries": SHORT["queries"]}),
        (OptionError, "`scale` has no effect", {"weights": WEIGHTS, "scale": 2.0}),
        (ShapeError, "different numbers of layers", {"weights": WEIGHTS[:1], **SHORT}),
        (ShapeError, "do not fit its weights", {"weights": WEIGHTS, **SHORT}),
        (DataError, "too many weights", {"weights": np.broadcast_to(np.eye(1), (1, 8193, 4097))}),
    ],
)  # fmt: skip
def test_unusable_weights_are_refused(error: type[Exception], match: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error) as caught:
        read_weights(**arguments)
    assert re.search(match, f"{caught.value.what} {caught.value}")


def test_rows_of_zeros_and_other_kinds_are_kept() -> None:
    weights = WEIGHTS.copy()
    weights[0, 1, 2] = 0
    assert read_weights(weights).layers[0].weights()[1, 2].sum() == 0
    assert read_weights(3 * WEIGHTS, weights_are="non-negative").layers[0].weights().max() > 1
    assert read_weights(-WEIGHTS, weights_are="signed").layers[0].is_signed
