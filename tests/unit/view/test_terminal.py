"""The terminal view, as plain text."""

import io
import re
from dataclasses import replace

import numpy as np
from rich.console import Console

from layer_readings import layer_reading
from regard.language import use_language
from regard.view.reading import Reading, Tokens
from regard.view.reading_comparison import compare_readings
from regard.view.terminal import print_reading, print_readings, print_shared_words


def make_reading(words: list[str], *, dropped: int = 0) -> Reading:
    """Every word attends to the first with weight 0.82, in two heads of layer 1."""
    text, n = " ".join(words), len(words)
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    weights = np.full((2, n, n), 0.18 / (n - 1))
    weights[:, :, 0] = 0.82
    even = np.zeros((2, n, n), dtype=np.float32)
    eye = np.repeat(np.eye(n, dtype=np.float32)[None], 2, axis=0)
    layers = (
        layer_reading("0", even, eye, eye, 1.0),
        layer_reading("1", np.log(weights).astype(np.float32), eye, eye, 1.0),
    )
    tokens = Tokens(text, tuple(words), tuple(spans), (False,) * n)
    return Reading(tokens, layers, np.ones((3, n, 2), dtype=np.float32), dropped=dropped)


def render(*readings: Reading, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for reading in readings:
        print_reading(reading, console)
    print_shared_words(readings, console)
    return console.file.getvalue()


def test_table_of_words_and_the_words_they_attend_to() -> None:
    lines = render(make_reading(["dogs", "bark", "since", "they", "may"])).splitlines()
    row = next(line.split() for line in lines if line.startswith("they"))
    assert row[:4] == ["they", "dogs", "82.0", "%"]
    assert row[5:] == ["1", "0"]
    assert "█" * 16 in " ".join(lines)
    finding = next(line for line in lines if line.startswith("they → dogs"))
    assert "82.0 % in 1·1" in finding
    assert finding.rstrip().endswith("of 4")


def test_long_text_is_abbreviated() -> None:
    words = ["ripe", "apples" * 200, "fall"]
    shown = "".join(render(make_reading(words), width=2000).splitlines()[0])
    assert shown.startswith("ripe apples")
    assert shown.rstrip().endswith("… (1,210 characters)")
    assert len(shown.rstrip()) < 1030
    assert "characters)" not in render(make_reading(["ripe", "apples", "fall"]))


def test_markup_and_control_characters_are_escaped() -> None:
    shown = render(make_reading(["[bold]a[/bold]", "\x1b[31mred", "\u202ed", "plain"]))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold]a[/bold] ⟨U+001B⟩[31mred ⟨U+202E⟩d plain" in shown


def test_truncation_and_shared_words_are_reported() -> None:
    shown = render(make_reading(["ripe", "apples", "fall"], dropped=13), make_reading(["Apples", "ring"]))
    assert "not the last 13" in shown
    row = next(line.split() for line in shown.splitlines() if line.startswith("apples  1, 2"))
    assert row == ["apples", "1,", "2", "1.00", "1.00", "1.00"]


def test_texts_of_one_word_and_of_many_words() -> None:
    assert "no two words" in render(
        Reading(Tokens("hi", ("hi",), ((0, 2),), (False,)), (), np.ones((1, 1, 2), dtype=np.float32))
    )
    assert "… and 7 more words." in render(make_reading([f"w{at}" for at in range(47)]))


def test_many_texts_have_one_line_each() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_readings([make_reading([f"dogs{at}", "bark", "since", "they", "may"]) for at in range(11)], console)
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["word", "pair", "share", "layer", "head", "text"]
    for at, line in enumerate(lines[1:12]):
        assert line.split()[:8] == [str(at + 1), "since", "→", f"dogs{at}", "82.0", "%", "1", "0"]
        assert line.rstrip().endswith(f"dogs{at} bark since they may")


def test_tables_of_few_texts_fit_80_columns() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    print_readings(
        [make_reading(["dogs", "bark", "since", "they", "may"]), make_reading(["Dogs", "ring", "and", "run"])], console
    )
    lines = console.file.getvalue().splitlines()
    header = next(line for line in lines if line.startswith("word pair"))
    assert header.split() == ["word", "pair", "share", "layer", "head", "usual", "also", "first", "in"]
    assert any(line.startswith("dogs  1, 2") for line in lines)


def test_right_to_left_words_keep_their_order() -> None:
    lines = render(make_reading(["הילד", "אכל", "תפוח", "may"])).splitlines()
    assert any(line.startswith("\u2068תפוח\u2069 → \u2068הילד\u2069") for line in lines)
    assert any(line.startswith("may → \u2068הילד\u2069") for line in lines)


def test_unknown_words_are_counted_and_excluded() -> None:
    whole = make_reading(["dogs", "bark", "since", "they", "may"])
    pieces = ("[UNK]", "bark", "[UNK]", "they", "may")
    shown = render(Reading(replace(whole.tokens, pieces=pieces), whole.layers, whole.hidden))
    assert "2 of 5 words are not in this model's vocabulary." in shown
    assert "dogs" not in "".join(shown.splitlines()[1:])


def test_in_chinese_no_english_is_left_but_users_words() -> None:
    readings = [make_reading(["我", "吃", "了", "一个", "苹果"], dropped=7), make_reading(["我", "买", "手机"])]
    with use_language("zh"):
        shown = render(*readings)
        comparisons = io.StringIO()
        print_readings([compare_readings(*readings, names=("甲", "乙"))], Console(file=comparisons, width=100))
    assert "值得注意的词对" in shown
    assert "注意力变化最大的头" in comparisons.getvalue()
    assert re.findall(r"[A-Za-z]{2,}", (shown + comparisons.getvalue()).replace("jieba", "")) == []
