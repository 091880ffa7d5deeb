"""Alignments: every format, the error rate by its definition, links from weights, and symmetrization."""

import gzip

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hypothesis_examples import examples
from regard.errors import DataError, OptionError, ShapeError
from regard.text.alignments import (
    FORMS,
    SYMMETRIZATIONS,
    Alignment,
    alignment_scores,
    expand_links,
    links,
    read_alignments,
    symmetrized,
    word_weights,
)

LINKS = st.frozensets(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=13)
ALIGNMENTS = st.builds(Alignment, LINKS, LINKS)


def make_alignments(*pairs, possible=()):
    return Alignment(frozenset(pairs), frozenset(possible))


def write(folder, content, name="gold"):
    path = folder / name
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


# The value


def test_sure_links_are_possible_too():
    one = make_alignments((0, 0), possible=[(1, 2)])
    assert one.possible == {(0, 0), (1, 2)}
    assert one == make_alignments((0, 0), possible=[(0, 0), (1, 2)])


def test_links_are_written_in_order():
    one = make_alignments((10, 0), (2, 1), (0, 0), possible=[(2, 0)])
    assert one.text() == "0-0 2p0 2-1 10-0"
    assert one.text(first=1) == "1-1 3p1 3-2 11-1"
    assert make_alignments().text() == ""
    for wrong in (-1, 1.5):
        with pytest.raises(OptionError, match="wrong first"):
            one.text(first=wrong)


def test_reversed_alignment():
    assert make_alignments((3, 1), possible=[(0, 2)]).reversed == make_alignments((1, 3), possible=[(2, 0)])


def test_negative_word_numbers_are_refused():
    with pytest.raises(OptionError, match=r"\(2, -1\)"):
        make_alignments((0, 0), possible=[(2, -1)])


# Files


@pytest.mark.parametrize("name", ["links", "links.gz"])
def test_pharaoh(tmp_path, name):
    read = read_alignments(write(tmp_path, "0-0 1-2  \n\r\n10-3", name))
    assert read.form == "pharaoh"
    assert read.alignments == (make_alignments((0, 0), (1, 2)), make_alignments(), make_alignments((10, 3)))


def test_talp_counts_from_1_by_default(tmp_path):
    path = write(tmp_path, "1-1 2p3\n\n5?1\n")
    read = read_alignments(path)
    assert (read.form, read.null_links) == ("talp", 0)
    assert read.alignments == (
        make_alignments((0, 0), possible=[(1, 2)]),
        make_alignments(),
        make_alignments(possible=[(4, 0)]),
    )
    assert read_alignments(path, first=0).alignments[0] == make_alignments((1, 1), possible=[(2, 3)])


def test_sure_links_alone_count_from_0_by_default(tmp_path):
    path = write(tmp_path, "1-1 2-3\n")
    assert read_alignments(path).alignments == (make_alignments((1, 1), (2, 3)),)
    assert read_alignments(path, form="talp").alignments == (make_alignments((0, 0), (1, 2)),)
    assert read_alignments(path, form="pharaoh", first=1).alignments == (make_alignments((0, 0), (1, 2)),)


def test_naacl(tmp_path):
    """The lines of Mihalcea and Pedersen 2003, with the marks and confidences that the format allows."""
    text = "0003 1 1\n3 2 2 S\n3 4 3 P 0.7\n\n1 1 2 0.5\n1 2 1 P\n1 2 1 S\n3 0 4 S\n3 5 0 P\n"
    read = read_alignments(write(tmp_path, text))
    assert (read.form, read.null_links) == ("naacl", 2)
    assert read.alignments == (
        make_alignments((0, 1), (1, 0)),
        make_alignments(),
        make_alignments((0, 0), (1, 1), possible=[(3, 2)]),
    )


