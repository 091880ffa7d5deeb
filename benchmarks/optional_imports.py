"""Import optional libraries: errors if they are missing, and settings that silence them."""

from __future__ import annotations

from typing import Any

from regard.errors import MissingPackageError


def missing_package_error(package: str, what: str = "'regard[bench]'") -> MissingPackageError:
    """Return the error for a library that is not installed; ``what`` are the arguments of pip install."""
    return MissingPackageError(
        f"{package} is not installed", expected="the peers of the benchmarks", do=f"pip install {what}"
    )


def import_transformers() -> Any:
    """Import transformers, without its messages and progress bars. Raises MissingPackageError if it is missing."""
    try:
        import transformers
    except ImportError:
        raise missing_package_error("transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
