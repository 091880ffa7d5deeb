"""One attention layer by its weights alone, for mechanisms without scores or with steps that the page cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import numpy as np
import torch
from jaxtyping import Float32, Float64
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_choice
from regard.fields import repr_of_fields
from regard.language import translate_message
from regard.mechanisms.steps import Branches, Factors, MixedHeads, States
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.layer_reading import LayerReading
from regard.view.pack import Json, pack_heads, round_to_fixed
from regard.view.pack_own_steps import pack_softmaxes, size_of_softmaxes

WeightsAre: TypeAlias = Literal["distribution", "non-negative", "signed"]
"""As ``Mechanism.weights_are``: 0 or more with a sum of 1, 0 or more with any sum, or of either sign."""


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LayerWeights(AttentionLayer):
    """The weights of one layer, ``matrices`` (heads, queries, keys), and their kind, ``weights_are``.

    ``reason`` explains in one sentence why only the weights are shown. ``factors`` are those of a mechanism without
    scores, ``states`` the updates of its state, and ``softmaxes`` those that its weights are a sum of, if it has some,
    for a batch of one in float32 on the CPU. Raises OptionError for another kind, DataError if a number is not finite.
    """

    __repr__ = repr_of_fields

    name: str
    matrices: Float32[Tensor, "_heads _queries _keys"]
    weights_are: WeightsAre
    reason: str
    factors: Factors | None = None
    states: States | None = None
    softmaxes: Branches | MixedHeads | None = None

    def __post_init__(self) -> None:
        check_choice("kind of weights", self.weights_are, get_args(WeightsAre))
        check_finite(self.name, self.matrices.numpy(), expected="finite weights")

    @property
    def heads(self) -> int:
        """Number of heads."""
        return int(self.matrices.shape[0])

    @property
    def queries(self) -> int:
        """Number of query tokens."""
        return int(self.matrices.shape[1])

    @property
    def keys(self) -> int:
        """Number of key tokens."""
        return int(self.matrices.shape[2])

    @property
    def is_signed(self) -> bool:
        """Whether weights may be below 0."""
        return self.weights_are == "signed"

    @property
    def size(self) -> int:
        """Number of weights, heads x queries x keys, and of the factors or the inputs of the softmaxes."""
        factors, softmaxes = self.factors, self.softmaxes
        own = 0 if factors is None else factors.of_query.numel() + factors.of_key.numel()
        return self.matrices.numel() + own + (0 if softmaxes is None else size_of_softmaxes(softmaxes))

    def weights_of_heads(
        self, heads: range, queries: Sequence[int] | None = None
    ) -> Float64[np.ndarray, "some_heads rows keys"]:
        """Weights of some queries (default: all) of some heads."""
        rows = self.matrices[heads.start : heads.stop]
        return np.asarray((rows if queries is None else rows[:, list(queries)]).double())

    def round_for_page(self, letters: int) -> LayerWeights:
        """Round the layer as a page does that stores ``letters`` characters per number."""
        return replace(self, matrices=torch.from_numpy(round_to_fixed(self.matrices.numpy(), letters)))

    def pack(self, masks: list[str], letters: int) -> Json:
        """Encode the weights; a row of them is a vector like any other. See ``AttentionLayer.pack``."""
        matrices, factors = self.matrices.numpy(), self.factors
        packed: Json = {
            "name": self.name,
            "weights": pack_heads(matrices, letters),
            "weights_are": self.weights_are,
            "largest": float(np.abs(matrices).max(initial=0.0)),
            "reason": translate_message(self.reason),
        }
        if factors is not None:
            packed["factors"] = {
                "between": factors.between,
                "size": factors.of_query.shape[3],
                "query": pack_heads(factors.of_query[0].numpy(), letters),
                "key": pack_heads(factors.of_key[0].numpy(), letters),
                "divided": factors.is_divided,
            }
        if self.softmaxes is not None:
            packed |= pack_softmaxes(self.softmaxes, masks, letters)
        return packed


def weights_alone(
    layer: AttentionLayer, reason: str, matrices: Float64[np.ndarray, "heads queries keys"] | None = None
) -> LayerWeights:
    """The weights of a layer without its steps, or others of the same kind, and the reason why steps are missing."""
    if isinstance(layer, LayerWeights):
        kind = layer.weights_are
    else:
        kind = layer.steps.weights_are if isinstance(layer, LayerReading) else "distribution"
    weights = layer.weights() if matrices is None else matrices
    return LayerWeights(layer.name, torch.from_numpy(weights.astype(np.float32)), kind, reason)
