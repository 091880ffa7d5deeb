"""Gettext catalogues: which entries are used, their language, and unusual but valid syntax."""

import gettext
import io
import struct
import tracemalloc

import pytest
from babel.messages.mofile import write_mo
from babel.messages.pofile import read_po

from pair_files import read, write
from regard.errors import DataError
from regard.text.line import MAX_LINE_BYTES
from regard.text.pairs import Pair, PairFormat, read_pairs
from regard.text.pairs.gettext_file import CatalogueFile
from regard.text.skip_counts import SkipCounts

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


def test_fuzzy_untranslated_and_obsolete_entries_are_skipped(tmp_path):
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


def test_compiled_catalogue_has_the_same_pairs(tmp_path):
    text = write(tmp_path / "lt.po", PO)
    with text.open("rb") as source, (tmp_path / "lt.mo").open("wb") as compiled:
        write_mo(compiled, read_po(source))
    assert sorted(read(tmp_path / "lt.mo")[0]) == sorted(read(text)[0])


def test_folder_of_catalogues(tmp_path):
    write(tmp_path / "lt" / "LC_MESSAGES" / "a.po", PO)
    write(tmp_path / "lt" / "LC_MESSAGES" / "a.mo", b"made from a.po, so not read")
    write(tmp_path / "b.po", PO)
    assert len(read(tmp_path)[0]) == 8
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no gettext catalogue"):
        read(empty)


def test_compressed_and_upper_case_file_names_in_a_folder(tmp_path):
    write(tmp_path / "a.po.gz", PO)
    write(tmp_path / "B.PO", PO)
    assert len(read(tmp_path)[0]) == 8


def test_a_damaged_catalogue_of_a_folder_is_skipped(tmp_path):
    write(tmp_path / "a.po", PO)
    write(tmp_path / "b.po", 'msgid "a"\nmsgstr "b"\n???\n')
    pairs, reasons = read(tmp_path)
    assert len(pairs) == 4
    assert "a file is not a readable gettext catalogue" in reasons


def test_unused_lines_are_ignored(tmp_path):
    """Lines that msgmerge --previous, editors and msginit write."""
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
def test_files_that_are_no_catalogue_are_refused(tmp_path, name, content):
    with pytest.raises(DataError, match="not a readable gettext catalogue"):
        read(write(tmp_path / name, content))


def test_damaged_catalogue_is_refused_alone_and_skipped_in_a_folder(tmp_path):
    compiled = io.BytesIO()
    write_mo(compiled, read_po(io.BytesIO(PO.encode())))
    for name, content in (("a.po", PO.encode() + b"???\n"), ("a.mo", compiled.getvalue()[:-20])):
        with pytest.raises(DataError, match="not a readable gettext catalogue"):
            read(write(tmp_path / name, content))
        folder = write(tmp_path / "both" / name, content).parent
    write(folder / "good.po", PO)
    assert len(read(folder)[0]) == 4


# Languages


def po_in_language(language, target="Oui", *, source="Yes"):
    named = f'"Language: {language}\\n"\n' if language is not None else ""
    return f'''msgid ""\nmsgstr ""\n{named}"MIME-Version: 1.0\\n"\n\nmsgid "{source}"\nmsgstr "{target}"\n'''


def write_catalogues_in_three_languages(folder):
    """Catalogues in Django's layout; the language of one is only in the name of its folder."""
    write(folder / "de" / "LC_MESSAGES" / "django.po", po_in_language("de", "Ja"))
    write(folder / "es" / "LC_MESSAGES" / "django.po", po_in_language("", "S\u00ed"))
    write(folder / "fr" / "LC_MESSAGES" / "django.po", po_in_language("fr_FR", "Oui"))
    return folder


def test_folder_of_several_languages_needs_a_language_option(tmp_path):
    with pytest.raises(DataError, match=r"several languages(.|\n)*de, es, fr_FR(.|\n)*target='de'"):
        read(write_catalogues_in_three_languages(tmp_path))
    with pytest.raises(DataError, match="several languages"):
        read(tmp_path / "de", tmp_path / "fr", source="en")


@pytest.mark.parametrize(("target", "pair"), [("fr", "Oui"), ("de", "Ja"), ("es", "S\u00ed"), ("FR-fr", "Oui")])
def test_requested_language_is_read(tmp_path, target, pair):
    pairs, reasons = read(write_catalogues_in_three_languages(tmp_path), source="en", target=target)
    assert pairs == [("Yes", pair)]
    assert reasons == ["a file is in another language"] * 2