@given(alignments=st.lists(ALIGNMENTS, min_size=1, max_size=5), first=st.integers(0, 1))
@examples(50)
def test_written_alignments_are_read_again(tmp_path_factory, alignments, first):
    path = write(tmp_path_factory.mktemp("links"), "\n".join(one.text(first=first) for one in alignments) + "\n")
    lengths = [(7, 5)] * len(alignments)
    assert read_alignments(path, form="talp", first=first, lengths=lengths).alignments == tuple(alignments)


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (
            "0-0 2-4\n",
            {"lengths": [(2, 5)]},
            r"line 1 of .*: link 2-4[\s\S]*of 2 and a target of 5[\s\S]*first=1",
        ),
        ("0-0\n1-5\n", {"lengths": [(2, 5)] * 2}, r"line 2 of .*: link 1-5[\s\S]*source of 2 and a target of 5"),
        ("1p1 2-6\n", {"lengths": [(2, 5)]}, r"line 1 of .*: link 2-6[\s\S]*source word 2 and target word 6"),
        ("1 3 1 S\n", {"lengths": [(2, 5)]}, r"line 1 of .*: link '1 3 1 S'[\s\S]*source of 2 and a target of 5"),
        ("1-1 0p3\n", {}, r"link 0p3[\s\S]*before the first[\s\S]*first=0"),
        ("0-0\n\n0-0\n", {"lengths": [(1, 1)] * 2}, r"expected: 2 sentences[\s\S]*3 in "),
        ("0-0\n", {"lengths": [(1, 1)] * 2}, r"expected: 2 sentences[\s\S]*1 in "),
        ("3 1 1\n", {"lengths": [(1, 1)] * 2}, r"expected: 2 sentences[\s\S]*3 in "),
        ("0-0\n0-0 1:2\n", {}, r"line 2 of .*pharaoh[\s\S]*'1:2'"),
        ("0-0\n1-\n", {}, r"line 2 of .*pharaoh[\s\S]*'1-'"),
        ("0-0 -1-2\n", {}, r"'-1-2'"),
        ("0-0 1p1\n", {"form": "pharaoh"}, r"'1p1'[\s\S]*form='talp'"),
        ("1-1 2p3 4\n", {}, r"line 1 of .*talp[\s\S]*'4'"),
        ("1 1 1\n1 1\n", {}, r"line 2 of .*naacl[\s\S]*'1 1'"),
        ("1 1 1 X\n", {}, r"naacl[\s\S]*'1 1 1 X'"),
        ("0 1 1\n", {}, r"naacl[\s\S]*'0 1 1'"),
        ("1-1 99999999-1\n", {}, r"'99999999-1'"),
        (b"0-0\n\xff\n", {}, r"line 2 of .*UTF-8"),
        ("", {}, "is empty"),
    ],
)
def test_invalid_lines_are_named_in_the_error(tmp_path, text, options, words):
    with pytest.raises(DataError, match=words):
        read_alignments(write(tmp_path, text), **options)


def test_last_sentences_in_naacl_form_need_no_links(tmp_path):
    actual = read_alignments(write(tmp_path, "2 1 1\n"), lengths=[(1, 1)] * 4).alignments
    assert [len(one.sure) for one in actual] == [0, 1, 0, 0]
    assert len(read_alignments(write(tmp_path, "2 1 1\n")).alignments) == 2


@pytest.mark.parametrize(
    ("text", "unnamed"), [("2 1 1\n", {0, 2, 3}), ("1 0 1\n4 1 1\n", {1, 2}), ("4 1 1\n", {0, 1, 2})]
)
def test_sentences_without_a_line_in_naacl_form_are_listed(tmp_path, text, unnamed):
    """A line with a null link, to word 0, still names its sentence."""
    assert read_alignments(write(tmp_path, text), lengths=[(1, 1)] * 4).unnamed == unnamed
    assert not read_alignments(write(tmp_path, "0-0\n\n\n0-0\n"), lengths=[(1, 1)] * 4).unnamed


