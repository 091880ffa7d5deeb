"""The page of a long text: its overview, zoom, the strongest keys of chosen queries, what it leaves out."""

from collections.abc import Callable

import numpy as np
import pytest
from browser_page import BrowserPage, random_reading
from test_page import MALICIOUS_TOKENS

from layer_readings import layer_reading
from regard.view.long_reading import LongReading, summarize_long
from regard.view.page import render_page
from regard.view.page_size import MAX_WHOLE_TOKENS
from regard.view.reading import Reading, Tokens

Show = Callable[..., BrowserPage]
LENGTH, HEADS = 1500, 2


def text_of_words(length: int) -> Tokens:
    words = [f"w{number % 400}" for number in range(length)]
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])
    spans = tuple((int(start), int(start) + len(word)) for start, word in zip(starts, words, strict=False))
    return Tokens(" ".join(words), tuple(words), spans, (False,) * length)


def long_reading(length: int = LENGTH) -> Reading:
    """A decoder of two layers whose heads 0 attend from token 1200 to token 300."""
    generator = np.random.default_rng(0)
    layers = []
    for name in ("layers.0", "layers.1"):
        query, key, value = (generator.normal(size=(HEADS, length, 4)).astype("f4") for _ in range(3))
        if length > 1200:
            key[:, 300], query[:, 1200] = [6, 0, 0, 0], [6, 0, 0, 0]
        layers.append(layer_reading(name, query, key, value, 0.5, np.tril(np.ones((length, length), dtype=bool))))
    return Reading(text_of_words(length), tuple(layers), sink=0)


@pytest.fixture(scope="module")
def summary() -> LongReading:
    return summarize_long(long_reading())


def test_page_shows_the_notable_pair_and_says_what_it_leaves_out(show: Show, summary: LongReading) -> None:
    page = show(summary)
    assert "w0 (token 1,200) attends most to w300 (token 300)" in page.sentence()
    holds = page.page.inner_text("#holds")
    assert "overview of 64 × 64 patches" in holds
    assert "16 strongest keys of" in holds
    assert f"leaves out the other {LENGTH - len(summary.queries):,} tokens" in holds
    assert page.page.locator("#keys li").count() == 16
    assert page.page.locator("#findings li").count() == len(summary.pairs)
    assert page.page.locator("#numbers tbody tr").count() == 2 * HEADS


def test_shares_of_the_list_are_those_of_the_layer(show: Show, summary: LongReading) -> None:
    page = show(summary, at="#layer=1&head=1&token=1200")
    row = long_reading().layers[1].weights_of(1, [1200])[0]
    shown = page.page.locator("#keys b").all_inner_texts()
    expected = [f"{100 * weight:.1f}\N{NO-BREAK SPACE}%" for weight in sorted(row, reverse=True)[:16]]
    assert [float(text[:-2]) for text in shown] == pytest.approx([float(text[:-2]) for text in expected], abs=0.11)


def test_zooming_shows_a_part_and_a_click_the_nearest_stored_query(show: Show, summary: LongReading) -> None:
    page = show(summary)
    page.page.focus("#map")
    page.page.keyboard.press("+")
    page.wait_until("document.getElementById('map').getAttribute('aria-label').includes('375–1,125')")
    box = page.page.locator("#map").bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + 5, box["y"] + 1)
    chosen = int(page.page.input_value("#query"))
    assert chosen == min(summary.queries, key=lambda query: abs(query - 376))
    page.page.click("#whole")
    page.wait_until("document.getElementById('map').getAttribute('aria-label').includes('0–1,500')")


def test_a_patch_says_its_largest_and_its_mean_share(show: Show, summary: LongReading) -> None:
    page = show(summary, at="#layer=0&head=0&token=1200")
    box = page.page.locator("#map").bounding_box()
    assert box is not None
    page.page.mouse.move(box["x"] + box["width"] * 300.5 / LENGTH, box["y"] + box["height"] * 1200.5 / LENGTH)
    weights = long_reading().layers[0].weights_of(0)
    largest = weights[51 * LENGTH // 64 : 52 * LENGTH // 64, 12 * LENGTH // 64 : 13 * LENGTH // 64].max()
    text = page.page.inner_text("#map-value")
    assert "queries 1,195–1,217, keys 281–303" in text
    shown = float(text.split("largest share ")[1].split("\N{NO-BREAK SPACE}")[0])
    assert shown == pytest.approx(100 * largest, rel=0.09)


def test_a_text_beyond_the_limit_gets_this_page_without_asking() -> None:
    longer, whole = render_page([long_reading()]), render_page([long_reading(40)])
    assert 'class="one-screen long-text"' in longer
    assert len(longer) < 300_000
    assert 'class="one-screen long-text"' not in whole
    assert MAX_WHOLE_TOKENS < LENGTH


def test_the_page_fits_a_phone_and_dark_colours(show: Show, summary: LongReading) -> None:
    page = show(summary, width=390, scheme="dark")
    assert page.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_tokens_are_text(show: Show) -> None:
    page = show(summarize_long(random_reading(MALICIOUS_TOKENS)), at="#layer=0&head=0&token=1")
    shown = page.page.locator("#passage").text_content() or ""
    assert all(token in shown for token in MALICIOUS_TOKENS[:7])
    assert "a⟨U+2028⟩b⟨U+2029⟩c" in shown
    assert page.page.evaluate("document.scripts.length") == 2
    assert page.page.evaluate("document.querySelectorAll('img, svg[onload], iframe, object, embed, link').length") == 0
    for code in (0x202E, 0x2066, 0x2028, 0x0000, 0x001B):
        assert not page.page.evaluate(f"document.body.innerText.includes(String.fromCodePoint({code}))")
    refused = page.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')")
    assert refused == "refused"
    page.errors.clear()  # the browser reports the refusal
