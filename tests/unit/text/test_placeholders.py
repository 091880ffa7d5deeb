"""Placeholders: which strings are copied, that all of them are restored, and that equal strings share one."""

import re
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard.text.placeholders import TOKENS, ProtectedText, protect
from regard.text.subwords import Subwords

LISTED = r"""
%s %d %i %5.2f %-10s %05d %ld %zu %*d %.*f %(name)s %(count)d %1$s %2$-5d %% %n %@ %x %c
{} {0} {name} {user.name} {items[0]} {price:.2f} {value!r} {:>10} ${x} %{count} #{x} {{name}} {{#if}} {{{raw}}}
{date,date} {имя}
<b> </b> <br/> <hr/> <a.b:c-d> <h1> </xliff:g> <stdio.h> <img/>
&nbsp; &amp; &lt; &quot; &hellip; &#160; &#xA0; &#x1F600;
\n \t \r \0 \\ \" \' \x0a \u00a0 \U0001f600
https://example.org http://a.b/c?d=e&f=g#h ftp://x.org/%20y_z www.example.org HTTPS://EXAMPLE.ORG/
https://de.wikipedia.org/wiki/Käse mailto:me@example.org name.surname+tag@mail.example.co.uk
C:\Windows\new c:\temp\%s.txt C:\
"""
CODES = [
    *LISTED.split(),
    "{n, number}",
    "{when, date, short}",
    "{{ name }}",
    "{{ price | currency }}",
    "<br />",
    "<!-- note -->",
]
CODES += ['<a href="https://example.org/a b">', "<a href='x' title = 'y'>", "<td width=5>", '<x id="1"/>', *TOKENS]

PROSE = (
    r"""
100 % sure|100% sure|50%de réduction|5 %discount|the %complete column|%yüz|100%sure|a % b|%|10 %|90 %, or so|%20and
10 %EUR|%Erlass|50%d'économies
a < b|a<b and c>d|<3|1 < 2 > 0|<your name>|-> x|x <- y|< b >|<>|</>
{|}|{ }|{a b}|{count, plural, one {# file} other {# files}}|{"a": 1}|{a,b}
AT&T;|R&D|Tom & Jerry;|caf&eacute;|&#233;t&#xE9;|&unknown;|fish&chips
a \ b|\section|\alpha|C:|c:/x|at 5:30|e.g.|www|http://|me@home|@name|#tag|$5|$x
""".strip()
    .replace("\n", "|")
    .split("|")
)

CODE = st.sampled_from(CODES)
TEXT = st.text(st.characters(exclude_categories=["Cs", "Co"]), max_size=12)
MIXED = st.lists(st.one_of(CODE, TEXT, st.sampled_from([" ", ", ", "word"])), max_size=40).map("".join)


@pytest.mark.parametrize("code", CODES)
def test_codes_are_replaced_by_one_placeholder(code):
    assert protect(f"Delete {code} now") == ProtectedText(f"Delete {TOKENS[0]} now", (code,))


@pytest.mark.parametrize("code", CODES)
def test_codes_end_at_punctuation(code):
    assert protect(f"({code}), 请看 {code}。") == ProtectedText(f"({TOKENS[0]}), 请看 {TOKENS[0]}。", (code,))


@pytest.mark.parametrize("prose", PROSE)
def test_prose_is_unchanged(prose):
    text = f"It is {prose} again"
    assert protect(text) == ProtectedText(text, ())


@pytest.mark.parametrize("unit", ["px", "s", "ms", "MB", "KiB", "h", "x", "min", "K"])
def test_units_after_a_code_are_not_part_of_it(unit):
    assert protect(f"%d{unit} left").text == f"{TOKENS[0]}{unit} left"
    assert protect(f"%.1f{unit}").text == f"{TOKENS[0]}{unit}"


def test_program_message_with_several_codes():
    actual = protect(r"<b>%s</b>: {0} of {1}&nbsp;files\n%s — 100 % sure")
    assert actual.kept == ("<b>", "%s", "</b>", "{0}", "{1}", "&nbsp;", r"\n")
    one, two, three, four, five, six, seven = TOKENS[:7]
    assert actual.text == f"{one}{two}{three}: {four} of {five}{six}files{seven}{two} — 100 % sure"