@pytest.mark.parametrize("text", ["0-0\n7-9\n0-0\n", "1 1 1\n2 8 10\n3 1 1\n"])
def test_links_of_a_sentence_of_unknown_length_are_not_checked(tmp_path, text):
    actual = read_alignments(write(tmp_path, text), lengths=[(1, 1), None, (1, 1)]).alignments
    assert actual[1].sure == {(7, 9)}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"form": "giza"}, "one of naacl, pharaoh, talp"),
        ({"first": 2}, "0 or 1"),
        ({"form": "naacl", "first": 0}, "0 is the null word"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, words):
    with pytest.raises(OptionError, match=words):
        read_alignments(write(tmp_path, "1 1 1\n" if "naacl" in options.values() else "0-0\n"), **options)


@pytest.mark.parametrize(
    ("form", "text"), [("pharaoh", "\n0-0\n"), ("talp", "1-1\n1p2"), ("naacl", "\n1 2 1\n"), ("pharaoh", "\n")]
)
def test_form_is_recognized_by_the_lines(tmp_path, form, text):
    assert read_alignments(write(tmp_path, text)).form == form
    assert form in FORMS


# The error rate


def test_the_error_rate_by_hand():
    """Four predicted links: two sure, one possible, one wrong; one sure link is missing."""
    gold = make_alignments((0, 0), (1, 1), (2, 2), possible=[(2, 3)])
    actual = alignment_scores([make_alignments((0, 0), (1, 1), (2, 3), (0, 4))], [gold])
    assert (actual.precision, actual.recall) == (3 / 4, 2 / 3)
    assert actual.error_rate == pytest.approx(1 - (2 + 3) / (4 + 3))
    assert (actual.sentences, actual.links, actual.sure) == (1, 4, 3)


@given(pairs=st.lists(st.tuples(ALIGNMENTS, ALIGNMENTS), min_size=1, max_size=5))
def test_the_error_rate_by_its_definition(pairs):
    """Och and Ney 2003, section 6, over all links of a corpus, with their sentence numbers."""
    actual, gold = [one for one, _ in pairs], [one for _, one in pairs]
    a = {(n, link) for n, one in enumerate(actual) for link in one.possible}
    s = {(n, link) for n, one in enumerate(gold) for link in one.sure}
    p = {(n, link) for n, one in enumerate(gold) for link in one.possible}
    scores = alignment_scores(actual, gold)
    if a:
        assert scores.precision == len(a & p) / len(a)
    if s:
        assert scores.recall == len(a & s) / len(s)
    if a or s:
        assert scores.error_rate == 1 - (len(a & s) + len(a & p)) / (len(a) + len(s))
    seen_from_the_target = alignment_scores([one.reversed for one in actual], [one.reversed for one in gold])
    assert seen_from_the_target == scores


@given(gold=st.lists(ALIGNMENTS, min_size=1, max_size=5))
def test_sure_links_alone_have_an_error_rate_of_0(gold):
    scores = alignment_scores([Alignment(one.sure) for one in gold], gold)
    assert (scores.error_rate, scores.precision, scores.recall) == (0, 1, 1)


def test_error_rate_is_computed_from_sums_over_the_corpus():
    gold = [make_alignments((0, 0)), make_alignments((0, 0), (1, 1), (2, 2))]
    scores = alignment_scores([make_alignments(), gold[1]], gold)
    assert (scores.precision, scores.recall, scores.error_rate) == (1, 3 / 4, pytest.approx(1 / 7))


def test_different_numbers_of_sentences_are_refused():
    with pytest.raises(DataError, match=r"expected: 2 sentences[\s\S]*got: +3 sentences"):
        alignment_scores([make_alignments()] * 3, [make_alignments()] * 2)


# Links from weights


def test_each_target_word_is_linked_to_its_strongest_source_word():
    weights = torch.tensor([[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.5, 0.5, 0.0], [0.0, 0.0, 0.0]])
    assert links(weights) == make_alignments((1, 0), (2, 1), (0, 2))
    assert links(weights, threshold=0.4) == make_alignments((1, 0), (0, 2))
    assert links(weights, threshold=0.7) == make_alignments()


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_no_words_give_no_links(shape):
    assert links(torch.zeros(shape)) == make_alignments()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_weights_are_refused(value):
    with pytest.raises(DataError, match="finite"):
        links(torch.tensor([[0.5, value]]))


