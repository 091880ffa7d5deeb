"""The page of a text or a translation on paper, and the way to its heat map by keyboard."""

from collections.abc import Callable

import pytest
from browser_page import BrowserPage, random_reading
from paper import assert_fits_paper, print_page
from test_translation import random_pair

Show = Callable[..., BrowserPage]
WORDS = [f"word{number}" for number in range(40)]


def test_paper_has_light_colours_and_all_maps(show: Show) -> None:
    """From a dark page that is printed before the overview is painted, as a batch job prints it."""
    words = [f"word{number}" for number in range(150)]
    opened = show(random_reading(words, layers=6, heads=12), scheme="dark")
    unpainted = opened.page.evaluate("!document.querySelector('#grid').dataset.painted")
    printed = print_page(opened)
    assert unpainted, "the overview was painted before printing: there is nothing to test"
    assert printed["theme"] == "light"
    assert printed["canvases"] == 6 * 14 + 3  # thumbnails with their means and rollouts; heat map, lines, scale
    assert printed["painted"] == printed["canvases"]
    assert len(set(printed["pictures"])) > 6 * 13
    assert opened.page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_paper_has_the_pictures_of_the_light_page(show: Show) -> None:
    """Of a translation, whose cards are coloured by the script too."""
    pair, cards = (
        random_pair(),
        "[...document.querySelectorAll('#links bdi, #row bdi')].map((one) => one.style.cssText)",
    )
    opened = show(pair, scheme="light")
    light = print_page(opened)
    expected = opened.page.evaluate(cards)
    opened = show(pair, scheme="dark")
    opened.page.evaluate(f"addEventListener('beforeprint', () => {{ window.cards = {cards}; }})")
    dark = print_page(opened)
    assert dark["pictures"] == light["pictures"]
    assert opened.page.evaluate("cards") == expected
    assert opened.page.evaluate(cards) != expected, "the screen is dark again"


@pytest.mark.parametrize("width", [pytest.param(1200, marks=pytest.mark.slow), 390])
def test_nothing_is_cut_on_paper(show: Show, width: int) -> None:
    """Also lists and tables that scroll on the screen: many tokens, heads, special tokens and texts."""
    readings = [
        random_reading([*WORDS[:number], "shared"], layers=13, heads=3, seed=number) for number in range(30, 44)
    ]
    opened = show(*readings, width=width)
    assert opened.page.locator("#chart tr").first.locator("th").count() == 15
    assert_fits_paper(opened)
    opened = show(random_pair(WORDS, WORDS[:31], source_words=[8] * 5, target_words=[1] * 31), width=width)
    opened.page.locator("#grid button").first.click()
    assert_fits_paper(opened)


@pytest.mark.parametrize("translation", [False, True])
def test_the_heat_map_is_a_few_presses_of_tab_away(show: Show, translation: bool) -> None:
    """One to the button that skips to it and one to press; 17 or fewer through every control."""
    reading = random_pair(WORDS, WORDS[:31]) if translation else random_reading(WORDS, layers=6, heads=12)
    opened = show(reading)
    keyboard = opened.page.keyboard
    keyboard.press("Tab")
    assert opened.page.evaluate("document.activeElement.id") == "skip"
    assert opened.page.locator("#skip").bounding_box()["y"] >= 0
    keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.id") == "map"
    assert 0 <= opened.page.locator("#map").bounding_box()["y"] < 800
    opened.page.locator("#skip").focus()
    assert presses_to(opened, "map") <= 17


def presses_to(opened: BrowserPage, name: str) -> int:
    for presses in range(1, 100):
        opened.page.keyboard.press("Tab")
        if opened.page.evaluate("document.activeElement.id") == name:
            return presses
    raise AssertionError(f"{name} was not reached")


def test_arrow_keys_move_through_the_table_of_heads(show: Show) -> None:
    opened = show(random_reading(WORDS[:7]))
    focused = "document.activeElement.textContent"
    opened.page.locator("#numbers th button").first.focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.evaluate(focused) == "entropy"
    opened.page.keyboard.press("Enter")
    assert opened.page.locator("#numbers th[aria-sort=ascending]").inner_text() == "entropy"
    opened.page.keyboard.press("Tab")
    names = opened.page.locator("#numbers td button").all_inner_texts()
    at = names.index(opened.page.evaluate(focused))
    opened.page.keyboard.press("ArrowDown" if at == 0 else "ArrowUp")
    other = opened.page.evaluate(focused)
    assert other == names[1 if at == 0 else at - 1]
    opened.page.keyboard.press("Enter")
    layer, head = other.split(" · ")
    assert opened.sentence().startswith(f"In layer {layer}, head {head}, ")
    assert opened.page.locator("#numbers td button[tabindex='0']").all_inner_texts() == [other]


def test_arrow_keys_move_through_the_cards_of_an_alignment(show: Show) -> None:
    opened = show(random_pair())
    opened.page.locator("#links [tabindex='0']").focus()
    for key, word in (("ArrowRight", "dog"), ("End", "</s>"), ("ArrowUp", ".")):
        opened.page.keyboard.press(key)
        assert f"the step that wrote {word} attends" in opened.sentence()
        assert opened.page.evaluate("document.activeElement.querySelector('.word').textContent") == word
