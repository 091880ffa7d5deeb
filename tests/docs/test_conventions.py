"""Conventions of CONTRIBUTING.md that can be checked automatically."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from docs.pages import ROOT, page_name

SOURCE = ROOT / "src" / "regard"
MODULES = sorted(SOURCE.rglob("*.py"))

# Each area may import from itself and from the areas before it.
IMPORT_ORDER = (
    "marked_arguments",
    "log",
    "errors",
    "language",
    "chinese_words",
    "escape_text",
    "format_share",
    "fields",
    "number_formats",
    "device_names",
    "columns",
    "import_when_used",
    "atomic_write",
    "list_files",
    "available_memory",
    "energy",
    "load_function",
    "arguments",
    "arrays",
    "tensors",
    "copy_to_device",
    "huge_pages",
    "interleaved_timing",
    "parse_value",
    "conformance",
    "contract",
    "masks",
    "devices",
    "positions",
    "kernels",
    "validation",
    "exact_attention",
    "attention_statistics",
    "mechanisms",
    "mechanism_catalogue",
    "layers",
    "recording",
    "text",
    "media",
    "vision",
    "audio",
    "control",
    "models",
    "ray_embedding",
    "search",
    "translation",
    "classification",
    "transcription",
    "generation",
    "export",
    "comparison",
    "view",
    "playing",
    "hf",
    "showing",
    "conversion",
    "auditing",
    "train",
    "tasks",
    "bench",
    "cli",
    "__main__",
)
FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc"}
OPTIONAL = (
    "huggingface_hub",
    "jinja2",
    "pyarrow",
    "transformers",
    "sentence_transformers",
    "matplotlib",
    "accelerate",
    "sacrebleu",
    "sentencepiece",
    "tensorboard",
    "babel",
    "ctranslate2",
    "peft",
    "soundfile",
    "soxr",
    "jiwer",
    "gymnasium",
    "minigrid",
    "onnx",
    "onnxruntime",
    "onnxscript",
)


@cache
def parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text(encoding="utf-8"))


@cache
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(module)))


@pytest.fixture(scope="module", autouse=True)
def forget_modules() -> Iterator[None]:
    """Free a million nodes, which each later collection of garbage would go through."""
    yield
    parse.cache_clear()
    nodes_of.cache_clear()


def area_of_module(module: Path) -> str:
    return module.relative_to(SOURCE).with_suffix("").parts[0]


def imported_areas(module: Path) -> set[str]:
    """Return the areas of regard that a module imports from, anywhere in the file."""
    names: list[str] = []
    for node in nodes_of(module):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{page_name(module)}: imports are absolute"
            inner = [f"{node.module}.{one.name}" for one in node.names] if node.module == "regard" else [node.module]
            names += [one for one in inner if one]
        elif isinstance(node, ast.Import):
            names += [one.name for one in node.names]
    return {parts[1] for parts in (one.split(".") for one in names) if parts[0] == "regard" and len(parts) > 1}


def test_every_module_has_an_import_rank():
    assert {area_of_module(module) for module in MODULES} - {"__init__"} <= set(IMPORT_ORDER)


def later_areas(module: Path) -> list[str]:
    """Return the areas that a module imports from although they come after its own."""
    rank = IMPORT_ORDER.index(area_of_module(module))
    return [area for area in imported_areas(module) if area in IMPORT_ORDER and IMPORT_ORDER.index(area) > rank]


def test_imports_run_one_way():
    later = {page_name(module): later_areas(module) for module in MODULES if module != SOURCE / "__init__.py"}
    assert {module: areas for module, areas in later.items() if areas} == {}


def test_training_does_not_import_tasks():
    """Code of a task stays in its folder of tasks/; from text, training imports only how files are written."""
    modules = sorted((SOURCE / "train").glob("*.py"))
    assert len(modules) > 10
    for module in modules:
        assert not imported_areas(module) & {"search", "translation", "tasks"}, page_name(module)
        inner = set(re.findall(r"regard\.text\.?(\w*)", module.read_text(encoding="utf-8")))
        assert not inner, page_name(module)


def test_implementations_do_not_import_one_another():
    names = {"reference", "native", "sdpa", "flex"}
    for name in names:
        text = (SOURCE / "kernels" / "implementations" / f"{name}.py").read_text(encoding="utf-8")
        for other in names - {name}:
            assert f"implementations.{other}" not in text


def test_conformance_shares_no_code_with_the_kernels_that_it_checks():
    """From regard it imports only what has no subject of its own, such as errors; its oracles import nothing of it."""
    modules = sorted((SOURCE / "conformance").rglob("*.py"))
    assert len(modules) > 30
    assert {area for module in modules for area in imported_areas(module)} <= {
        "arguments",
        "conformance",
        "errors",
        "fields",
        "language",
        "load_function",
    }


def test_file_names_avoid_utility_words():
    for folder in ("src", "tests", "examples", "benchmarks", "docs"):
        for file in (ROOT / folder).rglob("*.py"):
            assert not {file.stem, file.parent.name} & FORBIDDEN_NAMES, page_name(file)


def test_every_module_has_a_docstring():
    assert [page_name(module) for module in MODULES if not ast.get_docstring(parse(module))] == []


def test_docstrings_begin_with_a_noun_or_a_verb():
    """A docstring says what a thing is or does in the words of the field; one that begins so names nothing."""
    empty = re.compile(r'"""(?:What|That|Those|To each)\b')
    found = [
        f"{page_name(module)}:{number}"
        for module in MODULES
        for number, line in enumerate(module.read_text(encoding="utf-8").splitlines(), 1)
        if empty.search(line)
    ]
    assert found == []


