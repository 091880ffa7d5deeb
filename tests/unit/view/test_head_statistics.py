"""Statistics of heads with known weights."""

import numpy as np
import pytest

from layer_readings import layer_reading
from regard.view.head_statistics import describe_uniform, statistics_of
from regard.view.layer_reading import LayerReading
from regard.view.reading import Reading, Tokens
from regard.view.word_pairs import word_pairs

N = 7
TOKENS = Tokens(
    "a b c d e",
    ("[CLS]", *"abcde", "[SEP]"),
    ((0, 0), *((2 * at, 2 * at + 1) for at in range(5)), (0, 0)),
    (True, *[False] * 5, True),
)


def head_attending_to(at: list[int] | None) -> LayerReading:
    """One head whose query i attends to token at[i] only, or equally to all for None."""
    eye = np.eye(N, dtype=np.float32)[None]
    query = np.zeros((1, N, N), dtype=np.float32) if at is None else 1e4 * eye[:, at]
    return layer_reading("one", query, eye, eye, scale=1.0)


def test_uniform_and_previous_token_heads() -> None:
    previous = [0, *range(N - 1)]
    reading = Reading(
        TOKENS, (head_attending_to(None), head_attending_to(previous)), np.zeros((3, N, 2), dtype=np.float32)
    )
    uniform, previous_token = statistics_of(reading)
    distances = np.abs(np.subtract.outer(np.arange(N), np.arange(N)))
    assert uniform.entropy == pytest.approx(np.log(N))
    assert uniform.distance == pytest.approx(distances.mean())
    assert uniform.special == {"[CLS]": pytest.approx(1 / N), "[SEP]": pytest.approx(1 / N)}
    assert previous_token.entropy == 0
    assert previous_token.distance == pytest.approx((N - 1) / N)
    assert (previous_token.previous, previous_token.itself, previous_token.next) == pytest.approx(
        ((N - 1) / N, 1 / N, 0)
    )
    assert (previous_token.layer, previous_token.head) == (1, 0)
    assert previous_token.special == {"[CLS]": pytest.approx(2 / N), "[SEP]": pytest.approx(0)}


def test_uniform_attention_of_a_text_whose_heads_leave_out_later_tokens() -> None:
    previous, uniform = head_attending_to([0, *range(N - 1)]), head_attending_to(None)
    decoder, encoder = (Reading(TOKENS, layers) for layers in ((previous,), (previous, uniform)))
    assert [one.later for one in statistics_of(encoder)] == pytest.approx([0, (N - 1) / 2 / N])
    mean = np.log(np.arange(1, N + 1)).mean()
    assert describe_uniform(decoder, statistics_of(decoder)) == f"ln(7!)/7 = {mean:.2f}"
    assert describe_uniform(encoder, statistics_of(encoder)) == f"ln 7 = {np.log(7):.2f}"


def test_entropy_with_a_gaussian_window_is_that_of_the_shares() -> None:
    plain = head_attending_to(None)
    centre = np.full((1, N), 3.0, dtype=np.float32)
    (statistics,) = statistics_of(
        Reading(TOKENS, (layer_reading("one", plain.query, plain.key, plain.value, 1.0, centre=centre),))
    )
    heights = np.exp(-((np.arange(N) - 3) ** 2) / 4.5)
    shares = heights / heights.sum()
    assert statistics.entropy == pytest.approx(-(shares * np.log(shares)).sum())
    assert statistics.itself == pytest.approx((heights / N).mean()), "weights themselves sum to less than 1"


@pytest.mark.parametrize(("sink", "names"), [(0, {"[CLS]", "[SEP]"}), (1, {"first token", "[CLS]", "[SEP]"})])
def test_share_of_the_token_that_is_kept_apart(sink: int, names: set[str]) -> None:
    reading = Reading(TOKENS, (head_attending_to([1, 1, 1, 2, 3, 1, 0]),), sink=sink)
    (found,) = statistics_of(reading)
    assert set(found.special) == names
    if sink == 1:
        assert found.special["first token"] == pytest.approx(4 / N)
    assert word_pairs(reading).share_of_sink == pytest.approx({0: 1 / 6, 1: 2 / 5}[sink])
