"""Checkpoints of ``transformers`` on the page, in a real browser: decoders with the first token apart, and a T5."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage, random_reading

from layer_readings import with_vectors
from regard.hf.load_checkpoint import load_checkpoint
from regard.view import read, read_pair
from regard.view.reading import Reading
from small_checkpoints import save_checkpoint

TEXT = "The keys to the old cabinet are on the table, because it was small."
WORDS = [f"word{number}" for number in range(9)]
Show = Callable[..., BrowserPage]


def decoder_reading(sink_score: float = 5.0, *, layers: int = 2) -> Reading:
    """A causal reading whose heads give the first token ``sink_score`` more than any other."""
    length = len(WORDS) + 2
    reading = random_reading(WORDS, layers=layers, allowed=np.tril(np.ones((length, length), dtype=bool)))
    changed = []
    for layer in reading.layers:
        query = np.concatenate([0.3 * layer.query, np.ones_like(layer.query[..., :1])], -1)
        key = np.concatenate([layer.key, np.zeros_like(layer.key[..., :1])], -1)
        key[:, 0, -1] = sink_score / layer.steps.scale
        changed.append(with_vectors(layer, query, key))
    return replace(reading, layers=tuple(changed), sink=0)


def weights_in_titles(opened: BrowserPage) -> list[float]:
    titles = opened.page.locator("#row .token").evaluate_all("chips => chips.map((chip) => chip.title)")
    return [float(re.search(r": (\d\.\d{5}) \(", title)[1]) for title in titles]


def colours(opened: BrowserPage) -> list[list[int]]:
    """The colours of the tokens, as red, green, blue."""
    opened.page.wait_for_timeout(300)  # until colours have changed
    found = opened.page.locator("#row .token bdi").evaluate_all(
        "nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)"
    )
    return [[int(part) for part in re.findall(r"\d+", colour)] for colour in found]


def darkness(colour: list[int]) -> int:
    return 3 * 255 - sum(colour)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_first_token_does_not_hide_the_rest(show: Show, scheme: str) -> None:
    reading = decoder_reading()
    row = reading.layers[1].weights()[1, 8]
    assert row[0] > 0.8
    opened = show(reading, at="#text=0&layer=1&head=1&token=8", scheme=scheme)
    np.testing.assert_allclose(weights_in_titles(opened), row, atol=6e-6)
    order = np.argsort(-row)
    assert f"gives {100 * row[0]:.1f}\u00a0% to the first token, [CLS], and of the others most to" in opened.sentence()
    assert f": {100 * row[order[1]]:.1f}\u00a0%, then to" in opened.sentence()
    apart = colours(opened)
    assert max(apart[0]) - min(apart[0]) < 12, "grey"
    contrast = [abs(darkness(colour) - darkness(apart[-1])) for colour in apart]
    ranked = sorted(range(1, 9), key=lambda key: contrast[key])
    assert ranked == sorted(range(1, 9), key=lambda key: row[key])
    opened.page.get_by_role("radio", name="All tokens alike").click()
    assert "first=alike" in opened.current_url()
    assert f"attends most to [CLS]: {100 * row[0]:.1f}\u00a0%" in opened.sentence()
    alike = colours(opened)
    assert abs(darkness(alike[order[1]]) - darkness(alike[-1])) < contrast[order[1]] / 2


def test_the_logarithmic_scale(show: Show) -> None:
    reading = decoder_reading()
    opened = show(reading, at="#text=0&layer=1&head=1&token=8&first=alike")
    before = colours(opened)
    ticks = opened.page.locator("#ticks span").all_inner_texts()
    assert ticks == ["0", "5", "25", "50", "100\u00a0%"]
    opened.page.get_by_role("radio", name="Scale: log").click()
    after = colours(opened)
    assert opened.page.locator("#ticks span").all_inner_texts() == ["0.01", "0.1", "1", "10", "100\u00a0%"]
    assert all(darkness(new) > darkness(old) for new, old in zip(after[1:9], before[1:9], strict=True))
    assert after[9:] == before[9:], "hidden tokens stay blank"
    opened.page.get_by_role("radio", name="First token apart").click()
    assert opened.page.locator("#ticks span").all_inner_texts()[-1] == "100\u00a0%", "the scale is fixed"
    assert "scale=log" in opened.current_url()
    opened.page.evaluate("location.hash = 'layer=0&head=1&token=8&scale=log&first=alike'")
    opened.wait_until("document.querySelector('#sentence').innerText.startsWith('In layer 0, head 1')")


def test_legend_shows_the_largest_share_of_the_rest(show: Show) -> None:
    reading = decoder_reading()
    opened = show(reading, at="#text=0&layer=0&head=2&token=5")
    top = 100 * reading.layers[0].weights()[2, :, 1:].max()
    last = float(opened.page.locator("#ticks span").last.inner_text().removesuffix("\u00a0%"))
    assert last == pytest.approx(top, abs=0.51)
    assert opened.page.inner_text("#scale-name") == "share of attention, without the first token"
    assert "none to the first token" in opened.explanation("#lines-how")


def test_the_first_row_and_keyboard(show: Show) -> None:
    opened = show(decoder_reading(), at="#text=0&layer=0&head=0&token=0")
    assert opened.sentence() == "In layer 0, head 0, [CLS] attends most to itself: 100.0\u00a0%."
    opened.page.locator("#firsts [role=radio]").first.focus()
    opened.page.keyboard.press("ArrowRight")
    assert "first=alike" in opened.current_url()
    assert opened.page.evaluate("document.activeElement.innerText") == "All tokens alike"


def test_an_encoder_has_a_scale_and_no_first_token(show: Show) -> None:
    opened = show(random_reading(WORDS))
    assert not opened.page.locator("#firsts").is_visible()
    opened.page.get_by_role("radio", name="Scale: log").click()
    assert opened.page.locator("#ticks span").all_inner_texts() == ["0.01", "0.1", "1", "10", "100\u00a0%"]
    assert "scale=log" in opened.current_url()


@pytest.mark.parametrize("width", [pytest.param(1200, marks=pytest.mark.slow), 390])
def test_a_checkpoint_of_each_kind_of_decoder(show: Show, tmp_path: Path, width: int) -> None:
    """Steps of a Llama, and of a Gemma-2, whose scores are capped."""
    for kind, title in (("llama", "Softmax: shares of attention"), ("gemma2", "Softcap: no score is too large")):
        reading = read(load_checkpoint(save_checkpoint(kind, tmp_path / kind)), TEXT)
        opened = show(reading, at="#text=0&layer=1&head=2&token=9", width=width)
        row = reading.layers[1].weights()[2, 9]
        np.testing.assert_allclose(weights_in_titles(opened), row, atol=6e-6)
        assert title in opened.page.inner_text("#steps")
        assert opened.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_an_encoder_decoder(show: Show, tmp_path: Path) -> None:
    checkpoint = load_checkpoint(save_checkpoint("t5", tmp_path / "t5"))
    pair = read_pair(checkpoint, "Ein Hund läuft durch den Schnee.", "A dog runs through the snow.")
    opened = show(pair)
    for number, (kind, reading) in enumerate(pair.attentions.items()):
        opened.page.locator("#kinds [role=radio]").nth(number).click()
        opened.page.evaluate(f"location.hash = 'kind={kind}&level=tokens&layer=1&head=3&token=2'")
        opened.wait_until("document.querySelector('#sentence').innerText.startsWith('In layer 1, head 3')")
        np.testing.assert_allclose(weights_in_titles(opened), reading.layers[1].weights()[3, 2], atol=6e-6)
    assert "depends on the distance" in opened.page.inner_text("#steps")
