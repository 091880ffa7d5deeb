"""One self-contained page: template, style, script and data in a single HTML file that loads nothing.

The page is safe for untrusted text: the data is a JSON block with every less-than sign escaped, the script inserts
text only as text, and the content security policy allows only this script and this style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from importlib import resources
from typing import final

from regard.escape_text import escape_text
from regard.language import HTML_LANGUAGES, language_in_use, read_catalogue, translate
from regard.view.pack import Json


@final
@dataclass(frozen=True)
class Page:
    """A kind of page: its main part and its files.

    A later script may use the names of the earlier ones. ``images`` is the source of images that the page may show.
    """

    main: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]
    readings: str = "{{text: Texts}}"
    """The label of the tabs, one for each reading."""
    images: str = ""
    sounds: str = ""
    """The source of sounds that the page may play."""
    body: str = ""
    """Attributes of the body."""
    has_heat_map: bool = True
    connect: str = ""
    """Where the page may ask for data, besides its own."""


def fill_template(page: Page, *, title: str, data: Json, notice: str = "") -> str:
    """Fill the template with the page's main part, style and script, title and data, and a notice for its reader."""
    style = "".join(_read_asset(f"{name}.css") for name in page.styles)
    scripts = "\n".join(_read_script(name) for name in page.scripts)
    script = '"use strict";\n(() => {\n' + scripts + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'; "
        + (f"img-src {page.images}; " if page.images else "")
        + (f"media-src {page.sounds}; " if page.sounds else "")
        + (f"connect-src {page.connect}; " if page.connect else "")
        + "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    title = escape_text(title).strip()
    parts = {
        "policy": policy,
        "title": html.escape(f"{title[:60]}{'…' if len(title) > 60 else ''} · regard"),
        "style": style,
        "data": _safe_json(data),
        "script": script,
        "body": page.body,
        "skip": "" if page.has_heat_map else " hidden",
        "notice": f'<p class="notice" id="notice">{html.escape(notice)}</p>' if notice else "",
        "language": HTML_LANGUAGES[language_in_use()],
        "translations": _translations_of(script),
    }
    # Data and titles are inserted in one pass, so that none of their text is ever read as a placeholder.
    template = _read_asset("shell.html").replace("{{main}}", _read_asset(page.main))
    template = re.sub(r"\{\{part: (\w+)\}\}", lambda place: _read_asset(f"{place[1]}.html").rstrip(), template)
    template = _translate_texts(template.replace("{{readings}}", page.readings))
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def _read_script(name: str) -> str:
    """Read a script without its lines of comments, which are a fifth of it."""
    return re.sub(r"^ *//.*\n", "", _read_asset(f"{name}.js"), flags=re.MULTILINE)


def _translate_texts(template: str) -> str:
    """Translate the texts that a template marks, {{text: Heat map}}, some with the tags inside them."""
    return re.sub(
        r"\{\{text: (.*?)\}\}", lambda place: translate(" ".join(place[1].split())), template, flags=re.DOTALL
    )


def _translations_of(script: str) -> str:
    """The translations of a script's templates, as a block of JSON for its function ``translate``; none in English."""
    language = language_in_use()
    if language == "en":
        return ""
    script = script.replace(r"\u00a0", "\u00a0")
    used = {
        template: translation
        for template, translation in read_catalogue(language, ("page",)).items()
        if translation and all(part in script for part in re.split(r"\{\d+\}", template))
    }
    return f'<script type="application/json" id="translations">{_safe_json(used)}</script>\n'


def _read_asset(name: str) -> str:
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _safe_json(data: Json) -> str:
    # A less-than sign could end the script element; escaped, it is the same character in JSON.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
