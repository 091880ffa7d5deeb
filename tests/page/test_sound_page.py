"""The page of sounds in a real browser: shown weights, tokens by mouse and keyboard, heads, themes."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_page import BrowserPage
from playwright.sync_api import Page
from test_page import CONTRAST, MALICIOUS_TOKENS

from known_speech import STARTS, WORDS, KnownSpeech
from regard.view import PictureReading, read_file, write_page
from small_audio_models import audio_model
from sound_files import tone

OVERLAPPING = """(() => {
  const boxes = [...document.querySelectorAll("#heard button")].map((node) => node.getBoundingClientRect());
  const beside = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
  return boxes.some((a, at) => boxes.some((b, to) => at !== to && !beside(a, b)));
})()"""


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


@pytest.fixture
def heard(browser_window: Page, tmp_path: Path) -> Iterator[tuple[BrowserPage, PictureReading]]:
    """The page of a transcriber that hears words, and its reading."""
    model = audio_model(labels=("a", "b", " "), head="ctc")
    with torch.no_grad():
        model.head.bias[0] -= 5.0
        model.head.weight *= 20.0
    expected = read_file(model, tone(2.0) + 0.3 * np.random.default_rng(0).normal(size=16000), name="talk.wav")
    browser_window.set_viewport_size({"width": 1280, "height": 800})
    shown = BrowserPage(browser_window, write_page([expected], tmp_path / "heard.html", model="test"))
    shown.listeners["request"] = lambda asked: asked.url.startswith("data:") or shown.requests.append(asked.url)
    shown.open("#layer=1&head=3&token=0")
    yield shown, expected
    shown.close()


def test_words_and_player_share_a_place(heard: tuple[BrowserPage, PictureReading]) -> None:
    """Words stand at their times; a word picks its token and the player's place, and the player picks tokens."""
    shown, expected = heard
    words = [label for label in expected.track.labels if label.text.strip()]  # they have room side by side
    buttons = shown.page.locator("#heard button")
    assert buttons.all_inner_texts() == [word.text for word in words]
    picture = shown.page.locator("#picture").bounding_box()
    for at, word in enumerate(words[:-1]):
        box = buttons.nth(at).bounding_box()
        assert abs(box["x"] - picture["x"] - picture["width"] * word.start / expected.axis.seconds) < 1.5
        assert box["y"] > picture["y"] + picture["height"]
    assert not shown.page.evaluate(OVERLAPPING)
    place = "document.querySelector('audio').currentTime"
    token = lambda: int(shown.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('token')"))  # noqa: E731
    buttons.nth(2).click()
    assert token() == words[2].queries.start
    assert shown.page.evaluate(place) == pytest.approx(words[2].start, abs=1e-3)
    assert buttons.nth(2).get_attribute("aria-checked") == "true"
    buttons.nth(2).press("ArrowRight")
    assert token() == words[3].queries.start
    shown.page.evaluate(f"{place} = 1.21")
    shown.wait_until("location.hash.includes('token=30')")  # 40 ms each
    line = shown.page.locator(".place-in-sound").first.bounding_box()
    assert abs(line["x"] - picture["x"] - picture["width"] * 1.21 / expected.axis.seconds) < 3
    shown.page.evaluate("document.querySelector('audio').play()")
    shown.wait_until("Number(new URLSearchParams(location.hash.slice(1)).get('token')) > 35")
    shown.page.evaluate("document.querySelector('audio').pause()")
    shown.wait_until(f"document.querySelector('audio').paused && {place} > 1.4")
    assert shown.page.evaluate(CONTRAST) >= 4.5


def test_whole_words_stand_in_lines_where_their_letters_have_no_room(heard: tuple[BrowserPage, PictureReading]) -> None:
    shown, expected = heard
    shown.page.set_viewport_size({"width": 390, "height": 800})
    shown.wait_until("document.querySelector('#heard').clientHeight > 30")
    assert shown.page.locator("#heard button").all_inner_texts() == [word.text for word in expected.track.words]
    assert not shown.page.evaluate(OVERLAPPING)
    assert shown.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_words_of_a_speech_model_lie_under_the_spectrogram(browser_window: Page, tmp_path: Path) -> None:
    """The page opens at the head that follows the sound; word, time of the player and picked frame go together."""
    expected = read_file(KnownSpeech(), tone(2.0, rate=16000), name="talk.wav")
    browser_window.set_viewport_size({"width": 1280, "height": 800})
    shown = BrowserPage(browser_window, write_page([expected], tmp_path / "talk.html", model="test"))
    shown.listeners["request"] = lambda asked: asked.url.startswith("data:") or shown.requests.append(asked.url)
    shown.open("")
    largest = 100 * expected.layers[1].attention.weights_of(2, [0]).max()
    assert shown.sentence().startswith("In layer 1, head 2, the time to which We attends most is 0.")
    assert f"{largest:.1f}" in shown.sentence()
    assert shown.page.inner_text("#about") == "test: 2.00 s, 8 tokens written, 2 layers with 3 heads each."
    buttons = shown.page.locator("#heard button")
    assert buttons.all_inner_texts() == ["We", "sat", ",", "near", "tre", "es", "."]
    picture = shown.page.locator("#picture").bounding_box()
    for at, start in enumerate(STARTS[:-1]):
        box = buttons.nth(at).bounding_box()
        assert abs(box["x"] - picture["x"] - picture["width"] * 0.02 * start / 2.0) < 1.5
    buttons.nth(3).click()
    place = "document.querySelector('audio').currentTime"
    assert shown.page.evaluate(place) == pytest.approx(0.74, abs=1e-3)
    assert "to which near attends most" in shown.sentence()
    shown.page.evaluate(f"{place} = 1.999")  # every place is found
    shown.wait_until("document.querySelector('#sentence').textContent.includes('to which . attends')")
    shown.page.locator("#map").click(position={"x": picture["width"] * 1.45 / 2, "y": 20})
    shown.wait_until("document.querySelector('#sentence').textContent.includes('to which es attends')")
    assert shown.page.evaluate(place) == pytest.approx(1.45, abs=0.02)
    shown.page.locator("#picture").press("ArrowLeft")
    assert "to which tre attends most" in shown.sentence()
    shown.page.set_viewport_size({"width": 300, "height": 800})
    shown.wait_until("document.querySelectorAll('#heard button').length === 4")
    assert buttons.all_inner_texts() == [text for text, _, _ in WORDS]
    text = shown.page.inner_text("body")
    assert "patch" not in text.lower()
    assert "latent" not in text.lower()
    assert shown.page.evaluate(CONTRAST) >= 4.5
    shown.close()
