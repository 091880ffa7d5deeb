"""The page of pictures in a real browser: shown weights, rollouts, keyboard, windows, themes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_page import BrowserPage
from paper import assert_fits_paper, print_page
from playwright.sync_api import Page
from test_page import CONTRAST, MALICIOUS_TOKENS

import regard.view.page
from layer_readings import layer_reading
from picture_files import random_pixels
from regard.models import Cct, Cvt, Deit, DeitConfig, Swin, SwinConfig
from regard.models.media_encoder import TokenGrid
from regard.models.perceiver_inputs import TrainedPixelInput
from regard.view import (
    PictureComparison,
    PictureLayer,
    PictureReading,
    compare_pictures,
    read_file,
    write_page,
)
from regard.vision import ImageProcessor
from small_clips import small_clip
from small_image_models import image_classifier, small_cct, small_cvt, small_perceiver

ShowPictures = Callable[..., BrowserPage]
PICTURE = random_pixels(12, 8, channels=1)


@pytest.fixture
def show_pictures(browser_window: Page, tmp_path: Path) -> Iterator[ShowPictures]:
    """Return a function that writes the page of readings and opens it; closing asserts that there were no errors."""
    shown: list[BrowserPage] = []

    def show(
        *readings: PictureReading | PictureComparison, at: str = "", width: int = 1200, scheme: str = "light"
    ) -> BrowserPage:
        path = write_page(readings, tmp_path / "pictures.html", model="test", overwrite=True)
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        opened = BrowserPage(browser_window, path)
        # A data URI is no request to an address.
        opened.listeners["request"] = lambda request: (
            request.url.startswith("data:") or opened.requests.append(request.url)
        )
        shown.append(opened)
        opened.open(at)
        return opened

    yield show
    if shown:
        shown[-1].close()


def swin_reading(height: int = 24, width: int = 24, *, seed: int = 2) -> PictureReading:
    torch.manual_seed(seed)
    size = (height, width)
    config = SwinConfig(size, (2, 2), channels=1, width=8, depths=(2, 2), heads=(2, 4), window=3, labels=("a", "b"))
    model = Swin(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    model.processor = ImageProcessor(size, channels=1, mean=(0.5,), std=(0.25,))
    return read_file(model, random_pixels(*size, channels=1), name="tiles.png")


def _chosen_head(opened: BrowserPage) -> tuple[int, int]:
    layer, head = (opened.page.locator(f"#{name} option:checked").inner_text() for name in ("layer", "head"))
    return int(layer), int(head)


def test_compared_pictures_show_both_maps_and_their_difference(show_pictures: ShowPictures) -> None:
    first, second = swin_reading(), swin_reading(seed=3)
    comparison = compare_pictures(first, second, names=("before", "after"))
    alone = read_file(image_classifier(), PICTURE, name="cat.png")
    opened = show_pictures(comparison, compare_pictures(alone, alone), width=1280)
    opened.wait_until_painted = lambda: None  # there is no grid that is painted later
    ranked = opened.page.locator("#changes button")
    assert ranked.count() == len(comparison.heads)
    change, moved = comparison.heads[3], comparison.moved[3]
    ranked.nth(3).click()
    assert f"{100 * change.change:.1f}\u00a0%" in ranked.nth(3).inner_text()
    opened.page.select_option("#query", "5")
    assert f"{100 * moved[5]:.1f}\u00a0% of the attention of" in opened.sentence()
    shares = [comparison.shares_of(side, change.layer, change.head)[5] for side in (0, 1)]
    key = int(np.argmax(np.abs(shares[1] - shares[0])))
    layer = first.layers[change.layer]
    name = layer.name_of_key(int(layer.keys[5][key]))
    values = opened.page.locator("#maps .value").all_inner_texts()
    assert all(f"→ {name} " in value for value in values)
    shown = [float(value.split(name)[1].replace("−", "-").rstrip("\u00a0%")) for value in values]
    np.testing.assert_allclose(
        shown, [100 * shares[0][key], 100 * shares[1][key], 100 * (shares[1] - shares[0])[key]], atol=0.06
    )
    opened.page.locator("#maps canvas").nth(1).focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.input_value("#query") == "6"
    assert opened.page.locator("#maps .panel").last.evaluate("node => node.getBoundingClientRect().bottom") <= 800
    opened.page.locator("#texts [role=tab]").nth(1).click()
    assert "nearest to it" in opened.page.inner_text("#partners")
    opened.page.select_option("#other-layer", label="0")
    opened.page.select_option("#other-head", label="2")
    assert "other=0.2" in opened.current_url()
    query = int(opened.page.input_value("#query"))
    before, after = (
        alone.layers[layer].attention.weights()[head, query] for layer, head in (_chosen_head(opened), (0, 2))
    )
    moved = 50 * np.abs(after - before).sum()
    assert f"{moved:.1f}\u00a0% of the attention of" in opened.sentence()
    assert "· 0·2" in opened.page.inner_text("#maps h3 >> nth=1")
    opened.page.locator("#changes button").first.click()
    assert "other=" not in opened.current_url()
    opened.page.locator("#texts [role=tab]").nth(0).click()
    layers = opened.page.locator("#other-layer option").all_inner_texts()
    assert layers == [opened.page.locator("#layer option:checked").inner_text()], "others have other windows or grids"
    assert opened.page.evaluate(CONTRAST) >= 4.5


def test_sentence_value_and_steps_are_those_of_the_model(show_pictures: ShowPictures) -> None:
    reading = read_file(image_classifier(), PICTURE, name="cat.png")
    opened = show_pictures(reading, at="#layer=1&head=3&token=4&key=2")
    row = reading.layers[1].attention.weights()[3, 4]
    best = 1 + int(row[1:].argmax())
    names = [reading.layers[1].name_of(token) for token in range(7)]
    target = "itself" if best == 4 else names[best]
    assert opened.sentence() == (
        f"In layer 1, head 3, the patch to which {names[4]} attends most is {target}: {100 * row[best]:.1f}\u00a0%."
    )
    assert opened.page.inner_text("#map-value") == f"{names[4]} → {names[2]} {100 * row[2]:.1f}\u00a0%"
    assert opened.page.inner_text("#prefix-shares") == f"Beside the patches: class token {100 * row[0]:.1f}\u00a0%"
    layers, heads = len(reading.layers), reading.layers[0].attention.heads
    assert opened.page.inner_text("#about").endswith(f"patches, {layers} layers with {heads} heads each.")
    assert opened.page.locator("#steps > li").count() == 8, "the two steps before query and key among them"
    cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
    np.testing.assert_allclose([float(cell) for cell in cells], row, atol=5.1e-5)


def test_heads_show_their_strongest_patches(show_pictures: ShowPictures) -> None:
    reading = read_file(image_classifier(), PICTURE)
    opened = show_pictures(reading, at="#layer=0&head=mean&token=0")
    weights = reading.layers[0].attention.weights()[:, 0]
    expected = [
        f"{reading.layers[0].name_of(1 + int(row[1:].argmax()))}: {100 * row[1:].max():.1f}\u00a0%"
        for row in [*weights, weights.mean(0)]
    ]
    assert opened.page.locator("#multiples span").all_inner_texts() == expected
    opened.page.locator("#multiples button").nth(2).click()
    assert opened.sentence().startswith("In layer 0, head 2, the patch to which the class token attends most")
    opened.page.keyboard.press("ArrowRight")
    assert "head 3" in opened.sentence()


def test_patches_are_picked_by_mouse_and_keyboard(show_pictures: ShowPictures) -> None:
    opened = show_pictures(read_file(image_classifier(), PICTURE), at="#view=attention")
    picked = lambda: opened.page.locator("#query").evaluate("one => one.selectedOptions[0].text")  # noqa: E731
    assert picked() == "class token"
    opened.page.locator("#picture").click(position={"x": 5, "y": 5})
    assert picked() == "row 0, column 0"
    for key, place in (("ArrowRight", (0, 1)), ("ArrowRight", (0, 1)), ("ArrowDown", (1, 1)), ("Home", (1, 0))):
        opened.page.keyboard.press(key)
        assert picked() == "row {}, column {}".format(*place)
    assert "&token=3" in opened.current_url()
    opened.page.keyboard.press("Escape")
    assert picked() == "class token"
    opened.page.keyboard.press("ArrowUp")
    assert picked() == "row 1, column 1"
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    opened.page.locator("#map").click(position={"x": box["width"] - 5, "y": box["height"] - 5})
    assert picked() == "row 2, column 1"
    opened.page.get_by_role("radio", name="class token").click()
    assert picked() == "class token"


def test_rollout_and_gradient_rollout(show_pictures: ShowPictures) -> None:
    reading = read_file(image_classifier(), PICTURE)
    opened = show_pictures(reading, at="#view=attention")
    opened.page.get_by_role("radio", name="Rollout", exact=True).click()
    assert reading.rollout is not None
    best = 1 + int(reading.rollout[0, 1:].argmax())
    assert opened.sentence() == (
        f"Through all layers, the patch that counts most for the class token is {reading.layers[0].name_of(best)}: "
        f"{100 * reading.rollout[0, best]:.1f}\u00a0%."
    )
    assert opened.page.locator("#walk").is_hidden()
    labels = opened.page.locator("#labels button")
    assert labels.count() == 3
    for at, (label, share) in enumerate(reading.probabilities):
        assert labels.nth(at).locator(".share").inner_text() == f"{100 * share:.1f}\u00a0%"
        labels.nth(at).click()
        row = reading.gradient_rollouts[label][0, 1:]
        shares = row / row.sum()
        place = reading.layers[0].name_of(1 + int(shares.argmax()))
        assert opened.sentence() == (
            f"For the label {label}, the patch that counts most is {place}: {100 * shares.max():.1f}\u00a0% of all "
            "patches."
        )
    assert "view=gradient&label=2" in opened.current_url()


def test_distillation_token_is_a_source(show_pictures: ShowPictures) -> None:
    config = DeitConfig((12, 8), (4, 4), channels=1, labels=("a", "b"), layers=2, width=20, heads=5, inner=13)
    model = Deit(config).eval()
    model.processor = ImageProcessor((12, 8), channels=1, mean=(0.5,), std=(0.25,))
    reading = read_file(model, PICTURE)
    opened = show_pictures(reading, at="#layer=1&head=2&token=1")
    row = reading.layers[1].attention.weights()[2, 1]
    # In a map that is nearly uniform, one digit would not tell the patches apart.
    shown = f"Beside the patches: class token {100 * row[0]:.2f}\u00a0%, distillation token {100 * row[1]:.2f}\u00a0%"
    assert opened.page.inner_text("#prefix-shares") == shown
    assert "the distillation token attends most" in opened.sentence()


def test_steps_of_a_swin_are_those_of_its_window(show_pictures: ShowPictures) -> None:
    """Each token of a shifted layer: the page has the window of the model, wrapped around the edges, and padding."""
    reading = swin_reading(22, 26)
    opened = show_pictures(reading, at="#layer=1&head=1&token=0")
    layer = reading.layers[1]
    assert layer.windows is not None
    assert layer.windows.shift == 1
    for token in (0, 5, 13, 142):
        opened.page.evaluate(f"location.hash = 'layer=1&head=1&token={token}'")
        opened.wait_until(f"document.getElementById('query').value === '{token}'")
        names = [
            text.split(" ", 1)[1].strip("\u2068\u2069") for text in opened.page.locator("#key option").all_inner_texts()
        ]
        assert names == [layer.name_of(int(key)) if key >= 0 else "padding" for key in layer.keys[token]]
        row = layer.attention.weights()[1, token]
        cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
        np.testing.assert_allclose([float(cell) for cell in cells], row, atol=5.1e-5)
        masked = opened.page.locator("#steps table").last.locator("tbody td:nth-child(4)").all_inner_texts()
        assert [cell == "masked" for cell in masked] == [weight == 0 for weight in row]
    assert opened.page.locator("#steps > li").count() == 8, "the two steps before query and key among them"
    assert "how many rows and columns lie between" in opened.page.inner_text("#steps")
    assert opened.page.inner_text("#about").endswith("patches, 4 layers with 12 heads in all.")
    assert "shifted by 1" in opened.page.inner_text("#map-how")
    assert opened.page.get_by_role("radio", name="Rollout", exact=True).count() == 0


def test_a_perceiver_shows_what_its_answer_and_its_latents_read(show_pictures: ShowPictures) -> None:
    reading = read_file(small_perceiver(TrainedPixelInput((6, 5), 1, 4), cross_heads=2), PICTURE[:6, :5])
    opened = show_pictures(reading)
    (layer,) = reading.layers
    best = int(reading.readout.argmax())
    assert opened.sentence() == (
        f"Through all layers to the answer, the place that counts most is {layer.name_of_key(best)}: "
        f"{100 * reading.readout[best]:.1f}\u00a0%."
    )
    assert opened.page.inner_text("#about").endswith("5 latents that read 6 × 5 places, 1 layer with 2 heads.")
    opened.page.get_by_role("radio", name="Attention of a head").click()
    opened.page.locator("#map").focus()
    opened.page.keyboard.press("ArrowRight")
    assert opened.page.locator("#query").evaluate("one => one.selectedOptions[0].text") == "latent 1"
    row = layer.attention.weights().mean(0)[1]
    best = int(row.argmax())
    assert opened.sentence() == (
        f"In layer 0, all heads averaged, the key to which latent 1 attends most is {layer.name_of_key(best)}: "
        f"{100 * row[best]:.1f}\u00a0%."
    )
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    opened.page.locator("#map").click(position={"x": box["width"] - 5, "y": 5})
    assert opened.page.locator("#key").evaluate("one => one.value") == "4"
    opened.page.select_option("#head", "1")
    assert opened.page.locator("#steps > li").count() == 8
    cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
    largest = np.sort(layer.attention.weights()[1, 1])[-len(cells) :]  # the table leaves out small ones
    np.testing.assert_allclose(sorted(float(cell) for cell in cells), largest, atol=5.1e-5)
    label = reading.probabilities[1][0]
    opened.page.locator("#labels button").nth(1).click()
    shares = reading.gradient_rollouts[label][0]
    assert f"For the label {label}, the place that counts most is {layer.name_of_key(int(shares.argmax()))}" in (
        opened.sentence()
    )


def test_the_place_is_kept_from_stage_to_stage(show_pictures: ShowPictures) -> None:
    opened = show_pictures(swin_reading(), at="#layer=0&head=0&token=143")
    opened.page.select_option("#layer", "3")
    assert opened.page.locator("#query").evaluate("one => one.selectedOptions[0].text") == "row 5, column 5"
    opened.page.locator("#grid [role=row]").nth(1).locator("[role=gridcell]").nth(1).click()
    assert opened.page.input_value("#layer") == "1"
    opened.page.keyboard.press("ArrowUp")
    assert (opened.page.input_value("#layer"), opened.page.input_value("#head")) == ("0", "1")


def test_map_is_stronger_where_weights_are_larger(show_pictures: ShowPictures) -> None:
    """In the overview a pixel is a patch: its colour follows the weight."""
    reading = read_file(image_classifier(), np.full((12, 8), 100, dtype=np.uint8))
    opened = show_pictures(reading, at="#layer=0&head=0&token=0")
    opened.wait_until_painted()
    pixels = opened.page.evaluate(
        "[...document.querySelector('#grid canvas').getContext('2d').getImageData(0, 0, 2, 3).data]"
    )
    light = np.array(pixels).reshape(6, 4)[:, :3].sum(1)
    weights = reading.layers[0].attention.weights()[0, 0, 1:]
    assert (np.diff(light[np.argsort(weights)]) <= 0).all()
    assert light[weights.argmax()] < light[weights.argmin()]


def lightness(opened: BrowserPage) -> np.ndarray:
    """Of each patch in the first map of the overview, 6 x 4: from 0, black, to 765, white."""
    pixels = opened.page.evaluate(
        """(() => {
          const copy = new OffscreenCanvas(4, 6).getContext("2d");
          copy.drawImage(document.querySelector("#grid canvas"), 0, 0);
          return [...copy.getImageData(0, 0, 4, 6).data];
        })()"""
    )
    return np.array(pixels).reshape(24, 4)[:, :3].sum(1)


def nearly_uniform_reading() -> PictureReading:
    """A head whose weights on 24 patches differ by less than a hundredth of themselves: by query . key / 1000."""
    tokens, generator = 25, np.random.default_rng(31)
    query, key, value = (generator.standard_normal((1, tokens, 3)).astype(np.float32) for _ in range(3))
    layer = layer_reading("one", query, key, value, scale=1e-3)
    picture = random_pixels(24, 16, channels=1)[None]
    return PictureReading("flat.png", picture, (PictureLayer(TokenGrid(6, 4, ("class",)), layer, (4, 4)),))


def test_a_nearly_uniform_map_is_shaded_from_the_uniform_weight(show_pictures: ShowPictures) -> None:
    """From the largest shade to the lightest, which stands for the uniform weight and less; from 0 it is all dark."""
    reading = nearly_uniform_reading()
    opened = show_pictures(reading)
    row = reading.layers[0].attention.weights()[0, 0, 1:]

    opened.wait_until_painted()
    shades = lightness(opened)
    assert shades[row.argmax()] < 300  # of 765
    assert (shades[row <= row.mean()] > 700).all()
    order = np.argsort(row)
    assert (np.diff(shades[order]) <= 0).all()
    assert len(set(shades[row > row.mean()].tolist())) > 5
    ticks = opened.page.locator("#ticks span").all_inner_texts()
    assert ticks == [f"{100 * value:.3f}\u00a0%" for value in (row.mean(), (row.mean() + row.max()) / 2, row.max())]
    assert f"begin at {100 * row.mean():.3f}\u00a0%, the uniform weight" in opened.page.inner_text("#map-how")
    opened.page.locator("#map").hover()
    hovered = opened.page.inner_text("#map-value").split()[-2]
    assert hovered in [f"{100 * value:.3f}" for value in row]
    opened.page.get_by_role("radio", name="Scale: from 0").click()
    assert "scale=zero" in opened.current_url()
    assert opened.page.locator("#ticks span").first.inner_text() == "0.000\u00a0%"
    opened.wait_until_painted()
    assert lightness(opened).max() < 300


def test_equal_weights_have_one_light_colour(show_pictures: ShowPictures) -> None:
    """What float32 and the page's rounding make of equal weights has no strong colour."""
    reading = nearly_uniform_reading()
    layer = reading.layers[0].attention
    equal = layer_reading("one", 0 * layer.query, layer.key, layer.value, scale=1.0)
    place = PictureLayer(reading.layers[0].grid, equal, (4, 4))
    opened = show_pictures(PictureReading("flat.png", reading.pixels, (place,)))
    opened.wait_until_painted()
    assert lightness(opened).min() > 700


