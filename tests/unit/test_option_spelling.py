"""Messages give an option in both spellings; a reader sees one of them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import regard
from regard.errors import OptionError
from regard.option_spelling import spell_for_python, spell_for_shell

SOURCE = Path(regard.__file__).parent

MESSAGES = [
    ("resume=True (--resume) continues it", "resume=True continues it", "--resume continues it"),
    ("raise most_tokens (--most-tokens) or", "raise most_tokens or", "raise --most-tokens or"),
    ('start="minilm" (--from minilm)', 'start="minilm"', "--from minilm"),
    ("size='tiny two' (--size 'tiny two')", "size='tiny two'", "--size 'tiny two'"),
    ('columns=("a (b)", "c") (--columns "a (b),c")', 'columns=("a (b)", "c")', '--columns "a (b),c"'),
    ('both: source="en", target="fr" (--source en --target fr)', 'both: source="en", target="fr"',
     "both: --source en --target fr"),
    ("for 0 use Greedy() (--greedy)", "for 0 use Greedy()", "for 0 use --greedy"),
    ("the columns of the table (--columns)", "the columns of the table", "the columns of the table (--columns)"),
    ("the name of the field (--field)", "the name of the field", "the name of the field (--field)"),
    ("an output folder (--out)", "an output folder", "an output folder (--out)"),
    ("validation=... (--valid); columns=... (--columns)", "validation=...; columns=...", "--valid; --columns"),
    ("a set (of words) and f(x) = 2", "a set (of words) and f(x) = 2", "a set (of words) and f(x) = 2"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "python", "shell"), MESSAGES)
def test_each_reader_sees_one_spelling(message, python, shell):
    assert (spell_for_python(message), spell_for_shell(message)) == (python, shell)


def test_an_error_in_python_names_the_argument_and_leaves_the_users_value_as_it_is():
    error = OptionError(
        "lora (--lora) is wrong", expected="lora=8 (--lora 8)", got="x (--lora)", do="leave out lora=... (--lora)"
    )
    assert str(error).split("\n") == [
        "lora is wrong",
        "  expected: lora=8",
        "  got:      x (--lora)",
        "  to do:    leave out lora=...",
    ]


def text_of(node: ast.AST) -> str | None:
    """The text of a string constant or of an f-string, with WORD for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(one.value) if isinstance(one, ast.Constant) else "WORD" for one in node.values)
    return None


def messages_with_options() -> list[tuple[str, str]]:
    """Every string of the package with an option in parentheses: its place and text, without docstrings and help."""
    found = []
    for module in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(module.read_text(encoding="utf-8"))
        inner = {id(one) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for one in node.values}
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            text = None if id(node) in inner | docstrings else text_of(node)
            if text is not None and "(--" in text and "[bold]" not in text:
                found.append((f"{module.relative_to(SOURCE)}:{node.lineno}", text))
    return found


def test_no_message_of_the_package_has_both_spellings_for_a_reader():
    messages = messages_with_options()
    in_shell = {place: spell_for_shell(text) for place, text in messages}
    assert {place: text for place, text in in_shell.items() if re.search(r"(=|\w_\w+|\(\)) ?\(--", text)} == {}
    in_python = {place: spell_for_python(text) for place, text in messages}
    # Commands of the shell, such as "regard train mlm --from MODEL", are advice in Python too.
    assert {place: text for place, text in in_python.items() if "--" in text and "regard " not in text} == {}