def word_weights_in_loops(weights, target_words, source_words):
    """Word weights (Clark et al. 2019, section 4.1): the sum over key tokens, and the mean over query tokens."""
    counts = [max((one for one in words if one is not None), default=-1) + 1 for words in (target_words, source_words)]
    result = np.zeros(counts)
    for i in range(counts[0]):
        rows = [row for row, word in enumerate(target_words) if word == i]
        for j in range(counts[1]):
            sums = [sum(weights[row, c] for c, word in enumerate(source_words) if word == j) for row in rows]
            result[i, j] = np.mean(sums) if sums else 0
    return result


MEMBERS = st.lists(st.none() | st.integers(0, 4), max_size=7)


@given(target_words=MEMBERS, source_words=MEMBERS, seed=st.integers(0, 99))
def test_word_weights_agree_with_the_definition(target_words, source_words, seed):
    weights = np.random.default_rng(seed).random((len(target_words), len(source_words)))
    actual = word_weights(torch.from_numpy(weights), target_words, source_words)
    np.testing.assert_allclose(
        actual.numpy(), word_weights_in_loops(weights, target_words, source_words), rtol=0, atol=1e-12
    )


def test_word_weights_sum_to_1_if_every_token_has_a_word():
    weights = torch.rand(5, 7, generator=torch.Generator().manual_seed(3)).softmax(dim=1)
    actual = word_weights(weights, [0, 0, 1, 2, 2], [0, 1, 1, 1, 2, 3, 3])
    torch.testing.assert_close(actual.sum(dim=1), torch.ones(3))


def test_tokens_without_a_word_are_excluded():
    """The end of a sentence gets much weight, but is not a word."""
    weights = torch.tensor([[0.3, 0.1, 0.6], [0.1, 0.2, 0.7]])
    assert links(word_weights(weights, [0, 1], [0, 1, None])) == make_alignments((0, 0), (1, 1))


@pytest.mark.parametrize("words", [([0], [0, 1]), ([0, 1], [0]), ([0, 1, 1], [0, 1])])
def test_wrong_number_of_word_indices_is_refused(words):
    with pytest.raises(ShapeError, match=r"\(2, 2\)"):
        word_weights(torch.zeros(2, 2), *words)


def test_negative_word_indices_are_refused():
    with pytest.raises(OptionError, match="-1"):
        word_weights(torch.zeros(2, 1), [0, -1], [0])


# Symmetrization


def grow_diag_final_and(forward, backward, sources, targets):
    """Koehn et al. 2005, figure 1, on matrices (target, source), transcribed from the figure."""
    steps = [(-1, 0), (0, -1), (1, 0), (0, 1), (-1, -1), (-1, 1), (1, -1), (1, 1)]
    first, second = np.zeros((targets, sources), bool), np.zeros((targets, sources), bool)
    for matrix, given_links in ((first, forward), (second, backward)):
        for source, target in given_links:
            matrix[target, source] = True
    union, out = first | second, first & second
    while True:
        added = False
        for e in range(targets):
            for f in range(sources):
                if not out[e, f]:
                    continue
                for i, j in steps:
                    if not (0 <= e + i < targets and 0 <= f + j < sources) or out[e + i, f + j]:
                        continue
                    free = not out[e + i].any() or not out[:, f + j].any()
                    if free and union[e + i, f + j]:
                        out[e + i, f + j] = added = True
        if not added:
            break
    for matrix in (first, second):
        for e in range(targets):
            for f in range(sources):
                if matrix[e, f] and not out[e].any() and not out[:, f].any():
                    out[e, f] = True
    return {(int(f), int(e)) for e, f in zip(*out.nonzero(), strict=True)}


