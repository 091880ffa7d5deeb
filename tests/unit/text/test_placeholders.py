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
def test_codes_are_copied_whole(code):
    assert protect(f"Delete {code} now") == ProtectedText(f"Delete {TOKENS[0]} now", (code,))


@pytest.mark.parametrize("code", CODES)
def test_codes_end_where_punctuation_begins(code):
    assert protect(f"({code}), 请看 {code}。") == ProtectedText(f"({TOKENS[0]}), 请看 {TOKENS[0]}。", (code,))


@pytest.mark.parametrize("prose", PROSE)
def test_prose_stays(prose):
    text = f"It is {prose} again"
    assert protect(text) == ProtectedText(text, ())


@pytest.mark.parametrize("unit", ["px", "s", "ms", "MB", "KiB", "h", "x", "min", "K"])
def test_a_unit_may_follow_a_number(unit):
    assert protect(f"%d{unit} left").text == f"{TOKENS[0]}{unit} left"
    assert protect(f"%.1f{unit}").text == f"{TOKENS[0]}{unit}"


def test_a_message_of_a_program():
    found = protect(r"<b>%s</b>: {0} of {1}&nbsp;files\n%s — 100 % sure")
    assert found.kept == ("<b>", "%s", "</b>", "{0}", "{1}", "&nbsp;", r"\n")
    one, two, three, four, five, six, seven = TOKENS[:7]
    assert found.text == f"{one}{two}{three}: {four} of {five}{six}files{seven}{two} — 100 % sure"


@given(MIXED)
def test_any_text_comes_back(text):
    found = protect(text)
    assert found.restore(found.text) == text
    assert len(found.kept) == len(set(found.kept)) <= len(TOKENS)
    used = re.findall(f"[{TOKENS[0]}-{TOKENS[-1]}]", found.text)
    assert set(used) == set(TOKENS[: len(found.kept)])
    assert sorted(set(used), key=used.index) == sorted(set(used)), "numbered as they first come"
    assert found.missing(found.text) == ()


@given(MIXED, MIXED)
def test_both_sides_of_a_pair_come_back(source, target):
    pair = protect(source, target)
    assert ProtectedText(pair.source, pair.kept).restore(pair.source) == source
    assert ProtectedText(pair.target, pair.kept).restore(pair.target) == target


@given(MIXED, TEXT)
def test_the_source_of_a_pair_reads_as_alone(source, target):
    """Training pairs are encoded in the same way as sources at translation time."""
    assert protect(source, target).source == protect(source).text


class TestPair:
    def test_the_same_string_has_the_same_placeholder_in_any_order(self):
        one, two = TOKENS[:2]
        pair = protect("%s of %d", "%d من %s, %d")
        assert (pair.source, pair.target, pair.kept) == (f"{one} of {two}", f"{two} من {one}, {two}", ("%s", "%d"))

    def test_what_the_target_lacks_is_kept_all_the_same(self):
        pair = protect("a <b>c</b>", "d")
        assert (pair.source, pair.target, pair.kept) == (f"a {TOKENS[0]}c{TOKENS[1]}", "d", ("<b>", "</b>"))

    def test_what_the_source_lacks_stays_in_the_target(self):
        assert protect("a", "b %s").target == "b %s"
        assert protect("%d", "%s %d").target == f"%s {TOKENS[0]}"

    def test_placeholders_in_the_target_alone_are_no_placeholders(self):
        pair = protect("%s", f"{TOKENS[4]} %s")
        assert pair.target == f"{TOKENS[1]} {TOKENS[0]}"
        assert pair.kept == ("%s", TOKENS[4])


class TestRestore:
    def test_a_placeholder_that_stands_for_nothing_is_left_out(self):
        assert protect("a %s").restore(f"x {TOKENS[0]} y{TOKENS[5]}") == "x %s y"

    def test_a_placeholder_may_come_often(self):
        assert protect("a %s").restore(f"{TOKENS[0]}, {TOKENS[0]}") == "%s, %s"

    def test_what_is_missing_is_listed_as_often_as_it_is(self):
        found = protect("%s, %s, %s and %d")
        assert found.missing(f"{TOKENS[0]} x") == ("%s", "%s", "%d")
        assert found.missing(f"{TOKENS[0]}{TOKENS[1]}{TOKENS[0]}{TOKENS[0]}{TOKENS[7]}") == ()


class TestMoreThanThereAre:
    CODES = tuple(f"{{{number}}}" for number in range(len(TOKENS) + 3))

    def test_the_last_stay_in_the_text(self):
        found = protect(" ".join(self.CODES))
        assert found.kept == self.CODES[: len(TOKENS)]
        assert found.text.split() == [*TOKENS, *self.CODES[len(TOKENS) :]]

    def test_placeholders_come_before_all_others(self):
        own = TOKENS[3] + TOKENS[9]
        found = protect(" ".join(self.CODES) + own)
        assert found.kept == (*self.CODES[: len(TOKENS) - 2], *own)
        assert found.restore(found.text) == " ".join(self.CODES) + own


def test_each_is_one_token():
    subwords = Subwords.train(["Delete %s of <b>{0}</b> files"] * 3, size=300)
    (ids,) = subwords.encode(["".join(TOKENS)])
    assert [subwords.decode([one]) for one in ids[1:]] == list(TOKENS)
    ((_, *sandwiched),) = subwords.encode([f"De{TOKENS[3]}lete"])
    assert ids[4] in sandwiched


@examples(20, by_day=5)
@given(st.sampled_from("%&<{\\a\"'@:./#0 =-!|,[($~\t"), st.sampled_from(["", "a", "0", " ", "<a", "{{a", "a@", "%("]))
def test_the_time_does_not_explode(character, start):
    started = time.process_time()  # CPU time of this process, since others may keep the machine busy
    protect(start + character * 40_000)
    protect((start + character) * 20_000)
    protect(start + (character + " ") * 20_000)
    assert time.process_time() - started < 5


def test_placeholders_are_of_the_private_use_area():
    assert all("\ue000" <= token <= "\uf8ff" for token in TOKENS)
    assert not set(TOKENS) & set(string.printable)
