"""Pages in Chinese, in a real browser: no English is left but names, and an English page has no catalogue."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from browser_page import BrowserPage, random_reading
from playwright.sync_api import Page
from test_bench_page import make_report as make_bench_report
from test_episodes import make_reading
from test_long_page import long_reading
from test_picture_page import swin_reading
from test_sound_page import reading as sound_reading
from test_translation import random_pair
from test_weights_alone import signed_reading
from torch import nn

import regard
from regard.bench import BenchReport
from regard.bench.page import render_report
from regard.bench.problem import DISTRIBUTION
from regard.comparison import parse_choices
from regard.language import use_language
from regard.view import compare_readings, read_side_by_side
from regard.view.fit_page import AnyReading
from regard.view.long_reading import summarize_long
from regard.view.page import render_page

Show = Callable[..., BrowserPage]
WORDS, OTHER = ["我", "吃", "了", "一个", "苹果"], ["我", "买", "了", "一个", "手机"]
NAMES = re.compile(
    r"Quantifying attention flow in Transformers|\b(regard|test|jieba|JavaScript|SVG|PNG|CPU|Ctrl|Shift|Home|"
    r"End|k?Hz|ms|kB|MB|GB|float32|nats?|ln|tanh|"
    r"norm|max|min|[Ss]oftmax|logit|CLS|SEP|gradient rollout|rollout|Abnar|Zuidema|Chefer|Gur|Wolf|Hassani)\b"
)
"""Names, units and terms that are the same in Chinese."""
TEXTS = r"""() => {
  const isShown = (node) => !node.closest("script, style, noscript, bdi, .word, code, .formula, #choices, #choices *");
  const texts = [];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode()) if (isShown(nodes.currentNode.parentElement)) texts.push(nodes.currentNode.data);
  for (const node of document.querySelectorAll("body *"))
    for (const name of ["aria-label", "title", "placeholder", "alt", "aria-valuetext"])
      if (isShown(node) && node.hasAttribute(name)) texts.push(node.getAttribute(name).replace(/\u2068.*?\u2069/g, ""));
  return texts;
}"""
"""All texts of a page but users' own words, which are isolated from the text around them."""


def english_words(opened: BrowserPage, names: list[str]) -> set[str]:
    """The words of Latin letters in the texts of the page, as it is and after a click on each of its switches."""
    page = opened.page
    texts = list(page.evaluate(TEXTS))
    switches = page.locator(
        ".switch:not([hidden]) button, #grid [role=row]:last-child [role=gridcell]:not(:first-child)"
    )
    for number in range(min(switches.count(), 16)):
        if switches.nth(number).is_visible():
            switches.nth(number).click()
            texts += page.evaluate(TEXTS)
    words = {word for text in texts for word in re.findall(r"[A-Za-z]{2,}", NAMES.sub("", text))}
    return words - set(names)


def causal_reading() -> AnyReading:
    reading = random_reading(WORDS, allowed=np.tril(np.ones((7, 7), dtype=bool)))
    return type(reading)(reading.tokens, reading.layers, sink=0)


def comparison() -> AnyReading:
    return compare_readings(random_reading(WORDS), random_reading(OTHER, seed=8), names=("甲", "乙"))


def side_by_side() -> AnyReading:
    return read_side_by_side(regard.load("minilm"), "我吃了一个苹果。", parse_choices("longformer:window=4,performer"))


