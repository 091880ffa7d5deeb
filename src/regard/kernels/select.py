"""Selection of the implementation of an operation: by name, or by "auto", with the reasons.

One table lists every operation and its implementations, in the order in which "auto" tries them: it takes the first
that does not refuse the request and that ``auto_skips`` does not exclude; one that ``auto_defers`` puts off comes after
all others. For attention:

    native       on a CPU, except where torch is faster (see ``native.sdpa_is_faster``)
    sdpa         there, and on other devices if torch's kernel has a form for the mask (``sdpa_form``)
    flex         on GPUs, for masks, biases and other terms without such a form
    sdpa         with a dense mask, for what flex refuses
    reference    for requests that all others refuse

The order on a CPU was measured. That on GPUs is assumed, and "why" says so, until it has been measured on one.
For "observe", native on a CPU and triton on a GPU come before reference; the others do not return their weights.

On a CPU all of them keep the promise that masked positions have no influence, whatever they hold; on a GPU "sdpa" keeps
it for finite numbers, and for padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias, final

from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import RefusedError, check_choice
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.implementations import (
    bucket_attention,
    chosen_blocks,
    flex,
    gathered_keys,
    mlp_score,
    native,
    paged,
    reference,
    scan,
    scan_fla,
    sdpa,
    sigmoid,
    talking_heads,
    triton,
)

Operation: TypeAlias = Literal[
    "attention",
    "observe",
    "sigmoid attention",
    "talking heads",
    "mlp score",
    "paged attention",
    "scan",
    "chosen blocks",
    "gathered keys",
    "bucket attention",
]


class OperationRequest(Protocol):
    """A request of some operation; each operation has its own class."""

    def describe(self) -> str:
        """The request in one line, for messages."""
        ...


def _make_unobservable(name: str) -> Implementation:
    """An implementation of "observe" that refuses every request."""
    reason = f"{name} does not return its weights, so there are no statistics of them"
    return Implementation(name, compute=lambda: None, refuses=lambda request: reason)


_IMPLEMENTATIONS: Mapping[Operation, tuple[Implementation, ...]] = {
    "attention": (native.ATTENTION, sdpa.ATTENTION, flex.ATTENTION, reference.ATTENTION),
    "observe": (native.OBSERVE, triton.OBSERVE, *map(_make_unobservable, ("sdpa", "flex")), reference.OBSERVE),
    "sigmoid attention": (sigmoid.NATIVE, sigmoid.REFERENCE),
    "talking heads": (talking_heads.NATIVE, talking_heads.REFERENCE),
    "mlp score": (mlp_score.NATIVE, mlp_score.REFERENCE),
    "paged attention": (paged.IN_PLACE, paged.GATHERED),
    "scan": (scan.NATIVE, scan_fla.FLA, scan.REFERENCE),
    "chosen blocks": (chosen_blocks.NATIVE, chosen_blocks.MASKED),
    "gathered keys": (gathered_keys.NATIVE, gathered_keys.MASKED),
    "bucket attention": (bucket_attention.NATIVE, bucket_attention.REFERENCE),
}
_IMPLEMENTATIONS_BY_NAME = {
    operation: {implementation.name: implementation for implementation in implementations}
    for operation, implementations in _IMPLEMENTATIONS.items()
}

BACKENDS: Mapping[str, Backend] = {
    backend.name: backend for backend in (module.BACKEND for module in (native, sdpa, flex, triton, reference))
}
"""The backend of each implementation name on this machine."""


@final
@explain_arguments
@dataclass(frozen=True)
class Choice:
    """The choice of "auto": ``impl``, the name of what it picked, and ``reasons``, one sentence per implementation."""

    impl: str
    reasons: dict[str, str]

    def __str__(self) -> str:
        lines = [f"auto takes {self.impl}: {self.reasons[self.impl]}"]
        lines += [f"  not {name}: {reason}" for name, reason in self.reasons.items() if name != self.impl]
        return "\n".join(lines)


def impl_names(operation: Operation) -> tuple[str, ...]:
    """Names that ``impl=`` accepts for an operation, besides "auto"."""
    return tuple(_IMPLEMENTATIONS_BY_NAME[operation])


def explain_choice(operation: Operation, request: OperationRequest) -> Choice:
    """Return the choice of "auto" for a request, with the reasons against the others."""
    selected = _select_auto(operation, request)
    reasons = {
        implementation.name: implementation.refuses(request)
        or implementation.auto_skips(request)
        or implementation.auto_defers(request)
        or f"{selected.name} comes first"
        for implementation in _IMPLEMENTATIONS[operation]
    }
    return Choice(selected.name, reasons | {selected.name: selected.why_picked(request)})


def select(operation: Operation, name: str, request: OperationRequest) -> Implementation:
    """Return the named implementation of an operation, or the choice of "auto"; a named one is never replaced.

    Raises OptionError for an unknown name, RefusedError if the named implementation refuses the request.
    """
    if isinstance(name, str) and name == "auto":
        return _select_auto(operation, request)
    check_choice("impl", name, ("auto", *_IMPLEMENTATIONS_BY_NAME[operation]))
    chosen = _IMPLEMENTATIONS_BY_NAME[operation][name]
    reason = chosen.refuses(request)
    if reason is not None:
        raise RefusedError(
            f"impl {name!r} refuses: {reason}",
            expected="a request that it can compute exactly",
            got=request.describe(),
            do='use impl="auto", and regard.why(...) to see what it picks',
        )
    return chosen


def attend(operation: Operation, name: str, request: OperationRequest, *options: object) -> Tensor:
    """Compute the output of an operation with the implementation that ``select`` returns."""
    output: Tensor = select(operation, name, request).compute(request, *options)
    return output


def _select_auto(operation: Operation, request: OperationRequest) -> Implementation:
    """Return the first implementation that can and should compute the request; the last one refuses nothing."""
    deferred = None
    for implementation in _IMPLEMENTATIONS[operation]:
        if implementation.refuses(request) is None and implementation.auto_skips(request) is None:
            if implementation.auto_defers(request) is None:
                return implementation
            deferred = deferred or implementation
    return deferred or _IMPLEMENTATIONS[operation][-1]