@given(MIXED)
def test_any_text_is_restored(text):
    actual = protect(text)
    assert actual.restore(actual.text) == text
    assert len(actual.kept) == len(set(actual.kept)) <= len(TOKENS)
    used = re.findall(f"[{TOKENS[0]}-{TOKENS[-1]}]", actual.text)
    assert set(used) == set(TOKENS[: len(actual.kept)])
    assert sorted(set(used), key=used.index) == sorted(set(used)), "numbered as they first come"
    assert actual.missing(actual.text) == ()


@given(MIXED, MIXED)
def test_both_sides_of_a_pair_are_restored(source, target):
    pair = protect(source, target)
    assert ProtectedText(pair.source, pair.kept).restore(pair.source) == source
    assert ProtectedText(pair.target, pair.kept).restore(pair.target) == target


@given(MIXED, TEXT)
def test_source_of_a_pair_is_encoded_as_without_a_target(source, target):
    """Training pairs are encoded in the same way as sources at translation time."""
    assert protect(source, target).source == protect(source).text


class TestPair:
    def test_equal_strings_share_a_placeholder_in_any_order(self):
        one, two = TOKENS[:2]
        pair = protect("%s of %d", "%d من %s, %d")
        assert (pair.source, pair.target, pair.kept) == (f"{one} of {two}", f"{two} من {one}, {two}", ("%s", "%d"))

    def test_string_only_in_the_source_gets_a_placeholder(self):
        pair = protect("a <b>c</b>", "d")
        assert (pair.source, pair.target, pair.kept) == (f"a {TOKENS[0]}c{TOKENS[1]}", "d", ("<b>", "</b>"))

    def test_string_only_in_the_target_is_unchanged(self):
        assert protect("a", "b %s").target == "b %s"
        assert protect("%d", "%s %d").target == f"%s {TOKENS[0]}"

    def test_placeholder_character_only_in_the_target_is_protected(self):
        pair = protect("%s", f"{TOKENS[4]} %s")
        assert pair.target == f"{TOKENS[1]} {TOKENS[0]}"
        assert pair.kept == ("%s", TOKENS[4])


class TestRestore:
    def test_unused_placeholder_is_dropped(self):
        assert protect("a %s").restore(f"x {TOKENS[0]} y{TOKENS[5]}") == "x %s y"

    def test_repeated_placeholder(self):
        assert protect("a %s").restore(f"{TOKENS[0]}, {TOKENS[0]}") == "%s, %s"

    def test_missing_strings_are_listed_with_repetitions(self):
        actual = protect("%s, %s, %s and %d")
        assert actual.missing(f"{TOKENS[0]} x") == ("%s", "%s", "%d")
        assert actual.missing(f"{TOKENS[0]}{TOKENS[1]}{TOKENS[0]}{TOKENS[0]}{TOKENS[7]}") == ()


class TestTooManyStrings:
    CODES = tuple(f"{{{number}}}" for number in range(len(TOKENS) + 3))

    def test_surplus_strings_stay_in_the_text(self):
        actual = protect(" ".join(self.CODES))
        assert actual.kept == self.CODES[: len(TOKENS)]
        assert actual.text.split() == [*TOKENS, *self.CODES[len(TOKENS) :]]

    def test_placeholder_characters_have_priority(self):
        own = TOKENS[3] + TOKENS[9]
        actual = protect(" ".join(self.CODES) + own)
        assert actual.kept == (*self.CODES[: len(TOKENS) - 2], *own)
        assert actual.restore(actual.text) == " ".join(self.CODES) + own


def test_each_placeholder_is_one_token():
    subwords = Subwords.train(["Delete %s of <b>{0}</b> files"] * 3, size=300)
    (ids,) = subwords.encode(["".join(TOKENS)])
    assert [subwords.decode([one]) for one in ids[1:]] == list(TOKENS)
    ((_, *sandwiched),) = subwords.encode([f"De{TOKENS[3]}lete"])
    assert ids[4] in sandwiched


@examples(20, without_slow=5)
@given(st.sampled_from("%&<{\\a\"'@:./#0 =-!|,[($~\t"), st.sampled_from(["", "a", "0", " ", "<a", "{{a", "a@", "%("]))
def test_matching_time_is_linear(character, start):
    started = time.process_time()  # CPU time of this process, since others may keep the machine busy
    protect(start + character * 40_000)
    protect((start + character) * 20_000)
    protect(start + (character + " ") * 20_000)
    assert time.process_time() - started < 5


def test_placeholders_are_private_use_characters():
    assert all("\ue000" <= token <= "\uf8ff" for token in TOKENS)
    assert not set(TOKENS) & set(string.printable)
