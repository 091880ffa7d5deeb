"""Views in a notebook: several sandboxed frames in one document, run, saved and opened again, in a real browser."""

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nbformat
import numpy as np
import pytest
from browser_page import random_reading
from playwright.sync_api import Frame, Page

from regard.view import AttentionView
from regard.view.attention_view import FRAME_HEIGHT

WORDS = ["The", "cat", "sat", "on", "</script><img", "src=x", "onerror=alert(1)>"]
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
CELLS = (
    "import numpy as np, regard\n"
    "weights = np.random.default_rng(0).random((2, 3, 4, 4))\n"
    "weights /= weights.sum(-1, keepdims=True)\n"
    "regard.show(weights=weights, tokens=['I', 'ate', 'an', 'apple'])",
    f"regard.show(weights=weights, tokens=['[CLS]', 'Paris', {HOSTILE!r}, '[SEP]'])",
    "weights.sum()",
)


@contextmanager
def open_document(page: Page, path: Path, outputs: Sequence[str]) -> Iterator[list[Frame]]:
    """Open a document with these outputs; at the end assert that nothing failed, was asked or was fetched."""
    body = "\n".join(f"<div>{output}</div>" for output in outputs)
    path.write_text(f"<!doctype html><meta charset=utf-8><title>notebook</title>{body}", encoding="utf-8")
    errors: list[str] = []
    requests: list[str] = []
    listeners = {
        "console": lambda message: errors.append(message.text),
        "pageerror": lambda error: errors.append(str(error)),
        "dialog": lambda dialog: errors.append(dialog.message),
        "request": lambda request: requests.append(request.url),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    page.goto(path.as_uri())
    frames = page.main_frame.child_frames
    for frame in frames:
        frame.wait_for_selector("html[data-ready]")
        frame.wait_for_selector("#grid[data-painted]", state="attached")
    yield frames
    for event, listener in listeners.items():
        page.remove_listener(event, listener)
    page.goto("about:blank")
    assert errors == []
    assert {url for url in requests if not url.startswith("about:")} == {path.as_uri()}


def choose(frame: Frame, layer: int, head: int) -> str:
    """Choose a head in the overview, and return the sentence."""
    frame.locator("#grid [role=row]").nth(layer).locator("[role=gridcell]").nth(head).click()
    return frame.inner_text("#sentence")


def test_two_views_in_one_document(browser_window: Page, tmp_path: Path) -> None:
    """Each has its own state, no origin and no address; text of the user stays text."""
    views = [AttentionView(random_reading(WORDS, seed=seed)) for seed in (7, 8)]
    browser_window.emulate_media(color_scheme="light")
    with open_document(browser_window, tmp_path / "two.html", [view._repr_html_() for view in views]) as (
        first,
        second,
    ):
        before = second.inner_text("#sentence")
        assert "layer 1, head 2" in choose(first, 1, 2)
        assert "layer 0, head 1" in choose(first, 0, 1)
        assert second.inner_text("#sentence") == before
        assert first.url == second.url == "about:srcdoc"
        assert first.evaluate("self.origin") == "null"
        assert browser_window.evaluate("document.querySelector('iframe').contentDocument") is None
        first.locator("#row .token").nth(3).click()
        row = views[0].readings[0].layers[0].weights()[1, 3]
        shown = [0.0 if text == "·" else float(text) for text in first.locator("#row small").all_inner_texts()]
        np.testing.assert_allclose(shown, np.where(row < 0.005, 0, 100 * row), atol=0.051)
        first.locator("#theme").click()
        assert first.evaluate("document.documentElement.dataset.theme") == "dark"


HOSTS = {
    # VS Code inserts the output of a cell into a webview: a frame with this sandbox, whose document has this policy. A
    # frame with ``srcdoc`` inherits the policy beside its own, so that both must allow its script and its style.
    "vscode": (
        "allow-same-origin allow-scripts allow-forms allow-pointer-lock allow-downloads",
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; "
        "img-src https: http: data:; font-src https:; connect-src https:; child-src https: data:",
    ),
    # Colab gives the output of a cell a frame of another origin, with this sandbox and without a policy.
    "colab": (
        "allow-downloads allow-forms allow-modals allow-popups allow-popups-to-escape-sandbox allow-same-origin "
        "allow-scripts",
        "",
    ),
}
"""Stand-ins for hosts that do not run here, by their rules as of 2025: the sandbox of the output's frame, and the
content security policy of its document."""


@pytest.mark.parametrize("host", HOSTS)
def test_the_frames_of_vscode_and_colab_show_a_view_and_pass_clicks(
    browser_window: Page, tmp_path: Path, host: str
) -> None:
    """Files have origins of their own, as the outputs of both hosts have."""
    sandbox, policy = HOSTS[host]
    view = AttentionView(random_reading(WORDS))
    output = json.dumps(view._repr_html_()).replace("<", "\\u003c")
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">' if policy else ""
    (tmp_path / "output.html").write_text(
        f"<!doctype html><meta charset=utf-8>{meta}<div id=output></div>"
        f"<script>document.getElementById('output').innerHTML = {output}</script>",
        encoding="utf-8",
    )
    frame = f'<iframe id=cell src="output.html" sandbox="{sandbox}" style="width:900px;height:800px"></iframe>'
    (tmp_path / "notebook.html").write_text(f"<!doctype html><meta charset=utf-8>{frame}", encoding="utf-8")
    said: list[str] = []
    listeners = {
        "console": lambda message: said.append(message.text),
        "pageerror": lambda error: said.append(str(error)),
    }
    for event, listener in listeners.items():
        browser_window.on(event, listener)
    browser_window.goto((tmp_path / "notebook.html").as_uri())
    (cell,) = browser_window.main_frame.child_frames
    cell.wait_for_selector("iframe")
    (shown,) = cell.child_frames
    shown.wait_for_selector("html[data-ready]")
    shown.wait_for_selector("#grid[data-painted]", state="attached")
    assert browser_window.evaluate("document.getElementById('cell').contentDocument") is None, "another origin"
    size = cell.evaluate("[document.querySelector('iframe')].map((node) => [node.offsetWidth, node.offsetHeight])[0]")
    assert size[1] == FRAME_HEIGHT + 2
    assert size[0] > 850, "as wide as the output"
    assert shown.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "layer 1, head 2" in choose(shown, 1, 2)
    shown.locator("#theme").click()
    assert shown.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
    with browser_window.expect_download() as download:
        shown.get_by_role("button", name="SVG").first.click()
    assert download.value.suggested_filename.endswith(".svg")
    for event, listener in listeners.items():
        browser_window.remove_listener(event, listener)
    browser_window.goto("about:blank")
    assert said == []


def test_an_untrusted_notebook_says_what_to_do() -> None:
    """Jupyter removes the frame of a notebook that is not trusted, and keeps the text in it."""
    (text,) = AttentionView(random_reading(["</iframe><b>x"]))._repr_html_().split(">")[1:2]
    assert "Trust Notebook" in text
    assert "&lt;/iframe&gt;&lt;b" in text


@pytest.mark.slow
def test_a_notebook_runs_and_shows_its_views_when_it_is_opened_again(browser_window: Page, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    path = tmp_path / "saved.ipynb"
    nbformat.write(notebook, path)
    # As ``jupyter execute`` does, in a process whose sockets end with it.
    command = [sys.executable, "-c", "from nbclient.cli import main; main()", str(path), "--inplace"]
    subprocess.run(command, check=True, capture_output=True, timeout=180)

    saved = nbformat.read(path, as_version=4)
    shown = [output["data"] for cell in saved.cells for output in cell.outputs]
    assert [set(data) for data in shown] == [{"text/html", "text/plain"}] * 2 + [{"text/plain"}]
    assert shown[0]["text/plain"].startswith("AttentionView('I ate an apple'")
    outputs = [data["text/html"] for data in shown[:2]]
    with open_document(browser_window, tmp_path / "opened.html", outputs) as (first, second):
        assert "layer 1, head 2" in choose(first, 1, 2)
        assert "layer 0, head 0" in choose(second, 0, 0)
        assert HOSTILE in second.locator("#row").inner_text()
