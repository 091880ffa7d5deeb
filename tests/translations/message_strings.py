"""The strings of messages: the literals in the source that reach an error, a note or a progress bar.

Read backwards from the places where messages end (``ENDS``): an argument may be a literal, an f-string, a choice of
them, a variable assigned in the function, a call of a function that returns them, or a parameter, in which case the
arguments of all callers count. An f-string becomes a template with {0}, {1} .. for its values; a value that is itself
a choice of literals, such as a plural, gives a template for each.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from regard.auditing.properties.table import PROPERTIES
from regard.errors import LABELS
from regard.language import plural_of
from regard.text.pooling import MODES
from regard.train.reports import SAMPLE_LABELS
from regard.view.head_patterns import PATTERN_NAMES

SOURCE = Path(__file__).resolve().parents[2] / "src" / "regard"
PARTS_OF_ERRORS = ("what", "expected", "got", "do")
ENDS = {
    "say": ("message",),
    "info": ("message",),
    "spell": ("message",),
    "_spell": ("message",),
    "_without_result": ("", "reason"),
    "translate_message": ("text",),
    "count_progress": ("", "plural"),
    "track": ("", "plural"),
    "indeterminate_progress": ("what",),
    "Medium": ("singular", "plural"),
    "LayerWeights": ("", "", "", "reason"),
    "Comparison": ("", "", "", "change"),
    "Case": ("name",),
    "Shape": ("name",),
    "Finding": ("part", "", "", "place", "cause"),
    "Outcome": ("case", "", "", "", "reason"),
    "Report": ("", "", "", "conventions"),
    "Property": ("name",),
    "Advice": ("", "do"),
    "_MissingCounterError": ("reason",),
    "TorchCall": ("name",),
    "SoundTrack": ("", "", "", "", "", "timing"),
}
"""Functions whose arguments are shown, by name; an empty name is an argument that is not."""
SHOWN_NAMES = frozenset(
    {
        "no_steps_reason",
        "no_rollout_reason",
        "tokens_note",
        "missing",
        "timing",
        "noun",
        "reasons",
        "notes",
        "note",
        "cause",
    }
    | {"fitted_sizes", "DISTRIBUTION", "MASK_FORMS", "_OF_TRANSFORMERS", "UNSUPPORTED_BIAS", "UNSUPPORTED_SCORE"}
    | {"UNKNOWN_WORDS_ADVICE"}
)
"""Variables, attributes and arguments that a view shows, wherever they are set."""
_WORDS = """
fault left refused source target wrong
any batch beams cache causal chunks compiled constant implementations keys padding prefix window
accuracy available both bytes chance character characters confidence details document documents environment
episode episodes equation expert file files frames hidden holds hypotheses label labels layer·head
leaks line lines loss mechanism
name neither no none nothing pair pairs patch pattern phonemes picture pictures pixels precision predicted
predictions prompt prompts property random range readings recall return right row rows score seeds sentence
sentences share sound sounds state step steps subwords text texts time token tokens translation translations true
twice verdict word words yes
accuracy bits_per_byte bits_per_character bleu calibration_error cer chrf loss macro_f1 micro_f1 perplexity recall share
wer
arguments grey last pooled
"""
WORDS = frozenset(
    [
        *_WORDS.split(),
        *(choice.name for choice in PROPERTIES),
        "cannot be asked",
        "gradients not compared",
        "mean confidence",
        "not tried",
    ]
)
WORDS |= {*SAMPLE_LABELS, "last layer", "length 1", *(f"{mode} pooling" for mode in MODES)}
"""Single words that are shown as values or headings. All others in the source are names of code."""
_COUNTED = (
    "call character document episode file frame head label layer line mechanism model pair picture prompt row sentence"
)
_COUNTED += " second sound step subword text time token translation vector weight word"
COUNTS = {f"{{0}} {noun}s" for noun in _COUNTED.split()}
COUNTS |= {
    "{0} right",
    "{0} wrong",
    "{0} refused",
    "{0} not tried",
    "{0} % of the cases",
    "picture_to_text_{0}",
    "text_to_picture_{0}",
}
"""Counts of nouns, which code makes of a number and a noun in several ways."""
TRANSLATING = ("translate", "translate_on_figure", "translate_message")
"""Functions whose results are in the reader's language already."""
COUNTING = ("count_noun", "translate_count")
"""Functions that put a number before a noun; the catalogue has the plural."""
MARKUP = re.compile(r"^data:|^<|</|/>|\{\{text|\[bold\]|display:|^Tensor")
"""What only code has: data URIs, HTML, styles, and signatures of operators."""
FOLDERS_OF_RESULTS = ("auditing", "conformance")
"""The folders whose functions that return text return reasons and causes: a table of them is called, not their names.

The keys of tables there are sentences, too.
"""
SHOWN_RESULTS = ("_details", "_unavailable_reason", "unavailable_reason")
"""Functions and methods elsewhere whose results are shown."""
HOLE = None
Alternative = tuple[str | None, ...]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Scope:
    """A function, or a module outside all functions (``function`` is None), with what it assigns and returns."""

    path: Path
    function: Function | None = None
    class_name: str = ""
    owner: Scope | None = None
    values: dict[str, list[ast.expr]] = field(default_factory=lambda: defaultdict(list))
    returns: list[ast.expr] = field(default_factory=list)


