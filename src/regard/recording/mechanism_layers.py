"""Recording of regard's own layers: forward pre-hooks on every ``Mechanism`` of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from regard.kernels.token_projection import TokenProjection
from regard.layers.activation_checkpoint import is_recomputing
from regard.mechanisms.base import Mechanism
from regard.recording.calls import LayerCall


def listen_to_mechanisms(model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
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
