"""A function of a user's module, by its name in the shell: ``package.module:function``.

Modules are found as ``python -m`` finds them: in the current folder first. Running them is the user's choice, who wrote
the name; names in files of models are never run.
"""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from regard.errors import OptionError, RefusedError, class_and_line, first_line, short_repr

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_function_name(name: str) -> bool:
    """Whether a word has the form ``package.module:function``; a drive of Windows such as C: has another."""
    return _NAME.fullmatch(name) is not None


def load_function(name: str, *, example: str) -> Callable[..., Any]:
    """Import ``package.module:function``. Raises OptionError, with an ``example`` of a name, if it cannot be had."""
    if not is_function_name(name):
        raise OptionError(
            f"{short_repr(name)} does not name a function",
            expected="package.module:function",
            got=short_repr(name),
            do=f"for example {example}",
        )
    module_name, _, path = name.partition(":")
    found: Any = _import_module(module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            names = [public for public in dir(found) if not public.startswith("_") and callable(getattr(found, public))]
            raise OptionError(
                f"{module_name} has no {path}",
                expected=f"a function of {module_name}: {', '.join(names[:12]) or 'it has none'}",
                got=path,
                do="check the spelling",
            )
        found = getattr(found, part)
    if not callable(found):
        raise OptionError(
            f"{name} is no function", expected="a function", got=short_repr(found), do=f"such as {example}"
        )
    return found


def _import_module(name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise OptionError(
                f"there is no module {name}",
                expected=f"{name.replace('.', '/')}.py in {folder}, or an installed package",
                got=class_and_line(error, 200),
                do="run the command in the folder that contains the module",
            ) from error
        raise _import_error(name, error) from error
    except (KeyboardInterrupt, MemoryError):
        raise
    # A user's module may raise anything, SystemExit included, while it is imported.
    except BaseException as error:
        raise _import_error(name, error) from error


def _import_error(name: str, error: BaseException) -> OptionError:
    """The error of a user's module, with the file and line in which it was raised."""
    return OptionError(
        f"{name} cannot be imported",
        expected="a module that can be imported",
        got=describe_user_error(error),
        do=f"try it: python -c 'import {name}'",
    )


def describe_user_error(error: BaseException) -> str:
    """The class and the first line of an error in a user's code, and the line of code that raised it.

    A refusal of regard is its own sentence.
    """
    if isinstance(error, RefusedError):
        return first_line(error, 200)
    message, package = class_and_line(error, 200), str(Path(__file__).parent)
    if isinstance(error, SyntaxError):
        return f"{message} ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(package)]
    return f"{message} ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else message