def test_skipped_languages_are_reported(tmp_path):
    counts = SkipCounts()
    assert (
        len(list(counts.count(read_pairs([write_catalogues_in_three_languages(tmp_path)], PairFormat(target="fr")))))
        == 1
    )
    (sentence,) = counts.sentences()
    assert sentence.startswith("skipped 2 because a file is in another language: ")
    assert all(place in sentence for place in ("de/LC_MESSAGES/django.po (de)", "es/LC_MESSAGES/django.po (es)"))


@pytest.mark.parametrize("language", ["es", "pt_BR"])
def test_catalogue_in_another_language_is_refused(tmp_path, language):
    path = write(tmp_path / "a.po", po_in_language(language))
    for paths in ([path], [tmp_path]):
        with pytest.raises(DataError, match=rf"selected language(.|\n)*pt_PT(.|\n)*{language}"):
            read(*paths, source="en", target="pt_PT")


def test_language_matches_its_regional_variants(tmp_path):
    assert read(write(tmp_path / "a.po", po_in_language("pt_BR", "Sim")), target="pt")[0] == [("Yes", "Sim")]
    write(tmp_path / "b.po", po_in_language("pt", "Pois"))
    assert read(tmp_path)[0] == [("Yes", "Sim"), ("Yes", "Pois")]


@pytest.mark.parametrize("name", ["fr.po", "fr_FR.po.gz", "fr/LC_MESSAGES/app.po", "fr.utf8/LC_MESSAGES/de.po"])
@pytest.mark.parametrize("language", [None, "", "French"])
def test_language_is_taken_from_the_file_or_folder_name(tmp_path, name, language):
    path = write(tmp_path / name, po_in_language(language))
    assert read(path, target="fr")[0] == [("Yes", "Oui")]
    with pytest.raises(DataError, match="selected language"):
        read(path, target="de")
    path.write_bytes(po_in_language("de", "Ja").encode())
    assert read(path, target="de")[0] == [("Yes", "Ja")]


@pytest.mark.parametrize("name", ["app.po", "web.po", "fr/app.po"])
def test_requested_languages_are_assumed_if_unknown(tmp_path, name):
    path = write(tmp_path / name, po_in_language(None))
    assert read(path, source="ia", target="tlh")[0] == [("Yes", "Oui")]


@pytest.mark.parametrize("target", ["en", None])
def test_catalogue_in_the_source_language_is_read_in_reverse(tmp_path, target):
    path = write(tmp_path / "a.po", PO.replace('"Plural', '"Language: lt\\n"\n"Plural'))
    pairs, reasons = read(path, source="lt", target=target)
    assert pairs == [(translation, message) for message, translation in read(path, source="en", target="lt")[0]]
    assert len(pairs) == 4
    assert sorted(reasons) == ["the entry is fuzzy", "the entry is not translated", "the entry is obsolete"]


def test_messages_are_english_with_catalogues_in_both_languages(tmp_path):
    """One of the catalogues is English, and repeats the messages."""
    write(tmp_path / "en.po", po_in_language("en", "Yes"))
    write(tmp_path / "fr.po", po_in_language("fr", "Oui"))
    write(tmp_path / "app.po", po_in_language(None, "D\u2019accord", source="OK"))
    forward = [("OK", "D\u2019accord"), ("Yes", "Oui")]
    assert read(tmp_path, source="en", target="fr") == (forward, ["a file is in another language"])
    backwards = [(target, source) for source, target in forward]
    assert read(tmp_path, source="fr", target="en") == (backwards, ["a file is in another language"])


def test_translation_between_variants_of_english(tmp_path):
    path = write(tmp_path / "en_GB.po", po_in_language("en_GB", "Colour", source="Color"))
    write(tmp_path / "en.po", po_in_language("en", "Color", source="Color"))
    for paths in ([path], [tmp_path]):
        assert read(*paths, source="en", target="en_GB")[0] == [("Color", "Colour")]


# Unusual but valid syntax


LATIN = """# Fran\u00e7ois le traducteur
msgid ""
msgstr ""
"Last-Translator: Fran\u00e7ois\\n"
"Content-Type: text/plain; "
"charset=ISO-8859-1\\n"

# Fran\u00e7ois
msgid "Enter"
msgstr "Entr\u00e9e"
"""


def test_a_catalogue_is_read_in_its_charset(tmp_path):
    path = write(tmp_path / "fr.po", LATIN.encode("latin-1"))
    assert read(path) == ([("Enter", "Entr\u00e9e")], [])
    (pair,) = read_pairs([path])
    assert pair.place == f"line 9 of {path}"


