"""Translation memories with damage: the units around it are read, losses are counted, and memory is bounded."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from pair_files import read, write
from regard.text.line import MAX_LINE_BYTES
from regard.text.pairs import Pair, read_pairs
from regard.text.pairs.tmx import read_tmx

HEAD = '<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n'
END = "</body></tmx>\n"
UNIT = '<tu><tuv xml:lang="en"><seg>Text {0}.</seg></tuv><tuv xml:lang="fr"><seg>Texte {0}.</seg></tuv></tu>\n'
NOT_WELL_FORMED = "the unit is damaged: it is not well-formed XML (not well-formed (invalid token))"


def units(count):
    return [UNIT.format(number) for number in range(count)]


def pairs(numbers):
    return [(f"Text {number}.", f"Texte {number}.") for number in numbers]


def whole(parts):
    return (HEAD + "".join(parts) + END).encode("utf-8", "surrogateescape")


DAMAGE = [  # what the text of a unit is replaced by, and the reason
    ("Text &#x1F;", "the unit is damaged: it is not well-formed XML (reference to invalid character number)"),
    ("Text \x1f", NOT_WELL_FORMED),
    ("Text & more", NOT_WELL_FORMED),
    ("Text \udce9", "the unit is damaged: it has bytes of another encoding"),
    ("Text&nbsp;", "the unit is damaged: it is not well-formed XML (undefined entity)"),
    ("Text <b", NOT_WELL_FORMED),
    ("Text <b>", "the unit is damaged: it is not well-formed XML (mismatched tag)"),
    ("</seg></seg>", "the unit is damaged: it is not well-formed XML (mismatched tag)"),
]


@pytest.mark.parametrize(("damage", "reason"), DAMAGE)
@pytest.mark.parametrize("damaged", [(0,), (3,), (3, 4, 99), (99,)])
def test_the_units_around_damage_are_read(tmp_path, damage, reason, damaged):
    """A hundred units, of which some are damaged in one of the ways that people's files are."""
    parts = units(100)
    for number in damaged:
        parts[number] = parts[number].replace(f"Text {number}.", damage)
    expected = [number for number in range(100) if number not in damaged]
    for name in ("a.tmx", "a.tmx.gz"):
        assert read(write(tmp_path / name, whole(parts))) == (pairs(expected), [reason] * len(damaged))


def test_a_unit_that_is_not_closed(tmp_path):
    parts = units(7)
    parts[2] = parts[2].replace("</tu>", "")
    reason = "the unit is damaged: it is not closed"
    assert read(write(tmp_path / "a.tmx", whole(parts))) == (pairs([0, 1, 3, 4, 5, 6]), [reason])


@pytest.mark.parametrize("cut", ["a.tmx", "a.tmx.gz"])
def test_a_file_that_is_cut_off(tmp_path, cut):
    content = whole(units(5000))
    path = write(tmp_path / cut, content)
    path.write_bytes(path.read_bytes()[:-1000])
    found, reasons = read(path)
    assert found == pairs(range(len(found)))
    assert 1000 < len(found) < 5000
    assert "the file is damaged" in reasons[-1]


def test_comments_and_cdata_are_no_units(tmp_path):
    parts = units(5)
    parts[1] = f"<!-- {parts[1]} -->"
    parts[3] = parts[3].replace("Text 3.", "<![CDATA[</tu> <tu > & ]]>")
    assert read(write(tmp_path / "a.tmx", whole(parts))) == (
        [*pairs([0, 2]), ("</tu> <tu > &", "Texte 3."), *pairs([4])], []
    )  # fmt: skip


def test_units_behind_a_comment_without_end_are_counted(tmp_path):
    parts = units(9)
    parts[2] = parts[2].replace("Text 2.", "<!-- ")
    found, reasons = read(write(tmp_path / "a.tmx", whole(parts)))
    assert found == pairs([0, 1])
    assert reasons == ["the unit is damaged: it is not closed"] * 7 + ["the file is damaged (it ends without </tmx>)"]


def test_prefixes_of_a_namespace(tmp_path):
    content = whole(units(3)).replace(b"<tu", b"<t:tu").replace(b"</tu", b"</t:tu").replace(b"seg>", b"t:seg>")
    content = content.replace(b"</t:seg>", b"</t:seg>").replace(b"<tmx", b"<t:tmx").replace(b"</tmx", b"</t:tmx")
    content = content.replace(b"t:tmx version", b't:tmx xmlns:t="http://www.lisa.org/tmx14" version')
    assert read(write(tmp_path / "a.tmx", content)) == (pairs(range(3)), [])


@pytest.mark.parametrize("depth", [10, 100_000])
def test_deep_nesting(tmp_path, depth):
    text = "<hi>" * depth + "deep<ph>code</ph>" + "</hi>" * depth
    code = "<sub>" * depth + "code" + "</sub>" * depth
    unit = UNIT.format(1).replace("Text 1.", text).replace("Texte 1.", f"Texte {code}1.")
    assert read(write(tmp_path / "a.tmx", whole([unit]))) == ([("deep", "Texte 1.")], [])


@pytest.mark.parametrize("seed", range(20))
def test_marks_across_the_borders_of_chunks(tmp_path, seed, monkeypatch):
    """Chunks of a few bytes, so that every tag, comment and character is cut somewhere."""
    from regard.text.pairs import tmx_units

    monkeypatch.setattr(tmx_units, "_CHUNK", random.Random(seed).randrange(300, 900))
    parts = [part.replace("Texte", "\u00c9t\u00e9 \U0001f600" + "x" * (seed * 13 % 7)) for part in units(60)]
    parts[7] = "<!-- <tu> -->" + parts[7]
    found, reasons = read(write(tmp_path / "a.tmx", whole(parts)))
    assert [one[0] for one in found] == [f"Text {number}." for number in range(60)]
    assert all(one[1].startswith("\u00c9t\u00e9 \U0001f600") for one in found)
    assert reasons == []


@pytest.mark.parametrize("where", ["text", "attribute", "comment"])
def test_a_huge_unit_is_skipped_with_bounded_memory(tmp_path, where):
    big = 4 * MAX_LINE_BYTES
    text = {"text": "{}", "attribute": '<hi x="{}"/>', "comment": "<!-- {} -->"}[where]
    parts = units(3)
    before, after = parts[1].replace("Text 1.", text).split("{}")
    path = tmp_path / "a.tmx.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((HEAD + parts[0] + before).encode())
        for _ in range(big // 2**20):
            file.write(b"x" * 2**20)
        file.write((after + parts[2] + END).encode())
    tracemalloc.start()
    try:
        found = list(read_pairs([path]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one.source for one in found if isinstance(one, Pair)] == ["Text 0.", "Text 2."]
    assert "more than 16,777,216 characters" in found[1].reason
    assert peak < 3 * MAX_LINE_BYTES


def test_random_bytes_never_raise_anything_else(tmp_path):
    """Any damage gives pairs, skipped units or DataError."""
    from regard.errors import RegardError

    content = bytearray(whole(units(12)))
    draw = random.Random(5)
    for number in range(300):
        damaged = bytearray(content)
        for _ in range(draw.randrange(1, 5)):
            place = draw.randrange(len(damaged))
            damaged[place : place + draw.randrange(3)] = draw.randbytes(draw.randrange(3))
        path = write(tmp_path / "a.tmx", bytes(damaged))
        try:
            found = list(read_tmx(path, source="en", target="fr"))
        except RegardError:
            continue
        assert found, number
