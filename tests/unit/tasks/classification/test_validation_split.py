"""The stratified split: of each label alike, copies of a text together, every label in the training data."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from regard.tasks.labelled_data import hold_out


def counts(texts, labels, **options):
    held = hold_out(texts, [(one,) for one in labels], **{"seed": 1, **options})
    return Counter(one for one, is_held in zip(labels, held, strict=True) if is_held)


def test_the_same_share_of_each_label_is_held_out():
    texts = [f"text {number}" for number in range(1000)]
    labels = ["a"] * 700 + ["b"] * 280 + ["c"] * 20
    assert counts(texts, labels) == {"a": 70, "b": 28, "c": 2}
    assert counts(texts, labels, limit=50) == {"a": 35, "b": 14, "c": 1}


def test_split_depends_on_the_seed():
    texts, labels = [f"text {number}" for number in range(100)], [("a",), ("b",)] * 50
    one, same, other = (hold_out(texts, labels, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_rare_labels_are_in_both_parts_and_single_texts_in_the_training_data():
    assert counts(["1", "2", "3"], ["a", "a", "b"]) == {"a": 1}
    assert counts(["1", "2"], ["a", "b"]) == {}
    rare = [f"rare {number}" for number in range(50)]
    assert counts([*map(str, range(20)), *rare], [*["a"] * 20, *rare]) == {"a": 2}


def test_sets_of_labels_that_occur_once_are_held_out_together():
    """50 texts with a set of labels each: 10 % of them are held out, and every label remains."""
    labels = [("frequent", f"a{n % 10}", f"b{n % 7}") for n in range(50)]
    held = hold_out([str(n) for n in range(50)], labels, seed=3)
    assert sum(held) == 5
    kept = {label for own, is_held in zip(labels, held, strict=True) if not is_held for label in own}
    assert kept == {label for own in labels for label in own}


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sets(st.sampled_from("abcd"), max_size=3)), min_size=1),
    st.integers(0, 9),
)
def test_copies_stay_together_and_every_label_is_in_the_training_data(rows, seed):
    texts, labels = [str(text) for text, _ in rows], [sorted(own) for _, own in rows]
    held = hold_out(texts, labels, seed=seed)
    parts = {True: set(), False: set()}
    seen = {True: set(), False: set()}
    for text, own, is_held in zip(texts, labels, held, strict=True):
        parts[is_held].add(text)
        seen[is_held] |= set(own)
    assert not parts[True] & parts[False]
    assert parts[False]
    assert seen[True] <= seen[False]