EMPTY_NAMES = {"one", "another", "thing", "things", "which", "now", "here", "least", "most", "asked", "told", "said"}
"""Words that do not say what a value is; ``mask``, ``label``, ``minimum`` do."""


def stored_name(node: ast.AST) -> str | None:
    """The name that a node gives to a value, such as a variable, an argument, an attribute or a function."""
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return name if isinstance(node.ctx, ast.Store) else None
    if isinstance(node, ast.arg):
        return node.arg
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return node.name
    return node.asname if isinstance(node, ast.alias) else None


def test_names_are_nouns_of_the_field():
    found = [
        f"{page_name(module)}:{node.lineno}: {name}"
        for module in MODULES
        for node in nodes_of(module)
        if (name := stored_name(node)) in EMPTY_NAMES
    ]
    assert found == []


def strings_of(module: Path) -> Iterator[tuple[int, str]]:
    """The lines and texts of the strings of a module, f-strings with WORD for each value; without docstrings."""
    nodes = nodes_of(module)
    inner = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    inner |= {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "WORD" for part in node.values]
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.lineno, node.value


COMMANDS = re.compile(r"\b(regard \w+|pip install|ray start|accelerate launch|msgcat)\b")
"""Commands that messages advise whole, whose options are theirs."""


def test_the_library_does_not_know_the_options_of_the_shell():
    """Messages mark arguments of Python, which the command line spells; only declared fields name their options."""
    found = []
    for module in MODULES:
        if area_of_module(module) != "cli":
            declared = {
                keyword.value.lineno
                for node in nodes_of(module)
                if isinstance(node, ast.Call)
                for keyword in node.keywords
                if keyword.arg == "option"
            }
            found += [
                f"{page_name(module)}:{line}: {text}"
                for line, text in strings_of(module)
                if re.search(r"(^|[^-\w])--[a-z]", text) and not COMMANDS.search(text) and line not in declared
            ]
    assert found == []


def is_abstract(node: ast.ClassDef) -> bool:
    bases = {ast.unparse(base).partition("[")[0] for base in node.bases}
    decorators = (
        ast.unparse(one) for method in node.body if isinstance(method, ast.FunctionDef) for one in method.decorator_list
    )
    return bool(bases & {"ABC", "Protocol"}) or "abstractmethod" in decorators


def is_final(node: ast.ClassDef) -> bool:
    return "final" in {ast.unparse(one) for one in node.decorator_list}


def test_classes_are_abstract_or_final():
    """Errors are neither: a library built on regard may subclass them. Types for mypy alone are no classes."""
    classes = [
        (page_name(module), node)
        for module in MODULES
        if module.name != "errors.py"
        for part in parse(module).body
        if not (isinstance(part, ast.If) and ast.unparse(part.test) == "TYPE_CHECKING")
        for node in ast.walk(part)
        if isinstance(node, ast.ClassDef)
    ]
    assert [(module, node.name) for module, node in classes if not (is_abstract(node) or is_final(node))] == []


def test_pickle_is_not_used():
    for module in MODULES:
        text = module.read_text(encoding="utf-8")
        assert not re.search(r"^\s*(?:import|from) (?:pickle|dill|joblib)\b|torch\.load\(", text, re.MULTILINE), module


AUDIT_SCRIPT = """
import sys
touched = []
def hook(event, arguments):
    if event.startswith("socket.connect") or event.startswith("socket.getaddrinfo") or event == "urllib.Request":
        touched.append((event, arguments))
    if event == "open":
        path, mode, flags = arguments
        if isinstance(mode, str) and set(mode) & set("wax+") and not str(path).startswith("/dev/"):
            touched.append((event, path))
    if event in ("os.mkdir", "os.remove", "os.rename"):
        touched.append((event, arguments))
sys.addaudithook(hook)
import regard
print(repr(touched))
print(repr([name for name in {optional!r} if name in sys.modules]))
"""


def test_importing_regard_touches_no_network_no_file_and_no_optional_package(tmp_path):
    program = AUDIT_SCRIPT.replace("{optional!r}", repr(OPTIONAL))
    run = [sys.executable, "-B", "-W", "error", "-c", program]
    result = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    touched, optional = result.stdout.splitlines()
    assert touched == "[]"
    assert optional == "[]"
    assert not list(tmp_path.iterdir())