def message_strings(folder: str = "") -> set[str]:
    """The templates of messages in the files under a folder of the source, or in one file; all have the words."""
    return (
        COUNTS
        | WORDS
        | {*LABELS}
        | {template for path, templates in _read_all().items() for template in templates if _is_in(path, folder)}
    )


def sources() -> list[str]:
    """The folders and files at the top of the source."""
    return sorted(path.name for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists())


def view_strings() -> set[str]:
    """The templates that views translate (the shell translates its help alone so), and the names of patterns."""
    return set(PATTERN_NAMES) | {
        argument.value
        for path, module in _modules()
        if path.parent.name != "cli"
        for call in ast.walk(module)
        if isinstance(call, ast.Call) and _name(call.func) in ("translate", "translate_on_figure")
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


@cache
def _modules() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in sorted(SOURCE.rglob("*.py"))]


def _is_in(path: Path, folder: str) -> bool:
    relative = path.relative_to(SOURCE)
    return not folder or folder in (relative.parts[0], relative.as_posix())


@cache
def _read_all() -> dict[Path, set[str]]:
    return _Reader().read()


class _Reader:
    """Follows the arguments of messages through the source until no new function is found."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self.functions: dict[str, list[tuple[Function, Scope]]] = defaultdict(list)
        self.bases: dict[str, set[str]] = {}
        self.fields: dict[str, dict[str, bool]] = {}
        self.templates: dict[Path, set[str]] = defaultdict(set)
        self.ends: dict[str, set[str]] = defaultdict(set)
        self.positions: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        self.done: set[tuple[int, str]] = set()
        self.shown: list[tuple[ast.expr, Scope]] = []
        for path, module in _modules():
            self._index(module, Scope(path), "")
        for name, names in ENDS.items():
            self._add_end(name, names, [each for each in names if each])
        for error in self._error_classes():
            self._add_end(error, PARTS_OF_ERRORS, PARTS_OF_ERRORS)

    def _index(self, node: ast.AST, scope: Scope, class_name: str) -> None:
        for child in ast.iter_child_nodes(node):
            inner, inner_class = scope, class_name
            if isinstance(child, Function):
                inner, inner_class = Scope(scope.path, child, class_name, scope), ""
                self.functions[child.name].append((child, inner))
            elif isinstance(child, ast.ClassDef):
                self.bases[child.name] = {_name(base) for base in child.bases}
                self.fields[child.name] = _fields(child)
                inner_class = child.name
            elif isinstance(child, ast.Call):
                self.calls[_name(child.func)].append((child, scope))
                self.shown += [(each.value, scope) for each in child.keywords if each.arg in SHOWN_NAMES]
            elif isinstance(child, ast.Return | ast.Yield) and child.value is not None:
                scope.returns.append(child.value)
            if any(_is_in(scope.path, folder) for folder in FOLDERS_OF_RESULTS):
                self.shown += [(key, scope) for key in _keys(child)]
            for name, value in _assignments(child):
                scope.values[name].append(value)
                if name in SHOWN_NAMES:
                    self.shown.append((value, scope))
            self._index(child, inner, inner_class)

    def _error_classes(self) -> set[str]:
        """The classes of errors: all that inherit from ``RegardError``."""
        classes = {"RegardError"}
        while more := {name for name, bases in self.bases.items() if bases & classes} - classes:
            classes |= more
        return classes

    def _add_end(self, name: str, positions: tuple[str, ...], names: list[str] | tuple[str, ...]) -> None:
        if name in ("translate", *COUNTING):  # their templates are those of views (``view_strings``)
            return
        if positions not in self.positions[name]:
            self.positions[name].append(positions)
        self.ends[name] |= set(names)

    def read(self) -> dict[Path, set[str]]:
        """The templates of each file."""
        for value, scope in self.shown:
            self._follow_once(value, scope)
        for call, scope in self.calls["translate_count"]:
            self._follow_once(call, scope)
        for _, inner in itertools.chain(*self.functions.values()):
            if _returns_shown_text(inner):
                for value in inner.returns:
                    self._follow_once(value, inner)
        found = -1
        while found != len(self.done):
            found = len(self.done)
            for function in list(self.ends):
                for call, scope in self.calls.get(function, []):
                    for argument in self._shown_arguments(call):
                        self._follow_once(argument, scope)
        return self.templates

    def _shown_arguments(self, call: ast.Call) -> Iterator[ast.expr]:
        function = _name(call.func)
        for positions in self.positions[function]:
            for name, argument in zip(positions, call.args, strict=False):
                if name in self.ends[function]:
                    yield argument
        yield from (keyword.value for keyword in call.keywords if keyword.arg in self.ends[function])

    def _follow(self, node: ast.expr, scope: Scope) -> None:
        """Add the templates of an expression, and follow what it is made from."""
        for element in _elements(node):
            self._follow_once(element, scope)
        for alternative in _alternatives(node):
            self._add(alternative, scope)
        for part in _inner_values(node):
            self._follow_source(part, scope)

    def _add(self, alternative: Alternative, scope: Scope) -> None:
        count = itertools.count()
        template = "".join(f"{{{next(count)}}}" if part is HOLE else part for part in alternative)
        words = re.sub(r"\{\d+\}|`[^`]*`", "", template)
        if not MARKUP.search(template) and re.search(r"[a-z]{2}.* |[; ].*[a-z]{2}|[a-z]{3}[:;]", words):
            self.templates[scope.path].add(template)

    def _follow_source(self, part: ast.expr, scope: Scope) -> None:
        """Follow a variable, a parameter, a function's result or the values of a table."""
        key = (id(part), "source")
        if key in self.done:
            return
        self.done.add(key)
        if isinstance(part, ast.Name):
            self._follow_name(part.id, scope)
        elif isinstance(part, ast.Attribute):
            self._follow_attribute(part.attr)
        elif isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and hasattr(str, part.func.attr):
            for value in [part.func.value, *part.args] if part.func.attr != "join" else part.args:
                self._follow_once(value, scope)
        elif isinstance(part, ast.Call) and _name(part.func) in ("tuple", "list", "sorted"):
            for argument in part.args[:1]:
                self._follow_once(argument, scope)
        elif isinstance(part, ast.Call) and _name(part.func) not in TRANSLATING:
            for _, inner in self.functions.get(_name(part.func), []):
                for value in inner.returns:
                    self._follow_once(value, inner)

    def _follow_attribute(self, name: str) -> None:
        """Follow a field of text, to where its class is made, and a property, to what it returns."""
        for owner, fields in self.fields.items():
            if fields.get(name):
                self._add_end(owner, tuple(fields), [name])
                self._add_end("replace", (), [name])
        for function, inner in self.functions.get(name, []):
            if any(_name(decorator) in ("property", "cached_property") for decorator in function.decorator_list):
                for value in inner.returns:
                    self._follow_once(value, inner)

    def _follow_once(self, node: ast.expr, scope: Scope) -> None:
        if (id(node), "once") not in self.done:
            self.done.add((id(node), "once"))
            self._follow(node, scope)

    def _follow_name(self, name: str, scope: Scope | None) -> None:
        while scope is not None:
            for value in scope.values.get(name, []):
                self._follow_once(value, scope)
            if scope.function is not None and name in _parameters(scope.function):
                called = scope.class_name if scope.function.name == "__init__" else scope.function.name
                self._add_end(called, tuple(_parameters(scope.function)), [name])
                return
            scope = scope.owner


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The names and values of an assignment, a loop (all values), or ``name.append(value)``."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name | ast.Attribute):
                yield _name(target), node.value
            elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                yield target.value.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for inner, value in zip(target.elts, node.value.elts, strict=False):
                    yield from _assignments(ast.Assign([inner], value))
    elif isinstance(node, ast.For | ast.comprehension):
        rows = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List) else []
        if isinstance(node.target, ast.Name):
            yield node.target.id, node.iter
        elif isinstance(node.target, ast.Tuple):
            for row in rows:
                yield from _assignments(ast.Assign([node.target], row))
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
        if isinstance(node.target, ast.Name) and node.value is not None:
            yield node.target.id, node.value
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "extend"):
        yield from ((_name(node.func.value), argument) for argument in node.args)


