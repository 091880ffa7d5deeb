"""The strings of the page's scripts and templates: translate`..` in JavaScript, {{text: ..}} in HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ASSETS = Path(__file__).resolve().parents[2] / "src" / "regard" / "view" / "assets"


def page_strings() -> set[str]:
    """All templates of the page."""
    found: set[str] = set()
    for script in sorted(ASSETS.rglob("*.js")):
        found |= set(tagged_templates(script.read_text(encoding="utf-8")))
    for page in sorted(ASSETS.rglob("*.html")):
        found |= marked_texts(page.read_text(encoding="utf-8"))
    for module in ("page.py", "page_template.py"):
        found |= marked_texts((ASSETS.parent / module).read_text(encoding="utf-8"))
    return found


def marked_texts(template: str) -> set[str]:
    """The texts of {{text: ..}}, with single spaces."""
    return {" ".join(text.split()) for text in re.findall(r"\{\{text: (.*?)\}\}", template, re.DOTALL)}


def tagged_templates(script: str) -> Iterator[str]:
    """The texts of the tags of ``language.js``, with {0}, {1} .. for their values, and those that stand in values."""
    for tag in re.finditer(r"(?:(?<=\.\.\.)|(?<![\w.$]))(?:translate|translateNodes|plural)`", script):
        template, _ = _read_template(script, tag.end())
        yield template


def _read_template(script: str, place: int) -> tuple[str, int]:
    """The template that begins at ``place``, and the place after its closing backquote."""
    parts, count = "", 0
    while script[place] != "`":
        if script.startswith("${", place):
            place = _skip_value(script, place + 2)
            parts += f"{{{count}}}"
            count += 1
        elif script.startswith("\\u", place):
            parts += chr(int(script[place + 2 : place + 6], 16))
            place += 6
        elif script[place] == "\\":
            parts += {"n": "\n"}.get(script[place + 1], script[place + 1])
            place += 2
        else:
            parts += script[place]
            place += 1
    return parts, place + 1


def _skip_value(script: str, place: int) -> int:
    """The place after the brace that closes a value."""
    depth = 1
    while depth:
        if script[place] == "`":
            _, place = _read_template(script, place + 1)
            continue
        if script[place] in "\"'":
            place = script.index(script[place], place + 1)
        depth += {"{": 1, "}": -1}.get(script[place], 0)
        place += 1
    return place


_TOKEN = re.compile(r"//[^\n]*|\"((?:\\.|[^\"\\\n])*)\"|`")


def untagged_strings(script: str) -> Iterator[str]:
    """The strings and templates of a script that no tag translates, with the templates inside of values."""
    place = 0
    while (found := _TOKEN.search(script, place)) is not None:
        place = found.end()
        if found[0] == "`":
            template, place = _read_template(script, place)
            if not re.search(r"(?:translate|translateNodes|plural)$", script[: found.start()]):
                yield re.sub(r"\{\d+\}", " ", template)
            for value in _values(script[found.end() : place - 1]):
                yield from untagged_strings(value)
        elif found[1] is not None:
            yield found[1]


def _values(template: str) -> Iterator[str]:
    """The code of each value of a template."""
    place = 0
    while (place := template.find("${", place)) >= 0:
        end = _skip_value(template, place + 2)
        yield template[place + 2 : end - 1]
        place = end
