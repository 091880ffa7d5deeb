"""``Implementation``: code for one operation, with the checks that say which requests it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

RefusalCheck: TypeAlias = Callable[[Any], str | None]
"""Given a request of the operation: one clause that says why it is refused, or None."""


def _no_reason(request: object) -> None:
    del request


@final
@dataclass(frozen=True)
class Implementation:
    """Code for one operation. It never passes a request to another implementation.

    Args:
        name: its name in ``impl=``.
        compute: ``(request, ...)`` -> the result of the operation, for a request that is not refused.
        refuses: returns why it cannot compute a request; None if it can.
        auto_skips: returns why "auto" skips it for a request that it does not refuse; None if "auto" may pick it.
        why_chosen: why "auto" picks it, for messages.
    """

    name: str
    compute: Callable[..., Any]
    refuses: RefusalCheck = _no_reason
    auto_skips: RefusalCheck = _no_reason
    why_chosen: str = ""


@final
@dataclass(frozen=True)
class Backend:
    """The library or kernels behind the implementations of one name, on this machine.

    ``unavailable_reason()`` returns why no request can be computed on this machine; None if it is available.
    ``details()`` describes what it computes with, for messages, if it is available.
    """

    name: str
    unavailable_reason: Callable[[], str | None]
    details: Callable[[], str]
