"""Every example runs and prints the output on the page; every link, target and name on a page exists."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import typer

import regard
import regard.audio
import regard.bench
import regard.hf
import regard.tasks.classification
import regard.tasks.image_classification
import regard.tasks.language_modelling
import regard.tasks.translation
import regard.text
import regard.train
import regard.view
from cli_process import ENVIRONMENT, fork_command
from docs.field_pages import make_pages
from docs.pages import PAGES, READMES, ROOT, blocks, fence_problems, page_name
from regard.cli.app import app
from regard.errors import RegardError

EXECUTED_PAGES = [page for page in PAGES if page != READMES[1]]  # a test checks that its code equals that of the first
WITH_PYTHON = [page for page in EXECUTED_PAGES if blocks(page, "python")]
WITH_SHELL = [page for page in EXECUTED_PAGES if blocks(page, "sh")]
_GENERATED = ("speed", "results", "hyperparameters", "training-options")
"""Pages that repeat their notes for each machine or result."""
_LONG_PARAGRAPH = 60
_SHORTENED = ("clip", "translating")
_LONG_SHELL = (*_SHORTENED, "audio", "bench", "gato", "images", "language-models", "masked-language-models")
"""Pages whose commands train or measure for seconds. Those of ``_SHORTENED`` have a fast test with models of two steps;
the fast tests of the other commands are tests/cli/test_bench.py, test_generate_process.py, test_train_gato.py,
test_train_mlm_process.py, test_train_pictures_process.py, test_train_sharded_process.py (lm) and
test_train_sounds_process.py."""
PARTS_OF_MODELS = ("regard.models.perceiver_inputs", "regard.models.perceiver_outputs")
"""Packages whose public names are those of ``regard.models``."""
_LONG_PYTHON = ("bench", "export")
"""Pages whose code measures or compiles for seconds; tests/unit/bench and tests/unit/export test the same functions."""


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_fence_opens_or_closes_a_block(page):
    """Code behind an unbalanced fence would not be run."""
    assert fence_problems(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("```python\nx = 1\n```\n\n```text\n1\n```\n", []),
        ("x = 1\n```\n", ["line 2: ```"]),
        ("```python\nx = 1\n", ["line 1: not closed"]),
        ("```python\nx = 1\n```python\ny = 2\n```\n", ["line 3: ```python"]),
        ("```python\nx = 1\n```\n```\n", ["line 4: ```"]),
        ("```python run\nx = 1\n```\n", ["line 1: ```python run", "line 3: ```"]),
        ("- a\n  ```python\n  x = 1\n  ```\n", ["line 2:   ```python", "line 4:   ```"]),
    ],
)
def test_unbalanced_fences_are_found(text, problems):
    """Fences are at the beginning of a line, with a language alone: others would not be run."""
    assert fence_problems(text) == problems


@pytest.fixture
def restore_thread_count() -> Iterator[None]:
    """Restore torch's number of threads, which CTranslate2 sets too, on the export page."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in _LONG_PYTHON else []) for page in WITH_PYTHON],
    ids=page_name,
)
@pytest.mark.usefixtures("without_shape_checks", "restore_thread_count")
def test_python_examples_print_what_the_page_says(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    by_name = sys.modules["regard.mechanism_catalogue"]._BY_NAME
    monkeypatch.setattr(
        sys.modules["regard.mechanism_catalogue"], "_BY_NAME", dict(by_name)
    )  # a page may register a mechanism
    namespace = {"__name__": "__main__"}
    with torch.random.fork_rng():
        for block in blocks(page, "python"):
            out = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = [line.rstrip() for line in out.getvalue().splitlines()]
            assert printed == block.expected_lines, f"{page_name(page)}, line {block.line}"


@pytest.fixture(params=["fork", pytest.param("start", marks=pytest.mark.slow)])
def programs(request, tmp_path_factory):
    """Path on which the shell finds regard and python: forks, or in slow tests the installed programs."""
    installed = Path(sys.executable).parent
    if request.param == "start":
        return str(installed)
    folder = tmp_path_factory.mktemp("programs")
    for program in ("regard", "python"):
        (folder / program).write_text(f'#!/bin/sh\nexec {shlex.join(fork_command(program))} "$@"\n')
        (folder / program).chmod(0o755)
    return f"{folder}{os.pathsep}{installed}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem in _LONG_SHELL else []) for page in WITH_SHELL],
    ids=page_name,
)
def test_shell_examples_print_what_the_page_says(page, programs, tmp_path):
    for block in blocks(page, "sh"):
        printed = _run_in_shell(block.text, programs, tmp_path, f"{page_name(page)}, line {block.line}")
        if block.expected_output is not None:
            pattern = _output_pattern(block.expected_output)
            assert re.fullmatch(pattern, printed), f"{page_name(page)}, line {block.line} prints\n{printed}"


