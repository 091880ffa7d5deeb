"""A dataclass as one parameter of a command: each of its fields is an option, declared once for several commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints


def expand_option_group(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter of ``command`` whose type is a dataclass by the options among the dataclass's fields.

    A field is an option if its type is ``Annotated``. Typer sees the options at the place of the parameter, in the
    order of the fields, and ``command`` is called with the dataclass made from their values.
    """
    signature = inspect.signature(command, eval_str=True)
    [group] = [one for one in signature.parameters.values() if is_dataclass(one.annotation)]
    types = get_type_hints(group.annotation, include_extras=True)
    options = [
        inspect.Parameter(field.name, group.kind, default=field.default, annotation=types[field.name])
        for field in fields(group.annotation)
        if get_origin(types[field.name]) is Annotated
    ]

    @wraps(command)
    def expanded(**values: Any) -> None:
        own = {option.name: values.pop(option.name) for option in options}
        command(**values, **{group.name: group.annotation(**own)})

    parameters: list[inspect.Parameter] = []
    for one in signature.parameters.values():
        parameters += options if one is group else [one]
    expanded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return expanded
