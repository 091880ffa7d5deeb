"""Texts from arguments, files and pipes: all commands that read texts report a mistake in the same way."""

from __future__ import annotations

import re

import pytest
import typer
from typer.testing import CliRunner

from regard.cli import text_input, view_texts
from regard.cli.app import app
from regard.cli.text_input import open_texts
from regard.errors import CheckpointError, DataError, OptionError, OutputError, OutputExistsError
from regard.text import table_rows
from shell_command import shell_message

VERBS = [("view",), ("embed",), ("translate", "--model", "none")]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("two\n")
    return tmp_path


def refusal_message(*arguments):
    """Return the command's error message, which comes before a model is loaded: no model exists."""
    result = CliRunner().invoke(app, list(arguments))
    assert isinstance(result.exception, OptionError), result.output
    return shell_message(result.exception)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["text", "--data", "a.txt"], "texts are given as arguments and as a file"),
        (["text", "--field", "text"], "--field only applies to JSON lines and tables"),
        (["--data", "a.txt", "--data", "b.txt"], "--data is given twice"),
        (["--data=a.txt", "--data", "b.txt", "--data", "a.txt"], "--data is given 3 times"),
    ],
)
def test_all_commands_report_the_same_message(verb, arguments, message):
    assert message in refusal_message(*verb, *arguments)


@pytest.mark.parametrize("verb", [*VERBS[:2], ("classify", "--model", "none")], ids=lambda verb: verb[0])
def test_the_column_of_a_table_is_chosen_alike_by_all_commands(folder, verb, monkeypatch, capsys):
    """Without --field the column of a usual name is read, and reported; it is refused if it is ambiguous."""
    for name, content in (("a.csv", "id,text\n1,one\n"), ("b.csv", "1,one,two\n2,three,four\n")):
        (folder / name).write_text(content)
    with open_texts([], "a.csv", None) as lines:
        assert [line.text for line in lines] == ["one"]
    assert capsys.readouterr().err == "a.csv: 'text', in the first row, is the name of the column\n"
    monkeypatch.setattr("regard.cli.classify.load_classifier", lambda *_: None)
    result = CliRunner().invoke(app, [*verb, "--data", "b.csv"])
    assert isinstance(result.exception, DataError), result.output
    assert "ambiguous which column of b.csv holds the text" in str(result.exception)
    assert "'1' (numbers), 'one' (texts), 'two' (texts)" in str(result.exception)


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("a.csv", '\ufeffid,Text\r\n7,"two\nlines, one text"\r\n\r\n8,last\r\n', "text"),
        ("a.csv", '"two\nlines, one text",7\nlast,8\n', "1"),
        ("a.csv", 'text;2\n7;"two\nlines, one text"\n8;last\n', "2"),
        ("a.csv", 'id,text\n7,"two\nlines, one text"\n8,last\n', "2"),
    ],
    ids=["by name", "by number", "a number that is a name", "a number and a header"],
)
def test_texts_of_a_column(folder, name, content, field):
    (folder / name).write_text(content, encoding="utf-8", newline="")
    with open_texts([], name, field) as lines:
        found = list(lines)
    assert [line.text for line in found] == ["two\nlines, one text", "last"]
    begin = 1 if content[0] == '"' else 2
    assert [line.number for line in found] == [begin, begin + 2 + content.count("\n\r\n")]
    assert [line.name for line in found] == [f"line {line.number} of a.csv" for line in found]


def test_rows_without_the_column_have_a_problem(folder):
    (folder / "a.tsv").write_bytes(b'id\ttext\n7\t\xff\n8\n9\tlast "quote\n')
    with open_texts([], "a.tsv", "text") as lines:
        first, second, third = lines
    assert [str(one.problem and one.problem.what) for one in (first, second, third)] == [
        "line 2 of a.tsv is not UTF-8",
        "line 3 of a.tsv has fewer than 2 columns",
        "None",
    ]
    assert third.text == 'last "quote'


@pytest.mark.parametrize(
    ("content", "field", "note"),
    [
        ("id,abstract\n1,one\n", "2", "a.csv: 'abstract', in the first row, is the name of the column"),
        ("it,all\nof,one\n", "2", "a.csv: 'all', in the first row, is a text"),
        ("id,review\n1,one\n", "2", "a.csv: 'review', in the first row, is the name of the column"),
        ("id,review\n1,one\n", "review", ""),
        ("2,review\n1,one\n", "2", ""),
    ],
)
def test_it_is_reported_what_the_first_row_is(folder, capsys, content, field, note):
    (folder / "a.csv").write_text(content)
    with open_texts([], "a.csv", field) as lines:
        assert len(list(lines)) == 1 + note.endswith("a text")
    assert capsys.readouterr().err.strip() == note


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_blank_lines_of_a_table_are_left_out(folder, suffix):
    (folder / f"a{suffix}").write_text("text\n\none\n\n\ntwo\n\n")
    with open_texts([], f"a{suffix}", "text") as lines:
        assert [(line.number, line.text) for line in lines] == [(3, "one"), (6, "two")]