@pytest.mark.parametrize(
    ("make", "view"),
    [(image_classifier, "gradient"), (small_cct, "gradient"), (small_cvt, "attention")],
)
def test_the_page_opens_at_what_the_answer_rests_on(show_pictures: ShowPictures, make: Callable, view: str) -> None:
    model = make()
    reading = read_file(model, random_pixels(*model.picture_size, channels=1))
    opened = show_pictures(reading)
    label, _ = reading.probabilities[0]
    assert (label in reading.gradient_rollouts) == (view == "gradient")
    begin = f"For the label {label}, " if view == "gradient" else "In layer 2, all heads averaged, "
    assert opened.sentence().startswith((begin, f"No patch counts for the label {label}:"))
    if view == "gradient":
        opened.page.get_by_role("radio", name="Attention of a head").click()
    assert "all heads averaged" in opened.sentence()
    if reading.layers[-1].grid.prefix:
        assert "the class token attends most" in opened.sentence()


WIDTHS_AND_SCHEMES = [
    pytest.param(width, scheme, marks=[] if (width, scheme) == (380, "dark") else pytest.mark.slow)
    for width in (1200, 380)
    for scheme in ("light", "dark")
]
"""In the fast tests the hardest case alone: a narrow page, with the colours that are not the default."""


def test_paper_has_all_maps_in_light_colours(show_pictures: ShowPictures) -> None:
    reading = read_file(image_classifier(), PICTURE, name="a-long-name-" * 12 + ".png")
    opened = show_pictures(reading, at="#view=attention&layer=1", scheme="dark", width=390)
    printed = print_page(opened)
    assert printed["theme"] == "light"
    heads = [layer.attention.heads + 1 for layer in reading.layers]
    assert printed["painted"] == printed["canvases"] == sum(heads) + heads[1] + 3  # picture, map and scale
    assert_fits_paper(opened)


