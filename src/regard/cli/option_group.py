"""A dataclass as a parameter of a command: each of its fields is an option, declared once for several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints


def expand_option_group(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of ``command`` whose type is a dataclass by the options among the dataclass's fields.

    A field is an option if its type is ``Annotated``. Typer sees the options at the place of the parameter, in the
    order of the fields, and ``command`` is called with the dataclass made from their values.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        one.name: _options(one.annotation, one.kind)
        for one in signature.parameters.values()
        if is_dataclass(one.annotation)
    }

    @wraps(command)
    def expanded(**values: Any) -> None:
        made = {}
        for name, options in groups.items():
            own = {option.name: values.pop(option.name) for option in options}
            made[name] = signature.parameters[name].annotation(**own)
        command(**values, **made)

    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        parameters += groups.get(one.name, [one])
    vars(expanded).update(__signature__=signature.replace(parameters=parameters))
    return expanded


def _options(group: Any, kind: Any) -> list[inspect.Parameter]:
    """The options among the fields of a dataclass, as parameters."""
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(field.name, kind, default=field.default, annotation=types[field.name])
        for field in fields(group)
        if get_origin(types[field.name]) is Annotated
    ]
