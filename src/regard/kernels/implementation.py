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
        auto_defers: returns why "auto" picks it only if all others refuse, are skipped or are deferred too; None if it
            may come first.
        why_chosen: why "auto" picks it, for messages; a text, or a function of the request.
        takes_rounded_tokens: whether a mechanism that computes in float32 gives it tokens in the caller's dtype.
    """

    name: str
    compute: Callable[..., Any]
    refuses: RefusalCheck = _no_reason
    auto_skips: RefusalCheck = _no_reason
    why_chosen: str | Callable[[Any], str] = ""
    auto_defers: RefusalCheck = _no_reason
    takes_rounded_tokens: bool = False

    def why_picked(self, request: object) -> str:
        """Return why "auto" picks it for a request."""
        return self.why_chosen if isinstance(self.why_chosen, str) else self.why_chosen(request)


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