@given(forward=LINKS, backward=LINKS)
def test_grow_diag_final_and_agrees_with_the_paper(forward, backward):
    actual = symmetrized(Alignment(forward), Alignment(backward), how="grow-diag-final-and")
    assert actual.sure == actual.possible == grow_diag_final_and(forward, backward, 7, 5)


@given(forward=LINKS, backward=LINKS)
def test_grow_diag_final_and_is_between_intersection_and_union(forward, backward):
    directions = Alignment(forward), Alignment(backward)
    both, either, grown = (symmetrized(*directions, how=how).sure for how in SYMMETRIZATIONS)
    assert (both, either) == (forward & backward, forward | backward)
    assert both <= grown <= either
    assert {source for source, _ in grown} >= {source for source, _ in both}


@given(one=LINKS)
def test_equal_directions_are_returned_unchanged(one):
    for how in SYMMETRIZATIONS:
        assert symmetrized(Alignment(one), Alignment(one), how=how) == Alignment(one)


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        ([(0, 0), (1, 1)], [(0, 0)], [(0, 0), (1, 1)]),  # a diagonal neighbour
        ([(0, 0), (1, 0)], [(0, 0), (0, 1)], [(0, 0), (1, 0), (0, 1)]),  # neighbours; a word has no link yet
        ([(0, 0), (3, 3)], [(0, 0)], [(0, 0), (3, 3)]),  # far away: both words have no link
        ([(0, 0), (3, 0)], [(0, 0)], [(0, 0)]),  # far away: one word has a link
        ([(0, 0), (1, 1), (0, 1)], [(0, 0), (1, 1)], [(0, 0), (1, 1)]),  # a neighbour whose words both have a link
        ([(2, 2)], [(0, 0)], [(2, 2), (0, 0)]),  # disjoint
    ],
)
def test_grow_diag_final_and_by_hand(forward, backward, expected):
    assert symmetrized(
        make_alignments(*forward), make_alignments(*backward), how="grow-diag-final-and"
    ) == make_alignments(*expected)


def test_unknown_symmetrization_is_refused():
    with pytest.raises(OptionError, match="did you mean 'union'"):
        symmetrized(make_alignments(), make_alignments(), how="onion")


# Words that are split into parts


def test_parts_are_linked_in_order():
    """Delete <a href="x"> and <b>: each tag is a word of the model, and the first has two parts."""
    words = make_alignments((0, 0), (1, 1), (3, 2), possible=[(2, 1)])
    assert expand_links(words, [1, 2, 1, 1], [1, 2, 1]) == make_alignments(
        (0, 0), (1, 1), (2, 2), (4, 3), possible=[(3, 1), (3, 2)]
    )


def test_surplus_parts_are_linked_to_the_last_one():
    assert expand_links(make_alignments((0, 0)), [2], [3]) == make_alignments((0, 0), (1, 1), (1, 2))
    assert expand_links(make_alignments((0, 0)), [3], [2]) == make_alignments((0, 0), (1, 1))


def test_a_word_without_parts_has_no_links():
    assert expand_links(make_alignments((0, 0), (1, 1)), [0, 1], [1, 1]) == make_alignments((0, 1))
    assert expand_links(make_alignments((0, 0), (1, 1)), [1, 1], [0, 1]) == make_alignments((1, 0))


@given(ALIGNMENTS)
def test_words_of_one_part_are_unchanged(alignment):
    assert expand_links(alignment, [1] * 7, [1] * 5) == alignment


@given(
    ALIGNMENTS, st.lists(st.integers(0, 3), min_size=7, max_size=7), st.lists(st.integers(0, 3), min_size=5, max_size=5)
)
def test_expanded_links_are_within_the_texts(alignment, sources, targets):
    actual = expand_links(alignment, sources, targets)
    assert all(source < sum(sources) and target < sum(targets) for source, target in actual.possible)
    linked = {target for source, target in alignment.possible if sources[source]}
    assert len({target for _, target in actual.possible}) == sum(targets[target] for target in linked)
