"""Which implementation computes: by name, or the choice of "auto", with the reasons.

``auto`` takes the first of these that does not refuse and is not passed over:

    native       on a CPU, but for what torch does faster (see ``native.outrun``)
    sdpa         there, and on other devices
    flex         never, until it has been measured against sdpa
    reference    for what none of them computes

On a CPU all of them keep the promise that what a mask forbids has no influence whatever it holds; on a GPU "sdpa" keeps
it for finite numbers, and for padding. Statistics come from the first that does not refuse to observe.
"""

from __future__ import annotations

from dataclasses import dataclass

from regard.errors import RefusedError, check_choice
from regard.kernels.flex import Flex
from regard.kernels.implementation import Implementation
from regard.kernels.native import Native, outrun
from regard.kernels.reference import Reference
from regard.kernels.request import Request
from regard.kernels.sdpa import Sdpa

IMPLEMENTATIONS: dict[str, Implementation] = {impl.name: impl for impl in (Native(), Sdpa(), Flex(), Reference())}

_MERITS = {
    "native": "regard's own kernels, made for this CPU",
    "sdpa": "torch's fused kernel, with regard's meaning of masks and empty rows",
    "reference": "exact for every mask and bias, at the price of holding the weights",
}


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
    taken = _first(request).name
    reasons = {
        name: impl.refuses(request) or _passed_over(name, request) or f"{taken} comes first"
        for name, impl in IMPLEMENTATIONS.items()
    }
    return Choice(taken, reasons | {taken: _MERITS[taken]})


def implementation(name: str, request: Request, *, observing: bool = False) -> Implementation:
    """The named implementation, or auto's choice. A named one is used or refused, never replaced.

    Raises OptionError for an unknown name, RefusedError where the named one cannot.
    """
    if isinstance(name, str) and name == "auto":
        return _first_to_observe(request) if observing else _first(request)
    check_choice("impl", name, ("auto", *IMPLEMENTATIONS))
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


def _first(request: Request) -> Implementation:
    """The implementation that "auto" takes. The reference refuses nothing, so there is one."""
    for name, impl in IMPLEMENTATIONS.items():
        if impl.refuses(request) is None and _passed_over(name, request) is None:
            return impl
    return IMPLEMENTATIONS["reference"]


def _first_to_observe(request: Request) -> Implementation:
    """The one that "auto" takes for statistics."""
    return next(impl for impl in IMPLEMENTATIONS.values() if impl.refuses_to_observe(request) is None)


def _passed_over(name: str, request: Request) -> str | None:
    """Why "auto" does not take an implementation that would not refuse."""
    if name == "flex":
        return "only taken by name until it has been measured against sdpa"
    if name == "native" and outrun(request):
        return "without AVX2, torch is the faster where no mask lets tiles be skipped"
    return None
