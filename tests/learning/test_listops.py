"""ListOps: values by an independent evaluator, lengths, labels, and the same files for the same seed."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

import pytest

from benchmarks.learning.listops import (
    MAX_ARGUMENTS,
    MAX_DEPTH,
    TooLongError,
    draw_expression,
    expressions,
    write_tables,
)

COUNT = 400


def evaluate(tokens):
    """The value of the next expression of an iterator of tokens; None at a closing bracket."""
    token = next(tokens)
    if token == "]":
        return None
    if token.isdigit():
        return int(token)
    ordered = sorted(iter(lambda: evaluate(tokens), None))
    half = len(ordered) // 2
    if token == "[MED":
        return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) // 2
    if token == "[SM":
        return int(str(sum(ordered))[-1])
    return {"[MAX": ordered[-1], "[MIN": ordered[0]}[token]


@pytest.fixture(scope="module")
def examples():
    """The first expressions of seed 1, with their values."""
    return list(islice(expressions(1), COUNT))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[MAX 2 9 [MIN 4 7 ] 0 ]", 9),  # Nangia and Bowman 2018, figure 1
        ("[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]", 5),  # Tay et al. 2021, section 2.2.1
        ("[MED 1 2 ]", 1),
        ("[SM 9 9 3 ]", 1),
        ("7", 7),
    ],
)
def test_evaluator_on_published_examples(text, value):
    assert evaluate(iter(text.split())) == value


def test_values_agree_with_an_independent_evaluator(examples):
    for text, value in examples:
        rest = iter(text.split())
        assert evaluate(rest) == value
        assert next(rest, None) is None


def test_values_of_short_expressions():
    actual = list(islice(expressions(3, min_length=1, max_length=30, max_depth=3), COUNT))
    assert {value for _, value in actual} == set(range(10))
    assert [evaluate(iter(text.split())) for text, _ in actual] == [value for _, value in actual]


def test_lengths_depth_and_arguments(examples):
    lengths = [len(text.split()) for text, _ in examples]
    assert 500 <= min(lengths) < 520
    assert 1900 < max(lengths) <= 2000
    assert sum(length > 1000 for length in lengths) > 0.3 * COUNT
    depths, arguments, open_counts = Counter(), Counter(), []
    for text, _ in examples:
        for token in text.split():
            if token == "]":
                arguments[open_counts.pop()] += 1
                continue
            if open_counts:
                open_counts[-1] += 1
            depths[len(open_counts) + 1] += 1
            if token.startswith("["):
                open_counts.append(0)
    assert max(depths) == MAX_DEPTH
    assert set(arguments) == set(range(2, MAX_ARGUMENTS + 1))


def test_labels_are_balanced(examples):
    counts = Counter(value for _, value in examples)
    assert set(counts) == set(range(10))
    assert max(counts.values()) < COUNT / 4


def test_a_quarter_of_the_expressions_are_operators():
    """Of the expressions above the greatest depth, those of all lengths, a share of 0.25."""
    chance, operators = random.Random(5), 0
    for _ in range(4000):
        try:
            tokens, _ = draw_expression(chance)
        except TooLongError:
            tokens = ["[MAX"]
        operators += tokens[0].startswith("[")
    assert abs(operators / 4000 - 0.25) < 4 * (0.25 * 0.75 / 4000) ** 0.5


def test_files_depend_only_on_the_seed_and_expressions_are_unique(tmp_path, examples):
    sizes = {"train": 20, "valid": 7, "test": 5}
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        write_tables(tmp_path / name, sizes, seed=seed)
    files = {
        name: [(tmp_path / name / f"{part}.tsv").read_text() for part in sizes] for name in ("one", "same", "other")
    }
    assert files["one"] == files["same"]
    rows = [line.split("\t") for text in files["one"] + files["other"] for line in text.splitlines()[1:]]
    assert len({text for text, _ in rows}) == len(rows) == 2 * sum(sizes.values())
    assert [(text, int(value)) for text, value in rows[:32]] == examples[:32]
    assert {text.splitlines()[0] for text in files["one"]} == {"text\tlabel"}
