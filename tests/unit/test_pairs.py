"""Sentence pairs from every format: what is read, what is left out and why, what is refused."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import DataError, OptionError
from regard.text.pairs import LeftOut, Pair, Tally, Where, read_pairs


def read(*paths, **where):
    """The texts of the pairs, and the reasons of what was left out."""
    found = list(read_pairs(paths, Where(**where)))
    pairs = [(one.source, one.target) for one in found if isinstance(one, Pair)]
    return pairs, [one.reason for one in found if isinstance(one, LeftOut)]


def write(path, content):
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# Two text files


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_files_are_read_line_by_line(tmp_path, suffix):
    source = write(tmp_path / f"a.de{suffix}", "Guten Morgen.\nJa.\r\n")
    target = write(tmp_path / f"a.en{suffix}", "\ufeffGood morning.\nYes.")
    assert read(source, target) == ([("Guten Morgen.", "Good morning."), ("Ja.", "Yes.")], [])


def test_files_of_different_length_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "a.de", "eins\nzwei\ndrei\n"), write(tmp_path / "a.en", "one\ntwo\n")
    with pytest.raises(DataError, match=r"3 lines in .*a\.de, 2 in .*a\.en"):
        read(source, target)


def test_lines_that_cannot_be_used_keep_the_others_aligned(tmp_path):
    source = write(tmp_path / "a.de", b"eins\n\nd\xe4s\nvier\n")
    target = write(tmp_path / "a.en", b"one\ntwo\nthree\n \n")
    pairs, reasons = read(source, target)
    assert pairs == [("eins", "one")]
    assert reasons == ["the source is empty", "the line is not UTF-8", "the target is empty"]


def test_places_name_line_and_file(tmp_path):
    source, target = write(tmp_path / "a.de", "eins\n\n"), write(tmp_path / "a.en", "one\n\n")
    pair, blank = read_pairs([source, target])
    assert pair.place == f"line 1 of {source} and {target}"
    assert blank == LeftOut(f"line 2 of {source} and {target}", "both sides are empty")


# Tables


def test_a_table_gives_its_first_two_columns(tmp_path):
    path = write(tmp_path / "pairs.tsv", "Go.\tVa !\tCC-BY 2.0\nHi.\tSalut !\nalone\n\n")
    pairs, reasons = read(path)
    assert pairs == [("Go.", "Va !"), ("Hi.", "Salut !")]
    assert reasons == ["there are fewer than 2 columns", "the line is blank"]


def test_columns_can_be_named_in_either_direction(tmp_path):
    path = write(tmp_path / "pairs.tsv", "7\tGo.\tVa !\n")
    assert read(path, columns=(3, 2)) == ([("Va !", "Go.")], [])


@pytest.mark.parametrize(("heading", "where"), [("source\ttarget", {}), ("EN\tfr", {"source": "en", "target": "fr"})])
def test_a_heading_is_no_pair(tmp_path, heading, where):
    path = write(tmp_path / "pairs.tsv", f"{heading}\nGo.\tVa !\n")
    assert read(path, **where) == ([("Go.", "Va !")], [])


@pytest.mark.parametrize("columns", [(1, 1), (0, 1)])
def test_columns_are_two(tmp_path, columns):
    with pytest.raises(OptionError, match="two different ones"):
        read(write(tmp_path / "pairs.tsv", "a\tb\n"), columns=columns)


# JSON lines


@pytest.mark.parametrize(
    "record",
    [
        {"source": "Go.", "target": "Va !", "id": "x7"},
        {"src": "Go.", "tgt": "Va !"},
        {"id": 3, "english": "Go.", "french": "Va !"},
        {"translation": {"en": "Go.", "fr": "Va !"}},
    ],
)
def test_fields_are_found(tmp_path, record):
    assert read(write(tmp_path / "pairs.jsonl", json.dumps(record))) == ([("Go.", "Va !")], [])


def test_fields_can_be_named(tmp_path):
    path = write(tmp_path / "pairs.jsonl.gz", json.dumps({"a": "Go.", "b": "x", "c": "Va !"}))
    assert read(path, fields=("c", "a")) == ([("Va !", "Go.")], [])
    with pytest.raises(DataError, match="leaves open which fields"):
        read(path)


def test_lines_that_are_no_objects_are_left_out(tmp_path):
    lines = ['{"source": "Go.", "target": "Va !"}', "[]", "{", "", '{"source": 3, "target": "x"}']
    lines.append('{"source": "\\ud800", "target": "x"}')
    pairs, reasons = read(write(tmp_path / "pairs.jsonl", "\n".join(lines)))
    assert pairs == [("Go.", "Va !")]
    assert reasons == [
        "the line is no JSON object",
        "the line is no JSON object",
        "the line is blank",
        "there is no text in 'source' or in 'target'",
        "there is a lone surrogate, half of a character",
    ]


# Translation memories

TMX = """<?xml version="1.0"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en" segtype="sentence"/><body>
<tu><tuv xml:lang="en-GB"><seg>Press <bpt i="1">&lt;b></bpt>Enter<ept i="1">&lt;/b></ept>&#33;</seg></tuv>
    <tuv xml:lang="fr"><seg>Appuyez sur <hi>Entr\u00e9e</hi>.</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Alone</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>Yes</seg></tuv><tuv xml:lang="fr"><seg>Oui</seg></tuv>
    <tuv xml:lang="de"><seg>Ja</seg></tuv></tu>
