"""The page of episodes in a real browser: steps, sentences, shares, maps, keyboard, themes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage
from paper import assert_fits_paper, print_page
from playwright.sync_api import Page
from test_page import CONTRAST, MALICIOUS_TOKENS

import regard.view.episode_data
from regard.control.rendering import encode_png
from regard.view import EpisodeReading, write_page
from regard.view.episode_reading import ChosenToken, ObservedPart, ReadStep

ShowEpisodes = Callable[..., BrowserPage]
LAYERS, HEADS = 2, 3
KEYS = 2 + 6 + 3  # numbers, cells, pieces


def make_reading(
    steps: int = 4, *, tokens: int = 1, names: tuple[str, str] = ("angle", "speed"), first: int = 0, seed: int = 5
) -> EpisodeReading:
    """Random weights; actions of ``tokens`` tokens with three choices each."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(steps):
        parts = (
            ObservedPart("words", (), ("go", " <b>", "x")),
            ObservedPart(
                "board",
                tuple(f"row {at // 3}, column {at % 3}" for at in range(6)),
                ("1",) * 6,
                (2, 3),
                tuple(range(6)),
            ),
            ObservedPart("state", names, ("0.5", f"−{number}")),
        )
        action = []
        for component in range(tokens):
            begin = min(first, number)
            weights = generator.random((LAYERS, HEADS, KEYS + 1 + component + 2 * (number - begin))) ** 6
            shares = generator.dirichlet((1.0, 1.0, 1.0)).tolist()
            weights = (weights / weights.sum(-1, keepdims=True)).astype(np.float32)
            alternatives = tuple(zip(("left", "stay", names[0]), shares, strict=True))
            chosen = number % 3
            action.append(
                ChosenToken(
                    f"number {component}", alternatives[chosen][0], shares[chosen], alternatives, chosen, begin, weights
                )
            )
        frame = encode_png(np.full((30, 40, 3), 50 * number % 256, dtype=np.uint8))
        made.append(ReadStep(parts, tuple(action), 0.25 * number, frame))
    return EpisodeReading("Toy-v0", seed, tuple(made), frame)


@pytest.fixture
def show_episodes(browser_window: Page, tmp_path: Path) -> Iterator[ShowEpisodes]:
    """Return a function that writes the page of readings and opens it; closing asserts that there were no errors."""
    shown: list[BrowserPage] = []

    def show(*readings: EpisodeReading, at: str = "", width: int = 1200, scheme: str = "light") -> BrowserPage:
        path = write_page(readings, tmp_path / "episodes.html", model="test", overwrite=True)
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        opened = BrowserPage(browser_window, path)
        opened.listeners["request"] = lambda request: (
            request.url.startswith("data:") or opened.requests.append(request.url)
        )
        shown.append(opened)
        opened.open(at)
        return opened

    yield show
    if shown:
        shown[-1].close()


def percent(share: float) -> str:
    return f"{100 * share:.1f}\u00a0%"


