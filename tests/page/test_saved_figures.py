"""The heat map saved from the page, as SVG and PNG: what is shown, in light colours, with text as text."""

import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np
import pytest
from browser_page import BrowserPage, random_reading
from PIL import Image
from playwright.sync_api import Frame, Page

from regard.view import AttentionView
from regard.view.figures import colours

WORDS = ["The", "cat", "</text><script>alert(1)</script>", "&amp;<img", "sat"]
Show = Callable[..., BrowserPage]


def save(page: Page, ending: str, within: Page | Frame | None = None) -> tuple[str, bytes]:
    """Click the button of a format, and return the name of the file and its contents."""
    with page.expect_download() as download:
        (within or page).click(f"#save-{ending}")
    return download.value.suggested_filename, download.value.path().read_bytes()


def cells_of(svg: ElementTree.Element) -> dict[tuple[int, int], str]:
    """The colour of each cell, by its row and column."""
    paths = [element for element in svg.iter() if element.tag.endswith("}path")]
    return {
        (int(row), int(column)): str(path.get("fill"))
        for path in paths
        for column, row in re.findall(r"M(\d+) (\d+)h1v1h-1z", str(path.get("d")))
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_svg_has_the_weights_that_are_shown(show: Show, scheme: str) -> None:
    reading = random_reading(WORDS)
    opened = show(reading, at="#layer=1&head=2&token=3", scheme=scheme)
    name, content = save(opened.page, "svg")
    assert name == "layer-1-head-2.svg"
    svg = ElementTree.fromstring(content)
    assert float(svg.get("width", "").removesuffix("mm")) <= 85.1
    labels = [element.text for element in svg.iter() if element.tag.endswith("}text")]
    assert labels[:7] == labels[7:14] == ["[CLS]", *labels[1:6], "[SEP]"]
    assert labels[1:3] == ["The", "cat"]
    assert str(labels[3]).startswith("</text><s")
    assert labels[14:] == ["0%", "5%", "25%", "50%", "100%"]
    tags = {element.tag.rpartition("}")[2] for element in svg.iter()}
    assert tags == {"svg", "rect", "path", "text"}
    weights = reading.layers[1].weights()[2]
    cells = cells_of(svg)
    places = list(np.ndindex(*weights.shape))
    assert sorted(cells) == places
    parts = [[int(part, 16) for part in re.findall("..", cells[place][1:])] for place in places]
    shown = np.array(parts).reshape(*weights.shape, 3) / 255
    np.testing.assert_allclose(shown, colours.shares()(np.sqrt(weights))[..., :3], atol=0.012)
    assert opened.page.evaluate("document.documentElement.dataset.theme") == scheme


def test_png_has_the_same_colours(show: Show) -> None:
    reading = random_reading(WORDS)
    opened = show(reading, at="#layer=0&head=mean&token=3", scheme="dark")
    name, content = save(opened.page, "png")
    assert name == "layer-0-all-heads-averaged.png"
    with Image.open(io.BytesIO(content)) as image:
        assert 1200 < image.width <= 4 * 322
        pixels = np.asarray(image.convert("RGB"))
    assert (pixels[0] == 255).all()
    svg = ElementTree.fromstring(save(opened.page, "svg")[1])
    (path, *_) = [element for element in svg.iter() if element.tag.endswith("}path")]
    x, y, cell = map(float, re.findall(r"[\d.]+", str(path.get("transform"))))
    for (row, column), fill in cells_of(svg).items():
        pixel = pixels[round(4 * (y + (row + 0.5) * cell)), round(4 * (x + (column + 0.5) * cell))]
        assert "#" + "".join(f"{part:02x}" for part in pixel) == fill


def test_a_long_text_has_a_shape_for_each_colour(show: Show) -> None:
    opened = show(random_reading([f"w{number}" for number in range(100)], layers=1, heads=1))
    content = save(opened.page, "svg")[1]
    svg = ElementTree.fromstring(content)
    assert len(content) < 200_000
    assert len(cells_of(svg)) == 102**2
    assert 20 < len([element for element in svg.iter() if element.tag.endswith("}text")]) < 150


def test_a_figure_is_saved_from_a_notebook(browser_window: Page) -> None:
    """The sandbox of the frame allows downloads."""
    browser_window.set_content(AttentionView(random_reading(WORDS))._repr_html_())
    (frame,) = browser_window.main_frame.child_frames
    frame.wait_for_selector("html[data-ready]")
    name, content = save(browser_window, "svg", within=frame)
    assert name.endswith(".svg")
    assert content.startswith(b"<?xml")
    browser_window.goto("about:blank")
