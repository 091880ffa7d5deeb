"""A translation in the terminal, as plain text."""

import io

import numpy as np
from rich.console import Console

from layer_readings import layer_reading
from regard.view.reading import PairReading, Reading, Tokens
from regard.view.terminal import print_readings


def add_end_token(words: list[str], groups: tuple[tuple[str, tuple[int, ...]], ...] | None = None) -> Tokens:
    text = " ".join(words)
    starts = np.cumsum([0, *(len(word) + 1 for word in words)])[:-1].tolist()
    spans = tuple((start, start + len(word)) for start, word in zip(starts, words, strict=True))
    return Tokens(text, (*words, "</s>"), (*spans, (len(text), len(text))), (*[False] * len(words), True), groups)


def pair(
    source: Tokens, target: Tokens, *heads: np.ndarray, forced: bool = False, self_attention: np.ndarray | None = None
) -> PairReading:
    """An alignment whose second layer has heads with given weights, and whose first layer has uniform weights."""
    queries, keys = len(target), len(source)
    eye = np.repeat(np.eye(keys, dtype=np.float32)[None], len(heads), axis=0)
    even = np.zeros((len(heads), queries, keys), dtype=np.float32)
    layers = tuple(
        layer_reading(str(number), query, eye, eye, 1.0)
        for number, query in enumerate((even, np.log(np.stack(heads)).astype(np.float32)))
    )
    own = None
    if self_attention is not None:
        one = np.eye(keys, dtype=np.float32)[None]
        own = Reading(source, (layer_reading("own", np.log(self_attention)[None].astype(np.float32), one, one, 1.0),))
    return PairReading(Reading(target, layers, keys=source), 1, own, None, forced)


def attention_to(at: list[int], keys: int, share: float = 0.7) -> np.ndarray:
    """Row t gives ``share`` to key at[t], and the rest equally to the other keys."""
    weights = np.full((len(at), keys), (1 - share) / (keys - 1))
    weights[np.arange(len(at)), at] = share
    return weights


def render(*pairs: PairReading, width: int = 100) -> list[str]:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    print_readings(pairs, console)
    return console.file.getvalue().splitlines()


def test_table_of_target_words_and_their_source_words() -> None:
    source, target = add_end_token(["Ein", "Hund", "bellt"]), add_end_token(["A", "dog", "barks"])
    lines = render(
        pair(source, target, attention_to([0, 1, 2, 3], 4, 0.8), attention_to([0, 0, 2, 3], 4, 0.6), forced=True)
    )
    assert lines[:2] == ["Ein Hund bellt", "→ A dog barks  (as given)"]
    rows = {line.split()[0]: line.split() for line in lines[3:7]}
    assert rows["A"][1:4] == ["Ein", "70.0", "%"]
    # The mean of two heads: 0.8 and 0.2 / 3 for Hund, 0.4 / 3 and 0.6 for Ein.
    assert rows["dog"][1:4] == ["Hund", "46.7", "%"]
    assert rows["dog"][5:8] == ["Ein", "33.3", "%,"]
    assert rows["</s>"][1] == "</s>"
    assert "layer 1, the mean of its 2 heads." in " ".join(line.strip() for line in lines)
    assert "Token alignment" not in lines, "words and tokens are the same here"


def test_words_are_listed_before_their_tokens() -> None:
    source = add_end_token(["Hun", "de", "bellen"], (("Hunde", (0, 1)), ("bellen", (2,))))
    target = add_end_token(["dog", "s", "bark"], (("dogs", (0, 1)), ("bark", (2,))))
    lines = render(pair(source, target, attention_to([0, 1, 2, 3], 4, 0.7)))
    # Both tokens give Hun and de 0.7 + 0.1 together.
    assert next(line.split()[:4] for line in lines if line.startswith("dogs")) == ["dogs", "Hunde", "80.0", "%"]
    tokens = lines[lines.index("Token alignment") :]
    assert next(line.split()[:4] for line in tokens if line.startswith("s ")) == ["s", "de", "70.0", "%"]
    assert any("its one head" in line for line in lines)


def test_self_attention_of_each_side() -> None:
    source = add_end_token(["dogs", "bark", "since", "they", "may"])
    # The first word sees no other word.
    self_attention = np.maximum(np.tril(attention_to([0, 0, 0, 0, 0, 0], 6, 0.8)), 1e-30)
    target = add_end_token(["x"])
    lines = render(pair(source, target, attention_to([0, 1], 6), self_attention=self_attention))
    own = lines[lines.index("Source self-attention") :]
    assert any(line.startswith("they") and line.split()[1] == "dogs" for line in own)
    assert "Target self-attention" not in lines


def test_markup_and_control_characters_are_escaped() -> None:
    hostile = ["[bold]a[/bold]", "\x1b[31mred", "\u202ed"]
    shown = "\n".join(render(pair(add_end_token(hostile), add_end_token(hostile), attention_to([0, 1, 2, 3], 4))))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold]a[/bold] ⟨U+001B⟩[31mred ⟨U+202E⟩d" in shown
    hebrew = render(pair(add_end_token(["הילד", "אכל"]), add_end_token(["我", "吃"]), attention_to([0, 1, 2], 3)))
    assert any("我" in line and "\u2068הילד\u2069" in line for line in hebrew)


def test_many_translations_have_one_line_each() -> None:
    many = [
        pair(add_end_token([f"Hund{at}", "bellt"]), add_end_token(["dog", "barks"]), attention_to([0, 1, 2], 3))
        for at in range(11)
    ]
    lines = render(*many)
    for at, line in enumerate(lines[:11]):
        assert line.rstrip() == f"{at + 1}. dog ← Hund{at}  barks ← bellt  </s> ← </s>"


def test_long_translation_is_abbreviated() -> None:
    words = [f"w{at}" for at in range(47)]
    lines = render(pair(add_end_token(words), add_end_token(words), attention_to(list(range(48)), 48)))
    assert "… and 8 more words." in lines
    joined = (("w0w1", (0, 1)), *((word, (at,)) for at, word in enumerate(words) if at > 1))
    source, target = add_end_token(words[:3]), add_end_token(words, joined)
    lines = render(pair(source, target, attention_to([0] * 48, 4)))
    assert [line for line in lines if "more" in line] == ["… and 7 more words.", "… and 8 more tokens."]