@pytest.mark.parametrize(
    "place", [(1, 2), *(pytest.param(one, marks=pytest.mark.slow) for one in [(None, 1), (0, None)]), (None, None)]
)
def test_sentence_and_shares_are_those_of_the_weights(
    show_episodes: ShowEpisodes, place: tuple[int | None, int | None]
) -> None:
    reading = make_reading()
    layer, head = place
    at = f"#step=3&layer={'mean' if layer is None else layer}&head={'mean' if head is None else head}"
    opened = show_episodes(reading, at=at)
    token = reading.steps[3].action[0]
    chosen = token.weights.astype(np.float64)[slice(None) if layer is None else [layer]]
    row = chosen[:, slice(None) if head is None else [head]].mean((0, 1))
    names = ["words: go", "words:  <b>", "words: x", *(f"board, row {at // 3}, column {at % 3} = 1" for at in range(6))]
    names += ["state, angle = 0.5", "state, speed = −3", "the separator"]
    acted = ["left", "stay", "angle"]
    for step in range(3):
        names += [f"what it saw in step {step}", f"what it did in step {step}: {acted[step]}"]
    where = {
        (1, 2): "In layer 1, head 2",
        (None, 1): "In head 1, on average over the layers",
        (0, None): "In layer 0, on average over its heads",
        (None, None): "On average over all layers and heads",
    }[place]
    past = row[KEYS + 1 :].sum()
    rows = row[KEYS + 1 :] if past > 0.5 else row[: KEYS + 1]
    best = int(rows.argmax()) + (KEYS + 1 if past > 0.5 else 0)
    target = f"earlier steps ({percent(past)})" if past > 0.5 else f"this step ({percent(1 - past)})"
    assert opened.page.text_content("#sentence") == (
        f"Step 3: left with a probability of {percent(token.probability)}. {where} it attends most to {target}, "
        f"there to {names[best]} ({percent(row[best])})."
    )
    mix = (row[:KEYS].sum(), row[KEYS], row[KEYS + 1 :: 2].sum(), row[KEYS + 2 :: 2].sum())
    labels = ("this observation", "separator and this action", "earlier observations", "earlier actions")
    shown = ", ".join(f"{label} {percent(share)}" for label, share in zip(labels, mix, strict=True))
    assert opened.page.inner_text("#shares") == shown
    strongest = [opened.page.locator("#strongest td:first-child").all_text_contents()]
    strongest += [opened.page.locator("#strongest td:nth-child(2)").all_text_contents()]
    order = [*np.argsort(-row[: KEYS + 1])[:4], *(KEYS + 1 + np.argsort(-row[KEYS + 1 :])[:4])]
    assert strongest == [[names[one] for one in order], [percent(row[one]) for one in order]]


def test_steps_by_keyboard_buttons_slider_and_chart(show_episodes: ShowEpisodes) -> None:
    opened = show_episodes(make_reading(), at="#layer=0&head=0")
    step = lambda: opened.page.text_content("#sentence").split(":")[0]  # noqa: E731
    assert step() == "Step 0"
    assert opened.page.locator("#earlier").is_hidden()
    for key, expected in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 3),
        ("ArrowRight", 3),
        ("Home", 0),
    ):
        opened.page.keyboard.press(key)
        assert step() == f"Step {expected}"
    opened.page.click("#end")
    assert step() == "Step 3"
    assert opened.page.locator("#forward").is_disabled()
    assert opened.page.inner_text("#progress") == "Step 3 of 4 · reward 0.75 · return so far 1.5 of 1.5"
    opened.page.locator("#earlier").click(position={"x": 60, "y": 140})
    assert step() == "Step 0"
    opened.page.locator("#slider").fill("2")
    assert "step=2" in opened.current_url()
    opened.page.locator("body").click(position={"x": 2, "y": 2})
    opened.page.click("#begin")
    opened.page.click("#run")
    opened.wait_until("document.getElementById('run').textContent === 'Play'")
    assert step() == "Step 3"


def test_heads_and_maps(show_episodes: ShowEpisodes) -> None:
    reading = make_reading()
    opened = show_episodes(reading, at="#step=2&layer=mean&head=mean")
    cells = opened.page.locator("#grid [role=gridcell]")
    assert cells.count() == (LAYERS + 1) * (HEADS + 1)
    cells.nth(1).click()
    assert (opened.page.input_value("#layer"), opened.page.input_value("#head")) == ("1", "2")
    for key, expected in (
        ("ArrowDown", "layer=1&head=1"),
        ("ArrowDown", "layer=mean&head=1"),
        ("ArrowLeft", "layer=mean&head=0"),
    ):
        opened.page.keyboard.press(key)
        assert expected in opened.current_url()
    assert "step=2" in opened.current_url(), "arrow keys move among heads, not among steps"
    opened.page.select_option("#layer", "1")
    row = reading.steps[2].action[0].weights[0, 0].astype(np.float64)
    best = int(row[3:9].argmax())
    told = opened.page.inner_text(".part .value").replace("\u2068", "").replace("\u2069", "")
    ends = f"colours begin at the uniform share, {percent(row[3:9].mean())}, and reach up to {percent(row[3:9].max())}"
    assert told == f"row {best // 3}, column {best % 3}: 1 {percent(row[3:9].max())} · {ends}"
    canvas = opened.page.locator(".cells canvas")
    canvas.click(position={"x": 4, "y": 4})
    assert opened.page.inner_text(".part .value").startswith("row 0, column 0: ")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.inner_text(".part .value").startswith("row 1, column 1: ")
    shown = opened.page.locator(".values .share").all_inner_texts()
    assert shown == [percent(share) for share in row[9:11]]


