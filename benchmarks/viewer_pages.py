"""The page of a text beside BertViz's model view of the same text: size of the file, and time until it can be used.

    python -m benchmarks.viewer_pages --libraries FOLDER            256 tokens of MiniLM
    python -m benchmarks.viewer_pages --libraries FOLDER --tokens 64 --rounds 5

FOLDER holds d3.min.js (5.7.0), jquery.min.js (2.x) and require.min.js (2.3.6), which BertViz's page loads from the
network; they are served from there, so that no network is timed. A page can be used once it says so (regard), or once
it has drawn its heads, all at once (BertViz). Pages are opened in turns, each in a new context of one browser; medians
are printed. Needs bertviz, playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch

import regard
from benchmarks import machine
from benchmarks.optional_imports import missing_package_error
from regard.view import read, write_page

_WORD = "the animal did not cross the street because it was too tired and the cat sat on the mat "
_LOADED = {"require.js": "require.min.js", "d3": "d3.min.js", "jquery": "jquery.min.js"}
_READY = {
    "regard": "document.documentElement.dataset.ready === 'yes'",
    "bertviz": "document.querySelector('svg line') !== null",
}


def make_text(tokens: int) -> str:
    """A text of this many tokens of MiniLM, with its special tokens: every word is one token."""
    words = (_WORD * (tokens // 10 + 1)).split()
    return " ".join(words[: tokens - 2])


def write_pages(folder: Path, tokens: int) -> dict[str, Path]:
    """Write both pages of the same text and model."""
    model, text = regard.load("minilm"), make_text(tokens)
    reading = read(model, text)
    ours = write_page(reading, folder / "regard.html", model="minilm")
    weights = [torch.from_numpy(layer.weights())[None] for layer in reading.layers]
    try:
        from bertviz import model_view
    except ImportError as error:
        raise missing_package_error("bertviz", "bertviz ipython") from error
    page = model_view(weights, list(reading.tokens.pieces), html_action="return")
    theirs = folder / "bertviz.html"
    theirs.write_text(f"<!doctype html><meta charset=utf-8><body>{page.data}</body>", encoding="utf-8")
    return {"regard": ours, "bertviz": theirs}


def serve_libraries(route: Any, folder: Path) -> None:
    """Answer a request for a library by its file, and refuse others."""
    url = route.request.url
    if url.startswith("file:"):
        route.continue_()
        return
    name = next((file for part, file in _LOADED.items() if f"/{part}/" in url), None)
    if name is None:
        route.abort()
    else:
        route.fulfill(path=folder / name, content_type="text/javascript")


def time_opening(browser: Any, path: Path, name: str, libraries: Path) -> float:
    """The seconds from the address to the usable page."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(600_000)
    page.route("**/*", lambda route: serve_libraries(route, libraries))
    begin = perf_counter()
    page.goto(path.as_uri(), wait_until="commit")
    while not page.evaluate(_READY[name]):
        page.wait_for_timeout(20)
    seconds = perf_counter() - begin
    context.close()
    return seconds


def main() -> None:
    """Print sizes and times; --help tells how to call it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--libraries", type=Path, required=True, help="folder of the libraries that BertViz loads")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise missing_package_error("playwright", "playwright") from error
    print(machine.machine()["processor"])
    chromium = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        pages = write_pages(Path(folder), arguments.tokens)
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        seconds: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(arguments.rounds):
            for name, path in pages.items():
                seconds[name].append(time_opening(browser, path, name, arguments.libraries))
        browser.close()
        for name, path in pages.items():
            print(f"{name:8} {path.stat().st_size / 1e6:8.1f} MB {median(seconds[name]):8.2f} s")
    print(f"ratio of times {median(seconds['bertviz']) / median(seconds['regard']):.1f}")


if __name__ == "__main__":
    main()
