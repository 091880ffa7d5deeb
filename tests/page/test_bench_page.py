"""The page of ``regard bench`` in the browser: plots, tables, colours and safety, without script or requests."""

import math
from itertools import pairwise

import numpy as np
import pytest

from regard.bench import BenchReport, BenchSettings
from regard.bench.page import Plot, render_page, render_report
from regard.bench.report import BenchCase, BenchedMechanism
from regard.bench.svg_plot import Series
from regard.bench.tables import format_seconds
from regard.bench.timing import Timing
from regard.comparison import ComparisonSummary

FONT_SIZES = "nodes => nodes.map((node) => parseFloat(getComputedStyle(node).fontSize))"
LENGTHS = (128, 512, 2048)
SECONDS = {
    "dot_product": (1e-3, 1.1e-2, 0.17),
    "linear": (4e-3, 1.3e-2, 5.1e-2),
    "performer:features=<b>&": (7e-3, 2.9e-2, None),
}


def make_report():
    cases = [
        BenchCase(
            name,
            length,
            time=None if seconds is None else Timing(seconds, seconds, seconds, 5),
            peak_bytes=int(1e4 * length) if seconds is not None else None,
            error=None if name == "dot_product" or seconds is None else ComparisonSummary(0.7, 1.0, 0.5, 0.31),
            missing={} if seconds is not None else {"time": "a call took longer than 1 s <script>alert(1)</script>"},
            stopped=None if seconds is not None else 1.0,
        )
        for name, values in SECONDS.items()
        for length, seconds in zip(LENGTHS, values, strict=True)
    ]
    mechanisms = tuple(BenchedMechanism(name, name.partition(":")[0], {}, None, "distribution", 0) for name in SECONDS)
    machine = {"processor": "A processor", "cores": 2, "threads": 2}
    return BenchReport(BenchSettings(lengths=LENGTHS), machine, "Random tokens.", mechanisms, tuple(cases))


@pytest.fixture
def show(browser_window, tmp_path):
    """Return a function that shows a page; at the end there were no messages, and no requests for other addresses."""
    problems, requests = [], []
    listeners = {
        "console": lambda message: problems.append(message.text),
        "pageerror": lambda error: problems.append(str(error)),
        "dialog": lambda dialog: problems.append(dialog.message),
        "request": lambda request: requests.append(request.url),
    }
    path = tmp_path / "bench.html"

    def show(page, *, width=1100, scheme="light"):
        path.write_text(page, encoding="utf-8")
        browser_window.set_viewport_size({"width": width, "height": 800})
        browser_window.emulate_media(media="null", color_scheme=scheme)
        browser_window.goto(path.as_uri())
        return browser_window

    for event, listener in listeners.items():
        browser_window.on(event, listener)
    yield show
    for event, listener in listeners.items():
        browser_window.remove_listener(event, listener)
    browser_window.goto("about:blank")
    assert problems == []
    assert set(requests) == {path.as_uri()}


def place_of(page, title):
    """Return the middle of the point with this title in the first plot, in pixels."""
    box = page.locator(f'section svg.wide circle:has(> title:text-is("{title}"))').first.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def test_points_are_on_logarithmic_axes(show):
    page = show(render_report(make_report()))
    assert page.locator("main section svg.wide").count() == 3
    titles = page.locator("section svg.wide").first.locator("circle title").all_text_contents()
    assert len(titles) == 8
    exact = {length: place_of(page, title) for length, title in zip(LENGTHS, titles[:3], strict=True)}
    (left, low), (middle, between), (right, high) = exact.values()
    assert middle - left == pytest.approx(right - middle, abs=0.5)  # 512 / 128 = 2048 / 512
    assert (low - between) / (low - high) == pytest.approx(math.log(11) / math.log(170), abs=5e-3)
    assert titles[0] == "dot_product, 128 tokens: 1.00 ms"


def test_tables_show_numbers_and_reasons(show):
    page = show(render_report(make_report()))
    assert page.locator("h2").all_text_contents()[-4:] == [
        "Time",
        "Peak memory",
        "Error against exact attention",
        "Not measured",
    ]
    rows = page.locator("section:has(h2:text-is('Time')) tbody tr").all_text_contents()
    assert rows[0] == "dot_product1.00 ms11.0 ms170 ms"
    expected = math.exp(math.log(512) + math.log(4) * math.log(13 / 11) / (math.log(13 / 11) - math.log(51 / 170)))
    assert rows[1] == f"linear4.00 ms13.0 ms51.0 msfrom {expected:,.0f}"
    assert rows[2] == "performer:features=<b>&7.00 ms29.0 ms> 1 snot up to 2,048"
    assert "<script>alert(1)</script>" in page.locator("section").last.inner_text()


