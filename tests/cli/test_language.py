"""The command in Chinese: by ``--lang`` or by the environment, in help, in errors of usage and in messages."""

import re

import pytest
import typer

from regard.cli.app import app
from regard.cli.help_language import find_language
from regard.language import translate_message, use_language


@pytest.mark.parametrize(
    "arguments",
    [
        ["--lang", "zh", "view", "--help"],
        ["view", "--help", "--lang=zh"],
        ["train", "--lang", "zh", "classify", "--help"],
        ["--lang", "zh", "evaluate", "--help"],
    ],
)
def test_help_is_chinese_and_complete(run_here, arguments):
    result = run_here(*arguments)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert lines[1].lstrip().startswith("用法：regard ")
    assert not [line for line in lines if "…" in re.sub(r"--[\w-]+…", "", line)], "rich cut off a sentence"
    assert not [line for line in lines if re.match(r"[\s│]*[，。：；、！？）]", line)], "a line begins with a comma"


def test_the_environment_chooses_the_language(run_here, monkeypatch):
    monkeypatch.setenv("LANGUAGE", "zh_CN:en")
    assert "显示此帮助并退出。" in run_here("embed", "--help").stdout
    assert "Show this message and exit." in run_here("--lang", "en", "embed", "--help").stdout


def test_every_command_takes_the_language_and_the_last_one_counts(run_here):
    commands = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
        (option,) = [parameter for parameter in command.params if "--lang" in parameter.opts]
        assert not option.expose_value, command.name
    assert len(commands) > 20
    assert find_language(["--lang", "zh", "embed", "x", "--lang=en"]) == "en"
    assert find_language(["embed", "--lang", "zh", "--", "--lang", "en"]) == "zh"
    result = run_here("embed", "x", "--lang", "zh", "--dtype", "float33")
    assert (result.returncode, "未知的数值精度 'float33'" in result.stderr) == (2, True), result.stderr


def test_errors_of_usage(run_here):
    result = run_here("--lang", "zh", "embed", "--batch-tokens", "3")
    assert result.returncode == 2
    assert "没有选项 --batch-tokens（可能的选项：--batch, --tokens）" in result.stderr
    assert "错误" in result.stderr
    assert "No such option: --batch-tokens" in run_here("embed", "--batch-tokens", "3").stderr


def test_a_folder_with_the_name_of_a_noun_keeps_it(run_here, tmp_path):
    (tmp_path / "model").mkdir()
    result = run_here("--lang", "zh", "embed", "x", "--model", "model/")
    assert result.returncode == 4, result.stderr
    assert "model" in result.stderr
    assert "：模型" not in result.stderr
    with use_language("zh", own_words=["model"]):
        assert translate_message("model already exists") == "model 已存在"
    with use_language("zh"):
        assert translate_message("model already exists") == "模型已存在"


def test_an_unknown_language_is_refused(run_here):
    result = run_here("--lang", "fr", "view", "x")
    assert (result.returncode, "unknown language 'fr'" in result.stderr) == (2, True)
