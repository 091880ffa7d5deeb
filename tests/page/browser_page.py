"""An open page in the browser, and random readings to show on it."""

from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import numpy as np
from playwright.sync_api import Page

from layer_readings import layer_reading
from regard.view.reading import Reading, Tokens


@dataclass
class BrowserPage:
    """An open page, with the errors that it reported and the addresses that it requested."""

    page: Page
    path: Path
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.listeners = {
            "console": lambda message: self.errors.append(message.text),
            "pageerror": lambda error: self.errors.append(str(error)),
            "dialog": lambda dialog: self.errors.append(dialog.message),
            "request": lambda request: self.requests.append(request.url),
        }

    def open(self, at: str) -> None:
        for event, listener in self.listeners.items():
            self.page.on(event, listener)
        self.page.goto(self.path.as_uri() + at)
        self.page.wait_for_selector("html[data-ready]")

    def close(self) -> None:
        """Close the page, and assert that there were no errors and no requests for other addresses."""
        self.wait_until_painted()
        for event, listener in self.listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)  # otherwise it would hover over an element of the next page
        assert self.errors == []
        assert {url.partition("#")[0] for url in self.requests} == {self.path.as_uri()}

    def sentence(self) -> str:
        return self.page.inner_text("#sentence")

    def open_explanations(self) -> None:
        """Open what is folded behind the question marks."""
        self.page.evaluate("document.querySelectorAll('details.about').forEach((about) => { about.open = true; })")

    def explanation(self, selector: str) -> str:
        """The text of an explanation, folded or not."""
        return self.page.locator(selector).first.text_content() or ""

    def current_url(self) -> str:
        """The page's own ``location.href``; playwright's `Page.url` is updated later, by an event."""
        return str(self.page.evaluate("location.href"))

    def wait_until_painted(self) -> None:
        # With one head the grid is painted, but not shown.
        self.page.wait_for_selector(
            "#grid[data-painted], .long-text #map[data-painted]", timeout=60_000, state="attached"
        )

    def emulate_theme(self, scheme: str) -> None:
        """Emulate a change of the system to light or dark colours."""
        self.page.emulate_media(color_scheme=scheme)
        self.wait_until(f"document.documentElement.dataset.theme === '{scheme}'")
        self.page.wait_for_timeout(300)  # until colours have changed

    def wait_until(self, condition: str) -> None:
        """Poll until a condition holds; the page's content security policy forbids playwright's waiting function."""
        end = monotonic() + 60  # as patient as ``wait_until_painted``: other tests may run on the same cores
        while monotonic() < end:
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(f"never came true: {condition}")

    def shares(self) -> list[float]:
        """The shares under the tokens, in percent; a dot, for less than half a percent, is 0."""
        return [0.0 if text == "·" else float(text) for text in self.page.locator("#row small").all_inner_texts()]


def make_tokens(words: list[str]) -> Tokens:
    """[CLS], the words with spaces between, [SEP]."""
    text = " ".join(words)
    spans, start = [(0, 0)], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return Tokens(text, ("[CLS]", *words, "[SEP]"), (*spans, (0, 0)), (True, *[False] * len(words), True))


def random_reading(
    words: list[str],
    *,
    layers: int = 2,
    heads: int = 3,
    keys: list[str] | None = None,
    allowed: np.ndarray | None = None,
    seed: int = 7,
) -> Reading:
    """Random queries, keys (head_dim 5) and values (7)."""
    generator = np.random.default_rng(seed)
    tokens, key_tokens = make_tokens(words), make_tokens(keys or words)

    def normal(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32)

    return Reading(
        tokens=tokens,
        layers=tuple(
            layer_reading(
                name=f"layers.{layer}",
                query=2 * normal(heads, len(tokens), 5),
                key=2 * normal(heads, len(key_tokens), 5),
                value=normal(heads, len(key_tokens), 7),
                scale=5**-0.5,
                allowed=allowed,
            )
            for layer in range(layers)
        ),
        hidden=normal(layers + 1, len(tokens), 11),
        keys=None if keys is None else key_tokens,
    )
