"""Recording of models of ``transformers``: the attention function reports its calls to the open recordings.

A call is recorded as a ``LayerCall``, as in regard's own layers: its name is the name of the module, its mechanism
computes weights and statistics on request, and its keys start with token 0. Keys at the end that no query may attend
to, such as the unused part of a static cache, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from regard.errors import OptionError
from regard.hf.check import check, pretrained_parts
from regard.hf.recorded_call import make_mechanism, simplify_bias
from regard.hf.visible_keys import VisibleKeys
from regard.layers.activation_checkpoint import is_recomputing
from regard.layers.module_names import join_names
from regard.log import log
from regard.models.weight_names import abbreviate_names
from regard.recording import CallSource, LayerCall


@final
class TokenBuffer:
    """The keys or values of a layer's last call, in memory that may have room for more, without a token twice.

    While a model generates, each call passes all tokens of its cache. If a call starts with the tokens of the last one,
    bit for bit, only the new ones are appended, so that memory is linear in the number of tokens. The storage is a
    copy: a static cache is written in place.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._length = 0

    def store(self, tokens: Float[Tensor, "batch heads length size"]) -> Float[Tensor, "batch heads length size"]:
        """Return a copy of ``tokens`` that shares memory with the tokens of earlier calls, where they are equal."""
        length = tokens.shape[2]
        with torch.inference_mode(False), torch.no_grad():
            if self._memory is None or not self._is_extended_by(self._memory, tokens):
                self._memory = tokens.detach().clone()
            else:
                if length > self._memory.shape[2]:
                    self._memory = _with_room(self._memory, 2 * length)
                self._memory[:, :, self._length : length] = tokens[:, :, self._length :]
            self._length = length
            return self._memory[:, :, :length]

    def _is_extended_by(self, memory: Tensor, tokens: Tensor) -> bool:
        """Whether ``tokens`` start with those that are stored; NaN equals nothing."""
        return (
            (tokens.dtype, tokens.device) == (memory.dtype, memory.device)
            and tokens.shape[:2] == memory.shape[:2]
            and tokens.shape[3] == memory.shape[3]
            and tokens.shape[2] >= self._length
            and torch.equal(tokens[:, :, : self._length], memory[:, :, : self._length])
        )


def _with_room(memory: Tensor, length: int) -> Tensor:
    larger = memory.new_empty(*memory.shape[:2], length, memory.shape[3])
    larger[:, :, : memory.shape[2]] = memory
    return larger


@final
@dataclass(eq=False)
class _Listener:
    """An open recording: the names of its model's modules, where calls go, and the tokens of each layer."""

    names: Mapping[nn.Module, str]
    add: Callable[[LayerCall], None]
    buffers: dict[nn.Module, tuple[TokenBuffer, TokenBuffer]] = field(default_factory=dict)


_listeners: list[_Listener] = []


def is_recording() -> bool:
    """Whether there is an open recording of a model of ``transformers``."""
    return len(_listeners) > 0


