"""Jinja's immutable sandbox with bounds of time and memory for one rendering: see ``template_budget``.

The sandbox keeps templates from Python's internals and from files, but not from ``'x' * 10**9``, ``replace`` in a loop,
or loops in loops. Here each operation is charged before it runs:

    + - * / % **    intercepted by the sandbox, as calls are      filters, tests    wrapped
    ~ == in {..}    their operands are charged by nodes           loops             each pass is a step
                    that are added to the parsed template         outputs           charged, and joined within the bound

Nothing is evaluated while the template is compiled. Only the compiler remains: its time is linear in the template.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast, final

from jinja2 import nodes
from jinja2.environment import Environment
from jinja2.ext import Extension
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, generate_lorem_ipsum
from jinja2.visitor import NodeTransformer

from regard.generation.result_sizes import check_attribute, check_form, check_result
from regard.generation.template_budget import TemplateBudget, check_bits, refuse_unless, shallow_size

_MAX_SOURCE = 2**20
"""Characters of a template."""
_SHALLOW = frozenset(
    {
        *("attr", "batch", "count", "d", "default", "first", "float", "int", "items", "last", "length", "list", "map"),
        *("random", "reject", "rejectattr", "reverse", "safe", "select", "selectattr", "slice"),
        *("boolean", "callable", "defined", "false", "float", "integer", "iterable", "mapping", "none", "number"),
        *("sameas", "sequence", "string", "true", "undefined"),
    }
)
"""Filters and tests that do not look into the entries of a list."""
_MAX_NUMBER = 1_000_000
"""Most numbers of a range, and the largest integer that a function takes."""
_VARIABLES = ("_loop_vars", "_block_vars")
"""Arguments that the compiler adds to each call: the variables around it."""
_CONTEXTS = (Context, EvalContext, Environment)


@final
class GenerationTag(Extension):
    """The tag ``{% generation %}`` of chat templates, which marks the text of the model, for training on it alone.

    Keeps the text between ``{% generation %}`` and ``{% endgeneration %}``, in which variables are local.
    """

    tags = {"generation"}  # noqa: RUF012 (an attribute of Jinja's)

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse from the tag to its end. Raises TemplateSyntaxError if there is none."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@final
class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox for one rendering. Operations beyond the ``budget`` raise SecurityError, a TemplateError."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, budget: TemplateBudget | None = None, **options: Any) -> None:
        super().__init__(finalize=self._charge_output, optimized=False, **options)
        self._budget = budget or TemplateBudget()
        self.globals["range"] = _make_range
        for table in (self.filters, self.tests):
            for name, function in cast(dict[str, Callable[..., Any]], table).items():
                table[name] = self._charge_calls(name, function)

    def replace_filter(self, name: str, function: Callable[..., Any]) -> None:
        """Add a filter, or put another one in its place."""
        self.filters[name] = self._charge_calls(name, function)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute a sum, a product, a power, or a remainder, which is formatting for a text."""
        for operand in (left, right):
            if isinstance(operand, int):
                check_bits(operand.bit_length())
        if operator == "%" and isinstance(left, str):
            check_form(left, [right], self._budget)
        elif operator == "*":
            self._charge_product(left, right)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() * abs(right))
        else:
            self._budget.charge(shallow_size(left) + shallow_size(right))
        return self.charge_result(super().call_binop(context, operator, left, right))

    def call(self, __context: Context, __obj: Any, *args: Any, **options: Any) -> Any:
        """Call a function, a macro or a method of a template."""
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox puts functions around format and format_map
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if owner is self:
            return __obj(*args)  # without the variables around it
        self._budget.charge(shallow_size(args) + shallow_size(options))
        values = [*args, *(option for key, option in options.items() if key not in _VARIABLES)]
        if isinstance(owner, str | bytes | int | list | tuple | dict):
            self._budget.charge(shallow_size(owner))
            for value in values[:1] if isinstance(owner, dict) else values:
                self._budget.measure(value)
            if isinstance(owner, list | tuple):
                self._budget.measure(owner)
            args = tuple(self._to_list(argument) for argument in args)
            check_result(name, [owner, *args, *values[len(args) :]], self._budget)
        elif not isinstance(__obj, Macro) and __obj not in (Namespace, dict):
            for value in values:
                self._budget.measure(value)
            if __obj is generate_lorem_ipsum:  # paragraphs, and words in each
                refuse_unless(
                    math.prod(number for number in (5, 100, *values) if isinstance(number, int)) <= _MAX_NUMBER
                )
        return self.charge_result(super().call(__context, __obj, *args, **options))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An entry or an attribute."""
        if isinstance(argument, tuple):  # its hash takes the time of all in it
            self._budget.measure(argument)
        return super().getitem(obj, argument)

    def concat(self, parts: Iterable[str]) -> str:
        """Join the parts of a text: the output of the template, of a macro or of a block."""
        kept, size = list[str](), 0
        for part in parts:
            kept.append(part)
            size += len(part)
            refuse_unless(self._budget.is_size(size))
        self._budget.charge(size)
        return "".join(kept)

    def count_passes(self, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop; each counts as a step."""
        return self._budget.count_items(items)

    def charge_operand(self, value: Any) -> Any:
        """The operand of an operation that reads all of it."""
        value = self._to_list(value)
        self._budget.measure(value)
        return value

    def join_operands(self, *values: Any) -> str:
        """The operator ~: the values as texts, one behind the other."""
        refuse_unless(self._budget.is_size(sum(map(self._budget.measure, values))))
        return "".join(map(str, values))

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        refuse_unless(len(source) <= _MAX_SOURCE)
        parsed = super()._parse(source, name, filename)
        charged = _ChargedNodes().visit(parsed)
        charged.set_environment(self)
        return cast(nodes.Template, charged)

    def _charge_output(self, value: Any) -> Any:
        self._budget.measure(value)
        return value

    def _charge_product(self, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            check_bits(left.bit_length() + right.bit_length())
        for operand, times in ((left, right), (right, left)):
            if isinstance(operand, str | bytes | list | tuple) and isinstance(times, int):
                self._budget.charge(shallow_size(operand) * max(times, 1))

    def charge_result(self, result: Any) -> Any:
        """A result that is no larger than what it is made of, such as a slice."""
        self._budget.charge(shallow_size(result))
        return result

    def _to_list(self, value: Any) -> Any:
        """The items of an iterator as a list, each a step; other values as they are."""
        return list(self._budget.count_items(value)) if isinstance(value, Iterator) else value

    def _charge_calls(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter or test whose arguments and result are charged."""

        @functools.wraps(function)
        def charge_and_call(*args: Any, **options: Any) -> Any:
            args = tuple(self._to_list(argument) for argument in args)
            values = [argument for argument in (*args, *options.values()) if not isinstance(argument, _CONTEXTS)]
            measure = shallow_size if name in _SHALLOW else self._budget.measure
            self._budget.charge(sum(map(measure, values)))
            if name == "string":  # the filter; the test of this name takes no time
                self._budget.measure(values)
            check_result(name, values, self._budget)
            check_attribute(options.get("attribute", ""))
            result = function(*args, **options)
            return self._budget.count_items(result) if isinstance(result, Iterator) else self.charge_result(result)

        return charge_and_call


def _make_range(*args: int) -> range:
    steps = range(*args)
    refuse_unless(len(steps) <= _MAX_NUMBER)
    return steps


@final
class _ChargedNodes(NodeTransformer):
    """Adds calls of the environment to a parsed template, which charge what the sandbox does not intercept."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - named after the node
        self.generic_visit(node)
        node.iter = _call("count_passes", cast(nodes.Expr, node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - named after the node
        self.generic_visit(node)
        return _call("join_operands", *node.nodes)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802 - named after the node
        self.generic_visit(node)
        node.expr = _call("charge_operand", node.expr)
        for operation in node.ops:
            operation.expr = _call("charge_operand", operation.expr)
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802 - named after the node
        self.generic_visit(node)
        return _call("charge_result", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802 - named after the node
        self.generic_visit(node)
        node.key = _call("charge_operand", node.key)
        return node


def _call(name: str, *arguments: nodes.Expr) -> nodes.Call:
    line = arguments[0].lineno
    function = nodes.EnvironmentAttribute(name, lineno=line)
    return nodes.Call(function, list(arguments), [], None, None, lineno=line)
