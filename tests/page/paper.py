"""Printing of a page: what was on it when the browser took it, and whether everything is as wide as the paper."""

from typing import Any

from browser_page import BrowserPage

WIDTH = 718
"""CSS pixels of A4 between margins of 1 cm."""

_WATCH = """addEventListener("beforeprint", () => {
  const canvases = [...document.querySelectorAll("canvas")].filter((canvas) => canvas.checkVisibility());
  const isPainted = (canvas) => {
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d");
    copy.drawImage(canvas, 0, 0);
    return copy.getImageData(0, 0, canvas.width, canvas.height).data.some((part) => part > 0);
  };
  window.printed = {
    theme: document.documentElement.dataset.theme,
    canvases: canvases.length,
    painted: canvases.filter(isPainted).length,
    pictures: canvases.map((canvas) => canvas.toDataURL()),
  };
})"""
_WIDER_THAN_PAPER = """(() => {
  const shown = [...document.querySelectorAll("body *")].filter((one) => one.checkVisibility() && !one.closest("svg"));
  const isCut = (one) => {
    const { overflowX, textOverflow } = getComputedStyle(one);
    const hidesPart = overflowX !== "visible" && textOverflow !== "ellipsis" && one.tagName !== "BUTTON";
    return hidesPart && one.scrollWidth > one.clientWidth + 1;
  };
  const isShortened = (one) => getComputedStyle(one.parentElement).textOverflow === "ellipsis";
  const isBeyond = (one) => {
    const { left, right } = one.getBoundingClientRect();
    return (left < -1 || right > innerWidth + 1) && !isShortened(one);
  };
  return shown.filter((one) => isCut(one) || isBeyond(one))
    .map((one) => `${one.tagName} ${one.id} ${one.className} ${one.textContent.slice(0, 30)}`);
})()"""
_DISTORTED = """[...document.querySelectorAll("canvas")]
  .filter((one) => one.checkVisibility() && !one.closest("#grid, #lines"))
  .map((one) => [one.id, one.clientWidth / one.clientHeight / (one.width / one.height)])
  .filter(([, ratio]) => Math.abs(ratio - 1) > 0.05)"""


def print_page(opened: BrowserPage) -> dict[str, Any]:
    """Print the page to PDF at once, and return its theme and canvases at the moment at which the browser took it."""
    opened.page.emulate_media(media="null")
    opened.page.evaluate(_WATCH)
    assert opened.page.pdf(format="A4").startswith(b"%PDF")
    return dict(opened.page.evaluate("printed"))


def assert_fits_paper(opened: BrowserPage) -> None:
    """Assert that on paper nothing is cut or goes beyond its edge, and no canvas is out of proportion."""
    opened.page.set_viewport_size({"width": WIDTH, "height": 1000})
    opened.page.emulate_media(media="print")
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert opened.page.evaluate(_WIDER_THAN_PAPER) == []
    assert opened.page.evaluate(_DISTORTED) == []
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    opened.page.emulate_media(media="null")
