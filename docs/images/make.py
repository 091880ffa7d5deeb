"""Renders the pictures of pages that the READMEs show, from what ``regard view`` really writes.

    python docs/images/make.py

Needs Chromium (named by REGARD_CHROMIUM, or found on the path) and the ``test`` extra.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

SENTENCE = "The animal didn't cross the street because it was too tired."
HERE = Path(__file__).resolve().parent
QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1080, "height": 1360}
PATCHES_SIZE = {"width": 1080, "height": 1130}
MECHANISMS = "longformer,nystromformer,moba,linear"
SCHEMES = ("light", "dark")


def chromium() -> str:
    """The browser's path."""
    names = [os.environ.get("REGARD_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        sys.exit("no Chromium was found: install it, or set REGARD_CHROMIUM to its path")
    return found


def command() -> Path:
    """The program whose pages are drawn."""
    return Path(sys.executable).with_name("regard")


def write_page(page_file: Path, *options: str) -> None:
    """Let ``regard view`` write the page of the sentence."""
    subprocess.run([command(), "view", SENTENCE, *options, "-o", page_file], check=True, stdout=subprocess.DEVNULL)


def draw_shape(label: str, generator: np.random.Generator, side: int = 64) -> np.ndarray:
    """A disc, a square or a cross of a random colour and place, on a ground with noise."""
    y, x = np.mgrid[:side, :side] - generator.integers(side // 3, 2 * side // 3, 2)[:, None, None]
    radius = generator.integers(side // 6, side // 4)
    inside = {
        "disc": x**2 + y**2 < radius**2,
        "square": np.maximum(abs(x), abs(y)) < radius * 0.85,
        "cross": (np.minimum(abs(x), abs(y)) < radius / 4) & (np.maximum(abs(x), abs(y)) < radius),
    }[label]
    ground, colour = generator.integers(60, 120, 3), generator.integers(150, 256, 3)
    picture = np.where(inside[..., None], colour, ground) + generator.normal(0, 12, (side, side, 3))
    return np.clip(picture, 0, 255).astype(np.uint8)


def train_shapes(folder: Path) -> tuple[Path, Path]:
    """Train a ViT for a minute on pictures of shapes; the model's folder, and a picture that it has not seen."""
    generator = np.random.default_rng(3)
    for label in ("disc", "square", "cross"):
        (folder / "shapes" / label).mkdir(parents=True)
        for number in range(300):
            picture = Image.fromarray(draw_shape(label, generator))
            picture.save(folder / "shapes" / label / f"{number:03}.png")
    options = ["--data", folder / "shapes", "--out", folder / "model", "--minutes", "1", "--seed", "1"]
    subprocess.run([command(), "train", "classify", *options], check=True)
    Image.fromarray(draw_shape("cross", generator)).save(folder / "cross.png")
    return folder / "model", folder / "cross.png"


def draw_patches(browser: Browser, page_file: Path) -> None:
    """Writes patches-light.png and patches-dark.png beside this file: the top of the page of a picture."""
    for scheme in SCHEMES:
        page = browser.new_page(viewport=PATCHES_SIZE, color_scheme=scheme)
        page.goto(page_file.as_uri() + "#view=gradient")
        page.wait_for_selector("html[data-ready]")
        page.screenshot(path=HERE / f"patches-{scheme}.png")


def draw_heads(browser: Browser, page_file: Path) -> None:
    """Writes page-light.png and page-dark.png beside this file."""
    for scheme in SCHEMES:
        page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        page.goto(page_file.as_uri())
        page.wait_for_function("document.querySelectorAll('#grid canvas').length > 0")
        page.wait_for_timeout(1500)  # the grid is drawn bit by bit
        page.screenshot(path=HERE / f"page-{scheme}.png")


def draw_panels(browser: Browser, page_file: Path) -> None:
    """Writes side-by-side-light.png and side-by-side-dark.png beside this file: the panels of all mechanisms."""
    for scheme in SCHEMES:
        page = browser.new_page(viewport=SIZE, color_scheme=scheme, device_scale_factor=2)
        page.goto(page_file.as_uri())
        page.wait_for_function("document.querySelectorAll('#panels canvas').length > 0")
        page.wait_for_timeout(1500)
        first, last = (page.locator(name).bounding_box() for name in ("#panels-title", "#panels"))
        assert first is not None
        assert last is not None
        top, bottom = first["y"] - 12, last["y"] + last["height"] + 12
        clip = {"x": 0, "y": top, "width": SIZE["width"], "height": bottom - top}
        page.screenshot(path=HERE / f"side-by-side-{scheme}.png", full_page=True, clip=clip)


def main() -> None:
    """Writes the pictures of all pages."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        heads, panels = Path(folder) / "heads.html", Path(folder) / "panels.html"
        write_page(heads)
        write_page(panels, "--mechanism", MECHANISMS)
        browser = player.chromium.launch(executable_path=chromium(), args=QUIET)
        draw_heads(browser, heads)
        draw_panels(browser, panels)
        model, picture = train_shapes(Path(folder))
        patches = Path(folder) / "patches.html"
        options = ["--model", model.name, "-o", patches]  # relative names, which the page shows
        subprocess.run([command(), "view", picture.name, *options], check=True, cwd=folder)
        draw_patches(browser, patches)
        browser.close()


if __name__ == "__main__":
    main()
