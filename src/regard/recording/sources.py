"""``record``, and the sources of calls that it asks: ``listen`` opens all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Literal

import torch
from torch import nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_choice, check_flag, check_kind
from regard.recording.call_source import CallSource
from regard.recording.calls import LayerCall, Recording
from regard.recording.captured_inputs import capture_projections
from regard.recording.mechanism_layers import listen_to_mechanisms
from regard.recording.native_attention import NativeAttention
from regard.recording.torch_operations import listen_to_operations

_sources: list[CallSource] = []


@explain_arguments
def add_call_source(source: CallSource) -> None:
    """Let ``record`` ask this source too."""
    _sources.append(source)


@explain_arguments
@contextmanager
def record(model: nn.Module, *, impl: Literal["native"] | None = None, inputs: bool = False) -> Iterator[Recording]:
    """Record the calls of every attention layer of ``model`` while the context is open; yields a ``Recording``.

    The model is any torch module: its output keeps its bits. Layers of regard, and layers of ``transformers`` that
    compute with regard, report their calls. In other modules these operations are recorded, under the name of the
    module that called them: ``scaled_dot_product_attention``, ``nn.MultiheadAttention`` and ``nn.TransformerEncoder``
    with their fast paths, ``flex_attention``, and a softmax of products that is multiplied by values, whose weights are
    kept if they are none of scaled dot products. A compiled model runs without its graph while it is recorded.

    With ``impl="native"`` calls of ``scaled_dot_product_attention`` on a CPU are computed by regard's kernels, so that
    outputs and gradients differ by rounding. A warning of the logger "regard" names the layers that torch computes
    nevertheless, and why.

    With ``inputs=True`` the recording also keeps what each layer reads in its last call, so that the steps of
    ``regard.show`` begin at the vectors of the tokens.

    Raises OptionError if ``model`` is not a module, or has no layer that may attend, and for another ``impl``; and at
    the end of the context if the model was called, has no layer of regard, and no attention was seen.
    """
    recording = Recording()
    check_flag("inputs", inputs)
    if impl is not None:
        check_choice("impl", impl, ("native",))
    native = None if impl is None else NativeAttention()
    with listen(model, recording.add, recording.add_copy, native=native), ExitStack() as stack:
        if inputs:
            recording.inputs = stack.enter_context(capture_projections(model))
        yield recording


def listen(
    model: nn.Module,
    add: Callable[[LayerCall], None],
    add_copy: Callable[[LayerCall], None],
    *,
    is_running: bool = False,
    native: NativeAttention | None = None,
) -> AbstractContextManager[object]:
    """Return a context in which each call of an attention layer of ``model`` is passed on, as it happens.

    Calls of regard's own layers go to ``add``. Others, whose tensors the model may write to later, go to ``add_copy``.
    ``is_running`` says whether the context is opened in a call of ``model``; ``native`` computes the calls of torch's
    operations that it can. The errors are those of ``record``.
    """
    check_kind("model", model, nn.Module, do='load one first: model = regard.load("minilm")')
    contexts = [listen_to_mechanisms(model, add)]
    contexts += [source.listen(model, add_copy) for source in _sources]
    covered = {module for source in _sources for module in source.covers(model)}
    if all(context is None for context in contexts):
        for error in filter(None, (source.explain(model) for source in _sources)):
            raise error
    contexts.append(listen_to_operations(model, covered, add_copy, is_running=is_running, native=native))
    if all(context is None for context in contexts):
        raise _no_layer_error(model)
    return _open(filter(None, contexts))


@contextmanager
def _open(contexts: Iterable[AbstractContextManager[object]]) -> Iterator[None]:
    """Open all contexts. A graph of a compiled model calls no hooks, and passes no operations on: it is not used."""
    with torch.compiler.set_stance("force_eager"), ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _no_layer_error(model: nn.Module) -> OptionError:
    return OptionError(
        f"{type(model).__name__} has no attention layer that can be recorded",
        expected="a model with attention layers",
        got="none among its modules, which are layers of torch without attention",
        do="record the whole model, or build one with regard.MultiHeadAttention",
    )
