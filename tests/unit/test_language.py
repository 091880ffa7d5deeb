"""``regard.language``: the language in use, and finished sentences found again among templates."""

from __future__ import annotations

import pytest

from regard import language
from regard.errors import OptionError
from regard.language import language_in_use, translate, translate_message, use_language

CATALOGUE = {
    "{head} looks at {token}": "{head} 关注 {token}",
    "wrong {0}": "{0} 有误",
    "free some disk space": "请释放一些磁盘空间",
    "at most {0} of {1}": "{1} 中最多 {0} 个",
    "a {0}": "一个 {0}",
    "`window={0}` is too large": "`window={0}` 过大",
    "no {0} in {1}": "{1}中没有 {0}",
    "disk": "磁盘",
    "disk space": "磁盘空间",
    "{0} is right": "{0} 是正确的",
}


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(language, "read_catalogue", lambda name, parts: CATALOGUE)
    language._patterns.cache_clear()
    language._translate_message.cache_clear()
    with use_language("zh"):
        yield
    language._patterns.cache_clear()
    language._translate_message.cache_clear()


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "C", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LC_ALL": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "zh"),
    ],
)
def test_environment(monkeypatch, variables, expected):
    for name in ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert language_in_use() == expected
    with use_language("zh"), use_language(None), use_language("en"):
        assert language_in_use() == "en"


def test_unknown_language_is_refused():
    with pytest.raises(OptionError, match="unknown language 'fr'"), use_language("fr"):
        pass


def test_english_stays_as_the_code_has_it(monkeypatch):
    monkeypatch.setattr(language, "read_catalogue", lambda name, parts: pytest.fail("English reads no catalogue"))
    with use_language("en"):
        assert translate("{head} looks at {token}", head="Head 1", token="{x}") == "Head 1 looks at {x}"
        assert translate_message("wrong width") == "wrong width"


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("wrong width", "width 有误"),
        ("at most 3 of 5", "5 中最多 3 个"),
        ("free some disk space; run it again", "free some disk space; run it again"),
        ("a dog", "一个 dog"),
        ("wrong a: b.txt", "a: b.txt 有误"),
        ("wrong a dog", "a dog 有误"),
        ("wrong width; free some disk space", "width 有误；请释放一些磁盘空间"),
        ("`size=7` is too large", "`size=7` 过大"),
        ("no template fits", "no template fits"),
        ("wrong x\nwrong y", "x 有误\ny 有误"),
        ("no disk space in disk", "磁盘中没有磁盘空间"),
        ("no x in y", "y 中没有 x"),
        ("x is right; free some disk space", "x 是正确的；请释放一些磁盘空间"),
    ],
)
def test_messages(message, expected):
    assert translate_message(message) == expected


@pytest.mark.usefixtures("chinese")
def test_values_are_no_templates():
    assert translate("{head} looks at {token}", head="a dog", token="{head}") == "a dog 关注 {head}"
    assert translate_message("a dog", is_value=True) == "a dog"
