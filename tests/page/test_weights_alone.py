"""Layers stored as weights alone in a real browser: signed weights, their colours and legend, and their single step."""

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from browser_page import BrowserPage, make_tokens, random_reading
from test_page import CONTRAST

import regard
import regard.view.page
from regard.view import layers_of
from regard.view.layer_weights import LayerWeights
from regard.view.read_pair import read_pair
from regard.view.reading import Reading
from small_translators import SOURCE, TARGET, transformer

WORDS = ["The", "cat", "sat", "on", "the", "mat"]
Show = Callable[..., BrowserPage]


def signed_reading(words: list[str] = WORDS, *, heads: int = 3) -> Reading:
    """Two layers of random weights around 0, with a maximum of 2."""
    tokens = make_tokens(words)
    matrices = np.random.default_rng(11).normal(size=(2, heads, len(tokens), len(tokens))).astype(np.float32)
    matrices *= 2 / np.abs(matrices).max()
    layers = tuple(
        LayerWeights(f"layers.{at}", torch.from_numpy(one), "signed", "Nothing is scored.")
        for at, one in enumerate(matrices)
    )
    return Reading(tokens, layers)


def parse_numbers(texts: list[str]) -> list[float]:
    """Return the first number in each text that has one; negative numbers have a minus sign, not a hyphen."""
    result = (re.search(r"−?\d+\.?\d*", text) for text in texts)
    return [float(one[0].replace("−", "-")) for one in result if one]


def weights_in_titles(opened: BrowserPage) -> list[float]:
    """The weights in the titles of the chips, to five places."""
    titles = opened.page.locator("#row .token").evaluate_all("chips => chips.map((chip) => chip.title)")
    return parse_numbers([title.rpartition(": ")[2] for title in titles])


@pytest.mark.parametrize(
    ("name", "options", "between"),
    [("performer", {"features": 13}, "features"), ("nystromformer", {"landmarks": 3}, "landmarks")],
)
def test_a_mechanism_without_scores_has_steps_of_its_own(show: Show, name: str, options: dict, between: str) -> None:
    torch.manual_seed(2)
    attention = regard.MultiHeadAttention(20, 5, mechanism=name, mechanism_options=options)
    tokens = make_tokens(WORDS)
    with torch.no_grad(), regard.record(attention) as seen:
        attention(torch.randn(1, len(tokens), 20))
    reading = Reading(tokens, layers_of(seen))
    opened = show(reading, at="#layer=0&head=1&token=3&key=5")
    assert opened.page.locator("#steps > li").count() == 4
    assert f"Query: its {between}" in opened.page.inner_text("#steps")
    results = parse_numbers(opened.page.locator("#steps .result").all_inner_texts())
    np.testing.assert_allclose(results, [reading.layers[0].weights()[1, 3, 5]] * 2, atol=1.1e-4)


def test_displayed_weights_equal_the_reading(show: Show) -> None:
    reading = signed_reading()
    opened = show(reading, at="#layer=1&head=2&token=3&key=5")
    row = reading.layers[1].weights()[2, 3]
    np.testing.assert_allclose(weights_in_titles(opened), row, atol=5.1e-6)
    shown = parse_numbers(opened.page.locator("#row small").all_inner_texts())
    np.testing.assert_allclose(shown, 100 * row[np.abs(row) >= 0.005], atol=0.051)
    first, second = np.argsort(-np.abs(row))[:2]
    names = ["[CLS]", *WORDS, "[SEP]"]
    shares = [f"{100 * row[at]:.1f}\u00a0%".replace("-", "−") for at in (first, second)]
    name = [f"{'itself' if at == 3 else names[at]}: {share}" for at, share in zip((first, second), shares, strict=True)]
    assert opened.sentence() == f"In layer 1, head 2, sat gives its strongest weight to {name[0]}, then to {name[1]}."
    assert opened.page.inner_text("#map-value") == f"sat → the {100 * row[5]:.1f}\u00a0%".replace("-", "−")


