"""``regard.hf.use_scans``: the scans of a model's linear mixers computed by regard.

A linear mixer (gated delta net, Kimi delta attention, Mamba-2) has no attention weights, and ``transformers`` has no
interface for it: its layer calls a function of its own file, in which packages for GPUs or plain torch are fixed when
the file is imported. So the function is replaced in that file: for every model of that type in this process. The scan
of lightning attention (MiniMax) is written out in a method of the layer, which is replaced in its class.

The files of all types hold the same few functions, by the same names (``FUNCTIONS``).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, final

from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import RefusedError
from regard.hf.check import unwrap
from regard.hf.scan_functions import delta_rule, lightning_attention, mamba2_scan, mamba2_step
from regard.kernels.hardware import describe_hardware
from regard.kernels.implementations.scan_fla import device_refusal, package_problem
from regard.layers.attention_code import methods, names_in_code

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": delta_rule,
    "torch_recurrent_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "recurrent_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": mamba2_scan,
    "mamba2_selective_state_update": mamba2_step,
    "MiniMaxLightningAttention.forward": lightning_attention,
}
"""The replacement of each function of ``transformers``; a method has the name of its class, too."""

_OTHER_SCANS = {
    "mamba_selective_scan": "the scan of Mamba-1 has a decay for each channel and each number of its state",
    "mamba_selective_state_update": "the scan of Mamba-1 has a decay for each channel and each number of its state",
}
"""Scans that regard does not compute."""


@final
@explain_arguments
@dataclass(frozen=True)
class ScanReplacement:
    """The layers that ``use_scans`` replaced; a context manager that restores them at its end.

    replaced    the functions that were replaced, by their full name; empty if all had been replaced before
    layers      names of the layers that call them, with their classes
    """

    replaced: Mapping[str, Callable[..., Any]]
    layers: Mapping[str, str]
    _places: tuple[tuple[Any, str, Callable[..., Any]], ...]

    def restore(self) -> None:
        """Put back what was replaced; a second call has no effect."""
        for owner, name, earlier in self._places:
            if getattr(getattr(owner, name), "replaces", None) is earlier:
                setattr(owner, name, earlier)

    def __enter__(self) -> ScanReplacement:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers compute their scan with regard"]
        return "\n".join([*lines, *(f"  {name} is replaced" for name in self.replaced)])


@explain_arguments
def use_scans(model: nn.Module) -> ScanReplacement:
    """Let the linear mixers of a model compute their scans with regard, forward, backward and in generation.

    The functions are replaced in the file of the model type, so every model of this type in the process computes with
    them, until ``restore``. Tensors on a CPU are computed by regard's kernels, and those in half precision on a GPU by
    flash-linear-attention's, if it is installed; others go to the function that was replaced.

    Returns what was replaced. Raises OptionError for another kind of model; RefusedError for a model without linear
    mixers that regard computes, and for one with a scan that it does not.
    """
    model = unwrap(model)
    layers, found = {}, {}
    for layer, module in model.named_modules():
        for owner, name in _called_scans(module):
            if name in _OTHER_SCANS:
                raise _refuse(f"{type(module).__name__} ({layer}) calls {name}: {_OTHER_SCANS[name]}")
            layers[layer] = type(module).__name__
            found[_full_name(owner, name)] = owner, name
    if not layers:
        raise _refuse(f"{type(model).__name__}, none of whose layers calls one of them")
    places, replaced = [], {}
    for full_name, (owner, name) in found.items():
        attribute = name.rpartition(".")[2]
        earlier = getattr(owner, attribute)
        if not hasattr(earlier, "replaces"):
            setattr(owner, attribute, _replace(earlier, FUNCTIONS[name]))
            places.append((owner, attribute, earlier))
            replaced[full_name] = earlier
    return ScanReplacement(replaced, layers, tuple(places))


def _has_kernels(tokens: Tensor) -> bool:
    """Whether there are kernels for tokens: regard's, or in half precision those of flash-linear-attention."""
    if tokens.is_cpu:
        return True
    if tokens.dtype.itemsize != 2 or device_refusal(describe_hardware(tokens.device)) is not None:
        return False
    return package_problem() is None


def _called_scans(module: nn.Module) -> Iterator[tuple[Any, str]]:
    """Scans that the methods of a layer call, or that are such a method: their file or class, and their name."""
    for kind in type(module).__mro__:
        if f"{kind.__name__}.forward" in FUNCTIONS:
            yield kind, f"{kind.__name__}.forward"
    for method in methods(type(module)):
        for name in sorted(names_in_code(method.__code__) & (FUNCTIONS.keys() | _OTHER_SCANS.keys())):
            if callable(method.__globals__.get(name)):
                yield sys.modules[method.__module__], name


def _full_name(owner: Any, name: str) -> str:
    """The name of a function with that of its file."""
    return f"{owner.__module__ if isinstance(owner, type) else owner.__name__}.{name}"


def _replace(earlier: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function that computes tensors by ``function`` where regard has kernels, and others as before."""

    @functools.wraps(earlier)
    def compute(*arguments: Any, **named: Any) -> Any:
        tensor = next(value for value in (*arguments, *named.values()) if isinstance(value, Tensor))
        return (function if _has_kernels(tensor) else earlier)(*arguments, **named)

    # What a reader or a compiler asks for is this function, not the one that it replaces.
    del compute.__wrapped__
    vars(compute).update(replaces=earlier, __signature__=inspect.signature(earlier))
    return compute


def _refuse(got: str) -> RefusedError:
    names = ", ".join(FUNCTIONS)
    return RefusedError(
        "the linear mixers of this model are not computed by regard",
        expected=f"layers that call one of {names}",
        got=got,
        do="use the model as it is; attn_implementation='regard' holds for its attention layers all the same",
    )
