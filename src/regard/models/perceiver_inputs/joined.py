"""Several inputs of a Perceiver at once, by name: the tokens of each are padded by trained numbers to one width.

One of them may be a label, as one token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, ShapeError, check_count, check_kind, short_repr
from regard.fields import declare
from regard.models.hyperparameters import model_field, size_field
from regard.models.perceiver_inputs.base import (
    InputLayer,
    InputTokens,
    PerceiverInput,
    TokenwiseLayer,
    append_positions,
    check_floats,
    check_part_name,
    trained_numbers,
)


@final
@explain_arguments
@dataclass(frozen=True)
class JoinedInput(PerceiverInput):
    """Several inputs by name, one behind the other, in the order of their names.

    Each is padded with trained numbers to the width of all, which tell the model what it is. A model that shall tell
    the label of a video reads no label: it is ``hidden``.
    """

    kind: ClassVar[str] = "joined"
    parts: Mapping[str, PerceiverInput] = field(
        metadata=declare("inputs by name", example='for example {"sound": AudioInput(), "picture": PixelInput()}')
    )
    padding: int = model_field(4, "least number of trained numbers that pad a part", minimum=0)
    hidden: tuple[str, ...] = model_field((), "names of parts whose tokens are replaced by one trained token")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "parts", dict(sorted(self.parts.items())))
        for name, part in self.parts.items():
            check_part_name(name)
            check_kind(f"part {name!r}", part, PerceiverInput, do="for example AudioInput()")
            if isinstance(part, JoinedInput):
                raise OptionError(
                    f"the part {name!r} is joined itself",
                    expected="parts of one kind of data each",
                    got="a JoinedInput",
                    do="put its parts beside the others",
                )
        check_count("number of parts", len(self.parts))
        if not set(self.hidden) <= set(self.parts):
            raise OptionError(
                "hidden names no parts",
                expected=f"a tuple of names among {', '.join(self.parts)}",
                got=short_repr(self.hidden),
                do=f"for example hidden=({next(iter(self.parts))!r},)",
            )

    def __hash__(self) -> int:
        return hash((tuple(self.parts.items()), self.padding, self.hidden))

    def build(self, deviation: float) -> InputLayer:
        """Make the layers of the parts, and the trained numbers."""
        return _JoinedLayer(self, deviation)


@final
class _JoinedLayer(InputLayer):
    def __init__(self, options: JoinedInput, deviation: float) -> None:
        super().__init__()
        self.options = options
        layers = {name: part.build(deviation) for name, part in options.parts.items()}
        self.parts = nn.ModuleDict(layers)
        self._width = max(layer.width for layer in layers.values()) + options.padding
        self.padding = trained_numbers({name: self._width - layer.width for name, layer in layers.items()}, deviation)
        # Files have such a token for each part, also for those that are never hidden.
        self.hidden_token = trained_numbers(dict.fromkeys(layers, self._width), deviation)

    @property
    def width(self) -> int:
        return self._width

    def forward(self, inputs: Any, *, mask: Any = None) -> InputTokens:
        """Join the tokens of ``inputs``, raw data by the names of the parts; ``mask`` has masks by the same names."""
        _check_names("inputs", inputs, self.parts, whole=True)
        if mask is not None:
            _check_names("mask", mask, self.parts, whole=False)
        given = {} if mask is None else mask
        tokens, visible, sizes = [], [], {}
        for name, layer in self.parts.items():
            part: InputTokens = layer(inputs[name], mask=given.get(name))
            batch, count, _ = part.tokens.shape
            if name in self.options.hidden:
                tokens.append(self.hidden_token[name].expand(batch, count, -1))
            else:
                tokens.append(append_positions(part.tokens, self.padding[name].expand(count, -1)))
            visible.append(
                part.tokens.new_ones(batch, count, dtype=torch.bool) if part.visible is None else part.visible
            )
            sizes[name] = count
        _check_batches(tokens, list(sizes))
        whole = torch.cat(visible, dim=1) if any(tokens is not None for tokens in given.values()) else None
        return InputTokens(torch.cat(tokens, dim=1), whole, sizes)


def _check_names(what: str, named: object, parts: nn.ModuleDict, *, whole: bool) -> None:
    """Raise OptionError unless ``named`` is a mapping with the names of all parts, or with ``whole`` False of some."""
    names = set(parts)
    fits = isinstance(named, Mapping) and (set(named) == names if whole else set(named) <= names)
    if not fits:
        raise OptionError(
            f"{what} of a joined input go by the names of its parts",
            expected=f"a mapping with {'all' if whole else 'some'} of {', '.join(sorted(names))}",
            got=", ".join(map(str, named)) if isinstance(named, Mapping) else short_repr(named),
            do=f"for example {{{sorted(names)[0]!r}: ...}}",
        )


def _check_batches(tokens: list[Tensor], names: list[str]) -> None:
    if len({token.shape[0] for token in tokens}) > 1:
        raise ShapeError(
            "the parts of an input have different batch sizes",
            expected="one batch size",
            got=", ".join(f"{name}: {part.shape[0]}" for name, part in zip(names, tokens, strict=True)),
            do="pass the same number of examples in each part",
        )


@final
@explain_arguments
@dataclass(frozen=True)
class LabelInput(PerceiverInput):
    """A vector of numbers (batch, labels), such as a one-hot label, as one token."""

    kind: ClassVar[str] = "label"
    labels: int = size_field(700, "number of labels")

    def build(self, deviation: float) -> InputLayer:
        """Make the layer, which has no weights."""
        del deviation
        return _LabelLayer(self)


@final
class _LabelLayer(TokenwiseLayer):
    def __init__(self, options: LabelInput) -> None:
        super().__init__(options, options.labels)

    def cut(self, inputs: Any) -> tuple[Tensor, tuple[int, ...]]:
        check_floats(inputs, ("batch", self.options.labels))
        return inputs[:, None], (1,)
