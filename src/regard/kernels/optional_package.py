"""Whether a package of kernels for GPUs can be used on this machine.

It is imported to find out, which takes seconds: so it is asked about for tensors on a GPU alone.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec

from regard.errors import class_and_line

Version = tuple[int, int]


@cache
def find_problem(package: str, modules: tuple[str, ...] = (), minimum: Version | None = None) -> str | None:
    """Return why a package cannot be used, in a clause; None if it and ``modules`` of it are there, and new enough.

    ``minimum`` is the oldest version that can be used, of which the package says its own in ``__version__``.
    """
    try:
        if find_spec(package) is None:
            return f"the package {package} is not installed"
        found = import_module(package)
        version = str(getattr(found, "__version__", ""))
        if minimum is not None and not _is_at_least(version, minimum):
            needed = ".".join(map(str, minimum))
            return f"{package} {needed} or later is needed, and {version or 'an unknown version'} is installed"
        for module in modules:
            import_module(module)
    except Exception as error:  # whatever a broken or incomplete installation raises
        return f"the package {package} cannot be imported: {class_and_line(error, 120)}"
    return None


def _is_at_least(version: str, minimum: Version) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= minimum
