"""``regard.record``: record the inputs of each attention layer of a model, without a second model class.

    with regard.record(model) as seen:
        model(ids)
    for layer in seen:
        print(layer.name, layer.query.shape, layer.weights().shape)

Forward pre-hooks on every ``Mechanism`` inside the model record its calls while the context is open, whatever the model
is. Only queries, keys, values, masks, biases and extra inputs are kept, so memory is linear in length; weights and
statistics are computed on request. Layers that are no ``Mechanism`` are recorded by a ``CallSource``: ``regard.hf``
adds one for models of ``transformers``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import MissingLayerError, OptionError, check_kind, short_repr
from regard.kernels.request import Bias
from regard.kernels.token_projection import TokenProjection
from regard.layers.activation_checkpoint import is_recomputing
from regard.layers.torch_attention import why_not_convertible
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.extra_input import select_side


@final
@dataclass(frozen=True, repr=False, eq=False)
class LayerCall:
    """One recorded call of one attention layer.

    Tensors are detached, have the shapes in ``contract``, and were recorded after any rotation by position. ``inputs``
    are those that the mechanism declares beside query, key and value.
    """

    name: str
    mechanism: Mechanism
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Bias | None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{side} {tuple(getattr(self, side).shape)}" for side in ("query", "key", "value"))
        return f"LayerCall({self.name!r}, {type(self.mechanism).__name__}, {shapes}, mask={self.mask!r})"

    def inputs_of(self, side: Literal["query", "key"]) -> dict[str, Tensor]:
        """Return the extra inputs that belong to the queries or to the keys."""
        return select_side(self.inputs, self.mechanism.extra_inputs, side)

    def weights(self, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """Compute the exact weights (batch, heads, rows, keys) of the queries ``rows``; None is all queries."""
        with torch.no_grad():
            return self.mechanism.weights(
                self.query, self.key, mask=self.mask, bias=self.bias, rows=rows, **self.inputs
            )

    def observe(self, *, top: int = 8, rows: Sequence[int] | Tensor | None = None) -> Observation:
        """Compute statistics of the weights in linear memory: see ``Observation``."""
        with torch.no_grad():
            return self.mechanism.observe(
                self.query, self.key, self.value, self.mask, bias=self.bias, top=top, rows=rows, **self.inputs
            )


@final
class Recording(Sequence[LayerCall]):
    """The recorded calls of all attention layers, in order.

    Index by number or by name: ``seen["layers.0.attention"]`` is the last call of that layer.
    """

    def __init__(self) -> None:
        self._calls: list[LayerCall] = []

    def __repr__(self) -> str:
        return "Recording(" + ", ".join(call.name or "attention" for call in self._calls) + ")"

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[LayerCall]:
        return iter(self._calls)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Integral) and not -len(self) <= int(index) < len(self):
            # MissingLayerError is an IndexError, by which Python finds the end of a sequence.
            raise MissingLayerError(
                f"attention layer {short_repr(index)} was not called",
                expected=f"an index below {len(self)}" if self._calls else "a call of the model inside the `with`",
                got=short_repr(index),
                do="len(seen) is the number of calls",
            )
        check_kind("index of a call", index, (int, slice, str, Integral), do="a number from 0, or the layer's name")
        if not isinstance(index, str):
            return self._calls[index]
        named = [call for call in self._calls if call.name == index]
        if not named:
            raise OptionError(
                f"no attention layer {short_repr(index)} was called",
                expected="one of "
                + (", ".join(dict.fromkeys(call.name for call in self._calls)) or "none: the model was not called"),
                got=short_repr(index),
                do="call the model inside the `with`, and use the names of model.named_modules()",
            )
        return named[-1]


class CallSource(ABC):
    """A kind of attention layer that is no ``Mechanism``: the code that computes it reports its calls."""

    @abstractmethod
    def listen(self, model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
        """Return a context in which each call of such a layer is passed to ``add``; None if there are no such layers.

        Layers of this kind whose calls would not be reported are not counted.
        """

    @abstractmethod
    def explain(self, model: nn.Module) -> OptionError | None:
        """Return the error for a model whose layers are of this kind, but cannot be recorded; None for others."""


_sources: list[CallSource] = []


def add_call_source(source: CallSource) -> None:
    """Let ``record`` ask this source too."""
    _sources.append(source)


@explain_arguments
@contextmanager
def record(model: nn.Module) -> Iterator[Recording]:
    """Record the calls of every attention layer of ``model`` while the context is open; yields a ``Recording``.

    Models of ``transformers`` are recorded if they compute with regard: ``import regard.hf``, and
    ``model.set_attn_implementation("regard")``. Raises OptionError if ``model`` is not a module, or has no attention
    layer that can be recorded.
    """
    if not isinstance(model, nn.Module):
        raise OptionError(
            "record takes a model",
            expected="a torch.nn.Module",
            got=short_repr(model),
            do='load one first: model = regard.load("minilm")',
        )
    seen = Recording()
    contexts = [_listen_to_mechanisms(model, seen._calls.append)]
    contexts += [source.listen(model, seen._calls.append) for source in _sources]
    if all(context is None for context in contexts):
        raise next(filter(None, (source.explain(model) for source in _sources)), _no_layer_error(model))
    with ExitStack() as stack:
        for context in filter(None, contexts):
            stack.enter_context(context)
        yield seen


def _no_layer_error(model: nn.Module) -> OptionError:
    if any(type(module).__module__.startswith("transformers.") for module in model.modules()):
        return OptionError(
            f"{type(model).__name__} is a model of transformers that does not compute with regard",
            expected='attn_implementation="regard"',
            got="regard.hf, which adds that name, is not imported",
            do='import regard.hf; model.set_attn_implementation("regard")',
        )
    layers = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    can_convert = any(why_not_convertible(layer) is None for layer in layers)
    return OptionError(
        f"{type(model).__name__} has no attention layer that can be recorded",
        expected="a model built from regard's mechanisms",
        got=f"{len(layers)} nn.MultiheadAttention of torch" if layers else "none among its modules",
        do="call regard.convert(model) first, by which layers of torch compute with regard"
        if can_convert
        else "build it with regard.MultiHeadAttention, or load one with regard.load",
    )


def _listen_to_mechanisms(model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
    """Return a context in which each call of a ``Mechanism`` is passed to ``add``; None if there are none."""
    mechanisms = [(name, module) for name, module in model.named_modules() if isinstance(module, Mechanism)]
    return _register_hooks(mechanisms, add) if mechanisms else None


@contextmanager
def _register_hooks(mechanisms: Sequence[tuple[str, Mechanism]], add: Callable[[LayerCall], None]) -> Iterator[None]:
    handles = [
        module.register_forward_pre_hook(_make_pre_hook(add, name), with_kwargs=True) for name, module in mechanisms
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _make_pre_hook(add: Callable[[LayerCall], None], name: str) -> Any:
    layer = "" if name == "mechanism" else name.removesuffix(".mechanism")

    def listen(module: Mechanism, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if is_recomputing():  # the same call as before, in the backward pass
            return
        arguments = dict(zip(("query", "key", "value", "mask"), args, strict=False)) | kwargs
        add(
            LayerCall(
                name=layer,
                mechanism=module,
                query=arguments["query"].detach(),
                key=_read_input(arguments["key"]),
                value=_read_input(arguments["value"]),
                mask=arguments.get("mask"),
                bias=bias.detach() if isinstance(bias := arguments.get("bias"), Tensor) else bias,
                inputs={
                    extra_input.name: _read_input(arguments[extra_input.name])
                    for extra_input in module.extra_inputs
                    if extra_input.name in arguments
                },
            )
        )

    return listen


def _read_input(passed: Tensor | TokenProjection) -> Tensor:
    """Return an input without gradients; computed, if the layer left that to the mechanism."""
    if isinstance(passed, Tensor):
        return passed.detach()
    with torch.no_grad():
        return passed.compute()
