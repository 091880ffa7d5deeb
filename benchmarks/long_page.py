"""The page of a long text: its size, the time to its first paint, its memory, and frames while it is zoomed.

    python -m benchmarks.long_page                        100,000 tokens, 2 layers of 2 heads: some ten minutes
    python -m benchmarks.long_page --tokens 5000
    python -m benchmarks.long_page --layers 12 --heads 12 --tokens 2000

A decoder with random queries and keys reads a text of random words; what is computed does not depend on their values.
The page is opened in a new context of a browser; then the wheel is turned over the overview 120 times, in and out, once
a frame. The times between frames of the browser are printed: a display of 60 Hz shows one each 16.7 ms. Needs
playwright and a Chromium.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from benchmarks.optional_imports import missing_package_error
from regard import masks
from regard.mechanisms.steps import Steps
from regard.view import LayerReading, Reading, Tokens
from regard.view.long_reading import summarize_long
from regard.view.page import write_page

_TURNS = 120
_ZOOM = """(turns) => new Promise((done) => {
  const [map, times] = [document.getElementById("map"), []];
  const box = map.getBoundingClientRect();
  const [clientX, clientY] = [box.left + box.width / 3, box.top + box.height / 2];
  let before = performance.now();
  const turn = () => {
    const now = performance.now();
    times.push(now - before);
    before = now;
    if (times.length > turns) return done(times.slice(1));
    const deltaY = Math.floor(times.length / 15) % 2 ? 30 : -30;
    map.dispatchEvent(new WheelEvent("wheel", { clientX, clientY, deltaY, cancelable: true }));
    requestAnimationFrame(turn);
  };
  requestAnimationFrame(turn);
})"""


def make_reading(tokens: int, layers: int, heads: int) -> Reading:
    """A text of random words of a decoder with random queries and keys."""
    numbers = np.random.default_rng(0).zipf(1.3, tokens) % 20_000
    words = [f"word{number}" for number in numbers.tolist()]
    starts = np.cumsum([0, *(len(word) + 1 for word in words)]).tolist()
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=False))
    generator = torch.Generator().manual_seed(0)
    made = []
    for number in range(layers):
        query, key = (1.5 * torch.randn(1, heads, tokens, 16, generator=generator) for _ in range(2))
        made.append(LayerReading(f"layer {number}", Steps(query, key, masks.causal(), scale=0.25), key[0]))
    return Reading(Tokens(" ".join(words), tuple(words), spans, (False,) * tokens), tuple(made), sink=0)


def measure_page(path: Path) -> tuple[float, float, list[float]]:
    """Milliseconds to the first paint, megabytes of the script's memory, and milliseconds of each frame."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise missing_package_error("playwright", "playwright") from error
    chromium = os.environ.get("REGARD_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
        page.goto(path.as_uri())
        page.wait_for_selector("#map[data-painted]")
        page.wait_for_timeout(500)
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        frames: list[float] = page.evaluate(_ZOOM, _TURNS)
        session: Any = page.context.new_cdp_session(page)
        memory = session.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        browser.close()
    return float(paint), float(memory), frames


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    options = parser.parse_args()
    reading = make_reading(options.tokens, options.layers, options.heads)
    before = perf_counter()
    summary = summarize_long(reading)
    seconds = perf_counter() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    with tempfile.TemporaryDirectory() as folder:
        path = write_page(summary, Path(folder) / "long.html")
        size = path.stat().st_size / 1e6
        paint, memory, frames = measure_page(path)
    print(machine.machine()["processor"])
    print(f"{options.tokens:,} tokens, {options.layers} layers of {options.heads} heads")
    print(f"computed in {seconds:.0f} s, peak memory {peak:,.0f} MB; page {size:.2f} MB")
    print(f"first paint {paint:.0f} ms, script memory {memory:.0f} MB")
    print(f"frames while zooming: median {median(frames):.1f} ms, 95 % below {np.quantile(frames, 0.95):.1f} ms")


if __name__ == "__main__":
    main()
