"""Two files of subtitles: aligned by their times, read as texts, or refused."""

from __future__ import annotations

from contextlib import closing

import pytest

from pair_files import read, write
from regard.errors import DataError, OptionError
from regard.text.line_reader import LineReader


def clock(milliseconds, mark=","):
    seconds, rest = divmod(milliseconds, 1000)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{mark}{rest:03d}"


def srt(cues):
    """SubRip of (start, end, text), in seconds."""
    return "".join(
        f"{number}\r\n{clock(int(1000 * start))} --> {clock(int(1000 * end))}\r\n{text}\r\n\r\n"
        for number, (start, end, text) in enumerate(cues, start=1)
    )


def vtt(cues):
    return "WEBVTT - of a film\n\nNOTE no cue\n\nSTYLE\n::cue { color: red }\n\n" + "".join(
        f"{clock(int(1000 * start), '.')[3:]} --> {clock(int(1000 * end), '.')} align:start\n{text}\n\n"
        for start, end, text in cues
    )


ENGLISH = [(1, 3, "Hello."), (4, 7, "<i>How are you</i>\ntoday?"), (8, 12, "I am fine. And you?"), (13, 15, "42"),
           (20, 22, "Bye.")]  # fmt: skip
FRENCH = [(1.2, 3.1, "Bonjour."), (4.1, 6.8, "{\\an8}Comment <b>vas-tu</b> ?"), (8, 9.9, "Je vais bien."),
          (10, 12, "Et toi ?"), (13, 15, "42"), (17, 18, "(musique)"), (20.1, 22, "Salut.")]  # fmt: skip
PAIRS = [("Hello.", "Bonjour."), ("How are you today?", "Comment vas-tu ?"),
         ("I am fine. And you?", "Je vais bien. Et toi ?"), ("42", "42"), ("Bye.", "Salut.")]  # fmt: skip
ALONE = ["the other file has no subtitle at its time"]


@pytest.mark.parametrize(("write_source", "source"), [(srt, "en.srt"), (vtt, "en.vtt"), (srt, "en.srt.gz")])
@pytest.mark.parametrize(("write_target", "target"), [(srt, "fr.srt"), (vtt, "fr.VTT")])
def test_cues_are_paired_by_their_times(tmp_path, write_source, source, write_target, target):
    first = write(tmp_path / source, "\ufeff" + write_source(ENGLISH))
    second = write(tmp_path / target, write_target(FRENCH))
    assert read(first, second) == (PAIRS, ALONE)
    assert read(second, first) == ([(target, source) for source, target in PAIRS], ALONE)


def test_characters_of_webvtt(tmp_path):
    first = write(tmp_path / "a.vtt", vtt([(1, 2, "<v Ann>Tom &amp; I<00:01.500> sing &lt;3")]))
    second = write(tmp_path / "b.srt", srt([(1, 2, "Tom &amp; moi, a < b")]))
    assert read(first, second)[0] == [("Tom & I sing <3", "Tom &amp; moi, a < b")]


def test_cues_without_blank_lines_between_them(tmp_path):
    text = "1\n00:00:01,000 --> 00:00:02,000\nYes.\n2\n00:00:03,000 --> 00:00:04,000\nNo.\n"
    first = write(tmp_path / "a.srt", text)
    second = write(tmp_path / "b.srt", text.replace("Yes", "Oui").replace("No", "Non"))
    assert read(first, second) == ([("Yes.", "Oui."), ("No.", "Non.")], [])


def test_what_cannot_be_paired_is_skipped(tmp_path):
    """A text in another encoding; an empty one; two cues that overlap several."""
    good = [(100 + 3 * number, 102 + 3 * number, f"{number}.") for number in range(7)]
    first = srt([(1, 5, "one"), (5, 9, "two"), (20, 21, "\udce9"), (30, 31, "\u266a"), *good])
    second = srt([(1, 4, "un"), (3, 7, "deux"), (6, 9, "trois"), (20, 21, "e"), (30, 31, "<i></i>"), *good])
    path = tmp_path / "a.srt"
    path.write_bytes(first.encode("utf-8", "surrogateescape"))
    pairs, reasons = read(path, write(tmp_path / "b.srt", second))
    assert pairs == [(text, text) for *_, text in good]
    assert reasons == [
        "several subtitles overlap several of the other file", "the line is not UTF-8", "the target is empty"
    ]  # fmt: skip


@pytest.mark.parametrize("shift", [1.6, 60, 500])
def test_subtitles_of_another_cut_are_refused(tmp_path, shift):
    cues = [(3 * number, 3 * number + 2, f"{number}.") for number in range(41)]
    shifted = [(start + shift, end + shift, text) for start, end, text in cues]
    paths = [write(tmp_path / "a.srt", srt(cues)), write(tmp_path / "b.srt", srt(shifted))]
    with pytest.raises(DataError, match=r"do not agree(.|\n)*shift one"):
        assert read(*paths)[0] != []


@pytest.mark.parametrize(
    ("names", "error"),
    [(["a.srt"], OptionError), (["a.srt", "b.txt"], OptionError), (["a.srt", "b.srt", "c.srt"], OptionError),
     (["a.srt", "empty.srt"], DataError), (["a.ass", "b.ass"], OptionError)],
)  # fmt: skip
def test_other_files_are_refused(tmp_path, names, error):
    for name in ("a.srt", "b.srt", "c.srt", "a.ass", "b.ass"):
        write(tmp_path / name, srt(ENGLISH))
    write(tmp_path / "b.txt", "x\n")
    write(tmp_path / "empty.srt", "x\n")
    with pytest.raises(error, match="subtitles"):
        read(*(tmp_path / name for name in names))


def test_lines_of_subtitles_are_no_texts(tmp_path):
    """Each verb that reads a text on each line chooses its field first; time codes were classified and embedded."""
    lines = LineReader(write(tmp_path / "a.srt", srt(ENGLISH)))
    with closing(lines), pytest.raises(OptionError, match="not plain sentences"):
        lines.choose_field()
