"""Arguments that are marked in a message: how a reader in Python sees them, and how a called function's are renamed."""

from __future__ import annotations

import pytest

from regard.errors import OptionError, renamed_arguments
from regard.marked_arguments import rename_arguments, without_marks


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("`resume=True` continues it", "resume=True continues it"),
        ("raise `most_tokens` or", "raise most_tokens or"),
        ("`source=\"en\", target='fr'`; or `Greedy()`", "source=\"en\", target='fr'; or Greedy()"),
        ('`columns=("a (b)", "c")` or `columns=(2, 1)`', 'columns=("a (b)", "c") or columns=(2, 1)'),
        ("the columns (`columns=...`)", "the columns (columns=...)"),
        ("a grave ` alone, `two words`, `a.b`, `f(*x)`, `**x`, ``code``", None),
        ("`a=1\n`", None),
        ("`" + "(" * 4000 + "`", None),
    ],
)
def test_a_reader_in_python_sees_arguments_without_marks_and_all_else_as_it_is(message, plain):
    assert without_marks(message) == (message if plain is None else plain)


def test_an_error_in_python_leaves_the_users_value_as_it_is():
    error = OptionError("`lora` is wrong", expected="`lora=8`", got="`lora=x`", do="leave out `lora=...`")
    assert str(error).split("\n") == [
        "lora is wrong",
        "  expected: lora=8",
        "  got:      `lora=x`",
        "  to do:    leave out lora=...",
    ]


def test_marked_arguments_get_the_names_of_the_caller():
    names = {"form": "gold_format", "first": "gold_first"}
    message = "`form='talp'`, `first`, `first=1, form=...`, `uniform=1`, form and `start=first`"
    assert rename_arguments(message, names) == (
        "`gold_format='talp'`, `gold_first`, `gold_first=1, gold_format=...`, `uniform=1`, form and `start=first`"
    )


def test_errors_of_a_called_function_name_the_callers_arguments():
    with pytest.raises(OptionError) as raised, renamed_arguments(size="vocabulary"):
        raise OptionError("`size` is small", expected="`size=9`", got="`size=3`", do="pass `size=9`")
    assert (raised.value.what, raised.value.expected, raised.value.got, raised.value.do) == (
        "`vocabulary` is small", "`vocabulary=9`", "`size=3`", "pass `vocabulary=9`",
    )  # fmt: skip
