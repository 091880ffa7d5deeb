"""Untrusted text made safe to display."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.escape_text import direction_of, escape_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünïcode 猫 שלום", "plain ünïcode 猫 שלום"),
        ("\x1b[2J", "⟨U+001B⟩[2J"),
        ("a\x00b", "a⟨U+0000⟩b"),
        ("two\nlines\tand", "two lines and"),
        ("\u202ebad", "⟨U+202E⟩bad"),
        ("\u2028\ud800", "⟨U+2028⟩⟨U+D800⟩"),
        ("می\u200cخواهم 👩\u200d🚀", "می\u200cخواهم 👩\u200d🚀"),
    ],
)
def test_control_characters_become_visible(text: str, shown: str) -> None:
    assert escape_text(text) == shown


@given(st.text())
def test_no_control_characters_remain(text: str) -> None:
    shown = escape_text(text)
    assert not any(unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") for character in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "direction"),
    [("hello", "ltr"), ("שלום", "rtl"), ("123 مرحبا", "rtl"), ("(猫)", "ltr"), ("", "ltr"), ("C++ שלום", "ltr")],
)
def test_text_direction(text: str, direction: str) -> None:
    assert direction_of(text) == direction
