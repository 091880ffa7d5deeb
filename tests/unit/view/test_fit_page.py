"""Pages of readings that would be too large: the form that fits, its weights, and what it says of itself."""

from collections.abc import Sequence

import numpy as np
import pytest

import regard
from layer_readings import layer_reading
from picture_files import random_pixels
from regard.errors import DataError
from regard.models.perceiver_inputs import TrainedPixelInput
from regard.view import PictureReading, Reading, Tokens, compare_pictures, compare_readings, read, read_file
from regard.view.coarse_picture import join_tokens
from regard.view.fit_page import AnyReading, plan_page
from regard.view.page import render_page
from regard.view.picture_reading import PictureLayer
from small_image_models import image_classifier, small_cct, small_cvt, small_perceiver

WORDS = ("the", "cat", "sat", "down", "here")


def text_reading(seed: int, head_dim: int = 4) -> Reading:
    generator = np.random.default_rng(seed)
    vectors = [generator.normal(size=(2, len(WORDS), head_dim)).astype("f4") for _ in range(3)]
    ends = np.cumsum([len(word) + 1 for word in WORDS]).tolist()
    spans = tuple((end - 1 - len(word), end - 1) for end, word in zip(ends, WORDS, strict=True))
    tokens = Tokens(" ".join(WORDS), WORDS, spans, (False,) * len(WORDS))
    return Reading(tokens, (layer_reading("layer", *vectors, 0.5),))


def picture(model, height: int, width: int) -> PictureReading:
    return read_file(model, random_pixels(height, width, channels=1), name="cat.png")


def forms(
    readings: Sequence[AnyReading], monkeypatch: pytest.MonkeyPatch, limit: int
) -> tuple[Sequence[AnyReading], str]:
    monkeypatch.setattr("regard.view.fit_page.MAX_PAGE_BYTES", limit)
    plan = plan_page(readings)
    assert plan.size <= limit
    assert plan.sentence == plan.notice
    return plan.make(lambda done: None), plan.notice


@pytest.mark.parametrize(
    ("head_dim", "form", "change"),
    [(2, "leaves out values", "LayerReading"), (8, "weights alone", "LayerWeights")],
)
def test_texts_keep_every_weight_and_the_page_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, head_dim: int, form: str, change: str
) -> None:
    readings = [text_reading(seed, head_dim) for seed in range(3)]
    whole = plan_page(readings)
    assert whole.notice == ""
    made, notice = forms(readings, monkeypatch, int(whole.size) - 1 if head_dim == 2 else int(0.6 * whole.size))
    assert form in notice
    for before, after in zip(readings, made, strict=True):
        assert isinstance(after, Reading)
        assert type(after.layers[0]).__name__ == change
        np.testing.assert_allclose(after.layers[0].weights(), before.layers[0].weights(), atol=1e-7)
    assert f'<p class="notice" id="notice">{notice}</p>' in render_page(readings)


def test_comparisons_that_do_not_fit_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    comparisons = [compare_readings(text_reading(0), text_reading(seed)) for seed in (1, 2, 3)]
    made, notice = forms(comparisons, monkeypatch, int(2.5 * plan_page(comparisons[:1]).size))
    assert len(made) == 2
    assert "It shows the first 2 of 3." in notice


def test_a_comparison_that_does_not_fit_alone_is_refused_when_its_page_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compare_readings(text_reading(0), text_reading(1))
    monkeypatch.setattr("regard.view.fit_page.MAX_PAGE_BYTES", 1000)
    assert plan_page([comparison]).sentence == ""
    with pytest.raises(DataError, match=r"alone is too large for a page\n.*at most 0\.0 MB"):
        render_page([comparison])


def test_the_size_of_a_page_is_predicted() -> None:
    model, text = regard.load("minilm"), "I ate an apple. " * 6
    exact, coarse = read(model, text), read(model, text * 8, truncate=True)
    vit = picture(image_classifier(size=(60, 60)), 60, 60)
    template = len(render_page([text_reading(0)]))
    for readings in ([exact], [coarse], [coarse, coarse], [compare_readings(coarse, exact)], [vit]):
        size = len(render_page(readings).encode()) - template
        assert plan_page(readings).size == pytest.approx(size, rel=0.15), type(readings[0]).__name__


MODELS = {
    "vit": (lambda: image_classifier(size=(20, 12)), 20, 12),
    "cct": (small_cct, 13, 9),
    "cvt": (small_cvt, 26, 19),
    "perceiver": (lambda: small_perceiver(TrainedPixelInput((6, 5), 1, 8)), 6, 5),
}


@pytest.mark.parametrize("name", MODELS)
def test_joined_tokens_get_the_mean_of_rows_and_the_sum_of_keys(name: str) -> None:
    make, height, width = MODELS[name]
    before = picture(make(), height, width)
    after = join_tokens(before, 2)
    for layer, joined in zip(before.layers, after.layers, strict=True):
        weights, squares = layer.attention.weights(), (squares_of(layer, keys=False), squares_of(layer, keys=True))
        expected = [
            [[np.mean([head[i, keys].sum() for i in queries]) for keys in squares[1]] for queries in squares[0]]
            for head in weights
        ]
        np.testing.assert_allclose(joined.attention.weights(), expected, atol=1e-6)
        assert joined.grid_of_keys.tokens == len(squares[1])
    if before.rollout is not None:
        assert after.rollout is not None
        np.testing.assert_allclose(after.rollout.sum(1), before.rollout.sum(1)[: len(after.rollout)], atol=1e-6)
    assert render_page([after, join_tokens(before, 3)])


def squares_of(layer: PictureLayer, *, keys: bool) -> list[list[int]]:
    """The tokens of each square of 2 x 2, those before the patches alone."""
    grid = layer.grid_of_keys if keys else layer.grid
    prefix = len(grid.prefix)
    squares = [
        [
            prefix + row * grid.columns + column
            for row in range(top, min(top + 2, grid.rows))
            for column in range(left, min(left + 2, grid.columns))
        ]
        for top in range(0, grid.rows, 2)
        for left in range(0, grid.columns, 2)
    ]
    return [[token] for token in range(prefix)] + squares


def test_pictures_and_their_comparisons_fit_by_joined_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    first = picture(image_classifier(size=(20, 12)), 20, 12)
    second = picture(image_classifier(size=(20, 12), heads=4), 20, 12)
    for readings in ([first, second], [compare_pictures(first, second), compare_pictures(first, first)]):
        limit = int(0.7 * plan_page(readings).size)
        made, notice = forms(readings, monkeypatch, limit)
        assert "It joins neighbouring tokens, " in notice
        assert len(made) == 2
        assert notice in render_page(readings)
        monkeypatch.undo()
