"""The memory that the weights of a model need, before it is loaded, copied or converted for an audit."""

from __future__ import annotations

from regard.available_memory import available_memory
from regard.errors import RefusedError


def fits_in_memory(needed: int) -> bool:
    """Whether so many bytes fit into memory, or the system does not say how many do."""
    available = available_memory()
    return available is None or needed <= available


def check_memory(needed: int, refusal: str) -> None:
    """Raise RefusedError, with a sentence such as "the model does not fit into memory", if so many bytes do not."""
    if not fits_in_memory(needed):
        raise RefusedError(
            refusal,
            expected=f"at most {(available_memory() or 0) / 2**30:.1f} GiB of weights, which are free now",
            got=f"about {needed / 2**30:.1f} GiB of weights",
            do="audit a small model of the same type, such as one made from its config with 2 layers: its code is what "
            "leaks, and random weights show it as well",
        )
