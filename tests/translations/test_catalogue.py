"""The Chinese catalogue has every string of the source, none that it lacks, and the same values in each."""

from __future__ import annotations

import re

import pytest

from translations.catalogue_files import FOLDER, STRINGS, format_part, read_part


@pytest.mark.parametrize("part", STRINGS)
def test_every_string_is_translated_and_none_is_outdated(part: str) -> None:
    strings, catalogue = STRINGS[part](), read_part(part)
    assert sorted(strings - catalogue.keys()) == [], "missing: run make translations, and write the Chinese"
    assert sorted(catalogue.keys() - strings) == [], "outdated: run make translations"
    assert sorted(text for text, translation in catalogue.items() if not translation) == [], "not translated"


@pytest.mark.parametrize("part", STRINGS)
def test_translations_have_the_values_and_arguments_of_the_english(part: str) -> None:
    holes = re.compile(r"\{\w*\}|`[^`\n]+`|\[(?:bold|blue|/\w*)\]")
    different = {
        text: translation
        for text, translation in read_part(part).items()
        if translation and sorted(holes.findall(text)) != sorted(holes.findall(translation))
    }
    assert different == {}


def test_files_are_sorted_with_one_line_an_entry() -> None:
    for part in STRINGS:
        assert (FOLDER / f"{part}.json").read_text(encoding="utf-8") == format_part(read_part(part))
