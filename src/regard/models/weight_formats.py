"""Store the weights of a model's linear layers in few bits (``layers.quantized_linear``), which read less memory.

Linear layers of all blocks are converted, and the output layer of a language model. Embeddings, which are looked up and
not multiplied, keep their dtype, also one that was tied to the output layer; so do norms, biases, positions and
convolutions, and the linear layers of ``_KEPT_LAYERS``. It cannot be undone, and the model cannot be saved.
"""

from __future__ import annotations

from torch import nn

from regard.errors import RefusedError, check_choice, check_kind
from regard.huge_pages import collapse_huge_pages
from regard.layers.quantized_linear import Int4Linear, Int8Linear, QuantizedLinear
from regard.models.model import Model
from regard.number_formats import WEIGHT_FORMATS

_LAYERS: dict[str, type[QuantizedLinear]] = {layer.format_name: layer for layer in (Int8Linear, Int4Linear)}
_KEPT_LAYERS = frozenset({"router", "head", "distillation_head", "last", "latent_up"})
"""Names of linear layers that keep their dtype: routers, whose choice of an expert is not continuous; the last layers
of classifiers, which have a row for each label, and so take no time; and the layer whose weights latent attention
multiplies with queries.
"""


def convert_weights(model: Model, weights: str) -> None:
    """Convert the linear layers of a loaded model to the format ``weights``, in place.

    Raises OptionError for an unknown format, RefusedError for a model in training, one without linear layers to
    convert, and for weights that are not finite.
    """
    check_choice("format of weights", weights, WEIGHT_FORMATS)
    check_kind("model", model, Model, do="regard.load(folder)")
    if model.training:
        raise RefusedError(
            f"a model in training cannot have {weights} weights",
            expected="a model in eval mode",
            got="one in training mode",
            do="call model.eval(), if it is not to be trained any further",
        )
    layers = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and name not in _KEPT_LAYERS
    ]
    if not layers:
        raise RefusedError(
            f"this {type(model).__name__} has no linear layers that can have {weights} weights",
            expected="a model with linear layers whose weights are floating-point numbers",
            got="none",
            do=f"use it without {weights} weights",
        )
    for parent, name in layers:
        setattr(parent, name, _LAYERS[weights].from_linear(getattr(parent, name)))
    collapse_huge_pages(model.buffers())