@pytest.mark.parametrize(
    ("make", "names"),
    [
        pytest.param(lambda: [random_reading(WORDS), random_reading(OTHER)], "", id="texts"),
        pytest.param(lambda: [causal_reading()], "", id="decoder", marks=pytest.mark.slow),
        pytest.param(lambda: [signed_reading(WORDS)], "Nothing is scored", id="weights", marks=pytest.mark.slow),
        pytest.param(lambda: [random_pair(WORDS, OTHER)], "", id="translation", marks=pytest.mark.slow),
        pytest.param(lambda: [comparison()], "", id="comparison", marks=pytest.mark.slow),
        pytest.param(
            lambda: [side_by_side()], "longformer performer window dot product", id="mechanisms", marks=pytest.mark.slow
        ),
        pytest.param(lambda: [summarize_long(long_reading())], "", id="long", marks=pytest.mark.slow),
        pytest.param(lambda: [swin_reading()], "tiles png Swin", id="windows", marks=pytest.mark.slow),
        pytest.param(lambda: [sound_reading()], "wav", id="sound", marks=pytest.mark.slow),
        pytest.param(
            lambda: [make_reading()], "Toy number board state left row column", id="episode", marks=pytest.mark.slow
        ),
    ],
)
def test_no_english_is_left(show: Show, make: Callable[[], list[Any]], names: str) -> None:
    readings = make()
    with use_language("zh"):
        opened = show(*readings)
    opened.wait_until_painted = lambda: None
    opened.listeners["request"] = lambda request: None  # pictures are data
    assert opened.page.get_attribute("html", "lang") == "zh-CN"
    assert english_words(opened, names.split()) == set()
    opened.requests[:] = [opened.path.as_uri()]


def test_no_space_stands_between_chinese_characters_beside_a_value(show: Show) -> None:
    compared = compare_readings(random_reading(WORDS), random_reading(OTHER, seed=8), names=("文本 1", "文本 2"))
    with use_language("zh"):
        opened = show(compared)
    opened.wait_until_painted = lambda: None
    assert opened.page.inner_text("#about").startswith("test：文本 1 和文本 2；7 个词元，")


def bench_report() -> BenchReport:
    """A report with the reason and the note of a real one."""
    report = make_bench_report()
    reasons = {"time": "a call took longer than 1 s", "error": "not enough memory"}
    cases = tuple(replace(case, missing=reasons) if case.missing else case for case in report.cases)
    return replace(report, tokens=DISTRIBUTION, cases=cases)


def test_no_english_is_left_on_the_page_of_a_benchmark(browser_window: Page, tmp_path: Path) -> None:
    opened = BrowserPage(browser_window, tmp_path / "bench.html")
    with use_language("zh"):
        opened.path.write_text(render_report(bench_report()), encoding="utf-8")
    browser_window.goto(opened.path.as_uri())
    assert browser_window.get_attribute("html", "lang") == "zh-CN"
    names = ["linear", "performer", "features", "dot", "product", "processor", "cpu", "bench", "data"]
    assert english_words(opened, names) == set()


def test_no_english_is_left_on_the_page_of_an_audit(browser_window: Page, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(12, 2, 24, dropout=0.0, batch_first=True)  # without a causal mask
    report = regard.audit(nn.Sequential(nn.Embedding(50, 12), layer), torch.arange(7)[None], causal=True)
    assert report.leaks
    assert report.notes, "of training mode"
    opened = BrowserPage(browser_window, tmp_path / "audit.html")
    report.save(opened.path, language="zh")
    browser_window.goto(opened.path.as_uri())
    assert browser_window.get_attribute("html", "lang") == "zh-CN"
    modules = [f"{module.name} {module.module_class}" for module in report.modules]
    data = [*modules, *map(str, report.fingerprint.items()), *(result.name for result in report.results)]
    names = [*re.findall(r"[A-Za-z]{2,}", " ".join(data)), *("ID", "SHA", "eval", "attn", "implementation", "input")]
    names += ["generate", "masks", "documents", "transformers", "float", "dropout", "inputs", "position"]
    names += ["ids", "model"]
    assert english_words(opened, names) == set()
    shown = opened.sentence() + opened.page.inner_text("#cell")
    assert re.search(r"[。：，] |[\u4e00-\u9fff] [\u4e00-\u9fff]", shown) is None, shown


def test_an_english_page_carries_no_translations() -> None:
    reading = random_reading(WORDS)
    english, chinese = (render_page([reading], language=language) for language in ("en", "zh"))
    assert 'id="translations"' not in english
    assert len(chinese.encode()) < len(english.encode()) + 60_000
    with use_language("zh"):
        assert render_page([reading], language="en") == english