def test_escapes_of_c_are_decoded(tmp_path):
    """GNU gettext manual, "The Format of PO Files": strings have the escapes of C, as have bytes of Python."""
    entries = (
        r'msgid "\101\x42 \x143"'
        "\n"
        r'msgstr "caf\303\251 \xe2\x82\xac"'
        "\n\n"
        r'msgid "quote \42, line\12end"'
        "\n"
        r'msgstr "\\x41 and \\101 stay \042"'
        "\n\n"
        r'msgid "bell"'
        "\n"
        r'msgstr "tab\11a\0601"'
        "\n"
    )
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\n'
    found = list(CatalogueFile(write(tmp_path / "fr.po", header + entries)).entries())
    assert [(entry.messages[0], entry.forms[0]) for entry in found] == [
        ("AB C", b"caf\303\251 \xe2\x82\xac".decode()),
        ('quote ", line\nend', '\\x41 and \\101 stay "'),
        ("bell", "tab\ta01"),
    ]


def test_an_escaped_byte_that_is_invalid_in_the_charset_is_refused(tmp_path):
    content = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "a"\nmsgstr "\\xff"\n'
    with pytest.raises(DataError, match="0xff"):
        read(write(tmp_path / "fr.po", content))


def test_comments_may_be_in_another_charset(tmp_path):
    """msgfmt ignores them."""
    text = (
        LATIN.replace("ISO-8859-1", "UTF-8")
        .encode()
        .replace("Fran\u00e7ois".encode(), "Fran\u00e7ois".encode("latin-1"))
    )
    assert read(write(tmp_path / "fr.po", text))[0] == [("Enter", "Entr\u00e9e")]


@pytest.mark.parametrize(("charset", "message"), [("KLINGON", "KLINGON"), ("hex", "hex"), ("UTF-8", "0xe9")])
def test_wrong_charset_is_refused(tmp_path, charset, message):
    path = write(tmp_path / "fr.po", LATIN.replace("ISO-8859-1", charset).encode("latin-1"))
    with pytest.raises(DataError, match=rf"not a readable gettext catalogue(.|\n)*{message}(.|\n)*correct the charset"):
        read(path)


def test_byte_order_mark_is_ignored(tmp_path):
    assert read(write(tmp_path / "lt.po", b"\xef\xbb\xbf" + PO.encode())) == read(write(tmp_path / "a.po", PO))


@pytest.mark.parametrize("language", ["Portuguese (Brazil)", "sr@latin", "zh-Hans", "ca@valencia", "tlh", "???"])
def test_unusual_language_names_are_accepted(tmp_path, language):
    assert read(write(tmp_path / "a.po", po_in_language(language, "Sim")))[0] == [("Yes", "Sim")]


def test_a_compiled_catalogue_may_have_a_date_with_seconds(tmp_path):
    compiled = io.BytesIO()
    write_mo(compiled, read_po(io.BytesIO(PO.encode())))
    odd = compiled.getvalue().replace(b"YEAR-MO-DA HO:MI+ZONE", b"2024-05-06 10:11:12 Z")
    assert odd != compiled.getvalue()
    assert read(write(tmp_path / "a.mo", odd)) == read(write(tmp_path / "b.mo", compiled.getvalue()))


def compile_mo(pairs, order="<", charset="utf-8"):
    """Compile a ``.mo`` file by section 10.3 of gettext's manual."""
    texts = [text.encode(charset) for column in zip(*pairs, strict=True) for text in column]
    start, table, data = 28 + 8 * len(texts), b"", b""
    for text in texts:
        table += struct.pack(f"{order}2I", len(text), start + len(data))
        data += text + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
    return head + table + data


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("charset", ["utf-8", "latin-1"])
def test_compiled_catalogue_agrees_with_pythons_gettext(tmp_path, order, charset):
    head = f"Content-Type: text/plain; charset={charset}\n"
    head += "Plural-Forms: nplurals=2; plural=(n > 1);\n"
    rows = [
        ("", head),
        ("Enter", "Entr\u00e9e"),
        ("menu\4Open", "Ouvrir"),
        ("%d key\0%d keys", "%d cl\u00e9\0%d cl\u00e9s"),
    ]
    content = compile_mo(rows, order, charset)
    known = gettext.GNUTranslations(io.BytesIO(content))
    assert read(write(tmp_path / "fr.mo", content))[0] == [
        ("Enter", known.gettext("Enter")),
        ("Open", known.pgettext("menu", "Open")),
        ("%d key", known.ngettext("%d key", "%d keys", 1)),
        ("%d keys", known.ngettext("%d key", "%d keys", 2)),
    ]


def test_fuzzy_duplicates_do_not_hide_a_valid_entry(tmp_path):
    """msgfmt ignores fuzzy entries, so a valid entry of the same name is no duplicate."""
    again = (
        """\n#, fuzzy\nmsgid "Go"\nmsgstr "Sal"\n\nmsgid "Go"\nmsgstr "Eik"\n\n#, fuzzy\nmsgid "Go"\nmsgstr "Sala"\n"""
    )
    pairs, reasons = read(write(tmp_path / "lt.po", PO + again))
    assert ("Go", "Eik") in pairs
    assert len(pairs) == 5
    assert reasons.count("the entry is fuzzy") == 3