@torch.compiler.disable(reason="regard.record is open")  # type: ignore[untyped-decorator] # a graph would record once
def report_call(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    visible: VisibleKeys,
    bias: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> None:
    """Add a call of the layer ``module`` to every open recording of its model."""
    listeners = [listener for listener in _listeners if module in listener.names]
    if not listeners or is_recomputing():  # gradient checkpointing computes the call again, in the backward pass
        return
    visible = visible.from_key_0
    keys = key.shape[2] if visible.stop is None else visible.stop
    heads, queries, head_dim = query.shape[1:]
    mechanism = make_mechanism(heads=heads, head_dim=head_dim, scale=scale, softcap=softcap, sinks=sinks)
    simple = None if bias is None else simplify_bias(visible.narrow(bias, 3), queries=queries, keys=keys)
    for listener in listeners:
        of_keys, of_values = listener.buffers.setdefault(module, (TokenBuffer(), TokenBuffer()))
        listener.add(
            LayerCall(
                name=listener.names[module],
                mechanism=mechanism,
                query=query.detach(),
                key=of_keys.store(visible.narrow(key, 2)),
                value=of_values.store(visible.narrow(value, 2)),
                mask=visible.mask,
                bias=simple,
            )
        )


@final
class InterfaceLayers(CallSource):
    """The attention layers that use the interface of ``transformers``, in parts of a model that compute with regard.

    ``function`` is the attention function that reports its calls.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def listen(self, model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
        """Return a context in which each call of such a layer is passed to ``add``; None if there are none."""
        recorded, others = self._sort_layers(model)
        if not recorded:
            return None
        if others:
            log.warning(f"{type(model).__name__}: not recorded: " + _describe(others))
        return _open(_Listener({module: name for name, module in model.named_modules()}, add))

    def explain(self, model: nn.Module) -> OptionError | None:
        """Return the error for a model of ``transformers`` whose layers cannot be recorded; None for others."""
        others = self._sort_layers(model)[1]
        if not others:
            return _no_layer_error(model)
        islands = {name: why for name, why in others.items() if not why.startswith("attn_")}
        if len(islands) < len(others):
            return OptionError(
                f"{type(model).__name__} does not compute its attention with regard, so it cannot be recorded",
                expected='attn_implementation="regard"',
                got=", ".join(sorted(set(others.values()) - set(islands.values()))),
                do='model.set_attn_implementation("regard")',
            )
        return OptionError(
            f"{type(model).__name__} computes its attention by code of its own, so it cannot be recorded",
            expected="layers that use the interface of transformers; regard.hf.check(model) tells",
            got=_describe(islands),
            do='use attn_implementation="eager", and call the model with output_attentions=True',
        )

    def _sort_layers(self, model: nn.Module) -> tuple[list[str], dict[str, str]]:
        """Names of the layers that compute with regard, and of the others with their class or implementation."""
        recorded, others = [], {}
        for prefix, part in pretrained_parts(model):
            report = check(part)
            for name in report.through_interface:
                implementation = report.implementation_of(name)
                if self._reports(implementation):
                    recorded.append(join_names(prefix, name))
                else:
                    others[join_names(prefix, name)] = f'attn_implementation="{implementation}"'
            others |= {join_names(prefix, name): kind for name, kind in report.own_code.items()}
        return recorded, others

    def _reports(self, implementation: str) -> bool:
        """Whether a name stands for that function; "sdpa" does inside ``replace_sdpa``."""
        functions = ALL_ATTENTION_FUNCTIONS
        return implementation in functions and functions[implementation] is self._function


def number_calls(calls: Iterable[LayerCall]) -> list[LayerCall]:
    """Give the calls of a layer that is called several times names of their own: ALBERT's layers share one module."""
    counted: Counter[str] = Counter()
    named = []
    for call in calls:
        counted[call.name] += 1
        count = counted[call.name]
        named.append(call if count == 1 else replace(call, name=f"{call.name}, call {count}"))
    return named


@contextmanager
def _open(listener: _Listener) -> Iterator[None]:
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _no_layer_error(model: nn.Module) -> OptionError | None:
    """The error for a model of ``transformers`` in which no attention layer is found; None for others."""
    if any(pretrained_parts(model)):
        return OptionError(
            f"{type(model).__name__} has no attention layer that can be recorded",
            expected="a model with attention layers",
            got="none in it: such a model may mix tokens by scans or convolutions, which have no attention weights",
            do="record another model; regard.hf.check(model) tells which attention layers a model has",
        )
    if any(type(module).__module__.startswith("transformers.") for module in model.modules()):
        return OptionError(
            f"{type(model).__name__} is a part of a model of transformers, and cannot be recorded alone",
            expected="the whole model, whose layers are found with their names",
            got=f"a {type(model).__name__}",
            do="regard.record(model) with the whole model, and call the part inside the with block",
        )
    return None


def _describe(layers: Mapping[str, str]) -> str:
    """Names of layers, with why they are not recorded."""
    by_reason: dict[str, list[str]] = {}
    for name, why in layers.items():
        by_reason.setdefault(why, []).append(name)
    return "; ".join(f"{abbreviate_names(names)} ({why})" for why, names in by_reason.items())
