"""Checks of the shapes in the package's annotations, which tests/conftest.py puts in the place of jaxtyping's own.

They are no part of it: torch's compiler finds the module of a traced function by its name, and several are "conftest".
"""

import dataclasses
import functools
import inspect
import re
import sys
from types import SimpleNamespace
from typing import Any, get_type_hints

import beartype
import jaxtyping

_jaxtyped = jaxtyping.jaxtyped
_axis_sizes = _jaxtyped("context")  # in its block an axis has one size; entered again by each call
_beartype = beartype.beartype(conf=beartype.BeartypeConf(violation_type=jaxtyping.TypeCheckError))


def jaxtyped_if_shaped(function_or_class: Any = None, **options: Any) -> Any:
    """Check the shapes in annotations of functions of modules and classes, and of the fields of dataclasses.

    jaxtyping's own wrapper binds the arguments and checks them twice, before and after the call, so it took a third of
    the time of the tests. Here beartype's wrapper checks arguments and result once, while jaxtyping has the axis sizes.
    Nested functions are skipped: their checks would be compiled again in every call, which takes longer than the tests.
    Functions without shapes are skipped too, since mypy checks all that they annotate: a training step of a small model
    calls 400 of them, and their checks took two fifths of its time.
    """
    if function_or_class is None:
        inside_a_function = sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED
        return lambda function: function if inside_a_function else jaxtyped_if_shaped(function, **options)
    if inspect.isclass(function_or_class):
        if dataclasses.is_dataclass(function_or_class) and "__init__" in vars(function_or_class):
            function_or_class.__init__ = jaxtyped_if_shaped(function_or_class.__init__)
        return function_or_class
    if hasattr(function_or_class, "__wrapped__") or not _has_shape_annotation(function_or_class):
        return function_or_class
    if inspect.isgeneratorfunction(function_or_class):  # beartype would check nothing before its first value
        return _jaxtyped(function_or_class, typechecker=_beartype)
    return _with_shape_checks(function_or_class)


def _with_shape_checks(function: Any) -> Any:
    original_annotations = function.__annotations__
    function.__annotations__ = {name: _resolve(hint, function) for name, hint in original_annotations.items()}
    checked = _beartype(function)
    function.__annotations__ = original_annotations

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if jaxtyping.config.jaxtyping_disable:
            return function(*args, **kwargs)
        with _axis_sizes:
            return checked(*args, **kwargs)

    return wrapper


def _resolve(annotation: Any, function: Any) -> Any:
    """Evaluate an annotation; Any if it contains a name that is imported for mypy alone or defined later."""
    holder = SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return get_type_hints(holder, function.__globals__, include_extras=True)["hint"]
    except (NameError, TypeError):  # TypeError: "Later" | None
        return Any


def _has_shape_annotation(function: Any) -> bool:
    """Whether an annotation contains a shape, as in Float[Tensor, "batch length"], or an alias of one."""
    names = {name for text in function.__annotations__.values() for name in re.findall(r"\w+", str(text))}
    values = (function.__globals__.get(name) for name in names)
    return any(
        inspect.isclass(value) and issubclass(value, jaxtyping.AbstractArray | jaxtyping.AbstractDtype)
        for value in values
    )
