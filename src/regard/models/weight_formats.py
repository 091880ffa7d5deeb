"""Store the weights of a language model's linear layers in few bits, for faster decoding in less memory.

Linear layers of all blocks and the output layer are converted (``layers.quantized_linear``). The embedding, which is
looked up and not multiplied, keeps its dtype, also if it was tied to the output layer; so do norms, biases, positions,
and the routers of experts, whose choice of an expert is not continuous. It cannot be undone, and the model cannot be
saved.
"""

from __future__ import annotations

from torch import nn

from regard.errors import RefusedError, check_choice
from regard.huge_pages import collapse_huge_pages
from regard.layers.quantized_linear import Int4Linear, Int8Linear, QuantizedLinear
from regard.models.base import EncoderDecoder
from regard.models.causal_language_model import CausalLanguageModel
from regard.number_formats import WEIGHT_FORMATS

_ROUTER = "router"
_LAYERS: dict[str, type[QuantizedLinear]] = {layer.format_name: layer for layer in (Int8Linear, Int4Linear)}


def convert_weights(model: CausalLanguageModel | EncoderDecoder, weights: str) -> None:
    """Convert the linear layers of a loaded model to the named format, in place.

    Raises OptionError for an unknown format, RefusedError for a model in training and for weights that are not finite.
    """
    check_choice("format of weights", weights, WEIGHT_FORMATS)
    if model.training:
        raise RefusedError(
            f"a model in training cannot have {weights} weights",
            expected="a model in eval mode",
            got="one in training mode",
            do="call model.eval(), if it is not to be trained any further",
        )
    for parent in model.modules():
        for name, child in parent.named_children():
            if type(child) is nn.Linear and name != _ROUTER:
                setattr(parent, name, _LAYERS[weights].from_linear(child))
    collapse_huge_pages(model.buffers())