def make_report_of_one_length():
    report = make_report()
    settings, cases = BenchSettings(lengths=LENGTHS[:1]), [case for case in report.cases if case.length == LENGTHS[0]]
    return BenchReport(settings, report.machine, report.tokens, report.mechanisms, tuple(cases))


@pytest.mark.parametrize("width", [1100, 390])
def test_one_length_is_drawn_as_bars_from_0(show, width):
    """Each with its name and value in text; as lines they would be dots."""
    page = show(render_report(make_report_of_one_length()), width=width)
    assert page.locator("section svg circle").count() == 0
    first = page.locator("section .bars").first
    names = first.locator("li span").all_inner_texts()
    assert names == list(SECONDS)
    assert first.locator("li b").all_inner_texts() == ["1.00 ms", "4.00 ms", "7.00 ms"]
    widths = [bar.bounding_box()["width"] for bar in first.locator("rect").all()]
    np.testing.assert_allclose(np.array(widths) / widths[-1], [1 / 7, 4 / 7, 1], atol=0.01)
    assert widths[-1] > 0.3 * width
    texts = first.locator("li span, li b")
    assert min(float(size) for size in texts.evaluate_all(FONT_SIZES)) >= 14
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.get_by_label("linear").uncheck()
    assert first.locator("li:visible span").all_inner_texts() == ["dot_product", "performer:features=<b>&"]


@pytest.mark.parametrize("count", [3, 11])
def test_plots_fit_a_phone(show, count):
    """Nothing of them is cut or to be scrolled to, letters are of 11 px and more, and lengths do not overlap."""
    lengths = tuple(64 * 2**power for power in range(count))
    series = (Series("linear", 0, tuple((length, 1e-4 * length) for length in lengths)),)
    page = show(
        render_page("Many lengths", "", ["linear"], [Plot("Time", series, lengths, format_seconds)], []), width=390
    )
    assert page.locator("section svg.wide:visible").count() == 0
    plot = page.locator("section svg.narrow:visible")
    edges = plot.bounding_box()
    assert edges["x"] >= 0
    assert edges["x"] + edges["width"] <= 390
    for section in page.locator("section:has(svg)").all():
        assert section.evaluate("one => one.scrollWidth <= one.clientWidth")
    texts = [text.bounding_box() for text in plot.locator("text").all()]
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in texts)
    assert min(box["height"] for box in texts) >= 11
    places = sorted((box["x"], box["x"] + box["width"]) for box in texts if box["y"] == texts[-2]["y"])
    assert len(places) >= 3
    assert all(end < start for (_, end), (start, _) in pairwise(places))


def test_the_report_prints_light_and_whole(show):
    page = show(render_report(make_report()), width=718, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for part in page.locator("section, .table").all():
        assert part.evaluate("one => one.scrollWidth <= one.clientWidth + 1")


def test_boxes_hide_lines(show):
    page = show(render_report(make_report()))
    line = page.locator("section svg.wide").first.locator(".s1")
    assert line.is_visible()
    page.get_by_label("linear").uncheck()
    assert not line.is_visible()
    assert page.locator("section svg.wide").first.locator(".s0").is_visible()
    page.get_by_label("linear").check()
    assert line.is_visible()


def test_lines_of_many_mechanisms_differ(show):
    """By colour or by dashes."""
    names = [f"mechanism{number}" for number in range(30)]
    plot = Plot(
        "Time", tuple(Series(name, at, ((8, 1.0 + at), (16, 2.0 + at))) for at, name in enumerate(names)), (8, 16), str
    )
    page = show(render_page("Many", "", names, [plot], []))
    styles = page.evaluate(
        """[...document.querySelectorAll("section .wide .series > path:first-child")].map(
            line => [getComputedStyle(line).stroke, getComputedStyle(line).strokeDasharray].join(" "))"""
    )
    assert len(styles) == len(set(styles)) == 30


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_lines_contrast_with_the_page(show, scheme):
    """By the relative luminance of WCAG 2.2; 3 is its minimum for graphics."""
    page = show(render_report(make_report()), scheme=scheme)

    def luminance(colour):
        parts = [int(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    background = luminance(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (background < 0.1) == (scheme == "dark")
    for number in range(8):
        colour = page.evaluate(f"getComputedStyle(document.documentElement).getPropertyValue('--c{number}')").strip()
        text = ",".join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
        lighter, darker = sorted((luminance(text), background), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 3


def test_a_narrow_page_scrolls_inside_its_tables(show):
    page = show(render_report(make_report()), width=360)
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_policy_allows_nothing_but_the_style():
    page = render_report(make_report())
    (policy,) = (line for line in page.splitlines() if "Content-Security-Policy" in line)
    assert "default-src 'none'; style-src 'sha256-" in policy
    assert "unsafe" not in policy
    assert "script-src" not in policy
    assert "http" not in page.replace("http-equiv", "")
