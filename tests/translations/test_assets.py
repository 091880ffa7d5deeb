"""Every text of the page's scripts and templates goes through the catalogue."""

import re

from translations.asset_strings import ASSETS, untagged_strings

TEXT = re.compile(r"[A-Za-z]{2,}[,.:;]? [a-z]{2,}|^ ?[A-Z][a-z]{2,}")
"""What a reader would read: two words, or one with a capital."""
CODE = re.compile(
    r"use strict|\(prefers.*|(main|select|th|td|tbody|summary)[ ,].*|.*\b(minmax|color-mix|sans-serif)\b.*|"
    r"<\?xml.*|first token|projected keys|(Arrow|Esc|Enter|Home|End).*|(alternative|sum) \w+"
)
"""Styles, selectors, classes, keys of the keyboard, and names in the data."""


def test_scripts_translate_what_a_reader_sees() -> None:
    scripts = {path.name: path.read_text(encoding="utf-8") for path in ASSETS.glob("*.js")}
    texts = {(name, text) for name, code in scripts.items() for text in untagged_strings(code) if TEXT.search(text)}
    assert {text for text in texts if not CODE.fullmatch(text[1].strip())} == set()


def test_templates_mark_what_a_reader_sees() -> None:
    for page in ASSETS.glob("*.html"):
        template = re.sub(r"\{\{text: .*?\}\}", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        attributes = re.findall(r"\b(?:aria-label|title|alt|placeholder)=\"([^\"]*)\"", template)
        texts = " ".join([re.sub(r"<[^>]*>|\{\{(?:part: )?\w+\}\}", " ", template), *attributes])
        assert {*re.findall(r"[A-Za-z]{2,}", texts)} <= {"regard", "SVG", "PNG", "readings"}, page.name


def test_an_untagged_string_is_found() -> None:
    script = 'const a = translate`seen ${b ? "not seen" : `nor ${"this one"}`}`; // "a comment"\n'
    assert list(untagged_strings(script)) == ["not seen", "nor  ", "this one"]
