r"""Placeholders for strings that a translator must copy, not translate: format codes, markup, addresses.

    "Delete <b>%s</b>?"   ->   "Delete ①②③?"    ①②③ stand for <b>, %s and </b>

Each such string becomes one character of Unicode's private use area, which ``Subwords`` keeps as one token. Equal
strings get the same placeholder, on both sides of a pair. These strings are recognised:

    printf        %s  %d  %5.2f  %(name)s  %1$s  %%
    braces        {}  {0}  {name}  {price:.2f}  {n, number}  ${x}  %{x}  #{x}  {{ name }}
    markup        <b>  </b>  <a href="...">  <br/>  <!-- ... -->  &nbsp;  &#160;
    escapes       \n  \t  \r  \"  \\  \x0a  \u00a0, written as two or more characters
    addresses     https://example.org/a?b=c  www.example.org  name@example.org  C:\Windows\new

Prose stays unchanged: "100 % sure", "a < b", a single brace, "%de" after a number, letter entities such as &eacute;.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import unescape
from html.entities import html5
from typing import final, overload

TOKENS = tuple(chr(0xE001 + number) for number in range(16))
"""The placeholders: the sixteen private use characters from U+E001."""

UNPROTECTED = TOKENS
"""The ``kept`` of a text without placeholders: if these characters occur in it, they stand for themselves."""

_UNIT = r"(?:px|pt|em|ms|min|s|m|h|x|kB?)"
_ADDRESS = r"A-Za-z0-9/\#=&_~+$%*\-\u00c0-\u024f"
_PROTECTED_STRING = re.compile(
    rf"""
      (?<![A-Za-z0-9])(?:(?i:https?|ftps?|file)://|www\.|mailto:)[{_ADDRESS}.:?\[\]@!'(),;]*[{_ADDRESS}]
    | (?<![\w.+-])[A-Za-z0-9][A-Za-z0-9_.+-]*@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+
    | (?<![A-Za-z])[A-Za-z]:\\(?:[\w\\/.~$%@&,;=+{{}}()!-]*[\w\\/~$%}}])?
    | \\(?:[nrt0"'\\]|x[0-9A-Fa-f]{{2}}|u[0-9A-Fa-f]{{4}}|U[0-9A-Fa-f]{{8}})
    | </?[A-Za-z][\w:.-]*(?:\s+[\w:.-]+\s*=\s*(?:"[^"<>]*"|'[^'<>]*'|[^\s"'<>=]+))*\s*/?>
    | <!--[^<>]*-->
    | &(?:[A-Za-z][A-Za-z0-9]{{1,31}}|\#[0-9]{{1,7}}|\#[xX][0-9A-Fa-f]{{1,6}});
    | \{{\{{\{{?[ \t]*[\#/^&>]?[ \t]*[^\W\d][\w.-]*(?:[ \t]*\|[ \t]*[\w.:-]+)*[ \t]*\}}?\}}\}}
    | [$%\#]?\{{(?:\d+|[^\W\d]\w*)(?:\.\w+|\[\w+\])*
      (?:![rsa])?(?::[^{{}}\s]*|,[ ]?(?:number|date|time)(?:,[ ]?[^{{}}']*)?)?\}}
    | \{{(?::[^{{}}\s]+)?\}}
    | %%
    | (?<!\d)%(?:\d{{1,3}}\$|\([A-Za-z_]\w*\))?[-+0\#]{{0,4}}(?:\d{{1,5}}|\*)?(?:\.(?:\d{{1,5}}|\*))?
      (?:hh?|ll?|[Lzjtq])?(?:[diouxefgcspn@](?!(?!{_UNIT}\b)[a-z])|[XEFG](?![A-Za-z]))
    | [{TOKENS[0]}-{TOKENS[-1]}]
    """,
    re.VERBOSE,
)
_PLACEHOLDER = re.compile(f"[{TOKENS[0]}-{TOKENS[-1]}]")


@final
@dataclass(frozen=True)
class ProtectedText:
    """A text with placeholders, and ``kept``: the string of each placeholder, by its number."""

    text: str
    kept: tuple[str, ...]

    def restore(self, translation: str) -> str:
        """Replace the placeholders in ``translation`` by their strings; drop placeholders without a string."""
        return _restore_strings(translation, self.kept)

    def missing(self, translation: str) -> tuple[str, ...]:
        """Strings whose placeholders ``translation``, before ``restore``, lacks; once for each missing occurrence."""
        lacking = Counter(_PLACEHOLDER.findall(self.text)) - Counter(_PLACEHOLDER.findall(translation))
        return tuple(string for token, string in zip(TOKENS, self.kept, strict=False) for _ in range(lacking[token]))


@final
@dataclass(frozen=True)
class ProtectedPair:
    """A pair with placeholders, the same on both sides, and ``kept``: the string of each placeholder, by its number."""

    source: str
    target: str
    kept: tuple[str, ...]


@overload
def protect(source: str) -> ProtectedText: ...


@overload
def protect(source: str, target: str) -> ProtectedPair: ...


def protect(source: str, target: str | None = None) -> ProtectedText | ProtectedPair:
    """Replace each string to be copied, in a text or in a pair, by a placeholder.

    Placeholders are numbered by the first occurrence of their strings in the source. A string only in the target stays
    unchanged. At most sixteen different strings get a placeholder; further ones stay in the text.

    Placeholder characters that occur in a text are protected, too, even if only in the target, and before all other
    strings, so ``restore`` always gives the text back.
    """
    own = _PLACEHOLDER.findall(target) if target is not None else []
    kept = _choose_strings([*_find_strings(source), *own])
    if target is None:
        return ProtectedText(_insert_placeholders(source, kept), kept)
    return ProtectedPair(_insert_placeholders(source, kept), _insert_placeholders(target, kept), kept)


def _choose_strings(strings: Iterable[str]) -> tuple[str, ...]:
    """Choose the strings that get a placeholder, in order of first occurrence; placeholder characters have priority."""
    different = list(dict.fromkeys(strings))
    first = sorted(different, key=lambda string: string not in TOKENS)[: len(TOKENS)]
    return tuple(string for string in different if string in first)


def _find_strings(text: str) -> Iterator[str]:
    return (found[0] for found in _PROTECTED_STRING.finditer(text) if _is_protected(found[0]))


def _is_protected(string: str) -> bool:
    """Whether the string is to be copied; an entity only if it exists and is not a letter or digit."""
    if not (string.startswith("&") and string.endswith(";")):
        return True
    return (string[1] == "#" or string[1:] in html5) and not unescape(string).isalnum()


def _insert_placeholders(text: str, kept: tuple[str, ...]) -> str:
    token = dict(zip(kept, TOKENS, strict=False))
    return _PROTECTED_STRING.sub(lambda found: token.get(found[0], found[0]), text)


def _restore_strings(text: str, kept: tuple[str, ...]) -> str:
    string = dict(zip(TOKENS, kept, strict=False))
    return _PLACEHOLDER.sub(lambda found: string.get(found[0], ""), text)
