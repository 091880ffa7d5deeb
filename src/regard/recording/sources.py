"""``record``, and the sources of calls that it asks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch import nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, short_repr
from regard.recording.call_source import CallSource
from regard.recording.calls import Recording
from regard.recording.mechanism_layers import listen_to_mechanisms
from regard.recording.torch_operations import listen_to_operations

_sources: list[CallSource] = []


@explain_arguments
def add_call_source(source: CallSource) -> None:
    """Let ``record`` ask this source too."""
    _sources.append(source)


@explain_arguments
@contextmanager
def record(model: nn.Module) -> Iterator[Recording]:
    """Record the calls of every attention layer of ``model`` while the context is open; yields a ``Recording``.

    The model is any torch module: its output keeps its bits. Layers of regard, and layers of ``transformers`` that
    compute with regard, report their calls. In other modules these operations are recorded, under the name of the
    module that called them: ``scaled_dot_product_attention``, ``nn.MultiheadAttention`` and ``nn.TransformerEncoder``
    with their fast paths, ``flex_attention``, and a softmax of products that is multiplied by values, whose weights are
    kept. A compiled model runs without its graph while it is recorded.

    Raises OptionError if ``model`` is not a module, or has no layer that may attend; and at the end of the context if
    the model was called, has no layer of regard, and no attention was seen.
    """
    if not isinstance(model, nn.Module):
        raise OptionError(
            "record takes a model",
            expected="a torch.nn.Module",
            got=short_repr(model),
            do='load one first: model = regard.load("minilm")',
        )
    recording = Recording()
    contexts = [listen_to_mechanisms(model, recording.add)]
    contexts += [source.listen(model, recording.add) for source in _sources]
    covered = {module for source in _sources for module in source.covers(model)}
    if all(context is None for context in contexts):
        for error in filter(None, (source.explain(model) for source in _sources)):
            raise error
    contexts.append(listen_to_operations(model, covered, recording))
    if all(context is None for context in contexts):
        raise _no_layer_error(model)
    with ExitStack() as stack:
        for context in filter(None, contexts):
            stack.enter_context(context)
        yield recording


def _no_layer_error(model: nn.Module) -> OptionError:
    return OptionError(
        f"{type(model).__name__} has no attention layer that can be recorded",
        expected="a model with attention layers",
        got="none among its modules, which are layers of torch without attention",
        do="record the whole model, or build one with regard.MultiHeadAttention",
    )