</body></tmx>"""


@pytest.mark.parametrize("name", ["memory.tmx", "memory.tmx.gz"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_memory_gives_two_languages(tmp_path, name, encoding):
    content = TMX.replace('"1.0"', f'"1.0" encoding="{encoding}"').encode(encoding)
    pairs, reasons = read(write(tmp_path / name, content))
    assert pairs == [("Press Enter!", "Appuyez sur Entr\u00e9e."), ("Yes", "Oui")]
    assert reasons == ["there is no text in fr"]


def test_languages_of_a_memory_can_be_named(tmp_path):
    path = write(tmp_path / "memory.tmx", TMX)
    assert read(path, source="de", target="en")[0] == [("Ja", "Yes")]
    assert read(path, source="fr", target="en-GB")[0] == [("Appuyez sur Entr\u00e9e.", "Press Enter!")]


def test_a_memory_of_three_languages_must_be_told(tmp_path):
    head, *_, last = TMX.split("<tu>")
    path = write(tmp_path / "memory.tmx", f"{head}<tu>{last}")
    with pytest.raises(OptionError, match="leaves open which language is the target") as refused:
        read(path)
    assert all(language in str(refused.value) for language in ("en", "fr", "de"))


def test_of_two_texts_in_a_language_the_first_is_taken(tmp_path):
    head = TMX.partition("<tu>")[0]
    unit = '<tu><tuv xml:lang="en-US"><seg>Color</seg></tuv><tuv xml:lang="en-GB"><seg>Colour</seg></tuv>'
    unit += '<tuv xml:lang="fr"><seg>Couleur</seg></tuv><tuv xml:lang="fr"><seg>Teinte</seg></tuv></tu>'
    path = write(tmp_path / "memory.tmx", f"{head}{unit}</body></tmx>")
    assert read(path, source="en", target="fr")[0] == [("Color", "Couleur")]


@pytest.mark.parametrize("encoding", ["Shift_JIS", "euc-kr", "no-such-encoding"])
def test_an_encoding_that_xml_cannot_have_here_is_refused(tmp_path, encoding):
    content = TMX.replace('"1.0"', f'"1.0" encoding="{encoding}"').replace("\u00e9", "e").encode("ascii")
    with pytest.raises(DataError, match="no translation memory"):
        read(write(tmp_path / "memory.tmx", content))


def test_of_a_damaged_memory_the_good_part_is_kept(tmp_path):
    pairs, reasons = read(
        write(tmp_path / "memory.tmx", TMX[: TMX.index('<tu><tuv xml:lang="en"><seg>Yes')] + "<tu><tuv")
    )
    assert pairs == [("Press Enter!", "Appuyez sur Entr\u00e9e.")]
    assert reasons[0] == "there is no text in fr"
    assert reasons[1].startswith("the file is damaged (")


def test_entities_are_refused(tmp_path):
    bomb = TMX.replace('SYSTEM "tmx14.dtd"', '[<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]').replace("Yes", "&b;")
    with pytest.raises(DataError, match="EntitiesForbidden"):
        read(write(tmp_path / "memory.tmx", bomb))


@pytest.mark.parametrize("content", ["", "no xml", "<tmx><body/></tmx>"])
def test_what_is_no_memory_is_refused(tmp_path, content):
    with pytest.raises(DataError, match="no translation memory"):
        read(write(tmp_path / "memory.tmx", content))


# Catalogues

PO = """msgid ""
msgstr ""
"Content-Type: text/plain; charset=UTF-8\\n"
"Plural-Forms: nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2);\\n"

msgid "Open %(name)s"
msgstr "Atverti %(name)s"

#, fuzzy
msgid "Close"
msgstr "Atverti"

msgid "Save"
msgstr ""

msgid "%d file"
msgid_plural "%d files"
msgstr[0] "%d failas"
msgstr[1] "%d failai"
msgstr[2] "%d fail\u0173"