def _keys(node: ast.AST) -> list[ast.expr]:
    """The keys of a table, or the one that is assigned to."""
    if isinstance(node, ast.Dict):
        return [key for key in node.keys if isinstance(key, ast.Constant | ast.JoinedStr)]
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
        return [node.targets[0].slice]
    return []


def _fields(node: ast.ClassDef) -> dict[str, bool]:
    """The fields of a dataclass in their order, and whether they are of text."""
    return {
        statement.target.id: "str" in ast.unparse(statement.annotation)
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def _returns_shown_text(scope: Scope) -> bool:
    if scope.function is None or scope.function.returns is None:
        return False
    returned = ast.unparse(scope.function.returns)
    in_folder = any(_is_in(scope.path, folder) for folder in FOLDERS_OF_RESULTS)
    is_text = returned in ("str", "str | None") or returned.startswith("Iterator[tuple[str, ")
    return scope.function.name in SHOWN_RESULTS or (in_folder and is_text)


def _parameters(function: Function) -> list[str]:
    """The names of the arguments of a call, in their order."""
    names = [each.arg for each in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _alternatives(node: ast.expr) -> list[Alternative]:
    """The literal texts of an expression, with holes for its values; at most 16."""
    found: list[Alternative] = [(HOLE,)]
    if isinstance(node, ast.Constant):
        found = [(node.value,)] if isinstance(node.value, str) else [(HOLE,)]
    elif isinstance(node, ast.IfExp):
        found = [*_alternatives(node.body), *_alternatives(node.orelse)]
    elif isinstance(node, ast.BoolOp):
        found = [each for value in node.values for each in _alternatives(value)]
    elif isinstance(node, ast.NamedExpr):
        found = _alternatives(node.value)
    elif isinstance(node, ast.Call) and _name(node.func) in COUNTING:
        found = _counted(*node.args[1:])
    elif isinstance(node, ast.JoinedStr):
        found = _joined([_alternatives(part) for part in node.values])
    elif isinstance(node, ast.FormattedValue):
        found = _alternatives(node.value) if node.format_spec is None and node.conversion == -1 else [(HOLE,)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = [_alternatives(node.left), _alternatives(node.right)]
        is_text = any(isinstance(part, str) for side in sides for alternative in side for part in alternative)
        found = _joined(sides) if is_text else [(HOLE,)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant):
        found = [(node.left.value,), ("",)] if isinstance(node.left.value, str) else [(HOLE,)]
    return found if len(found) <= 16 else [(HOLE,)]


def _counted(noun: ast.expr, plural: ast.expr | None = None) -> list[Alternative]:
    """A number before its noun; one with an own plural, behind which a verb stands, gives both."""
    if plural is not None:
        return _joined([[(HOLE, " ")], [*_alternatives(noun), *_alternatives(plural)]])
    return [(HOLE, f" {plural_of(str(noun.value))}") if isinstance(noun, ast.Constant) else (HOLE,)]


def _joined(parts: list[list[Alternative]]) -> list[Alternative]:
    count = 1
    for part in parts:
        count *= len(part)
    if count > 16:
        parts = [part if len(part) == 1 else [(HOLE,)] for part in parts]
    return [tuple(itertools.chain(*choice)) for choice in itertools.product(*parts)]


def _elements(node: ast.expr) -> list[ast.expr]:
    """The elements of a list, a table or a comprehension."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [each.value if isinstance(each, ast.Starred) else each for each in node.elts]
    if isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp):
        return [node.elt]
    if isinstance(node, ast.Dict):
        return list(node.values)
    if isinstance(node, ast.IfExp):  # of two lists
        return [*_elements(node.body), *_elements(node.orelse)]
    return [node.value] if isinstance(node, ast.Subscript) else []


def _inner_values(node: ast.expr) -> Iterator[ast.expr]:
    """The variables and calls whose results are shown as parts of an expression."""
    if isinstance(node, ast.Name | ast.Attribute | ast.Call):
        yield node
    inner: list[ast.expr] = []
    if isinstance(node, ast.IfExp):
        inner = [node.body, node.orelse]
    elif isinstance(node, ast.BoolOp | ast.JoinedStr):
        inner = node.values
    elif isinstance(node, ast.FormattedValue | ast.NamedExpr | ast.Starred | ast.Subscript):
        inner = [node.value]
    elif isinstance(node, ast.BinOp):
        inner = [node.left, node.right]
    for part in inner:
        yield from _inner_values(part)