def test_numbers_of_an_action_and_several_episodes(show_episodes: ShowEpisodes) -> None:
    other = make_reading(2, tokens=2, seed=6)
    opened = show_episodes(make_reading(), other)
    opened.page.locator("[role=tab]").nth(1).click()
    assert "2 steps" in opened.page.inner_text("#about")
    opened.page.get_by_role("radio", name="number 1").click()
    token = other.steps[0].action[1]
    assert percent(token.probability) in opened.page.inner_text("#sentence")
    shares = opened.page.locator(".alternative .share").all_inner_texts()
    assert shares == [percent(share) for _, share in token.alternatives]
    mean = token.weights.astype(np.float64).mean((0, 1))
    assert f"separator and this action {percent(mean[KEYS:].sum())}" in opened.page.inner_text("#shares")


def test_long_episodes_are_cut_and_say_so(show_episodes: ShowEpisodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.view.episode_data, "MAX_CHARACTERS", 2500)
    opened = show_episodes(make_reading(30, first=28))
    assert "of 30 are on this page" in opened.page.inner_text("#foot")
    opened.page.keyboard.press("End")
    assert "Step 29" not in opened.page.inner_text("#sentence")


def test_steps_out_of_reach_are_told(show_episodes: ShowEpisodes) -> None:
    opened = show_episodes(make_reading(8, first=5), at="#step=7")
    assert "Steps before 5 are beyond the reach" in opened.page.inner_text("#earlier-how")


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (380, "dark"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1200, "light"), (1200, "dark"), (380, "light")]),
    ],
)
def test_contrast_and_width(show_episodes: ShowEpisodes, scheme: str, width: int) -> None:
    opened = show_episodes(make_reading(names=("a-long-name-" * 9, "b")), at="#step=3", width=width, scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(CONTRAST) >= 4.5


def test_html_in_names_is_text(show_episodes: ShowEpisodes) -> None:
    opened = show_episodes(make_reading(names=tuple(MALICIOUS_TOKENS[:2])), at="#step=2")
    assert opened.page.locator(".values bdi").first.text_content() == MALICIOUS_TOKENS[0]
    assert opened.page.locator(".alternative bdi").nth(2).text_content() == MALICIOUS_TOKENS[0]
    assert opened.page.evaluate("document.querySelectorAll('svg, iframe, object, embed, b').length") == 0
    assert opened.page.locator("img").count() == 1


def test_paper_has_all_maps_in_light_colours(show_episodes: ShowEpisodes) -> None:
    """Long lists, which scroll on the screen, are whole."""
    opened = show_episodes(make_reading(7), at="#step=5", scheme="dark", width=390)
    printed = print_page(opened)
    assert printed["theme"] == "light"
    assert printed["painted"] == printed["canvases"] == 2  # the board, and the earlier steps
    assert_fits_paper(opened)
    opened.page.emulate_media(media="print")
    # At once: after a change of the size, the script makes the list anew.
    assert opened.page.evaluate("getComputedStyle(document.querySelector('.values')).maxHeight") == "none"