def test_the_heat_map_of_a_picture_is_skipped_to(show_pictures: ShowPictures) -> None:
    opened = show_pictures(read_file(image_classifier(), PICTURE))
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.id") == "map"


@pytest.mark.parametrize(("width", "scheme"), WIDTHS_AND_SCHEMES)
def test_contrast_and_width(show_pictures: ShowPictures, scheme: str, width: int) -> None:
    reading = read_file(image_classifier(), PICTURE, name="a-long-name-" * 12 + ".png")
    opened = show_pictures(reading, reading, width=width, scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(CONTRAST) >= 4.5
    opened.page.locator("[role=tab]").nth(1).click()
    assert "picture=1" in opened.current_url()


def test_html_in_names_and_labels_is_text(show_pictures: ShowPictures) -> None:
    model = image_classifier(labels=tuple(MALICIOUS_TOKENS[:3]))
    opened = show_pictures(read_file(model, PICTURE, name=MALICIOUS_TOKENS[0]))
    assert sorted(opened.page.locator("#labels bdi").all_text_contents()) == sorted(MALICIOUS_TOKENS[:3])
    assert opened.page.locator("#picture-name bdi").text_content() == MALICIOUS_TOKENS[0]
    assert opened.page.evaluate("document.querySelectorAll('img, svg, iframe, object, embed').length") == 0


def test_rounded_page_without_values(show_pictures: ShowPictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regard.view.page, "MAX_VECTOR_CHARACTERS", 100)
    reading = read_file(image_classifier(), PICTURE)
    opened = show_pictures(reading, at="#layer=1&head=3&token=4&key=2")
    assert opened.page.locator("#steps > li").count() == 7
    row = reading.layers[1].attention.weights()[3, 4]
    cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
    np.testing.assert_allclose([float(cell) for cell in cells], row, atol=0.002)
    assert "rounded to 13 bits" in opened.page.inner_text("#foot")


def cvt_reading() -> PictureReading:
    return read_file(small_cvt(), random_pixels(26, 19, channels=1), name="cat.png")


def picked_token(opened: BrowserPage) -> str:
    return str(opened.page.locator("#query").evaluate("one => one.selectedOptions[0].text"))


def test_a_patch_of_a_cvt_shows_its_weights_over_the_keys(show_pictures: ShowPictures) -> None:
    """In each stage, with its own grids: the sentence, the names of the keys and the rows are those of the model."""
    reading = cvt_reading()
    opened = show_pictures(reading, at="#layer=0&head=2&token=30")
    for at, token in ((0, 30), (2, 0), (1, 7)):
        layer = reading.layers[at]
        opened.page.evaluate(f"location.hash = 'layer={at}&head=2&token={token}'")
        opened.wait_until(f"document.getElementById('layer').value === '{at}'")
        row = layer.attention.weights()[2, token]
        first = len(layer.grid.prefix)
        best = first + int(row[first:].argmax())
        source = ("the " if token < first else "") + layer.name_of(token)
        assert opened.sentence() == (
            f"In layer {at}, head 2, the key to which {source} attends most is {layer.name_of_key(best)}: "
            f"{100 * row[best]:.1f}\u00a0%."
        )
        names = [one.split(" ", 1)[1] for one in opened.page.locator("#key option").all_inner_texts()]
        assert [name.strip("\u2068\u2069") for name in names] == list(map(layer.name_of_key, range(len(row))))
        cells = opened.page.locator("#steps tbody td:nth-child(5)").all_inner_texts()
        np.testing.assert_allclose([float(cell) for cell in cells], row, atol=5.1e-5)
        keys = layer.key_grid
        assert keys is not None
        assert f"a grid of their own, {keys.rows} × {keys.columns}:" in opened.page.inner_text("#map-how")
    assert opened.page.inner_text("#about").endswith("9 × 7 patches, 3 layers with 13 heads in all.")
    assert opened.page.get_by_role("radio", name="Rollout", exact=True).count() == 0


def test_patches_of_a_cvt_are_picked_on_the_grid_of_queries(show_pictures: ShowPictures) -> None:
    reading = cvt_reading()
    opened = show_pictures(reading, at="#layer=0&head=1&token=0")
    box = opened.page.locator("#map").bounding_box()
    assert box is not None
    height, width = box["height"] / 9, box["width"] / 7
    opened.page.locator("#map").click(position={"x": 3.5 * width, "y": 4.5 * height})
    assert picked_token(opened) == "row 4, column 3"
    opened.page.keyboard.press("ArrowRight")
    opened.page.keyboard.press("ArrowDown")
    assert picked_token(opened) == "row 5, column 4"
    opened.page.locator("#map").hover(position={"x": box["width"] - 4, "y": 4})  # the last key of the first row
    value = 100 * reading.layers[0].attention.weights()[1, 5 * 7 + 4, 3]
    assert opened.page.inner_text("#map-value") == f"row 5, column 4 → key row 0, column 3 {value:.1f}\u00a0%"
    opened.page.select_option("#layer", "1")
    assert picked_token(opened) == "row 3, column 2"
    opened.page.get_by_role("radio", name="class token").click()
    opened.page.select_option("#layer", "0")
    assert picked_token(opened) == "row 4, column 3"


def test_small_maps_of_a_cvt_have_a_pixel_for_each_key(show_pictures: ShowPictures) -> None:
    """In all layers, also those whose tokens the picked one is none of: there the patch in the centre is shown."""
    reading = cvt_reading()
    opened = show_pictures(reading)
    opened.wait_until_painted()
    assert "patch in the centre" in opened.page.inner_text("#overview-how")
    sizes = opened.page.evaluate("[...document.querySelectorAll('#grid canvas')].map((one) => [one.width, one.height])")
    assert sizes == [[4, 5]] * 4 + [[2, 3]] * 12
    pixels = opened.page.evaluate(
        "[...document.querySelector('#grid canvas').getContext('2d').getImageData(0, 0, 4, 5).data]"
    )
    light = np.array(pixels).reshape(20, 4)[:, :3].sum(1)
    weights = reading.layers[0].attention.weights()[0, 4 * 7 + 3]
    assert (np.diff(light[np.argsort(weights)]) <= 0).all()


def test_readout_and_gradient_rollout_of_a_cct(show_pictures: ShowPictures) -> None:
    reading = read_file(small_cct(), PICTURE, name="cat.png")
    readout, layer = reading.readout, reading.layers[-1]
    assert readout is not None
    opened = show_pictures(reading, at="#view=attention")
    assert picked_token(opened) == "row 2, column 1"  # the centre: no token stands for the picture
    opened.page.get_by_role("radio", name="Readout", exact=True).click()
    best = int(readout.argmax())
    assert opened.sentence() == (
        f"In the vector that the head reads, the patch that counts most is {layer.name_of(best)}: "
        f"{100 * readout[best]:.1f}\u00a0%."
    )
    opened.page.locator("#picture").focus()
    opened.page.keyboard.press("ArrowUp")
    assert opened.page.inner_text("#map-value") == f"sequence pooling → row 1, column 1 {100 * readout[4]:.1f}\u00a0%"
    assert "view=readout" in opened.current_url()
    for at, (label, _) in enumerate(reading.probabilities):
        opened.page.locator("#labels button").nth(at).click()
        row = reading.gradient_rollouts[label][0]
        place = int(row.argmax())
        share = f"{100 * row[place] / (row.sum() or 1):.1f}\u00a0%"
        assert opened.sentence() == (
            f"For the label {label}, the patch that counts most is {layer.name_of(place)}: {share} of all patches."
            if row.any()
            else f"No patch counts for the label {label}: a larger weight on any of them would not raise its logit."
        )
        assert opened.page.inner_text("#map-value") == f"sequence pooling → {layer.name_of(place)} {share}"
    opened.page.get_by_role("radio", name="Attention of a head").click()
    opened.page.locator("#picture").click(position={"x": 2, "y": 2})
    assert picked_token(opened) == "row 0, column 0"


@pytest.mark.parametrize(("width", "scheme"), WIDTHS_AND_SCHEMES)
@pytest.mark.parametrize("make", [small_cct, small_cvt])
def test_contrast_and_width_of_models_with_convolutions(
    show_pictures: ShowPictures, make: Callable[[], Cct | Cvt], width: int, scheme: str
) -> None:
    model = make()
    reading = read_file(model, random_pixels(*model.picture_size, channels=1))
    opened = show_pictures(reading, at="#layer=0&head=0", width=width, scheme=scheme)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.page.evaluate(CONTRAST) >= 4.5


@pytest.mark.parametrize(("width", "scheme"), [pytest.param(1200, "light", marks=pytest.mark.slow), (400, "dark")])
def test_similarity_of_a_text_of_a_clip(show_pictures: ShowPictures, width: int, scheme: str) -> None:
    """The cosine of the picked patch, and the text that was chosen; nothing makes a narrow page scroll sideways."""
    reading = read_file(small_clip(), PICTURE, labels=["a cat", "<b>a dog"], name="cat.png")
    opened = show_pictures(reading, at="#view=similarity&label=1&token=4", width=width, scheme=scheme)
    text, _ = reading.probabilities[1]
    cosine = reading.similarities[text][4]
    assert f"cosine {'−' if cosine < 0 else ''}{abs(cosine):.3f}" in opened.page.inner_text("#map-value")
    assert text in opened.page.inner_text("#sentence")
    opened.page.click("#labels button >> nth=0")
    assert reading.probabilities[0][0] in opened.page.inner_text("#sentence")
    assert "view=similarity&label=0" in opened.page.url
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
