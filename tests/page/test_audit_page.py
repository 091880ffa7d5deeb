"""The page of an audit in a real browser: verdict, properties, both matrices and modules, with hostile names."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser_page import BrowserPage
from paper import assert_fits_paper, print_page
from playwright.sync_api import Page
from test_page import CONTRAST

from regard.auditing import (
    AuditReport,
    InfluenceMatrix,
    Leak,
    ModuleDifference,
    ModuleInfluence,
    NoiseFloor,
    PropertyResult,
)

Show = Callable[..., BrowserPage]
LENGTH = 7
HOSTILE = "</script><img src=x onerror=alert(1)>{{data}}"
LIMIT = 1e-13
CHANGES = tuple(
    tuple(0.5 if token <= output else 0.12 if (output, token) == (3, 5) else 1e-16 for token in range(LENGTH))
    for output in range(LENGTH)
)
CAUSAL = tuple(tuple(token <= output for token in range(LENGTH)) for output in range(LENGTH))
CELL = """(name, output, token) => {
  const canvas = document.getElementById(name);
  const context = canvas.getContext("2d");
  context.font = `12px ${getComputedStyle(document.documentElement).getPropertyValue("--sans").trim()}`;
  const label = Math.min(76, Math.max(...[...Array(LENGTH).keys()].map((at) => context.measureText(at).width)) + 8);
  const cell = Math.min(30, (canvas.clientWidth - label - 2) / LENGTH);
  return [label + (token + 0.5) * cell, label + (output + 0.5) * cell];
}"""
"""The place of the middle of a cell on its canvas."""


def make_report(name: str = "a model", length: int = LENGTH) -> AuditReport:
    """A report with a leak at output 3 by token 5, a property that holds, and others that cannot be asked."""
    steps = (
        ModuleDifference("embed", f"Embedding {name}", 0.0, 0.0),
        ModuleDifference("layers.0.attention.output", "Linear", 0.3, 0.3),
        ModuleDifference(f"layers.0.attention {name}", "Attention", 0.0, 0.2),
        ModuleDifference("", "Model", None, math.inf),
    )
    leak = Leak("token 5 was replaced", 3, 5, steps[2].name, "Attention", 0, f"it reads ahead {name}", steps)
    results = (
        PropertyResult("batch", f"rows are apart {name}", "holds", "", 1e-16, LIMIT, 3),
        PropertyResult("causal", "no output depends on a later token", "leaks", "", 0.24, LIMIT, LENGTH, leak),
        PropertyResult(f"cache {name}", "caches agree", "cannot be asked", f"no cache {name}"),
        PropertyResult("static cache", "caches agree", "cannot be asked", f"no cache {name}"),
    )
    noise = NoiseFloor(1e-15, 0.0, 0.0, 0.0, 1e-15, "float64")
    influence = InfluenceMatrix(CHANGES, LIMIT, CAUSAL)
    notes = (f"a note {name}",)
    return AuditReport(name, "decoder of token ids", length, 0, noise, results, influence, notes, {"weights": name})


@pytest.fixture
def show_audit(browser_window: Page, tmp_path: Path) -> Iterator[Show]:
    """Return a function that writes and opens the page of a report; closing asserts no errors and no requests."""
    shown: list[BrowserPage] = []

    def show(
        report: AuditReport, *, at: str = "", width: int = 1280, scheme: str = "light", language: str = "en"
    ) -> BrowserPage:
        path = report.save(tmp_path / "audit.html", language=language)
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        shown.append(BrowserPage(browser_window, path))
        shown[-1].wait_until_painted = lambda: None  # this page has no grid that is painted later
        shown[-1].open(at)
        return shown[-1]

    yield show
    shown[-1].close()


def cell_place(opened: BrowserPage, name: str, output: int, token: int) -> dict[str, float]:
    x, y = opened.page.evaluate(f"({CELL.replace('LENGTH', str(LENGTH))})('{name}', {output}, {token})")
    return {"x": x, "y": y}


def test_says_what_leaks_by_how_much_since_where_and_why(show_audit: Show) -> None:
    opened = show_audit(make_report(""))
    assert opened.sentence() == (
        "Tokens leak: output 3 is changed by token 5, by 0.24 (rounding explains up to 1.0e-13). "
        "It begins in layers.0.attention (Attention): it reads ahead ."
    )
    rows = [row.split("\t") for row in opened.page.locator("#properties tbody tr").all_inner_texts()]
    assert [[row[0], row[1], *row[3:]] for row in rows[:2]] == [
        ["causal", "leaks", "0.24", "1.0e-13"],
        ["batch", "holds", "1.0e-16", "1.0e-13"],
    ]
    assert "".join(rows[2]).split() == ["cache", "static", "cache", "cannot", "be", "asked:", "no", "cache"]
    bars = opened.page.evaluate(
        "[...document.querySelectorAll('.sizes .bar')].map((bar) => Number(bar.getAttribute('width')))"
    )
    limits = opened.page.evaluate(
        "[...document.querySelectorAll('.sizes .limit')].map((bar) => Number(bar.getAttribute('x1')))"
    )
    assert bars[1] < limits[1] == limits[0] < bars[0], "what leaks is beyond its limit, and what holds is not"
    modules = opened.page.locator("#modules tbody tr")
    assert [modules.nth(at).get_attribute("class") for at in range(4)] == [None, None, "begins", None]
    last = modules.nth(3).inner_text().split("\t")
    assert (last[1], last[4], last[6]) == ("the model itself", "–", "not finite")
    assert (
        opened.page.inner_text("#cell")
        == "Output 3 is changed by token 5: 0.12 (limit 1.0e-13). Not allowed: it leaks."
    )
    assert opened.page.locator("#unexpected button").all_inner_texts() == ["3 ← 5: 0.12"]
    assert opened.page.evaluate("document.getElementById('cell').getBoundingClientRect().bottom") < 800


def test_cells_and_properties_by_mouse_and_keyboard(show_audit: Show) -> None:
    opened = show_audit(make_report(), at="#property=0&output=2&token=1")
    assert opened.sentence().startswith(
        "batch holds: rows are apart a model. The largest difference, 1.0e-16, is rounding"
    )
    assert not opened.page.locator("#modules-section").is_visible()
    measured = opened.page.locator("#measured")
    measured.hover(position=cell_place(opened, "measured", 6, 4))
    assert opened.page.inner_text("#cell") == "Output 6 is changed by token 4: 0.50 (limit 1.0e-13). Allowed."
    assert "output=2&token=1" in opened.current_url(), "pointing chooses nothing"
    opened.page.locator("#declared").click(position=cell_place(opened, "declared", 1, 4))
    assert "output=1&token=4" in opened.current_url()
    opened.page.keyboard.press("Tab")
    measured.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        opened.page.keyboard.press(key)
    assert "output=3&token=5" in opened.current_url()
    assert "Not allowed" in (measured.get_attribute("aria-label") or "")
    opened.page.locator("#properties [aria-current=true]").focus()
    opened.page.keyboard.press("ArrowUp")
    assert "property=1" in opened.current_url()
    assert opened.page.locator("#modules-section").is_visible()
    opened.page.keyboard.press("End")
    assert opened.sentence() == "static cache cannot be asked: no cache a model."
    opened.page.locator("#measured-table summary").click()
    table = opened.page.locator("#measured-table tbody tr").nth(3).inner_text().split("\t")
    assert table == ["3", *["0.50"] * 4, "1.0e-16", "0.12", "1.0e-16"]


def test_hostile_names_are_text(show_audit: Show) -> None:
    opened = show_audit(make_report(HOSTILE))
    assert opened.page.locator("img, main script").count() == 0
    assert opened.sentence().endswith(f"begins in layers.0.attention {HOSTILE} (Attention): it reads ahead {HOSTILE}.")
    for selector in ("#about", "#notes", "#facts", "#properties", "#modules"):
        assert HOSTILE in opened.page.inner_text(selector)


def test_a_chinese_page_without_a_declared_mask_and_with_infinite_changes(show_audit: Show) -> None:
    report = make_report()
    changes = tuple(tuple(math.inf if token == output else 0.0 for token in range(LENGTH)) for output in range(LENGTH))
    held = tuple(result for result in report.results if result.verdict != "leaks")
    opened = show_audit(replace(report, results=held, influence=InfluenceMatrix(changes, LIMIT)), language="zh")
    assert "没有" in opened.sentence()
    assert not opened.page.locator("#declared").is_visible()
    assert "causal=True" in opened.page.inner_text("#undeclared")


@pytest.mark.parametrize(("scheme", "width"), [pytest.param("light", 1280, marks=pytest.mark.slow), ("dark", 380)])
def test_readable_in_both_themes_on_a_phone_and_on_paper(show_audit: Show, scheme: str, width: int) -> None:
    opened = show_audit(make_report(), scheme=scheme, width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert opened.page.evaluate(CONTRAST) >= 4.5
    numbers = opened.page.locator("#modules tbody .count, #modules tbody td:last-child")
    boxes = [numbers.nth(at).bounding_box() for at in range(numbers.count())]
    assert all(box is not None and box["x"] + box["width"] <= width for box in boxes), "differences without scrolling"
    assert_fits_paper(opened)
    assert print_page(opened)["theme"] == "light"


@pytest.mark.slow
def test_one_cell_of_a_long_text_is_seen(show_audit: Show) -> None:
    length = 300
    changes = [[0.5 if token <= output else 0.0 for token in range(length)] for output in range(length)]
    changes[100][200] = 0.01
    declared = tuple(tuple(token <= output for token in range(length)) for output in range(length))
    influence = InfluenceMatrix(tuple(map(tuple, changes)), LIMIT, declared)
    opened = show_audit(replace(make_report(length=length), influence=influence), at="#property=0&output=0&token=0")
    orange = opened.page.evaluate(
        """["measured", "declared"].map((name) => {
          const canvas = document.getElementById(name);
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let at = 0; at < data.length; at += 4) count += data[at] - data[at + 2] > 100 ? 1 : 0;
          return count;
        })"""
    )
    assert min(orange) >= 4, (
        "pixels of the cell that is not allowed; of the marked cell's labels there are none in rows"
    )
    assert opened.page.locator("#unexpected button").all_inner_texts() == ["100 ← 200: 0.010"]


def test_modules_are_listed_without_a_leak(show_audit: Show) -> None:
    report = make_report("")
    holds = tuple(result for result in report.results if result.leak is None)
    modules = (ModuleInfluence("embed", "Embedding", 1.2, 0.0), ModuleInfluence(HOSTILE, "Attention", 0.5, 0.25))
    opened = show_audit(replace(report, results=holds, modules=modules))
    rows = [row.split("\t") for row in opened.page.locator("#modules tbody tr").all_inner_texts()]
    assert [[row[1], row[4], row[6]] for row in rows] == [["embed", "1.2", "0"], [HOSTILE, "0.50", "0.25"]]
    assert opened.page.locator("#modules tr.begins").inner_text().endswith("the first that a forbidden token changes")
    assert opened.page.locator("#influence-how").is_visible()
    assert not opened.page.locator("#modules-how").is_visible()
    assert opened.page.evaluate(CONTRAST) >= 4.5
