"""Arguments of messages as options of the command that runs."""

from __future__ import annotations

import pytest
import typer

from regard.cli.app import app
from regard.cli.argument_options import Spelling, spell_for_shell, spell_help, use_options_of

OPTIONS = {
    "resume": Spelling("--resume", is_switch=True),
    "flip": Spelling("--flip", "--no-flip", is_switch=True),
    "start": Spelling("--from"),
    "where_columns": Spelling("--columns"),
    "settings_schedule_name": Spelling("--schedule"),
    "settings_schedule_peak": Spelling("--rate"),
    "environments": Spelling("--task", is_repeated=True),
    "hyperparameters": Spelling("--set", is_repeated=True),
    "greedy": Spelling("--greedy", is_switch=True),
    "most_tokens": Spelling("--most-tokens"),
}


@pytest.mark.parametrize(
    ("message", "in_shell"),
    [
        ("`resume=True` continues it", "--resume continues it"),
        ("`flip=False`, `flip=True`, `flip`", "--no-flip, --flip, --flip"),
        ("name it: `start='t5/'` or `start=...`", "name it: --from t5/ or --from"),
        ("`start='two words'`", "--from 'two words'"),
        ('`columns=("a (b)", "c")` or `columns=(2, 1)`', "--columns 'a (b),c' or --columns 2,1"),
        ('`columns=("...", "...")`', "--columns"),
        ("`peak=0.5`, `schedule='cosine'`", "--rate 0.5, --schedule cosine"),
        ('`environments=("a-v1", "b-v1")`', "--task a-v1 --task b-v1"),
        ('`hyperparameters={"layers": 4, "width": ...}`', "--set layers=4 --set width=..."),
        ("for 0 use `Greedy()`", "for 0 use --greedy"),
        ("`most_tokens=512, resume=True`", "--most-tokens 512 --resume"),
        ("`unknown=3` and `resume=True, unknown=3`", "unknown=3 and resume=True, unknown=3"),
        ("`start=Path('a')`", "--from"),
        ("`not an argument`", "`not an argument`"),
    ],
)
def test_arguments_become_options_where_the_command_has_them(message, in_shell):
    assert spell_for_shell(message, OPTIONS) == in_shell


def test_a_help_text_names_options_of_other_groups_by_the_argument():
    assert spell_help("ends with `num_steps`; with `start=...`", OPTIONS) == "ends with --num-steps; with --from"


def test_the_options_are_those_of_the_running_command():
    translate = typer.main.get_command(app).commands["train"].commands["translate"]
    use_options_of(translate.params)
    assert spell_for_shell("`validation=...`, `precision='float32'`, `truncate=True`") == (
        "--valid, --dtype float32, truncate=True"
    )
    use_options_of(typer.main.get_command(app).commands["embed"].params)
    assert spell_for_shell("`validation=...`, `form='npy'`, `truncate=True`") == (
        "validation=..., --format npy, --truncate"
    )
