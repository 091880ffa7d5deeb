"""Sentence pairs from every format: which are read, which are skipped and why, and errors."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pair_files import read, write
from regard.errors import DataError, OptionError
from regard.text.file_signatures import check_lines
from regard.text.pairs import Pair, read_pairs
from regard.text.skip_counts import SkipCounts, Skipped

# Two text files


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_files_are_read_line_by_line(tmp_path, suffix):
    source = write(tmp_path / f"a.de{suffix}", "Guten Morgen.\nJa.\r\n")
    target = write(tmp_path / f"a.en{suffix}", "\ufeffGood morning.\nYes.")
    assert read(source, target) == ([("Guten Morgen.", "Good morning."), ("Ja.", "Yes.")], [])


def test_files_of_different_lengths_are_refused_with_both_counts(tmp_path):
    source, target = write(tmp_path / "a.de", "eins\nzwei\ndrei\n"), write(tmp_path / "a.en", "one\ntwo\n")
    with pytest.raises(DataError, match=r"3 lines in .*a\.de, 2 in .*a\.en"):
        read(source, target)


def test_skipped_lines_keep_the_others_aligned(tmp_path):
    source = write(tmp_path / "a.de", b"eins\n\nd\xe4s\nvier\n")
    target = write(tmp_path / "a.en", b"one\ntwo\nthree\n \n")
    pairs, reasons = read(source, target)
    assert pairs == [("eins", "one")]
    assert reasons == ["the source is empty", "the line is not UTF-8", "the target is empty"]


def test_place_names_line_and_file(tmp_path):
    source, target = write(tmp_path / "a.de", "eins\n\n"), write(tmp_path / "a.en", "one\n\n")
    pair, blank = read_pairs([source, target])
    assert pair.place == f"line 1 of {source} and {target}"
    assert blank == Skipped(f"line 2 of {source} and {target}", "both sides are empty")


# Tables


def test_first_two_columns_of_a_table_are_read(tmp_path):
    path = write(tmp_path / "pairs.tsv", "Go.\tVa !\tCC-BY 2.0\nHi.\tSalut !\nalone\n\n")
    pairs, reasons = read(path)
    assert pairs == [("Go.", "Va !"), ("Hi.", "Salut !")]
    assert reasons == ["there are fewer than 2 columns", "the line is blank"]


def test_pairs_of_a_table_with_commas(tmp_path):
    rows = 'id,fr,en\n7,"Oui, va !",Yes.\n8,"Il ""dit""\nnon.",He says no.\n9,Salut\n'
    path = write(tmp_path / "pairs.csv", rows)
    pairs = [("Yes.", "Oui, va !"), ("He says no.", 'Il "dit" non.')]
    assert read(path, source="en", target="fr") == (pairs, ["there are fewer than 3 columns"])
    assert read(write(tmp_path / "plain.csv", "Go.;Va !\n"))[0] == [("Go.", "Va !")]


GUESSED = ["the row is taken for the names of the columns"]


@pytest.mark.parametrize(
    ("header", "pair"),
    [("id;en;fr", ("a", "b")), ("en;fr;id", ("1", "a")), ("fr;en;score", ("1", "a")), ("pt_BR;note;zh", ("1", "b")),
     ("no;en;fr", ("a", "b")), ("id;English;French", ("a", "b")), ("French;English;id", ("1", "a"))],
)  # fmt: skip
def test_header_with_two_codes_of_languages(tmp_path, header, pair):
    assert read(write(tmp_path / "pairs.csv", f"{header}\n1;a;b\n")) == ([pair], GUESSED)


def test_header_of_two_codes_alone_is_no_pair(tmp_path):
    assert read(write(tmp_path / "pairs.tsv", "en\tfr\nGo\tVa\n")) == ([("Go", "Va")], GUESSED)
    assert read(write(tmp_path / "pairs.tsv", "no\tno\nyes\tsi\n")) == ([("no", "no"), ("yes", "si")], [])


@pytest.mark.parametrize("before", ["", "\n", "\ufeff", "# not a table \xff\n"])
def test_header_is_the_first_row_with_text(tmp_path, before):
    path = tmp_path / "pairs.tsv"
    path.write_bytes(before.encode("latin-1" if "\xff" in before else "utf-8") + b"id\ten\tde\n1\tHi.\tHallo.\n")
    assert read(path, source="en", target="de")[0] == [("Hi.", "Hallo.")]


@pytest.mark.parametrize("where", [{}, {"source": "en", "target": "fr"}])
@pytest.mark.parametrize(
    "header", ["id,klingon,elvish", "key,first,second,third", "id,text,translation", "id,sentence,translation"]
)
def test_header_that_is_not_understood_is_refused(tmp_path, header, where):
    path = write(tmp_path / "pairs.csv", f"{header}\n" + ",".join("abcd"[: header.count(",") + 1]) + "\n")
    with pytest.raises(DataError, match=r"ambiguous which columns(.|\n)*columns="):
        read(path, **where)
    assert read(path, columns=(2, 3), **where) == ([("b", "c")], GUESSED)


def test_header_of_names_of_languages(tmp_path):
    path = write(tmp_path / "pairs.csv", "id,English,Mandarin,German\n7,Yes.,Shi.,Ja.\n")
    assert read(path, source="de", target="en") == ([("Ja.", "Yes.")], [])
    assert read(write(tmp_path / "two.csv", "Original,Translation\nYes.,Ja.\n")) == ([("Yes.", "Ja.")], [])


def test_numbers_of_rows_are_no_source(tmp_path):
    path = write(tmp_path / "pairs.csv", "17,Yes.,Oui.\n18,No.,Non.\n")
    assert read(path) == read(path, columns=(2, 3)) == ([("Yes.", "Oui."), ("No.", "Non.")], [])


def test_separators_of_spreadsheets(tmp_path):
    for name, line in (("a", "Yes, I do.;Oui."), ("b", "Yes, I do.\tOui."), ("c", '"Yes, I do.",Oui.')):
        assert read(write(tmp_path / f"{name}.csv", f"{line}\n")) == ([("Yes, I do.", "Oui.")], [])


def test_columns_of_other_languages_than_the_header_has_two(tmp_path):
    path = write(tmp_path / "pairs.tsv", "en\tde\tfr\nYes.\tJa.\tOui.\n")
    assert read(path, columns=(1, 2)) == ([("Yes.", "Ja.")], GUESSED)
    assert read(path, columns=(2, 3), source="de") == ([("Ja.", "Oui.")], GUESSED)


def test_columns_option_in_either_order(tmp_path):
    path = write(tmp_path / "pairs.tsv", "7\tGo.\tVa !\n")
    assert read(path, columns=(3, 2)) == ([("Va !", "Go.")], [])


@pytest.mark.parametrize(("header", "where"), [("source\ttarget", {}), ("EN\tfr", {"source": "en", "target": "fr"})])
def test_header_is_no_pair(tmp_path, header, where):
    path = write(tmp_path / "pairs.tsv", f"{header}\nGo.\tVa !\n")
    assert read(path, **where) == ([("Go.", "Va !")], [])


ENGLISH_GERMAN = {"source": "en", "target": "de"}


@pytest.mark.parametrize(
    ("header", "where"),
    [
        ("de\ten", ENGLISH_GERMAN),
        ("DE \ten-GB", ENGLISH_GERMAN),
        ("de\ten", {"target": "de"}),
        ("de\ten", {"source": "en"}),
        ("target\tsource", {}),
        ("tgt\tsrc", ENGLISH_GERMAN),
        ("Trg\tSource", {}),
    ],
)
def test_header_names_the_source_column(tmp_path, header, where):
    path = write(tmp_path / "pairs.tsv", f"{header}\nHallo.\tHello.\n")
    assert read(path, **where) == ([("Hello.", "Hallo.")], [])


def test_header_selects_two_of_many_columns(tmp_path):
    path = write(tmp_path / "pairs.tsv", "id\tde\tfr\ten\n7\tHallo.\tSalut.\tHello.\n8\tJa.\n")
    assert read(path, **ENGLISH_GERMAN) == ([("Hello.", "Hallo.")], ["there are fewer than 4 columns"])
    assert read(path, columns=(3, 2), source="fr", target="de")[0] == [("Salut.", "Hallo.")]


@pytest.mark.parametrize(("columns", "pair"), [((1, 2), ("Hallo.", "Hello.")), ((2, 1), ("Hello.", "Hallo."))])
def test_columns_option_overrides_the_header(tmp_path, columns, pair):
    for heading, where in (("de\ten", ENGLISH_GERMAN), ("de\ten", {"target": "de"}), ("target\tsource", {})):
        path = write(tmp_path / "pairs.tsv", f"{heading}\nHallo.\tHello.\n")
        assert read(path, columns=columns, **where) == ([pair], [])


def test_line_with_a_sentence_and_a_language_is_a_pair(tmp_path):
    assert read(write(tmp_path / "pairs.tsv", "Er sagt es.\tit\n"), target="it") == ([("Er sagt es.", "it")], [])


def test_names_of_other_languages_than_the_two_are_refused(tmp_path):
    with pytest.raises(DataError, match="no column is named by 'de'"):
        read(write(tmp_path / "pairs.tsv", "fr\ten\n"), **ENGLISH_GERMAN)


@pytest.mark.parametrize("columns", [(1, 1), (0, 1)])
def test_columns_must_be_two_different_positive_numbers(tmp_path, columns):
    with pytest.raises(OptionError, match="two different numbers"):
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
def test_names_of_json_fields_are_recognized(tmp_path, record):
    assert read(write(tmp_path / "pairs.jsonl", json.dumps(record))) == ([("Go.", "Va !")], [])


def test_fields_option(tmp_path):
    path = write(tmp_path / "pairs.jsonl.gz", json.dumps({"a": "Go.", "b": "x", "c": "Va !"}))
    assert read(path, fields=("c", "a")) == ([("Va !", "Go.")], [])
    with pytest.raises(DataError, match="ambiguous which fields"):
        read(path)


@pytest.mark.parametrize(
    ("record", "where"),
    [
        ({"translation": {"de": "Hallo", "en": "Hello"}}, ENGLISH_GERMAN),
        ({"translation": {"de": "Hallo", "en": "Hello"}}, {"target": "de"}),
        ({"DE": "Hallo", "en_GB": "Hello", "id": 7}, ENGLISH_GERMAN),
        ({"de": "Hallo", "fr": "Salut", "en": "Hello", "source": "web", "target": "x"}, ENGLISH_GERMAN),
        ({"german": "Hallo", "en": "Hello"}, {"source": "en"}),
        ({"en-US": "Howdy", "en": "Hello", "de": "Hallo"}, ENGLISH_GERMAN),
        ({"source": "Hello", "target": "Hallo"}, ENGLISH_GERMAN),
    ],
)
def test_fields_named_after_the_languages(tmp_path, record, where):
    assert read(write(tmp_path / "pairs.jsonl", json.dumps(record)), **where) == ([("Hello", "Hallo")], [])


def test_fields_option_overrides_the_languages(tmp_path):
    path = write(tmp_path / "pairs.jsonl", '{"de": "Hallo", "en": "Hello"}')
    assert read(path, fields=("de", "en"), **ENGLISH_GERMAN)[0] == [("Hallo", "Hello")]
    assert read(path, source="en", target="fr")[0] == [("Hallo", "Hello")]


def test_lines_that_are_no_json_objects_are_skipped(tmp_path):
    lines = ['{"source": "Go.", "target": "Va !"}', "[]", "{", "", '{"source": 3, "target": "x"}']
    lines.append('{"source": "\\ud800", "target": "x"}')
    pairs, reasons = read(write(tmp_path / "pairs.jsonl", "\n".join(lines)))
    assert pairs == [("Go.", "Va !")]
    assert reasons == [
        "the line is not a JSON object",
        "the line is not a JSON object",
        "the line is blank",
        "there is no text in 'source' or in 'target'",
        "there is a lone surrogate, which is half a character",
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
def test_translation_memory_of_two_languages(tmp_path, name, encoding):
    content = TMX.replace('"1.0"', f'"1.0" encoding="{encoding}"').encode(encoding)
    pairs, reasons = read(write(tmp_path / name, content))
    assert pairs == [("Press Enter!", "Appuyez sur Entr\u00e9e."), ("Yes", "Oui")]
    assert reasons == ["there is no text in fr"]


def test_language_options_for_a_translation_memory(tmp_path):
    path = write(tmp_path / "memory.tmx", TMX)
    assert read(path, source="de", target="en")[0] == [("Ja", "Yes")]
    assert read(path, source="fr", target="en-GB")[0] == [("Appuyez sur Entr\u00e9e.", "Press Enter!")]


def test_translation_memory_of_three_languages_needs_a_language_option(tmp_path):
    head, *_, last = TMX.split("<tu>")
    path = write(tmp_path / "memory.tmx", f"{head}<tu>{last}")
    with pytest.raises(OptionError, match="the target language of") as refused:
        read(path)
    assert all(language in str(refused.value) for language in ("en", "fr", "de"))


def test_first_of_two_texts_in_a_language_is_read(tmp_path):
    head = TMX.partition("<tu>")[0]
    unit = '<tu><tuv xml:lang="en-US"><seg>Color</seg></tuv><tuv xml:lang="en-GB"><seg>Colour</seg></tuv>'
    unit += '<tuv xml:lang="fr"><seg>Couleur</seg></tuv><tuv xml:lang="fr"><seg>Teinte</seg></tuv></tu>'
    path = write(tmp_path / "memory.tmx", f"{head}{unit}</body></tmx>")
    assert read(path, source="en", target="fr")[0] == [("Color", "Couleur")]


@pytest.mark.parametrize("variant", ["en", "en-GB"])
def test_source_language_of_the_header_matches_its_variants(tmp_path, variant):
    content = TMX.replace('srclang="en"', 'srclang="en-US"').replace('"en-GB"', '"en"').replace('"en"', f'"{variant}"')
    path = write(tmp_path / "memory.tmx", content)
    assert (
        read(path, target="fr")[0]
        == read(path, source="en", target="fr")[0]
        == [
            ("Press Enter!", "Appuyez sur Entr\u00e9e."),
            ("Yes", "Oui"),
        ]
    )
    assert read(path)[0] == read(path, target="fr")[0]


def test_source_language_of_the_header_as_the_target(tmp_path):
    path = write(tmp_path / "memory.tmx", TMX)
    assert read(path, target="en")[0] == [("Appuyez sur Entr\u00e9e.", "Press Enter!"), ("Oui", "Yes")]


@pytest.mark.parametrize(
    ("encoding", "yes"), [("Shift_JIS", "\u306f\u3044"), ("euc-kr", "\ub124"), ("cp1251", "\u0414\u0430")]
)
def test_xml_encodings(tmp_path, encoding, yes):
    content = TMX.replace('"1.0"', f'"1.0" encoding="{encoding}"').replace("\u00e9", "e").replace("Oui", yes)
    assert read(write(tmp_path / "memory.tmx", content.encode(encoding)))[0][-1] == ("Yes", yes)


@pytest.mark.parametrize("encoding", ["hex", "utf-16", "no-such-encoding"])
def test_unsupported_xml_encoding_is_refused(tmp_path, encoding):
    content = TMX.replace('"1.0"', f'"1.0" encoding="{encoding}"').replace("\u00e9", "e").encode("ascii")
    with pytest.raises(DataError, match="not a readable TMX file"):
        read(write(tmp_path / "memory.tmx", content))


def test_valid_part_of_a_damaged_translation_memory_is_read(tmp_path):
    pairs, reasons = read(
        write(tmp_path / "memory.tmx", TMX[: TMX.index('<tu><tuv xml:lang="en"><seg>Yes')] + "<tu><tuv")
    )
    assert pairs == [("Press Enter!", "Appuyez sur Entr\u00e9e.")]
    assert reasons[0] == "there is no text in fr"
    assert reasons[1:] == ["the unit is damaged: it is not closed", "the file is damaged (it ends without </tmx>)"]


def test_xml_entities_are_refused(tmp_path):
    bomb = TMX.replace('SYSTEM "tmx14.dtd"', '[<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]').replace("Yes", "&b;")
    with pytest.raises(DataError, match="EntitiesForbidden"):
        read(write(tmp_path / "memory.tmx", bomb))


@pytest.mark.parametrize("content", ["", "no xml", "<tmx><body/></tmx>"])
def test_files_that_are_no_translation_memory_are_refused(tmp_path, content):
    with pytest.raises(DataError, match="not a readable TMX file"):
        read(write(tmp_path / "memory.tmx", content))


# All formats


def test_unknown_format_error_lists_the_known_ones(tmp_path):
    path = write(tmp_path / "pairs.docx", "x")
    for paths in ([path], [], [path, path, path]):
        with pytest.raises(OptionError, match=r"FILE\.tmx"):
            list(read_pairs(paths))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("a.xlsx", "FILE.tsv"),
        ("a.ARROW", "FILE.jsonl"),
        ("a.xlf", "TMX"),
        ("a.xml", "TMX"),
        ("a.zip", "unpack"),
        ("a.en.bz2", "unpack"),
        ("a.pot", r"\.po files"),
    ],
)
def test_files_of_unsupported_formats_are_refused_with_advice(tmp_path, name, advice):
    path = write(tmp_path / name, "id,en,de\n1,Hello,Hallo\n")
    for paths in ([path], [path, path], [write(tmp_path / "a.en", "Hello\n"), path]):
        with pytest.raises(OptionError, match=rf"pairs cannot be read from(.|\n)*{advice}"):
            list(read_pairs(paths))


@pytest.mark.parametrize("name", ["locale", "pairs.tsv", "pairs.txt"])
def test_missing_file_is_named(tmp_path, name):
    for paths in ([tmp_path / name], [write(tmp_path / "a.en", "Hello\n"), tmp_path / name]):
        with pytest.raises(DataError, match=rf"cannot read .*{name}(.|\n)*No such file"):
            list(read_pairs(paths))


MEMORY = '<tmx><header srclang="en"/><body><tu>{}{}</tu></body></tmx>'
VARIANT = '<tuv xml:lang="{}"><seg>{}</seg></tuv>'


def test_files_of_several_languages_need_language_options(tmp_path):
    to_french = MEMORY.format(VARIANT.format("en", "Yes"), VARIANT.format("fr", "Oui"))
    to_german = MEMORY.format(VARIANT.format("en", "Yes"), VARIANT.format("de", "Ja"))
    memories = [write(tmp_path / "a.tmx", to_french), write(tmp_path / "b.tmx", to_german)]
    catalogue = write(tmp_path / "fr.po", 'msgid "No"\nmsgstr "Non"\n')
    for paths in (memories, [memories[0], catalogue], [memories[0], tmp_path]):
        with pytest.raises(OptionError, match=r"declares its own languages(.|\n)*target="):
            list(read_pairs(paths))
    actual = read(memories[0], catalogue, source="en", target="fr")
    assert actual[0] == [("Yes", "Oui"), ("No", "Non")]


@pytest.mark.parametrize("name", ["a.po", "a.mo.gz", "a.tmx", "a.srt", "a.vtt.gz", "a.html", "a.xlsx", "a.zip"])
def test_check_lines_refuses_files_that_are_not_plain_text(name):
    with pytest.raises(OptionError, match="are not plain sentences"):
        check_lines(Path(name))
    for other in ("a.txt", "a.de", "a", "a.jsonl", "a.json", "a.de.gz", "a.csv", "a.tsv"):
        check_lines(Path(other))


def test_several_files_are_read_in_order(tmp_path):
    table, lines = write(tmp_path / "a.tsv", "a\tb\n"), write(tmp_path / "b.jsonl", '{"source": "c", "target": "d"}')
    assert read(table, lines)[0] == [("a", "b"), ("c", "d")]


def test_line_separators_in_a_sentence_become_spaces(tmp_path):
    path = write(tmp_path / "a.jsonl", json.dumps({"source": " one\ntwo\u2028", "target": "un\r\n\tdeux\u00a0!"}))
    assert read(path)[0] == [("one two", "un deux\u00a0!")]


@given(st.lists(st.sampled_from(["good", "empty", "fuzzy"]), max_size=30))
def test_counts_of_pairs_and_skipped_pairs(kinds):
    records = [Pair("a", "b", f"{i}") if kind == "good" else Skipped(f"{i}", kind) for i, kind in enumerate(kinds)]
    counts = SkipCounts()
    assert len(list(counts.count(records))) == counts.usable == kinds.count("good")
    assert sum(times for times, _ in counts.skipped.values()) + counts.usable == len(kinds)
    for sentence in counts.sentences():
        assert sentence.startswith("skipped ")
        assert all(len(places) <= 5 for _, places in counts.skipped.values())


def test_report_of_skipped_pairs_names_places():
    counts = SkipCounts()
    list(counts.count(Skipped(f"line {i} of a", "the source is empty") for i in range(1, 1009)))
    assert counts.sentences() == [
        "skipped 1,008 because the source is empty: "
        "line 1 of a, line 2 of a, line 3 of a, line 4 of a, line 5 of a and 1,003 more"
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_dates_are_translated(tmp_path, swapped):
    """A table of two columns has one reading, also if one of them has dates alone."""
    rows = [(f"{day:02} February 1974", " ".join(f"1974-02-{day:02}")) for day in range(1, 28)]
    rows = [row[::-1] for row in rows] if swapped else rows
    path = write(tmp_path / "dates.tsv", "".join(f"{one}\t{other}\n" for one, other in rows))
    assert [(one.source, one.target) for one in read_pairs([path])] == rows
