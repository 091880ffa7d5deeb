"""The page of two readings in a real browser: its numbers, one screen, and its controls."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from browser_page import BrowserPage, random_reading
from paper import assert_fits_paper, print_page
from test_page import CONTRAST
from test_translation import random_pair

import regard
from regard.view import Reading, ReadingComparison, compare_pairs, compare_readings, mass_of_marks, read, without_marks

WORDS = ["The", "cat", "sat", "on", "the", "mat", "because", "it", "was", "warm", "."]
TIRED = "The animal didn't cross the street because it was too tired."
Show = Callable[..., BrowserPage]


@pytest.fixture
def show_compared(show: Show) -> Show:
    """Return a function that writes and opens the page of comparisons, which has no grid that is painted later."""

    def show_page(*comparisons: ReadingComparison, **options: Any) -> BrowserPage:
        opened = show(*comparisons, **options)
        opened.wait_until_painted = lambda: None
        return opened

    return show_page


@pytest.fixture(scope="module")
def wide() -> ReadingComparison:
    model = regard.load("minilm")
    return compare_readings(read(model, TIRED), read(model, TIRED.replace("tired", "wide")), names=("text 1", "text 2"))


def changed() -> ReadingComparison:
    """Two texts of random weights, where one word is another, one is gone and one is new."""
    other = [*WORDS[:3], "upon", *WORDS[4:6], *WORDS[7:10], "now", "."]
    return compare_readings(random_reading(WORDS), random_reading(other, seed=8))


def shares_shown(opened: BrowserPage, side: int) -> list[float | None]:
    """The shares under the words of a side; a dot, for less than half a percent, is 0, and nothing is None."""
    texts = opened.page.locator("#rows .place").evaluate_all(
        f"places => places.map((place) => place.children[{2 * side + 1}].textContent)"
    )
    return [None if text == "" else 0.0 if text == "·" else float(text) for text in texts]


def in_percent(text: str) -> list[float]:
    return [float(one.replace("−", "-")) for one in re.findall(r"−?\d+\.\d+(?=\u00a0%)", text)]


def test_one_changed_word_is_seen_on_one_screen_without_a_click(show_compared: Show, wide: ReadingComparison) -> None:
    opened = show_compared(wide, width=1280)
    assert opened.sentence().startswith("In layer 3, head 1, it → animal: 67.7\u00a0% → 28.1\u00a0%.")
    bottoms = opened.page.locator("#sentence, #rows, #maps .panel, #scale").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 6
    assert max(bottoms) <= 800
    values = opened.page.locator("#maps .value").all_inner_texts()
    assert [in_percent(value)[0] for value in values] == [67.7, 28.1, -39.6]


def test_numbers_are_those_of_the_comparison(show_compared: Show) -> None:
    comparison = changed()
    opened = show_compared(comparison)
    ranked = opened.page.locator("#changes button")
    assert ranked.count() == len(comparison.heads) == 6
    query = next(place for place in range(len(comparison.places)) if comparison.name_of(place) == "mat")
    for number, head in enumerate(comparison.heads):
        ranked.nth(number).click()
        opened.page.locator("#rows .place").nth(query).click()
        assert f"layer={head.layer}&head={head.head}" in opened.current_url()
        assert in_percent(ranked.nth(number).inner_text())[-1] == pytest.approx(100 * head.change, abs=0.051)
        for side in (0, 1):
            row = 100 * comparison.shares_of(side, head.layer, head.head)[query]
            shown = shares_shown(opened, side)
            assert [share is None for share in shown] == [place[side] is None for place in comparison.places]
            for share, exact in zip(shown, row, strict=True):
                assert share is None or share == pytest.approx(exact, abs=0.051) or (share == 0 and exact < 0.5)
        moved = in_percent(opened.sentence())[-1]
        assert moved == pytest.approx(100 * comparison.moved[number, query], abs=0.051)


def test_heads_are_ranked_by_the_chosen_word_too(show_compared: Show) -> None:
    comparison = changed()
    opened = show_compared(comparison)
    query = next(place for place in range(len(comparison.places)) if comparison.name_of(place) == "mat")
    opened.page.locator("#rows .place").nth(query).click()
    opened.page.get_by_role("radio", name="by “mat”").click()
    shown = [in_percent(text)[-1] for text in opened.page.locator("#changes button").all_inner_texts()]
    np.testing.assert_allclose(shown, sorted(100 * comparison.moved[:, query], reverse=True), atol=0.11)
    opened.page.locator("#changes button").first.click()
    best = comparison.heads[int(np.argmax(comparison.moved[:, query]))]
    assert f"layer={best.layer}&head={best.head}" in opened.current_url()
    words = opened.page.locator("#words b .word").all_inner_texts()
    assert words == [comparison.name_of(place) for place in comparison.listed_words][:8]


def test_without_marks_the_comparison_is_that_of_the_readings_without_them(show_compared: Show) -> None:
    comparison = changed()
    unmarked = compare_readings(without_marks(comparison.first), without_marks(comparison.second))
    opened = show_compared(comparison)
    opened.page.get_by_role("radio", name="Without [CLS], [SEP]").click()
    shown = [in_percent(text)[-1] for text in opened.page.locator("#changes button").all_inner_texts()]
    np.testing.assert_allclose(shown, [100 * head.change for head in unmarked.heads], atol=0.051)
    opened.page.locator("#changes button").nth(2).click()
    opened.page.locator("#rows .place").nth(3).click()
    head = unmarked.heads[2]
    for side in (0, 1):
        row = 100 * unmarked.shares_of(side, head.layer, head.head)[2]
        shown_row = [share for share in shares_shown(opened, side)[1:-1] if share is not None]
        exact = [share for share, place in zip(row, unmarked.places, strict=True) if place[side] is not None]
        np.testing.assert_allclose(shown_row, np.where(np.array(exact) >= 0.5, exact, 0), atol=0.051)
    number = 3 * head.layer + head.head
    hidden = [100 * mass_of_marks(reading)[number] for reading in (comparison.first, comparison.second)]
    np.testing.assert_allclose(in_percent(opened.page.inner_text("#mark-switch")), hidden, atol=0.051)


def test_translations_show_both_targets_over_both_sources(show_compared: Show) -> None:
    pairs = random_pair(), random_pair(["Ein", "Hund", "knurrt", "laut", "."], ["A", "big", "dog", "barks", "."])
    comparisons = compare_pairs(*pairs, names=("pair 1", "pair 2"))
    across = comparisons[0]
    opened = show_compared(*comparisons, width=1280)
    assert [text.split(":")[0][3:] for text in opened.page.locator("#texts [role=tab]").all_inner_texts()] == [
        "Cross-attention", "Source self-attention", "Target self-attention",
    ]  # fmt: skip
    opened.page.locator("#changes button").first.click()
    opened.page.locator("#targets .place").nth(2).click()
    head = across.heads[0]
    assert across.name_of(2) == "dog"
    assert "dog → " in opened.sentence()
    for side in (0, 1):
        row = 100 * across.shares_of(side, head.layer, head.head)[2]
        shown = shares_shown(opened, side)
        np.testing.assert_allclose(shown, np.where(row >= 0.5, row, 0), atol=0.051)
    opened.page.locator("#rows .place").nth(2).click()
    assert "dog → bellt / knurrt" in opened.sentence()
    opened.page.locator("#maps canvas").nth(2).focus()
    opened.page.keyboard.press("ArrowRight")
    assert "dog → laut" in opened.sentence()
    opened.page.get_by_role("radio", name="Without </s>").click()
    opened.page.locator("#texts [role=tab]").nth(2).click()
    assert not opened.page.locator("#targets").is_visible()
    assert opened.page.evaluate(CONTRAST) >= 4.5


def test_two_heads_of_one_reading_are_chosen_by_hand(show_compared: Show) -> None:
    reading = random_reading(WORDS)
    opened = show_compared(
        compare_readings(reading, reading, names=("head", "other head")), at="#layer=0&head=1&token=3"
    )
    opened.page.select_option("#other-layer", "1")
    opened.page.select_option("#other-head", "2")
    assert opened.sentence().startswith("In 0·1 and 1·2 (layer·head), sat → ")
    for side, (layer, head) in enumerate([(0, 1), (1, 2)]):
        row = 100 * reading.layers[layer].weights()[head, 3]
        np.testing.assert_allclose(shares_shown(opened, side), np.where(row >= 0.5, row, 0), atol=0.051)
    assert "other=1.2" in opened.current_url()
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    assert opened.sentence().startswith("In 0·1 and 1·2 (layer·head), sat → ")
    opened.page.locator("#changes button").first.click()
    assert "other=" not in opened.current_url()


def test_keyboard_moves_through_words_heads_and_cells(show_compared: Show, wide: ReadingComparison) -> None:
    opened = show_compared(wide)
    opened.page.locator("#rows [aria-selected=true]").focus()
    opened.page.keyboard.press("ArrowRight")
    assert ", was → " in opened.sentence()
    opened.page.locator("#changes [tabindex='0']").focus()
    opened.page.keyboard.press("ArrowUp")
    first = opened.current_url()
    opened.page.keyboard.press("Home")
    assert f"layer={wide.heads[0].layer}&head={wide.heads[0].head}" in opened.current_url()
    assert first.count("layer=")
    opened.page.locator("#maps canvas").nth(2).focus()
    opened.page.keyboard.press("ArrowUp")
    assert ", it → " in opened.sentence()


def test_a_cell_that_is_pointed_at_is_marked_in_all_maps(show_compared: Show, wide: ReadingComparison) -> None:
    opened = show_compared(wide, width=1280)
    box = opened.page.locator("#maps canvas").nth(1).bounding_box()
    opened.page.mouse.move(box["x"] + box["width"] - 4, box["y"] + box["height"] - 4)
    assert all(text.startswith("[SEP] → [SEP]") for text in opened.page.locator("#maps .value").all_inner_texts())
    assert "it → animal" in opened.sentence()


@pytest.mark.parametrize(("scheme", "width"), [("dark", 390), pytest.param("light", 1200, marks=pytest.mark.slow)])
def test_readable_in_both_themes_and_on_a_phone(show_compared: Show, scheme: str, width: int) -> None:
    opened = show_compared(changed(), scheme=scheme, width=width)
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.page.evaluate(CONTRAST) >= 4.5


def test_tabs_paper_and_unsafe_text(show_compared: Show) -> None:
    unsafe = compare_readings(random_reading(["<b>", "</script>", "a"]), random_reading(["<b>", "<img>", "a"], seed=9))
    opened = show_compared(changed(), unsafe, scheme="dark")
    opened.page.locator("#texts [role=tab]").nth(1).click()
    assert "</script>" in opened.page.inner_text("#rows")
    assert opened.page.locator("#rows img").count() == 0
    printed = print_page(opened)
    assert printed["theme"] == "light"
    assert printed["painted"] == printed["canvases"] == 4
    assert_fits_paper(opened)


def test_comparisons_of_one_text_are_told_apart_by_their_names(show_compared: Show) -> None:
    first, second, third = (random_reading(WORDS, seed=seed) for seed in (7, 8, 9))
    several = [
        compare_readings(first, second, names=("exact", "window")),
        compare_readings(first, third, names=("exact", "random")),
        compare_readings(first, random_reading(WORDS[:5]), names=("exact", "shorter")),
    ]
    titles = show_compared(*several).page.locator("#texts [role=tab]").all_inner_texts()
    text = " ".join(WORDS)
    alone = f"3. {text} | {' '.join(WORDS[:5])}"
    assert titles == [f"1. exact / window · {text}", f"2. exact / random · {text}", alone]
    titles = show_compared(*several[:2]).page.locator("#texts [role=tab]").all_inner_texts()
    assert titles == ["1. exact / window", "2. exact / random"]


def test_the_name_of_a_side_is_beside_its_selectors_on_a_phone(show_compared: Show, wide: ReadingComparison) -> None:
    opened = show_compared(wide, width=390)
    for name, selector in (("#first-name", "#head"), ("#second-name", "#other-head")):
        top, other = (opened.page.locator(part).bounding_box() for part in (name, selector))
        assert top is not None
        assert other is not None
        assert abs(top["y"] + top["height"] / 2 - other["y"] - other["height"] / 2) < 8


def test_a_layer_of_weights_alone_and_of_another_model(show_compared: Show) -> None:
    first: Reading = random_reading(WORDS)
    second = random_reading(WORDS, layers=1, heads=2, seed=3)
    comparison = compare_readings(first, second, names=("small", "smaller"))
    opened = show_compared(comparison)
    top = comparison.heads[0]
    label = f"{top.layer}·{top.head} / {top.other_layer}·{top.other_head}"
    assert opened.page.locator("#changes button").first.inner_text().startswith(label)
    assert "nearest to it" in opened.page.inner_text("#partners")