#~ msgid "Old"
#~ msgstr "Senas"
"""


def test_a_catalogue_gives_what_is_vouched_for(tmp_path):
    pairs, reasons = read(write(tmp_path / "lt.po", PO))
    assert pairs == [
        ("Open %(name)s", "Atverti %(name)s"),
        ("%d file", "%d failas"),
        ("%d files", "%d failai"),
        ("%d files", "%d fail\u0173"),
    ]
    assert sorted(reasons) == ["the entry is fuzzy", "the entry is not translated", "the entry is obsolete"]


def test_a_language_without_plurals_has_one_form_for_both(tmp_path):
    one = PO.replace(
        "nplurals=3; plural=(n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2)",
        "nplurals=1; plural=0",
    )
    one = one.replace('msgstr[1] "%d failai"\n', "").replace('msgstr[2] "%d fail\u0173"\n', "")
    assert read(write(tmp_path / "zh.po", one))[0][1:] == [("%d file", "%d failas"), ("%d files", "%d failas")]


def test_a_compiled_catalogue_holds_the_same(tmp_path):
    from babel.messages.mofile import write_mo
    from babel.messages.pofile import read_po

    text = write(tmp_path / "lt.po", PO)
    with text.open("rb") as source, (tmp_path / "lt.mo").open("wb") as compiled:
        write_mo(compiled, read_po(source))
    assert sorted(read(tmp_path / "lt.mo")[0]) == sorted(read(text)[0])


def test_a_folder_of_catalogues(tmp_path):
    (tmp_path / "lt" / "LC_MESSAGES").mkdir(parents=True)
    write(tmp_path / "lt" / "LC_MESSAGES" / "a.po", PO)
    write(tmp_path / "lt" / "LC_MESSAGES" / "a.mo", b"made from a.po, so not read")
    write(tmp_path / "b.po", PO)
    assert len(read(tmp_path)[0]) == 8
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no catalogue"):
        read(empty)


def test_catalogues_of_a_folder_by_any_name(tmp_path):
    write(tmp_path / "a.po.gz", PO)
    write(tmp_path / "B.PO", PO)
    assert len(read(tmp_path)[0]) == 8


def test_a_damaged_catalogue_of_a_folder_is_left_out(tmp_path):
    write(tmp_path / "a.po", PO)
    write(tmp_path / "b.po", 'msgid "a"\nmsgstr "b"\n???\n')
    pairs, reasons = read(tmp_path)
    assert len(pairs) == 4
    assert "a file is no catalogue that can be read" in reasons


def test_lines_that_nothing_needs_do_no_harm(tmp_path):
    """As msgmerge --previous, editors and msginit write them."""
    head = '"PO-Revision-Date: 2024-05-06 10:11:12+0200\\n"\n"POT-Creation-Date: yesterday\\n"\n"Content-Type'
    before = '#~| msgid "Older"\n#~ msgid "Old"'
    odd = PO.replace('"Content-Type', head).replace('#~ msgid "Old"', before)
    assert odd.count("\n") == PO.count("\n") + 3
    pairs, reasons = read(write(tmp_path / "lt.po", odd))
    assert pairs == read(write(tmp_path / "plain.po", PO))[0]
    assert len(reasons) == 3
    template = PO.partition('msgid "%d file')[0].replace("nplurals=3; plural=", "nplurals=INTEGER; plural=EXPRESSION #")
    assert read(write(tmp_path / "new.po", template))[0] == [("Open %(name)s", "Atverti %(name)s")]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.mo", b"no catalogue"), ("a.mo", b""), ("a.po", b'msgid "a"\nmsgstr "b"\n???\n'), ("a.po", b"\xff\xfe")],
)
def test_what_is_no_catalogue_is_refused(tmp_path, name, content):
    with pytest.raises(DataError, match="no catalogue that can be read"):
        read(write(tmp_path / name, content))


# All of them


def test_an_unknown_format_is_refused_with_the_known_ones(tmp_path):
    path = write(tmp_path / "pairs.docx", "x")
    for paths in ([path], [], [path, path, path]):
        with pytest.raises(OptionError, match=r"FILE\.tmx"):
            list(read_pairs(paths))


def test_several_files_follow_one_another(tmp_path):
    table, lines = write(tmp_path / "a.tsv", "a\tb\n"), write(tmp_path / "b.jsonl", '{"source": "c", "target": "d"}')
    assert read(table, lines)[0] == [("a", "b"), ("c", "d")]


def test_breaks_inside_a_sentence_become_spaces(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"source": " one\ntwo\u2028", "target": "un\r\n\tdeux\u00a0!"}))
    assert read(path)[0] == [("one two", "un deux\u00a0!")]


@given(st.lists(st.sampled_from(["good", "empty", "fuzzy"]), max_size=30))
def test_the_tally_counts_all(kinds):
    found = [Pair("a", "b", f"{i}") if kind == "good" else LeftOut(f"{i}", kind) for i, kind in enumerate(kinds)]
    tally = Tally()
    assert len(list(tally.count(found))) == tally.pairs == kinds.count("good")
    assert sum(times for times, _ in tally.left_out.values()) + tally.pairs == len(kinds)
    for sentence in tally.sentences():
        assert sentence.startswith("left out ")
        assert all(len(places) <= 5 for _, places in tally.left_out.values())


def test_a_sentence_of_the_tally_names_places():
    tally = Tally()
    list(tally.count(LeftOut(f"line {i} of a", "the source is empty") for i in range(1, 1009)))
    assert tally.sentences() == [
        "left out 1,008, where the source is empty: "
        "line 1 of a, line 2 of a, line 3 of a, line 4 of a, line 5 of a and 1,003 more"
    ]