def test_a_stray_quote_costs_its_own_line_alone(folder):
    rows = [f'{number},"the cat' if number == 10 else f"{number},the cat" for number in range(1, 31)]
    (folder / "a.csv").write_text("id,text\n" + "\n".join(rows) + '\n31,"a\nb"\n')
    with open_texts([], "a.csv", "text") as lines:
        found = list(lines)
    assert [line.number for line in found] == [*range(2, 33)]
    (stray,) = [line for line in found if line.problem is not None]
    assert stray.number == 11
    assert "line 11 of a.csv is not valid CSV" in stray.problem.what
    assert found[-1].text == "a\nb"


@pytest.mark.parametrize("rows", [2_000, 20_000])
def test_rows_that_never_end_are_read_again_within_a_bound(folder, monkeypatch, rows):
    """Each line closes a quote and opens the next, so that every row goes on to the end of the file."""
    monkeypatch.setattr(table_rows, "_MAX_BYTES_AGAIN", 2**17)
    (folder / "a.csv").write_text("id,text\n" + 'a","b\n' * rows)
    with open_texts([], "a.csv", "text") as lines:
        found = list(lines)
    assert len(found) < 50
    assert all(line.problem is not None for line in found)
    assert f"with {rows - found[-1].number + 1:,} lines after it" in found[-1].problem.what


def test_the_header_belongs_to_the_input_that_is_resumed(folder):
    hashes = []
    for header in ("note,text", "text,note"):
        (folder / "a.csv").write_text(f"{header}\n1,2\n\n3,4\n")
        with open_texts([], "a.csv", "text") as lines:
            hashes.append([line.raw for line in lines])
    assert hashes[0] == [b"note,text\n1,2\n", b"\n3,4\n"]
    assert hashes[1] == [b"text,note\n1,2\n", b"\n3,4\n"]


def test_blank_lines_before_a_header(folder):
    (folder / "a.csv").write_text("\n\nid,text\n1,hello\n")
    for field in ("text", "2"):
        with open_texts([], "a.csv", field) as lines:
            assert [line.text for line in lines] == ["hello"]
    with open_texts([], "a.csv", None) as lines:
        assert [line.text for line in lines] == ["hello"]


def test_line_ends_within_a_cell_are_kept(folder):
    (folder / "a.csv").write_bytes(b'id,text\r\n1,"x\r\ny"\r\n2,"x\ny"\r\n')
    with open_texts([], "a.csv", "text") as lines:
        assert [line.text for line in lines] == ["x\r\ny", "x\ny"]


def test_a_line_that_is_not_utf8_keeps_its_quotes(folder):
    (folder / "a.csv").write_bytes(b'text,id\n"caf\xe9,\nmore",2\nfine,3\n')
    with open_texts([], "a.csv", "text") as lines:
        broken, fine = lines
    assert broken.problem.what == "line 2 of a.csv is not UTF-8"
    assert (fine.number, fine.text) == (4, "fine")


@pytest.mark.parametrize("field", ["body", "0", "3", "-1", "9" * 5000, "٣"])
def test_a_table_without_the_column_is_refused(folder, field):
    (folder / "a.csv").write_text("id,text\n1,one\n")
    with pytest.raises(DataError, match=r"no column(.|\n)*'id', 'text'"), open_texts([], "a.csv", field) as lines:
        list(lines)


@pytest.mark.parametrize("verb", VERBS[:2], ids=lambda verb: verb[0])
def test_terminal_as_standard_input_without_text(verb, monkeypatch):
    monkeypatch.setattr(text_input, "is_stdin_terminal", lambda: True)
    assert "there is no text" in refusal_message(*verb)
    assert "there is no text" in refusal_message(*verb, "--field", "text")


@pytest.mark.parametrize("verb", ["generate", "classify", "translate"])
@pytest.mark.parametrize("out", ["a.txt", "./b/../a.txt", "link.txt"])
def test_the_input_is_never_replaced(folder, verb, out):
    (folder / "b").mkdir()
    (folder / "link.txt").symlink_to("a.txt")
    result = CliRunner().invoke(app, [verb, "--model", "none", "--data", "a.txt", "--out", out, "--overwrite"])
    assert isinstance(result.exception, OutputError), result.output
    assert "is the input, which the output would replace" in shell_message(result.exception)
    assert (folder / "a.txt").read_text() == "one\n"


