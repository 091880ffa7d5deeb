"""``regard.record``: record the inputs of each attention layer of a model, without a second model class.

    with regard.record(model) as seen:
        model(ids)
    for layer in seen:
        print(layer.name, layer.query.shape, layer.weights().shape)

    layers of regard                  forward pre-hooks on every ``Mechanism``       ``mechanism_layers``
    layers of other packages          a ``CallSource``; ``regard.hf`` adds one for models of ``transformers``
    any other module of torch         the operations that it calls                   ``torch_operations``

``regard.watch`` measures the layers of a model while it is trained (``watcher``).

Only queries, keys, values, masks, biases and extra inputs are kept, so memory is linear in length; weights and
statistics are computed on request. Attention that a module writes by hand has its weights kept if its scores are no
scaled dot products with a mask (``recomputed_call``).
"""

from regard.recording.call_source import CallSource
from regard.recording.calls import LayerCall, Recording
from regard.recording.sources import add_call_source, record
from regard.recording.watcher import LayerStatistics, ScalarWriter, Watcher, watch

__all__ = [
    "CallSource",
    "LayerCall",
    "LayerStatistics",
    "Recording",
    "ScalarWriter",
    "Watcher",
    "add_call_source",
    "record",
    "watch",
]
