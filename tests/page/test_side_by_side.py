"""The page of several mechanisms in a real browser: its numbers, what is marked in all panels, and its controls."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_page import BrowserPage
from paper import assert_fits_paper, print_page
from playwright.sync_api import Page
from test_page import CONTRAST

import regard
from regard.comparison import mass_kept, parse_choices
from regard.view.findings import findings
from regard.view.page import write_page
from regard.view.read_side_by_side import read_side_by_side
from regard.view.side_by_side import SideBySide
from regard.view.word_pairs import word_pairs

TIRED = "The animal didn't cross the street because it was too tired."
PHONED = "The cardiologist phoned his mother because he was unhappy."
MECHANISMS = "longformer:window=4,nystromformer,performer:seed=3,additive"
LABEL = """(() => {
  const canvas = document.querySelectorAll(".panel canvas")[1];
  const context = canvas.getContext("2d");
  context.font = `12px ${getComputedStyle(document.documentElement).getPropertyValue("--sans").trim()}`;
  const names = [...document.querySelectorAll("#row bdi")].map((node) => node.textContent);
  const label = Math.min(76, Math.max(...names.map((name) => context.measureText(name).width)) + 8);
  return [label, Math.min(30, (canvas.clientWidth - label - 2) / names.length)];
})()"""
"""The space of the labels of a heat map, and the size of its cells."""
PICTURES = "[...document.querySelectorAll('.panel canvas')].map((canvas) => canvas.toDataURL())"
Show = Callable[..., BrowserPage]


@pytest.fixture(scope="module")
def side() -> SideBySide:
    return read_side_by_side(regard.load("minilm"), TIRED, parse_choices(MECHANISMS))


@pytest.fixture
def show_side(browser_window: Page, tmp_path: Path) -> Iterator[Show]:
    """Return a function that writes and opens the page; closing asserts no errors and no requests."""
    shown: list[BrowserPage] = []

    def show(*readings: SideBySide, at: str = "", width: int = 1200, scheme: str = "light") -> BrowserPage:
        path = write_page(readings, tmp_path / "side.html", model="test")
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        shown.append(BrowserPage(browser_window, path))
        shown[-1].wait_until_painted = lambda: None  # this page has no grid that is painted later
        shown[-1].open(at)
        return shown[-1]

    yield show
    shown[-1].close()


def in_percent(texts: list[str]) -> list[float]:
    found = (re.search(r"−?\d+\.\d+(?=\u00a0%)", text) for text in texts)
    return [float(one[0].replace("−", "-")) for one in found if one]


def row_numbers(opened: BrowserPage, row: int) -> list[float]:
    cells = opened.page.locator("#rows tbody tr").nth(row).locator("td.weight").all_inner_texts()
    return [0.0 if cell == "·" else float(cell.replace("−", "-")) for cell in cells]


def weights_of(side: SideBySide, number: int, layer: int) -> np.ndarray:
    """Weights of exact attention (0) or of a panel, from 1."""
    return (side.exact.layers if number == 0 else side.panels[number - 1].computed.layers)[layer].weights()


def test_opens_at_the_strongest_finding_of_exact_attention(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side)
    said = opened.sentence()
    begin = "In layer 3, head 1, it attends most to animal: 67.7\u00a0%. The same weight is 0.0\u00a0% under lo"
    assert said.startswith(begin)
    assert opened.page.locator(".panel").count() == 5
    assert opened.page.locator(".panel canvas").count() == 4
    refused = opened.page.locator(".panel .refusal").inner_text()
    assert refused == "Refuses: additive has parameters of its own, for which the model has no trained weights."


def test_text_headline_and_the_first_maps_are_on_one_screen(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side, width=1280)
    bottoms = opened.page.locator("#sentence, #row, .place, .panel canvas").evaluate_all(
        "nodes => nodes.map((node) => node.getBoundingClientRect().bottom)"
    )
    assert max(bottoms[:6]) <= 800  # with three maps beside one another
    assert not opened.page.locator(".first .how").is_visible()
    opened.page.locator(".first summary").click()
    assert opened.page.locator(".first .how").is_visible()


def test_numbers_equal_the_readings(show_side: Show, side: SideBySide) -> None:
    layer, head, query, key = 2, 5, 3, 7
    opened = show_side(side, at=f"#text=0&layer={layer}&head={head}&token={query}&key={key}")
    for number in range(4):
        row = 100 * weights_of(side, number, layer)[head, query]
        np.testing.assert_allclose(row_numbers(opened, number), np.where(np.abs(row) >= 0.5, row, 0), atol=0.051)
    shown = in_percent(opened.page.locator(".panel .value").all_inner_texts())
    heads = [torch.from_numpy(weights_of(side, number, layer)[head]) for number in range(4)]
    np.testing.assert_allclose(shown, [100 * one[query, key] for one in heads], atol=0.051)
    kept = [100 * mass_kept(heads[0], one).mean() for one in heads]
    np.testing.assert_allclose(in_percent(opened.page.locator(".panel .kept b").all_inner_texts()), kept, atol=0.051)
    cells = opened.page.locator("#measures tbody tr").nth(1).locator("td").all_inner_texts()
    summary = side.panels[0].computed.summary
    measures = (summary.mass_kept, summary.mass_covered, summary.top_agreement, summary.output_error)
    np.testing.assert_allclose(in_percent(cells[2:6]), [100 * one for one in measures], atol=0.051)
    assert cells[6:8] == ["147 k", "0.25 ×"]  # n window d instead of n n d, with a window of 4 for n = 16


def test_a_cell_is_marked_in_all_panels(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side)
    canvas = opened.page.locator(".panel canvas").nth(1)
    canvas.scroll_into_view_if_needed()
    box, (label, cell) = canvas.bounding_box(), opened.page.evaluate(LABEL)
    place = (box["x"] + label + 5.5 * cell, box["y"] + label + 7.5 * cell)
    opened.page.mouse.move(*place)
    pointed = opened.page.locator(".panel .value").all_inner_texts()
    assert all(text.startswith("the → t ") for text in pointed)
    expected = [100 * weights_of(side, number, 3)[1, 7, 5] for number in range(4)]
    np.testing.assert_allclose(in_percent(pointed), expected, atol=0.051)
    assert opened.sentence().startswith("In layer 3, head 1, it "), "pointing chooses nothing"
    opened.page.mouse.click(*place)
    assert "token=7&key=5" in opened.current_url()
    opened.page.mouse.move(0, 0)
    assert opened.page.locator(".panel .value").all_inner_texts() == pointed


def test_keyboard_moves_through_tokens_cells_and_heads(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side, at="#text=0&layer=3&head=1&token=10&key=2")
    opened.page.locator("#row [aria-selected=true]").focus()
    opened.page.keyboard.press("ArrowRight")
    assert "token=11" in opened.current_url()
    opened.page.locator(".panel canvas").nth(2).focus()
    opened.page.keyboard.press("ArrowUp")
    assert "token=10" in opened.current_url()
    opened.page.keyboard.press("ArrowRight")
    assert re.search(r"token=10&key=\d+", opened.current_url())
    opened.page.locator("#masses canvas").first.focus()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowLeft")
    assert "layer=4&head=0" in opened.current_url()
    opened.page.locator("#head").select_option("12")
    assert "head=mean" in opened.current_url()
    assert "all heads averaged" in opened.sentence()


def test_difference_from_exact(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side)
    before = opened.page.evaluate(PICTURES)
    opened.page.get_by_role("radio", name="difference from exact").click()
    after = opened.page.evaluate(PICTURES)
    assert [one != other for one, other in zip(before, after, strict=True)] == [False, True, True, True]
    assert opened.page.locator(".panel .value").nth(1).inner_text() == "it → animal 0.0\u00a0% (−67.7\u00a0%)"
    assert opened.page.inner_text("#scale-name") == "weight minus exact weight"


def test_pairs_and_head_masses_lead_to_their_place(show_side: Show, side: SideBySide) -> None:
    opened = show_side(side)
    opened.page.locator("#pairs button").nth(1).click()
    assert "layer=2&head=0" in opened.current_url()
    canvas = opened.page.locator("#masses canvas").first
    cell = min(36, canvas.bounding_box()["width"] / 12)
    canvas.click(position={"x": 3.5 * cell, "y": 4.5 * cell})
    assert "layer=4&head=3" in opened.current_url()


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1200, marks=pytest.mark.slow), ("dark", 380)])
def test_readable_in_both_themes_and_on_a_phone(show_side: Show, side: SideBySide, scheme: str, width: int) -> None:
    opened = show_side(side, scheme=scheme, width=width)
    opened.page.wait_for_timeout(200)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.page.evaluate(CONTRAST) >= 4.5
    colours = opened.page.evaluate(
        """[...document.querySelectorAll(".panel canvas, #masses canvas, #scale")].map((canvas) => {
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return [new Set(new Uint32Array(data.buffer)).size, canvas.id, data[0] - data[2]];
        })"""
    )
    assert min(distinct for distinct, _, _ in colours) > 5
    (red_less_blue,) = (lowest for _, name, lowest in colours if name == "scale")
    assert red_less_blue > 60, "orange is below 0, as on the page of one mechanism"
    opened.page.locator("#theme").click()
    assert opened.page.evaluate("document.documentElement.dataset.theme") != scheme


def test_a_pair_of_words_has_the_weight_that_the_page_of_the_text_has(show_side: Show) -> None:
    """Of words of several tokens it is the sum over the key's, averaged over the query's, under each mechanism."""
    side = read_side_by_side(regard.load("minilm"), PHONED, parse_choices("performer:seed=3,linear"))
    pairs = word_pairs(side.exact)
    found = findings(pairs)
    pieces = [(pairs.query_words[one.query_word].pieces, pairs.key_words[one.key_word].pieces) for one in found]
    assert max(len(query) for query, _ in pieces) > 1
    assert max(len(key) for _, key in pieces) > 1
    opened = show_side(side)
    rows = opened.page.locator("#pairs tbody tr")
    for number, (one, (query, key)) in enumerate(zip(found, pieces, strict=True)):
        look = one.looks[0]
        shown = [float(cell.replace("−", "-")) for cell in rows.nth(number).locator("td.weight").all_inner_texts()]
        matrices = [weights_of(side, panel, look.layer)[look.head] for panel in range(3)]
        expected = [np.mean([sum(matrix[i, j] for j in key) for i in query]) for matrix in matrices]
        np.testing.assert_allclose(shown, 100 * np.array(expected), atol=0.051)
        assert shown[0] == round(100 * look.weight, 1)
        opened.page.locator("#pairs button").nth(number).click()
        words = re.search(r"As whole words: .*? → .*? ([\d.]+)\u00a0%", opened.sentence())
        assert (words is not None) == (len(query) * len(key) > 1)
        assert words is None or float(words[1]) == shown[0]


def test_paper_has_all_panels_and_whole_tables_in_light_colours(show_side: Show) -> None:
    """A table with a column for each of 24 tokens, and one for each of seven mechanisms."""
    text = (
        "The animal didn't cross the street because it was too tired, and the unhappy cardiologist phoned his mother."
    )
    mechanisms = "longformer:window=4,bigbird,performer,linear,nystromformer,moba,additive"
    side = read_side_by_side(regard.load("minilm"), text, parse_choices(mechanisms))
    opened = show_side(side, scheme="dark")
    assert opened.page.locator("#rows thead th").count() == 25
    printed = print_page(opened)
    assert printed["theme"] == "light"
    assert printed["painted"] == printed["canvases"] == 7 + 6 + 1  # heat maps, kept masses, scale
    assert_fits_paper(opened)
    cells = opened.page.locator("#rows td.weight")
    opened.page.emulate_media(media="print")
    assert cells.evaluate_all("cells => Math.max(...cells.map((cell) => cell.clientHeight))") < 25, "numbers stay whole"


def test_size_several_texts_and_unsafe_text(show_side: Show, side: SideBySide, tmp_path: Path) -> None:
    path = write_page([side], tmp_path / "size.html", model="minilm")
    assert path.stat().st_size < 2**20
    other = read_side_by_side(regard.load("minilm"), "<b>a & b</b>", parse_choices("linear"))
    opened = show_side(side, other)
    opened.page.locator("#texts [role=tab]").nth(1).click()
    assert opened.page.locator(".panel").count() == 2
    assert "<" in opened.page.inner_text("#row")
    assert "linear" in opened.sentence()
