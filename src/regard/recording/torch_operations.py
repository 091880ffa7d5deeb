"""Recording of any torch module: by the operations that its modules call while they run.

Below autograd, torch passes each operation to a dispatch mode. The mode calls it, and looks at what it was: an
operation that computes attention (``fused_calls``), or a step of attention that a module writes by hand
(``written_attention``). The model computes as it does without, to the bit.

Operations of the backward pass are those of gradients, or of a layer that is computed again: they are not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from regard.errors import RefusedError
from regard.exact_attention import listen_to_attention
from regard.kernels.request import Request
from regard.language import abbreviate_names
from regard.layers.activation_checkpoint import is_recomputing
from regard.layers.module_names import join_names
from regard.log import log
from regard.masks.visible_keys import VisibleKeys
from regard.mechanisms.base import Mechanism
from regard.recording.calling_modules import CallingModules
from regard.recording.calls import LayerCall
from regard.recording.fused_calls import read_fused_call
from regard.recording.native_attention import NativeAttention
from regard.recording.recorded_call import make_call
from regard.recording.written_attention import WrittenAttention
from regard.tensors import has_values

_ATTENTION_OF_TORCH = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


def listen_to_operations(
    model: nn.Module,
    covered: Collection[nn.Module],
    add: Callable[[LayerCall], None],
    *,
    is_running: bool,
    native: NativeAttention | None,
) -> AbstractContextManager[object] | None:
    """Return a context in which calls of other modules than ``covered`` are passed to ``add``; None if there are none.

    ``is_running`` says whether the context is opened in a call of ``model``, and ``native`` computes those that it can.

    Raises RefusedError at the end of the context if the model was called and nothing was seen, unless it has layers
    that are recorded otherwise, and that this call may have left out.
    """
    own = {module for module in model.modules() if isinstance(module, Mechanism)}
    inside = {module for part in covered for module in part.modules()}
    if not any(_may_attend(module) for module in model.modules() if module not in inside):
        return None
    return _listen(CallingModules(model, {*own, *covered}, is_running=is_running), model, add, native)


def _may_attend(module: nn.Module) -> bool:
    """Whether the code of a module may compute attention: that of regard and of torch's plain layers does not."""
    if isinstance(module, _ATTENTION_OF_TORCH):
        return True
    return type(module).__module__.partition(".")[0] not in ("regard", "torch")


@contextmanager
def _listen(
    calling: CallingModules, model: nn.Module, add: Callable[[LayerCall], None], native: NativeAttention | None
) -> Iterator[None]:
    mode = _Operations(calling, WrittenAttention(model.parameters()), add, native)
    with calling.follow(), listen_to_attention(mode.report_request), mode:
        yield
    layers = [layer or type(model).__name__ for layer in mode.written.not_understood]  # the model itself has no name
    if mode.calls == 0 and calling.was_called and not calling.covered:
        raise _nothing_error(model, layers)
    if layers:
        log.warning(f"{type(model).__name__}: not recorded: a softmax of scores in {abbreviate_names(layers)}")
    if native is not None and native.reasons:
        log.warning(f"{type(model).__name__}: computed by torch: {native.describe()}")


@final
class _Operations(TorchDispatchMode):
    """Passes the calls of attention among the operations to ``add``."""

    supports_higher_order_operators = True

    def __init__(
        self,
        calling: CallingModules,
        written: WrittenAttention,
        add: Callable[[LayerCall], None],
        native: NativeAttention | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch does not annotate it
        self.calling, self.written, self.add, self.native, self.calls = calling, written, add, native, 0

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: Mapping[str, Any] | None = None
    ) -> Any:
        """Call an operation, and look at what it was."""
        named = named or {}
        if not self._is_recorded(arguments):
            return operation(*arguments, **named)
        if torch.is_inference_mode_enabled() and _is_composite(operation):
            with self:
                return operation.decompose(*arguments, **named)
        output = self._compute_natively(operation, arguments, named)
        if output is None:
            self.written.prepare(operation, arguments)
            output = operation(*arguments, **named)
        call = read_fused_call(operation, arguments, named)
        if call is None:
            call = self.written.follow(operation, arguments, output, self.calling.running, self.calling.name)
            if call is not None and self.native is not None:
                self.native.refuse("written by hand, or written out by torch", self._full_name(call))
        if call is not None:
            self._add(call)
        return output

    def _compute_natively(self, operation: Any, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """The results of an operation by regard's kernels; None if torch is to compute it."""
        call = None if self.native is None else read_fused_call(operation, arguments, named)
        return (
            None if call is None or self.native is None else self.native.compute(operation, call, self._full_name(call))
        )

    def report_request(self, request: Request) -> None:
        """Add a call of ``regard.attention`` by a module of the model."""
        if not self._is_recorded((request.query,)):
            return
        terms = request.terms._asdict()
        del terms["dropout"]
        visible = VisibleKeys(terms.pop("mask"))
        self._add(make_call("", request.query, request.key, request.value, visible=visible, **terms))

    def _is_recorded(self, arguments: tuple[Any, ...]) -> bool:
        if not self.calling.is_recorded or torch._C._current_graph_task_id() != -1 or is_recomputing():
            return False
        return all(has_values(argument) for argument in tree_iter(arguments) if isinstance(argument, Tensor))

    def _add(self, call: LayerCall) -> None:
        self.calls += 1
        self.add(replace(call, name=self._full_name(call)))

    def _full_name(self, call: LayerCall) -> str:
        return join_names(self.calling.name, call.name)


@cache
def _is_composite(operation: Any) -> bool:
    """Whether torch computes an operation by others; in inference mode the dispatch mode sees it before it does."""
    return isinstance(operation, torch._ops.OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), "CompositeImplicitAutograd"
    )


def _nothing_error(model: nn.Module, layers: list[str]) -> RefusedError:
    return RefusedError(
        f"no attention was seen while {type(model).__name__} ran",
        expected="scaled_dot_product_attention, nn.MultiheadAttention, flex_attention, or weights that sum to 1 (a "
        "softmax of products of queries and keys, or of a score of each token) and are multiplied by values (`@`)",
        got=f"a softmax of scores with another use in {abbreviate_names(layers)}" if layers else "none of these",
        do="compute attention in one of these ways, or by regard.MultiHeadAttention",
    )
