"""What an implementation is: code for one operation, which says what it refuses, and computes what it does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

RefusalCheck: TypeAlias = Callable[[Any], str | None]
"""Of an operation's request: one clause that says why not, or None."""


def _no_reason(request: object) -> None:
    del request


@final
@dataclass(frozen=True)
class Implementation:
    """Code for one operation. It never hands a request to another implementation.

    Args:
        name: as ``impl=`` has it.
        compute: ``(request, ...)`` -> what the operation gives, for a request that is not refused.
        refuses: why it cannot compute a request; None if it can.
        auto_skips: why "auto" does not take it for a request that it would not refuse.
        merit: why "auto" takes it, for people.
    """

    name: str
    compute: Callable[..., Any]
    refuses: RefusalCheck = _no_reason
    auto_skips: RefusalCheck = _no_reason
    merit: str = ""


@final
@dataclass(frozen=True)
class Backend:
    """What implementations of one name compute with on this machine.

    ``unavailable_reason()`` says why they can compute nothing here, whatever the request; None if they can.
    ``details()`` says what they compute with, for people, where they can.
    """

    name: str
    unavailable_reason: Callable[[], str | None]
    details: Callable[[], str]