@pytest.mark.parametrize("page", [page for page in WITH_SHELL if page.stem in _SHORTENED], ids=page_name)
def test_shell_examples_run_with_models_of_two_steps(page, programs, tmp_path):
    """All commands of the page succeed; what they print is that of hardly trained models, so not that of the page."""
    for block in blocks(page, "sh"):
        short = re.sub(r"--steps \d+", "--steps 2", block.text)
        _run_in_shell(short, programs, tmp_path, f"{page_name(page)}, line {block.line}")


def _run_in_shell(text: str, programs: str, folder: Path, location: str) -> str:
    """Run the lines of a block, assert that they succeed, and return what they print."""
    environment = ENVIRONMENT | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
    }
    result = subprocess.run(
        ["bash", "-c", text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    printed = "\n".join(_lines(result.stdout))
    assert result.returncode == 0, f"{location}: {printed}"
    assert "Traceback" not in printed, location
    return printed


def _known_options(verb, words):
    """Return the options of a command; if it has a subcommand for each task, those of the task."""
    if hasattr(verb, "commands") and words:
        verb = verb.commands[words[0]]
    return {option for parameter in verb.params for option in parameter.opts} | {"--help"}


def _output_pattern(shown: str) -> str:
    """Convert expected output to a pattern: a line with only … matches any lines."""
    lines = [r"[^\0]*" if line.strip() == "…" else re.escape(line) for line in _lines(shown)]
    return r"\n".join(lines)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_no_two_pages_write_the_same_file():
    """Existing files are not replaced, so a reader could not follow two such pages in one folder."""
    written: dict[str, str] = {}
    for page in EXECUTED_PAGES:
        code = "\n".join(block.text for language in ("sh", "console") for block in blocks(page, language))
        outputs = re.findall(r"^(?:.*\| )?regard (?:view|embed|translate) .*(?:-o|--out) (\S+)", code, re.MULTILINE)
        for output in set(outputs):
            assert output not in written, f"{page_name(page)} and {written[output]} write {output}"
            written[output] = page_name(page)


def test_every_page_is_in_the_navigation():
    names = set(re.findall(r":\s+([\w-]+\.md)\s*$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert names == {page.name for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_targets_of_relative_links_exist(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset|href)="([^"]+)"', text)
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        linked_page = page if not path else page.parent / path
        assert linked_page.exists(), f"{page_name(page)} links to {target}"
        if heading and linked_page.suffix == ".md":
            assert heading in _headings(linked_page), f"{page_name(page)} links to {target}"


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in _GENERATED], ids=page_name)
def test_no_page_says_a_paragraph_twice(page):
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    paragraphs = [paragraph.strip() for paragraph in re.split(r"\n\s*\n", text)]
    assert [one for one, times in Counter(paragraphs).items() if times > 1 and len(one) > _LONG_PARAGRAPH] == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_make_targets_exist(page):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`make ([a-z-]+)`", text)
    for block in blocks(page, "console"):
        named += re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_named_commands_and_options_exist(page):
    verbs = typer.main.get_command(app).commands
    commands = re.findall(r"`(regard [a-z].*?)`", page.read_text(encoding="utf-8"))
    for language in ("sh", "console"):
        code = "\n".join(block.text for block in blocks(page, language)).replace("\\\n", "")
        commands += re.findall(r"^(?:.*\| )?(regard [a-z].*)", code, re.MULTILINE)
    for command in commands:
        verb, *words = shlex.split(command, comments=True)[1:]
        known = _known_options(verbs[verb], words)
        assert {word for word in words if re.match("--?[a-z]", word)} <= known, command


@pytest.mark.parametrize(
    "page", [ROOT / "docs" / f"{name}.md" for name in ("seeing", "embedding", "bench")], ids=page_name
)
def test_command_pages_name_every_option(page):
    verb = {"seeing.md": "view", "embedding.md": "embed", "bench.md": "bench"}[page.name]
    parameters = typer.main.get_command(app).commands[verb].params
    of_every_command = {"--lang"}  # docs/errors.md
    options = {option for one in parameters for option in one.opts if option.startswith("--")} - of_every_command
    text = page.read_text(encoding="utf-8")
    assert {option for option in options if option in text} == options


def test_readmes_name_make_demo_and_make_test():
    for readme in READMES:
        commands = [line for block in blocks(readme, "console") for line in block.text.splitlines()]
        assert {"make demo", "make test"} <= {command.split("  ")[0] for command in commands}


def test_both_readmes_have_the_same_code():
    english, chinese = READMES
    for language in ("python", "sh", "console", "text"):
        english_code = [_code(block.text) for block in blocks(english, language)]
        assert english_code == [_code(block.text) for block in blocks(chinese, language)]
        assert english_code or language == "text"


def test_the_readme_is_read_in_five_minutes():
    english = READMES[0].read_text(encoding="utf-8")
    assert len(english.split()) <= 700
    sections = dict(re.findall(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", english, re.MULTILINE | re.DOTALL))
    assert list(sections)[:3] == ["Two commands", "Three examples", "Where to go"]
    assert len(re.findall(r"^\*\*", sections["Three examples"], re.MULTILINE)) == 3


def test_both_readmes_lead_to_the_same_pages():
    english, chinese = (re.findall(r"\]\(([^)]*)\)", readme.read_text(encoding="utf-8")) for readme in READMES)
    assert english[1:] == chinese[1:]  # the first link is that of the other language


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_numbers_of_mechanisms_are_those_of_the_catalogue(page):
    named = re.findall(r"(\d+) (?:\[?mechanisms|种注意力机制)", page.read_text(encoding="utf-8"))
    assert set(named) <= {str(len(regard.catalogue()))}


def _code(text: str) -> list[str]:
    """Return the lines of code without comments, which are translated; `# ->` is output and kept."""
    return [re.sub(r"(^|\s+)# (?!->).*$", "", line) for line in text.splitlines()]


def test_readmes_link_to_each_other_and_have_the_same_structure():
    english, chinese = (readme.read_text(encoding="utf-8") for readme in READMES)
    assert "(README.zh-CN.md)" in english.split("\n## ")[0]
    assert "(README.md)" in chinese.split("\n## ")[0]
    for shape in (r"^#+ ", r"^\|", r"<picture>", r"^- "):
        assert len(re.findall(shape, english, re.MULTILINE)) == len(re.findall(shape, chinese, re.MULTILINE)), shape


def test_mechanisms_page_agrees_with_the_catalogue():
    text = (ROOT / "docs" / "mechanisms.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z_0-9]+)` \| `(.+?)` \| (.+?) \| (?:`(.+?)`|none) \|$", text, re.MULTILINE)
    expected = [(row.name, row.equation, row.paper, ", ".join(row.options)) for row in regard.catalogue()]
    assert [(one, equation, paper, options.replace("`", "")) for one, equation, paper, options in rows] == expected
    for row in regard.catalogue():
        assert f"## {row.name}" in text


def test_api_page_lists_exactly_the_public_names():
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    parts = dict(re.findall(r"^## `([\w.]+)`\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    packages = (one.name for one in pkgutil.walk_packages(regard.__path__, "regard.") if one.ispkg)
    public = {name: getattr(importlib.import_module(name), "__all__", None) for name in ("regard", *packages)}
    public = {name: names for name, names in public.items() if names and name not in PARTS_OF_MODELS}
    assert sorted(parts) == sorted(public)
    for name, names in public.items():
        listed = re.findall(r"^\| `(\w+)", parts[name], re.MULTILINE)
        assert sorted(listed) == sorted(names), name


@pytest.mark.parametrize("name", ["hyperparameters.md", "training-options.md"])
def test_pages_of_fields_agree_with_the_declarations(name):
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == make_pages()[name], "make docs writes the page"


def test_errors_page_lists_every_class_and_exit_code():
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+Error)` \|.*\| (\d+) \|$", text, re.MULTILINE))
    classes = {kind.__name__: str(kind.exit_code) for kind in _subclasses(RegardError)}
    assert listed == classes | {"RegardError": str(RegardError.exit_code)}


def _subclasses(kind: type[RegardError]) -> list[type[RegardError]]:
    return [one for child in kind.__subclasses__() for one in (child, *_subclasses(child))]


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_pages_load_no_external_resources(page):
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"!\[[^]]*\]\(https?:|<(?:img|script|source|iframe)[^>]+(?:src|srcset)=\"https?:", text)


def test_pictures_are_small_shown_and_in_both_schemes():
    pictures = sorted((ROOT / "docs" / "images").glob("*.png"))
    stems = {picture.stem.removesuffix("-dark").removesuffix("-light") for picture in pictures}
    assert {picture.stem for picture in pictures} == {
        f"{stem}-{scheme}" for stem in stems for scheme in ("dark", "light")
    }
    pages = "".join(page.read_text(encoding="utf-8") for page in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
    assert [picture.name for picture in pictures if f"images/{picture.name}" not in pages] == []
    assert all(picture.stat().st_size < 300_000 for picture in pictures)
