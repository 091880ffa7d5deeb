"""Which implementation computes: by name, or the choice of "auto", with the reasons.

``auto`` takes "sdpa" where it does not refuse, and else "reference". On a CPU both keep the promise that what a mask
forbids has no influence whatever it holds; on a GPU "sdpa" keeps it for finite numbers, and for padding.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import RefusedError, unknown
from regard.kernels.flex import Flex
from regard.kernels.implementation import Implementation
from regard.kernels.reference import Reference
from regard.kernels.request import Request
from regard.kernels.sdpa import Sdpa

IMPLEMENTATIONS: dict[str, Implementation] = {impl.name: impl for impl in (Sdpa(), Flex(), Reference())}


@dataclass(frozen=True)
class Choice:
    """What "auto" picked: ``impl`` its name, ``reasons`` one sentence for each implementation."""

    impl: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        lines = [f"auto takes {self.impl}: {self.reasons[self.impl]}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.reasons.items() if name != self.impl]
        return "\n".join(lines)


def choose(request: Request) -> Choice:
    """The choice of "auto" for a request."""
    reasons = {name: impl.refuses(request) or _passed_over(name) or "" for name, impl in IMPLEMENTATIONS.items()}
    taken = next(name for name, reason in reasons.items() if not reason)
    for name in reasons:
        if name == taken:
            reasons[name] = _merit(name)
        elif not reasons[name]:
            reasons[name] = f"{taken} comes first"
    return Choice(taken, reasons)


def implementation(name: str, request: Request, *, observing: bool = False) -> Implementation:
    """The named implementation, or auto's choice. A named one is used or refused, never replaced.

    Raises OptionError for an unknown name, RefusedError where the named one cannot.
    """
    if name == "auto":
        return IMPLEMENTATIONS["reference" if observing else choose(request).impl]
    if not isinstance(name, str) or name not in IMPLEMENTATIONS:
        raise unknown("impl", name, ["auto", *IMPLEMENTATIONS])
    chosen = IMPLEMENTATIONS[name]
    reason = chosen.refuses_to_observe(request) if observing else chosen.refuses(request)
    if reason is not None:
        raise RefusedError(
            f"impl {name!r} refuses: {reason}",
            expected="a request it can compute exactly",
            got=describe(request),
            do='use impl="auto", and regard.why(...) to see what it picks',
        )
    return chosen


def describe(request: Request) -> str:
    """The request in one line, for messages."""
    bias = type(request.bias).__name__ if request.bias is not None else "none"
    return (
        f"query {tuple(request.query.shape)} {request.query.dtype} on {request.device}, "
        f"key {tuple(request.key.shape)}, mask {request.mask!r}, bias {bias}, dropout {request.dropout:g}"
    )


def _passed_over(name: str) -> str | None:
    """Why "auto" does not take an implementation that would not refuse."""
    return "only taken by name until it has been measured against sdpa" if name == "flex" else None


def _merit(name: str) -> str:
    return {
        "sdpa": "torch's fused kernel, with regard's meaning of masks and empty rows",
        "reference": "exact for every mask and bias, at the price of holding the weights",
    }[name]
