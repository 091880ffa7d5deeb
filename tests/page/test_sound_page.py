"""The page of sounds in a real browser: shown weights, tokens by mouse and keyboard, heads, themes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage
from playwright.sync_api import Page
from test_page import CONTRAST, MALICIOUS_TOKENS

from regard.view import PictureReading, read_file, write_page
from small_audio_models import audio_model
from sound_files import tone


@pytest.fixture(params=[pytest.param("light", marks=pytest.mark.slow), "dark"])
def opened(request: pytest.FixtureRequest, browser_window: Page, tmp_path: Path) -> Iterator[BrowserPage]:
    """The page of two sounds, in a theme; closing asserts that there were no errors and no requests."""
    path = write_page([reading(), read_file(audio_model(), tone(0.05), name=MALICIOUS_TOKENS[0])],
                        tmp_path / "sounds.html", model="test")  # fmt: skip
    browser_window.set_viewport_size({"width": 1200, "height": 800})
    browser_window.emulate_media(media="null", color_scheme=request.param)
    shown = BrowserPage(browser_window, path)
    # A data URI is no request to an address.
    shown.listeners["request"] = lambda asked: asked.url.startswith("data:") or shown.requests.append(asked.url)
    shown.open("#layer=1&head=3&token=4&key=2")
    yield shown
    shown.close()


def reading() -> PictureReading:
    return read_file(audio_model(), tone(), name="a.wav")


def test_page_of_a_sound(opened: BrowserPage) -> None:
    """Sentence, value and weights are those of the model, and a token is picked with mouse and keyboard."""
    expected = reading()
    row = expected.layers[1].attention.weights()[3, 4]
    best = int(row.argmax())
    target = "itself" if best == 4 else expected.layers[1].name_of(best)
    assert opened.sentence() == (
        f"In layer 1, head 3, the token to which 0.16 s attends most is {target}: {100 * row[best]:.1f}\u00a0%."
    )
    assert opened.page.inner_text("#map-value") == f"0.16 s → 0.08 s {100 * row[2]:.1f}\u00a0%"
    assert opened.page.locator("#steps > li").count() == 6
    cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
    np.testing.assert_allclose([float(cell) for cell in cells], row, atol=5.1e-5)
    assert "depends on the distance" in opened.page.inner_text("#steps")
    assert opened.page.inner_text("#about") == "test: 0.32 s, 8 tokens, 2 layers with 5 heads each."
    assert opened.page.locator("#prefix").is_hidden()
    labels = opened.page.locator("#labels .share").all_inner_texts()
    assert labels == [f"{100 * share:.1f}\u00a0%" for _, share in expected.probabilities]
    assert "patch" not in opened.page.inner_text("body").lower()
    picked = lambda: opened.page.locator("#query").evaluate("one => one.selectedOptions[0].text")  # noqa: E731
    for key, time in (("ArrowRight", "0.20 s"), ("Home", "0.00 s"), ("ArrowLeft", "0.00 s"), ("End", "0.28 s")):
        opened.page.locator("#picture").press(key)
        assert picked() == time
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    opened.page.locator("#map").click(position={"x": box["width"] * 2.5 / 8, "y": 5})
    assert picked() == "0.08 s"
    opened.page.locator("#multiples button").nth(0).click()
    assert opened.sentence().startswith("In layer 1, head 0, the token to which 0.08 s attends most")
    opened.page.get_by_role("tab").nth(1).click()
    assert opened.page.inner_text("#about").startswith("test: 0.06 s, 2 tokens")
    assert opened.page.evaluate(CONTRAST) >= 4.5
