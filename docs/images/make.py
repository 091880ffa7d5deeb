"""Renders the pictures of pages that the READMEs and the docs show, from what the commands really write.

    python docs/images/make.py

Needs Chromium (named by REGARD_CHROMIUM, or found on the path) and the ``test`` extra.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

SENTENCE = "The animal didn't cross the street because it was too tired."
HERE = Path(__file__).resolve().parent
QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1080, "height": 1360}
HEADS_SIZE = {"width": 1280, "height": 800}
PATCHES_SIZE = {"width": 1080, "height": 1130}
SOUND_SIZE = {"width": 1080, "height": 1020}
EPISODE_SIZE = {"width": 1080, "height": 1240}
COMPARISON_SIZE = {"width": 1280, "height": 700}
GRID_WORLD = "MiniGrid-DoorKey-5x5-v0"
MECHANISMS = "longformer,nystromformer,moba,linear"
SCHEMES = ("light", "dark")
LEAKING_MODEL = """
import torch


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = torch.nn.Linear(16, 48)

    def forward(self, vectors):
        query, key, value = self.projection(vectors).chunk(3, -1)
        length = vectors.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(2)  # off by one
        return vectors + (query @ key.mT / 4).masked_fill(hidden, -torch.inf).softmax(-1) @ value


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("first", Attention())
    model.add_module("second", Attention())
    return model.eval(), torch.randn(1, 13, 16), {"causal": True}
"""


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
    train_classifier(folder / "shapes", folder / "model")
    Image.fromarray(draw_shape("cross", generator)).save(folder / "cross.png")
    return folder / "model", folder / "cross.png"


def train_tones(folder: Path) -> tuple[Path, Path]:
    """Train a Conformer for a minute on tones that rise, fall, or beep twice; the model's folder, and a new sound."""
    rate, generator = 16_000, np.random.default_rng(5)
    for label in ("rising", "falling", "two beeps"):
        (folder / "tones" / label).mkdir(parents=True)
        for number in range(200):
            soundfile.write(folder / "tones" / label / f"{number:03}.wav", make_tone(label, rate, generator), rate)
    train_classifier(folder / "tones", folder / "tones-model")
    soundfile.write(folder / "beeps.wav", make_tone("two beeps", rate, generator), rate)
    return folder / "tones-model", folder / "beeps.wav"


def make_tone(label: str, rate: int, generator: np.random.Generator) -> np.ndarray:
    """A sound of 1.6 seconds in noise, float64 (samples,)."""
    seconds = np.arange(int(1.6 * rate)) / rate
    low, high = generator.uniform(300, 600), generator.uniform(1500, 3000)
    rising = low + (high - low) * seconds / seconds[-1]
    hertz = {"rising": rising, "falling": rising[::-1], "two beeps": np.full_like(seconds, high)}[label]
    loud = np.ones_like(seconds)
    if label == "two beeps":
        begins = generator.uniform(0.1, 0.5), generator.uniform(0.8, 1.2)
        loud = sum((seconds > begin) & (seconds < begin + 0.25) for begin in begins) > 0
    return 0.3 * np.sin(2 * np.pi * np.cumsum(hertz) / rate) * loud + 0.02 * generator.normal(size=len(seconds))


def train_classifier(data: Path, out: Path) -> None:
    """Train a classifier of the files in a folder for a minute."""
    options = ["--data", data, "--out", out, "--minutes", "1", "--seed", "1"]
    subprocess.run([command(), "train", "classify", *options], check=True)


def train_player(folder: Path) -> Path:
    """Train a Gato for some minutes to fetch a key and open a door; the model's folder."""
    options = ["--task", GRID_WORLD, "--experience", "20000", "--out", folder / "gato", "--minutes", "6", "--seed", "1"]
    subprocess.run([command(), "train", "gato", *options], check=True)
    return folder / "gato"


def draw_page(browser: Browser, page_file: Path, name: str, size: ViewportSize, place: str = "") -> None:
    """Writes NAME-light.png and NAME-dark.png beside this file: the top of a page, at a place of its address."""
    for scheme in SCHEMES:
        page = browser.new_page(viewport=size, color_scheme=scheme)
        page.goto(page_file.as_uri() + place)
        page.wait_for_selector("html[data-ready]")
        page.screenshot(path=HERE / f"{name}-{scheme}.png")


def draw_heads(browser: Browser, page_file: Path) -> None:
    """Writes page-light.png and page-dark.png beside this file."""
    for scheme in SCHEMES:
        page = browser.new_page(viewport=HEADS_SIZE, color_scheme=scheme)
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


def view_file(model: Path, file: Path) -> Path:
    """Let ``regard view`` write the page of a file beside its model, by relative names, which the page shows."""
    page_file = file.with_suffix(".html")
    subprocess.run([command(), "view", file.name, "--model", model.name, "-o", page_file], check=True, cwd=file.parent)
    return page_file


def view_player(folder: Path) -> Path:
    """The page of an episode."""
    page_file, options = folder / "episode.html", ["--episodes", "1", "--seed", "7", "--no-comparison"]
    subprocess.run([command(), "play", train_player(folder), GRID_WORLD, *options, "--view", page_file], check=True)
    return page_file


def audit_model(folder: Path) -> Path:
    """The page of an audit of a model that reads a token ahead."""
    (folder / "my_models.py").write_text(LEAKING_MODEL, encoding="utf-8")
    result = subprocess.run([command(), "audit", "my_models:build", "-o", "audit.html"], check=False, cwd=folder)
    assert result.returncode == 1, "the exit code of an audit that finds a leak"
    return folder / "audit.html"


def main() -> None:
    """Writes the pictures of all pages; --help tells how to call it."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="python docs/images/make.py"
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        heads, panels, change = (Path(folder) / f"{name}.html" for name in ("heads", "panels", "change"))
        write_page(heads)
        write_page(change, SENTENCE.replace("tired", "wide"), "--compare")
        write_page(panels, "--mechanism", MECHANISMS)
        browser = player.chromium.launch(executable_path=chromium(), args=QUIET)
        draw_heads(browser, heads)
        draw_panels(browser, panels)
        draw_page(browser, change, "comparison", COMPARISON_SIZE)
        draw_page(browser, audit_model(Path(folder)), "audit", HEADS_SIZE)
        draw_page(browser, view_file(*train_shapes(Path(folder))), "patches", PATCHES_SIZE, "#view=gradient")
        draw_page(browser, view_file(*train_tones(Path(folder))), "sound", SOUND_SIZE)
        draw_page(browser, view_player(Path(folder)), "episode", EPISODE_SIZE, "#step=4")
        browser.close()


if __name__ == "__main__":
    main()