def test_repeatable_options_may_be_repeated():
    options = ["--source", "a", "--source", "b", "--overwrite", "--overwrite", "--out", "x", "--out", "x.html"]
    result = CliRunner().invoke(app, ["view", "none", *options])
    assert isinstance(result.exception, CheckpointError), result.output


def test_unexpected_arguments_are_refused():
    assert "unexpected argument spare" in refusal_message("list", "spare")
    assert "--data train.de --data train.en" in refusal_message("train", "translate", "--data", "a", "b", "--out", "m")


def test_json_lines_from_standard_input(monkeypatch, folder):
    (folder / "in.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    with (folder / "in.jsonl").open("rb") as file:
        monkeypatch.setattr("regard.text.line_reader._open_standard_input", lambda: file)
        with open_texts([], None, "text") as lines:
            assert [line.text for line in lines] == ["one", "two"]


def test_view_refuses_too_many_texts_before_the_model_is_loaded(folder, monkeypatch):
    (folder / "many.txt").write_text("one two\n\n" * (view_texts.MAX_TEXTS + 1))
    message = refusal_message("view", "--data", "many.txt", "--model", "none")
    assert "at most 200" in message
    assert "view some of them: head -n 20 many.txt | regard view; or what each head does on all of them" in message
    assert "or embed them: regard embed --data many.txt" in message
    (folder / "many.csv").write_text("text\n" + "one two\n" * (view_texts.MAX_TEXTS + 1))
    message = refusal_message("view", "--data", "many.csv", "--field", "text", "--model", "none")
    assert "view some of them, from a file with fewer rows; or what each head does on all of them: --summary" in message
    (folder / "all.txt").write_text("one two\n\n" * view_texts.MAX_TEXTS)
    result = CliRunner().invoke(app, ["view", "--data", "all.txt", "--model", "no/such/model/here"])
    assert isinstance(result.exception, CheckpointError), result.output


@pytest.mark.parametrize(
    "verb",
    [["embed", "a", "-o", "x.npy"], ["train", "translate", "--data", "a.txt", "--out", "m"]],
    ids=lambda verb: verb[0],
)
def test_resume_and_overwrite_contradict_each_other(verb):
    assert "--resume and --overwrite contradict each other" in refusal_message(*verb, "--resume", "--overwrite")


def test_export_options_are_checked_before_the_model_is_loaded(folder):
    assert "unknown format 'pickle'" in refusal_message("export", "none", "--format", "pickle", "--out", "new")
    (folder / "old").mkdir()
    result = CliRunner().invoke(app, ["export", "none", "--format", "marian", "--out", "old"])
    assert isinstance(result.exception, OutputExistsError)


def test_file_of_blank_lines_is_refused(folder):
    (folder / "blank.txt").write_text("\n \n")
    result = CliRunner().invoke(app, ["view", "--data", "blank.txt"])
    assert isinstance(result.exception, DataError)
    assert "only blank lines" in shell_message(result.exception)


@pytest.mark.parametrize(
    "verb",
    [["view"], ["embed"], ["translate"], ["export"], ["list"], ["train"], ["train", "translate"], ["evaluate"],
     ["evaluate", "translate"], []],
    ids=" ".join,
)  # fmt: skip
def test_help_shows_no_python_types(verb):
    result = CliRunner(env={"COLUMNS": "100", "NO_COLOR": "1"}).invoke(app, [*verb, "--help"])
    assert result.exit_code == 0
    assert "--help" in result.output
    assert not re.search(r"bool|<(?:list|int|float|str)\b", result.output.lower())


def test_every_command_uses_the_project_command_classes():
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    assert {type(command).__name__ for command in commands} == {"VerbGroup", "TaskGroup", "Verb"}


@pytest.mark.parametrize("text", ["a.txt", "./a.txt"])
def test_a_path_as_a_text_is_reported(folder, capsys, text):
    with open_texts([text, "one.two"], None, None) as lines:
        assert [line.text for line in lines] == [text, "one.two"]
    assert capsys.readouterr().err == f"{text!r} is read as a text; the texts of the file: --data {text}\n"


def test_a_folder_as_a_text_is_reported_and_a_model_refused(folder, capsys):
    (folder / "num").mkdir()
    with open_texts(["num/", "num"], None, None):
        pass
    assert capsys.readouterr().err == "'num/' is read as a text; the texts in the folder: --data num/\n"
    (folder / "num" / "config.json").write_text("{}")
    with open_texts(["num"], None, None):  # a word
        pass
    for texts in (["num/"], ["3", "./num"]):
        with (
            pytest.raises(OptionError, match=r"num/? is a model's folder(.|\n)*--model"),
            open_texts(texts, None, None),
        ):
            pass