def test_missing_plural_header_defaults_to_the_language(tmp_path):
    """Arabic has six plural forms, the second of which is for one."""
    forms = "".join(f'msgstr[{number}] "{number}"\n' for number in range(6))
    text = po_in_language("ar", "Naam") + f'\nmsgid "key"\nmsgid_plural "keys"\n{forms}'
    pairs, _ = read(write(tmp_path / "a.po", text))
    assert pairs[1:] == [("keys", "0"), ("key", "1"), ("keys", "2"), ("keys", "3"), ("keys", "4"), ("keys", "5")]


def test_error_names_the_unreadable_line(tmp_path):
    with pytest.raises(DataError, match=r"line 3(.|\n)*msgcat"):
        read(write(tmp_path / "a.po", 'msgid "a"\nmsgstr "b"\n???\n'))


# Plural forms without a header, and huge entries

FORMS = 'msgid "Open"\nmsgstr "Atverti"\n\nmsgid "%d file"\nmsgid_plural "%d files"\n' + "".join(
    f'msgstr[{number}] "{form}"\n' for number, form in enumerate(("%d failas", "%d failai", "%d fail\u0173"))
)


def test_plural_forms_without_a_header(tmp_path):
    """msgfmt takes the file. The name of the language gives the rule; without it nobody knows which form is for one."""
    assert read(write(tmp_path / "lt.po", FORMS)) == (
        [("Open", "Atverti"), ("%d file", "%d failas"), ("%d files", "%d failai"), ("%d files", "%d fail\u0173")], []
    )  # fmt: skip
    pairs, reasons = read(write(tmp_path / "app.po", FORMS))
    assert pairs == [("Open", "Atverti")]
    assert reasons == ["the entry has more plural forms than the 2 of its file's Plural-Forms, or of its language"]
    two = FORMS.replace('msgstr[2] "%d fail\u0173"\n', "")
    assert read(write(tmp_path / "app.po", two))[0][1:] == [("%d file", "%d failas"), ("%d files", "%d failai")]


def test_more_plural_forms_than_the_header_names(tmp_path):
    head = 'msgid ""\nmsgstr ""\n"Plural-Forms: nplurals=2; plural=(n != 1);\\n"\n\n'
    pairs, reasons = read(write(tmp_path / "a.po", head + FORMS))
    assert pairs == [("Open", "Atverti")]
    assert reasons == ["the entry has more plural forms than the 2 of its file's Plural-Forms, or of its language"]
    pairs, reasons = read(write(tmp_path / "b.po", head.replace("nplurals=2", "nplurals=4") + FORMS))
    assert reasons == ["the entry is not translated"]


@pytest.mark.parametrize(("lines", "suffix"), [(1, ".gz"), (2**13, "")])
def test_a_huge_entry_is_skipped_with_bounded_memory(tmp_path, lines, suffix):
    size = 4 * MAX_LINE_BYTES // lines
    big = 'msgid "big"\nmsgstr ""\n' + f'"{"x" * (size - 3)}"\n' * lines
    content = f'{FORMS}\n{big}\n#, fuzzy\nmsgid "Almost"\nmsgstr "x"\n\nmsgid "Last"\nmsgstr "Galas"\n'
    path = write(tmp_path / f"lt.po{suffix}", content)
    del content, big
    tracemalloc.start()
    try:
        entries = list(read_pairs([path]))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [one.source for one in entries if isinstance(one, Pair)] == [
        "Open", "%d file", "%d files", "%d files", "Last"
    ]  # fmt: skip
    assert [(one.reason, one.place) for one in entries if not isinstance(one, Pair)] == [
        ("the entry is fuzzy", f"line {9 + lines + 5} of {path}"),
        ("the entry is longer than 16,777,216 bytes", f"line 10 of {path}"),
    ]
    assert peak < 4 * MAX_LINE_BYTES


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_huge_message_of_a_compiled_catalogue_is_skipped(tmp_path, suffix):
    rows = [("", "Language: fr\n"), ("Enter", "Entr\u00e9e"), ("big", "x" * (MAX_LINE_BYTES + 1)), ("Open", "Ouvrir")]
    pairs, reasons = read(write(tmp_path / f"fr.mo{suffix}", compile_mo(rows)))
    assert pairs == [("Enter", "Entr\u00e9e"), ("Open", "Ouvrir")]
    assert reasons == ["the entry is longer than 16,777,216 bytes"]
