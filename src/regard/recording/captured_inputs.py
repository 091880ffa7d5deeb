"""Capture of what the layers of a model read, and of their projections to queries and keys, while it runs.

A layer is a ``MultiHeadAttention``, or a module named attention with projections of its own, as most layers of
``transformers`` are. Tensors are kept as they are, of the last call of each layer: nothing is computed or copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, final

from torch import Tensor, nn

from regard.layers.multi_head import MultiHeadAttention


@final
@dataclass(eq=False)
class CapturedLayer:
    """Tensors of the last call of a layer: the tokens (batch, tokens, width) that each projection read, and what each
    norm read and returned. ``reads`` are the addresses of the tensors that the layer was called with.
    """

    reads: set[int] = field(default_factory=set)
    linears: list[tuple[Tensor, nn.Module]] = field(default_factory=list)
    norms: list[tuple[Tensor, Tensor]] = field(default_factory=list)


@contextmanager
def capture_projections(model: nn.Module) -> Iterator[Mapping[str, CapturedLayer]]:
    """Capture the projections of every layer of ``model`` while the context is open, by the name of the layer."""
    captured: dict[str, CapturedLayer] = {}
    with ExitStack() as stack:
        for name, module in model.named_modules():
            is_own = isinstance(module, MultiHeadAttention)
            if not is_own and not _is_attention(module):
                continue
            layer = captured[name] = CapturedLayer()
            before = _make_own_hook(layer) if is_own else _make_call_hook(layer)
            hooks = [module.register_forward_pre_hook(before, with_kwargs=True)]
            for child in module.children():
                if not is_own and _may_project(child):
                    hooks.append(child.register_forward_pre_hook(_make_linear_hook(layer)))
                elif "norm" in type(child).__name__.lower():
                    hooks.append(child.register_forward_hook(_make_norm_hook(layer)))
            for hook in hooks:
                stack.callback(hook.remove)
            if isinstance(module, MultiHeadAttention):
                stack.enter_context(_capture_memory(module, layer))
        yield captured


def _is_attention(module: nn.Module) -> bool:
    """Whether a module of another package is named attention. Those of torch would lose their fast paths by hooks."""
    kind = type(module)
    return "attention" in kind.__name__.lower() and not kind.__module__.startswith("torch.")


def _may_project(module: nn.Module) -> bool:
    """Whether a module has a matrix that may be that of queries and keys."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() == 2


def _make_own_hook(captured: CapturedLayer) -> Any:
    def capture(layer: MultiHeadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        arguments = dict(zip(("query", "key"), args, strict=False)) | kwargs
        query = arguments["query"]
        key = query if arguments.get("key") is None else arguments["key"]
        own = layer.query_projection if layer.key_projection is None else layer.key_projection
        captured.linears, captured.norms = [(query, layer.query_projection), (key, own)], []

    return capture


@contextmanager
def _capture_memory(layer: MultiHeadAttention, captured: CapturedLayer) -> Iterator[None]:
    """Capture the two calls of cross-attention whose keys are made once: ``project_memory`` and ``attend_memory``."""
    project, attend = layer.project_memory, layer.attend_memory
    keys: list[tuple[Tensor, nn.Module]] = []

    def project_memory(memory: Tensor) -> Any:
        keys[:] = [(memory, layer.query_projection if layer.key_projection is None else layer.key_projection)]
        return project(memory)

    def attend_memory(query: Tensor, *args: Any, **kwargs: Any) -> Any:
        captured.linears, captured.norms = [(query, layer.query_projection), *keys], []
        return attend(query, *args, **kwargs)

    replaced = {"project_memory": project_memory, "attend_memory": attend_memory}
    for name, method in replaced.items():
        setattr(layer, name, method)
    try:
        yield
    finally:
        for name in replaced:
            delattr(layer, name)


def _make_call_hook(captured: CapturedLayer) -> Any:
    def capture(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del layer
        captured.reads = {part.data_ptr() for part in (*args, *kwargs.values()) if isinstance(part, Tensor)}
        captured.linears, captured.norms = [], []

    return capture


def _make_linear_hook(captured: CapturedLayer) -> Any:
    def capture(linear: nn.Module, args: tuple[Any, ...]) -> None:
        tokens = args[0] if args else None
        if isinstance(tokens, Tensor) and tokens.data_ptr() in captured.reads:  # not what another projection made
            captured.linears.append((tokens, linear))

    return capture


def _make_norm_hook(captured: CapturedLayer) -> Any:
    def capture(norm: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        del norm
        if isinstance(output, Tensor):
            captured.norms.append((args[0], output))

    return capture