def test_single_step_explains_missing_scores(show: Show) -> None:
    reading = signed_reading()
    opened = show(reading, at="#layer=1&head=2&token=3&key=5")
    row = reading.layers[1].weights()[2, 3]
    assert opened.page.locator("#steps > li").count() == 1
    said = opened.page.inner_text("#steps > li")
    assert "Nothing is scored. So there are no steps to show, only the weights" in said
    assert "They may be below 0, and need not add up to 1." in said
    cells = parse_numbers(opened.page.locator("#steps tbody td:nth-child(2)").all_inner_texts())
    np.testing.assert_allclose(cells, row, atol=5.1e-5)
    np.testing.assert_allclose(
        parse_numbers(opened.page.locator("#steps .result").all_inner_texts()), row[5:6], atol=5.1e-5
    )
    bars = opened.page.locator("#steps tbody td.bar")
    assert ["below" in bars.nth(at).get_attribute("class") for at in range(8)] == (row < 0).tolist()
    assert "Weights of layers without steps are the model’s own float32 numbers. This page" in opened.page.inner_text(
        "#foot"
    )
    opened.page.locator("#grid [role=row]").nth(0).locator("[role=gridcell]").nth(3).click()
    means = parse_numbers(opened.page.locator("#steps td:nth-child(2)").all_inner_texts())
    expected = reading.layers[0].weights()[:, 3, int(opened.page.input_value("#key"))]
    np.testing.assert_allclose(means, [*expected, expected.mean()], atol=5.1e-5)


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.slow), "dark"])
def test_colours_show_the_sign(show: Show, scheme: str) -> None:
    reading = signed_reading()
    opened = show(reading, at="#layer=0&head=1&token=2", scheme=scheme)
    opened.page.wait_for_timeout(200)  # tints fade in
    row = reading.layers[0].weights()[1, 2]
    tints = opened.page.locator("#row bdi").evaluate_all(
        "nodes => nodes.map((node) => getComputedStyle(node).backgroundColor)"
    )
    red, _, blue = np.array([[int(part) for part in re.findall(r"\d+", tint)[:3]] for tint in tints]).T
    strong = np.abs(row) > 0.1
    assert strong.sum() > 4
    assert ((red > blue) == (row < 0))[strong].all()
    distance = np.abs(red - blue)[strong]
    assert (distance > 20).all()
    strip = opened.page.evaluate("[...scale.getContext('2d').getImageData(0, 5, 256, 1).data]")
    colours = np.array(strip).reshape(256, 4)[:, :3]
    assert colours[0, 0] - colours[0, 2] > 60, "orange"
    assert colours[-1, 2] - colours[-1, 0] > 60, "blue"
    linear = np.where(colours / 255 <= 0.04045, colours / 255 / 12.92, ((colours / 255 + 0.055) / 1.055) ** 2.4)
    steps = np.diff(linear @ [0.2126, 0.7152, 0.0722]) * (1 if scheme == "dark" else -1)
    assert steps[128:].min() > -0.002, "further from the paper, up to the eight bits of a channel"
    assert steps[:127].max() < 0.002
    assert opened.page.locator("#ticks span").all_inner_texts() == ["−200", "−50", "0", "50", "200\u00a0%"]
    assert not opened.page.locator("#scales").is_visible(), "no logarithm of weights below 0"
    opened.open_explanations()
    assert "orange is below 0, blue above" in opened.page.inner_text(".first .how:not([hidden])")
    assert not opened.page.locator(".distribution").first.is_visible()
    assert opened.page.evaluate(CONTRAST) >= 4.5


def test_statistics_use_absolute_weights_and_say_so(show: Show) -> None:
    reading = signed_reading()
    opened = show(reading)
    shares = np.abs(reading.layers[0].weights()[0])
    shares /= shares.sum(-1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(-1).mean()
    cells = opened.page.locator("#numbers tbody tr").first.locator("td").all_inner_texts()
    assert cells[1] == f"{entropy:.2f}"
    assert cells[3] == f"{100 * np.trace(shares) / 8:.0f}\u00a0%"
    opened.open_explanations()
    assert opened.page.locator(".of-sizes").nth(1).is_visible()


def test_rounded_weights_and_another_layer_with_steps(show: Show, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.view.page, "MAX_VECTOR_CHARACTERS", 100)
    signed, plain = signed_reading(), random_reading(WORDS)
    reading = Reading(signed.tokens, (signed.layers[0], plain.layers[0]))
    opened = show(reading, at="#layer=0&head=1&token=2")
    np.testing.assert_allclose(
        weights_in_titles(opened), reading.layers[0].weights()[1, 2], atol=2.1 / (91**2 - 1) + 5e-6
    )
    assert opened.page.inner_text("#scale-name") == "weight, below and above 0"
    opened.page.evaluate("location.hash = 'layer=1&head=1&token=2'")
    opened.wait_until("document.getElementById('scale-name').innerText === 'share of attention'")
    assert opened.page.locator("#steps > li").count() == 6
    assert "keys, values and weights of layers without steps are rounded to 13 bits" in opened.page.inner_text("#foot")


def test_translator_with_an_encoder_without_scores(show: Show) -> None:
    options = {"length": 64, "projected": 4}
    translator = transformer(mechanism="linformer", mechanism_options=options, decoder_mechanism="dot_product")
    pair = read_pair(translator, SOURCE, TARGET)
    opened = show(pair, at="#kind=source&level=tokens&layer=1&head=2&token=1")
    np.testing.assert_allclose(weights_in_titles(opened), pair.source.layers[1].weights()[2, 1], atol=5.1e-6)
    assert "This mechanism forms no scores." in opened.page.inner_text("#steps")
    opened.page.get_by_role("radio", name="Target self-attention").click()
    assert opened.page.locator("#steps > li").count() > 1
