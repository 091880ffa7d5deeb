"""Recording of models of ``transformers``: the attention function reports its calls to the open recordings.

A call is recorded as a ``LayerCall``, as in regard's own layers: its name is the name of the module, its mechanism
computes weights and statistics on request, and its keys start with token 0. Keys at the end that no query may attend
to, such as the unused part of a static cache, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import final

from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from regard.errors import OptionError
from regard.hf.check import check, pretrained_parts
from regard.layers.activation_checkpoint import is_recomputing
from regard.layers.module_names import join_names
from regard.masks.visible_keys import VisibleKeys
from regard.recording import CallSource, LayerCall
from regard.recording.recorded_call import make_call


@final
@dataclass(eq=False)
class _Listener:
    """An open recording: the names of its model's modules, and where calls go."""

    names: Mapping[nn.Module, str]
    add: Callable[[LayerCall], None]


_listeners: list[_Listener] = []


def is_recording() -> bool:
    """Whether there is an open recording of a model of ``transformers``."""
    return len(_listeners) > 0


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
    call = make_call("", query, key, value, visible=visible, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    for listener in listeners:
        listener.add(replace(call, name=listener.names[module]))


@final
class InterfaceLayers(CallSource):
    """The attention layers that use the interface of ``transformers``, in parts of a model that compute with regard.

    ``function`` is the attention function that reports its calls.
    """

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function

    def listen(self, model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
        """Return a context in which each call of such a layer is passed to ``add``; None if there are none."""
        if not self._sort_layers(model)[0]:
            return None
        return _open(_Listener({module: name for name, module in model.named_modules()}, add))

    def covers(self, model: nn.Module) -> Iterator[nn.Module]:
        """The layers that compute with regard, and whole models in which all layers do."""
        for _, part in pretrained_parts(model):
            recorded, others = self._sort_layers(part)
            if recorded and not others:
                yield part
            else:
                yield from map(part.get_submodule, recorded)

    def explain(self, model: nn.Module) -> OptionError | None:
        """Return the error for a model of ``transformers`` that has no attention layers; None for others."""
        if self._sort_layers(model)[1] or not any(pretrained_parts(model)):
            return None
        return OptionError(
            f"{type(model).__name__} has no attention layer that can be recorded",
            expected="a model with attention layers",
            got="none in it: such a model may mix tokens by scans or convolutions, which have no attention weights",
            do="record another model; regard.hf.check(model) tells which attention layers a model has",
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
