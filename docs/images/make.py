"""Renders the pictures of the page that the READMEs show, from what ``regard view`` really writes.

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

from playwright.sync_api import sync_playwright

SENTENCE = "The animal didn't cross the street because it was too tired."
HERE = Path(__file__).resolve().parent
QUIET = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync")
SIZE = {"width": 1080, "height": 1360}


def chromium() -> str:
    """The browser's path."""
    names = [os.environ.get("REGARD_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        sys.exit("no Chromium was found: install it, or set REGARD_CHROMIUM to its path")
    return found


def main() -> None:
    """Writes page-light.png and page-dark.png beside this file."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        page_file = Path(folder) / "attention.html"
        command = Path(sys.executable).with_name("regard")
        subprocess.run([command, "view", SENTENCE, "-o", page_file], check=True, stdout=subprocess.DEVNULL)
        browser = player.chromium.launch(executable_path=chromium(), args=QUIET)
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(page_file.as_uri())
            page.wait_for_function("document.querySelectorAll('#grid canvas').length > 0")
            page.wait_for_timeout(1500)  # the grid is drawn bit by bit
            page.screenshot(path=HERE / f"page-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
