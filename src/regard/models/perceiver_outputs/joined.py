"""Queries of several kinds as one output of a Perceiver, by name: each is padded by trained numbers to one width."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_kind, short_repr
from regard.fields import declare
from regard.layers import NoResidual
from regard.layers.projection import linear_activation
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_blocks import BlockOptions, make_cross_block
from regard.models.perceiver_inputs import InputLayer, InputTokens, check_part_name, trained_numbers
from regard.models.perceiver_outputs.base import Decoded, OutputLayer, OutputQueries
from regard.models.perceiver_outputs.parts import LabelOutput, PartLayer, PartOutput


@final
@explain_arguments
@dataclass(frozen=True)
class JoinedOutput(OutputQueries):
    """Several outputs by name, decoded by one block; ``at`` is a mapping with the ``at`` of some parts.

    Queries are padded with trained numbers to the width of all.
    """

    kind: ClassVar[str] = "joined"
    parts: Mapping[str, PartOutput] = field(
        metadata=declare("outputs by name", example='for example {"sound": AudioOutput()}')
    )
    width: int = size_field(512, "numbers of a decoded query, which the last layer of its part reads")
    padding: int = model_field(2, "least number of trained numbers that pad a query", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, part in self.parts.items():
            check_part_name(name)
            check_kind(f"part {name!r}", part, PartOutput, do="for example AudioOutput()")
        check_count("number of parts", len(self.parts))

    def __hash__(self) -> int:
        return hash((tuple(self.parts.items()), self.width, self.padding))

    @property
    def labels(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names of labels of the part that has some."""
        found = [part.labels for part in self.parts.values() if isinstance(part, LabelOutput)]
        return found[0] if found else ()

    def build(self, options: BlockOptions, source: InputLayer) -> OutputLayer:
        """Make the parts, the block and the layer behind it."""
        del source
        return _JoinedLayer(self, options)


@final
class _JoinedLayer(OutputLayer):
    def __init__(self, output: JoinedOutput, options: BlockOptions) -> None:
        super().__init__()
        layers = {name: part.build(output.width, options.deviation) for name, part in output.parts.items()}
        self.parts = nn.ModuleDict(layers)
        width = max(layer.width for layer in layers.values()) + output.padding
        self.padding = trained_numbers({name: width - layer.width for name, layer in layers.items()}, options.deviation)
        self.block = make_cross_block(
            options, width=width, memory_width=options.latent_width, heads=1, residual=NoResidual
        )
        self.last = nn.Linear(width, output.width)

    def forward(self, latents: Tensor, source: InputLayer, tokens: InputTokens, at: Any) -> Decoded:
        del source, tokens
        chosen = self._choices(at)
        queries = []
        layers = cast("Mapping[str, PartLayer]", self.parts)
        for name, layer in layers.items():
            own = layer.make_queries(name, chosen.get(name), latents)
            queries.append(torch.cat([own, self.padding[name].expand(len(own), -1)], dim=1))
        decoded = self.block(torch.cat(queries).expand(latents.shape[0], -1, -1), latents)
        parts = linear_activation(decoded, self.last).split([len(own) for own in queries], dim=1)
        named = zip(layers.items(), parts, strict=True)
        return Decoded({name: layer.read(part) for (name, layer), part in named})

    def _choices(self, at: Any) -> Mapping[str, Any]:
        if at is None:
            return {}
        if not isinstance(at, Mapping) or not set(at) <= set(self.parts):
            raise OptionError(
                "at of a joined output goes by the names of its parts",
                expected=f"a mapping with some of {', '.join(self.parts)}",
                got=", ".join(map(str, at)) if isinstance(at, Mapping) else short_repr(at),
                do="leave out the parts that are decoded whole",
            )
        return at
