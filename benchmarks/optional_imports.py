"""Peers that are optional: what they are called where they are missing, and how they are kept quiet."""

from __future__ import annotations

from typing import Any

from regard.errors import MissingPackageError


def missing_package_error(package: str, what: str = "'regard[bench]'") -> MissingPackageError:
    """The error for a peer that is not installed; ``what`` pip is to install."""
    return MissingPackageError(
        f"{package} is not installed", expected="the peers of the benchmarks", do=f"pip install {what}"
    )


def import_transformers() -> Any:
    """transformers, without its messages and bars. Raises MissingPackageError where it is not installed."""
    try:
        import transformers
    except ImportError:
        raise missing_package_error("transformers") from None
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return transformers
