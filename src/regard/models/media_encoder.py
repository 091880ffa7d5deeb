"""The base of models that read pictures or sounds, and their folders: config.json, the weights and the processor.

A model has the parts whose weights its file holds, and as many labels as its head has rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.devices import launch_ahead
from regard.errors import CheckpointError, RefusedError, ShapeError
from regard.fields import repr_of_fields
from regard.layers.eval_mode import eval_mode
from regard.media import Medium
from regard.models.kinds import MEDIA_ENCODER
from regard.models.model import Model, processor_text
from regard.models.model_folder import ModelFolder

_HEADS = ("head.", "distillation_head.")
"""Beginnings of the names of the weights of heads."""


@final
@explain_arguments
@dataclass(frozen=True)
class TokenGrid:
    """How the tokens of an attention layer lie over the picture of an input.

    First come the tokens that ``prefix`` names, such as "class", then ``rows`` x ``columns`` tokens, row by row from
    the top left; ``names`` are theirs, by default by row and column.
    """

    rows: int
    columns: int
    prefix: tuple[str, ...] = ()
    names: tuple[str, ...] = field(default=(), repr=False)

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.prefix) + self.rows * self.columns

    def cell(self, height: int, width: int) -> tuple[float, float]:
        """The (height, width) in pixels of a token's part of a picture: neighbours may read more, and share it."""
        return height / self.rows, width / self.columns


@final
@explain_arguments
@dataclass(frozen=True)
class TimeAxis:
    """The time and the frequencies of a picture of a sound.

    Args:
        seconds_per_token: the time from one token to the next.
        seconds: the length of the sound.
        marks: frequencies in Hz, and how far from the top of the picture each is, as a share of its height.
    """

    seconds_per_token: float
    seconds: float
    marks: tuple[tuple[int, float], ...]


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class DrawnInput:
    """An input of a model as a picture, and its tokens, for the views of attention.

    Args:
        pixels: (channels, height, width), grey or RGB.
        grid: how the tokens of each attention layer lie over it.
        cell: the (height, width) in pixels of a token.
        noun: what views call a token.
        note: a sentence below the tokens with the most attention.
        no_rollout_reason: why attention is not rolled out through the layers.
        axis: the time and the frequencies of a sound.
    """

    __repr__ = repr_of_fields

    pixels: UInt8[np.ndarray, "channels height width"]
    grid: TokenGrid
    cell: tuple[int | float, int | float]
    noun: str = "token"
    note: str = "Attention shows which tokens a model uses, not why it decides."
    no_rollout_reason: str = "Attention is shown for each layer alone."
    axis: TimeAxis | None = None

    def __post_init__(self) -> None:
        """Raise ShapeError for pixels that are no grey or RGB picture."""
        if self.pixels.ndim != 3 or self.pixels.shape[0] not in (1, 3):
            raise ShapeError(
                "the pixels of a drawn input are no picture",
                expected="(channels, height, width), with 1 or 3 channels",
                got=str(self.pixels.shape),
                do="add the channels of a grey picture first: pixels[None]",
            )


class MediaEncoder(Model, ABC):
    """A model that reads pictures, sounds or other files, and returns hidden states; a classifier, if it has a head.

    ``processor`` makes its inputs from files; None if the model folder does not say how. ``notes`` lists messages about
    its weights.
    """

    kind = MEDIA_ENCODER

    inputs: ClassVar[str]
    """The name of the inputs of the model in messages, such as "pixels"."""

    processor_class: ClassVar[type[Any]]
    """The class of ``processor``, with ``from_folder(path)`` and ``fields()``, which are preprocessor_config.json."""

    processor: Any = None
    """How the model's inputs are made from files; None if the model folder does not say."""

    @property
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""
        return int(self.config.width)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; () without a head."""
        return tuple(self.config.labels)

    @property
    def medium(self) -> Medium:
        """The medium that the model reads."""
        assert self.kind.files is not None, "the kind of a class that can be made says it"
        return self.kind.files

    @property
    def classifies(self) -> bool:
        """Whether the head, if there is one, gives logits of a file, (batch, labels)."""
        return True

    @property
    def vector_width(self) -> int:
        """The number of components of a vector of ``embed_inputs``."""
        return self.width

    def require_processor(self) -> Any:
        """How inputs are made from files. Raises CheckpointError for a model that does not say it."""
        if self.processor is None:
            processor = f"{self.processor_class.__module__.rpartition('.')[0]}.{self.processor_class.__name__}"
            raise CheckpointError(
                f"the model does not say how its {self.inputs} are made from {self.medium.plural}",
                expected="a preprocessor_config.json in its folder that regard can follow",
                got="; ".join(self.notes) or "none",
                do=f"use the whole folder of the model, or set model.processor = {processor}(...)",
            )
        return self.processor

    @abstractmethod
    def make_input(self, file: Any, *, name: str | None = None) -> Any:
        """Make the model input of a file, which messages call ``name``.

        Raises DataError for a file that cannot be read, CheckpointError for a model without a processor.
        """

    def with_labels(self, labels: tuple[str, ...], **fields: Any) -> Self:
        """The model with a head of random weights for ``labels``, and without a pooler; other weights are copied.

        ``fields`` are other hyperparameters of the new model.
        """
        without_pooler = {"pooler": False} if getattr(self.config, "pooler", False) else {}
        renewed = type(self)(replace(self.config, labels=labels, **without_pooler, **fields))
        own = renewed.state_dict()
        kept = {name: weight for name, weight in self.state_dict().items() if not name.startswith(_HEADS)}
        renewed.load_state_dict(own | {name: weight for name, weight in kept.items() if name in own})
        renewed.processor = self.processor
        return renewed

    def draw_input(self, content: Any) -> DrawnInput:
        """Draw an input of ``make_input`` as a picture. Raises RefusedError for a model that has no drawing."""
        del content
        raise RefusedError(
            f"the attention of this model over a {self.medium.singular} cannot be shown",
            expected="a model whose class has the method draw_input",
            got=type(self).__name__,
            do="record its calls with regard.record, and compute their weights",
        )

    @abstractmethod
    def make_batches(self, inputs: Sequence[Any], *, batch: int) -> Iterator[Mapping[str, Any]]:
        """Make the arguments of ``forward`` for inputs of ``make_input``, in order, at most ``batch`` at a time."""

    def run_inputs(self, inputs: Sequence[Any], *, batch: int) -> Iterator[Any]:
        """Compute the outputs of the batches of inputs, in eval mode and without gradients."""
        for arguments in self.make_batches(inputs, batch=batch):
            with eval_mode(self), torch.no_grad():
                output = self(**arguments)
            yield output

    def vectors_of(self, output: Any) -> Float[Tensor, "batch vector"]:
        """One vector for each file of an output, as ``regard embed`` writes it: the pooled vector."""
        pooled: Tensor = output.pooled
        return pooled

    def embed_inputs(self, inputs: Sequence[Any], *, batch: int) -> Float[Tensor, "files vector"]:
        """Compute one vector for each input of ``make_input``, ``batch`` at a time, in float32 on the CPU."""
        outputs = launch_ahead(self.run_inputs(inputs, batch=batch), self.device)
        found = [self.vectors_of(output).float().cpu() for output in outputs]
        return torch.cat(found) if found else torch.zeros(0, self.vector_width)

    def read_files(self, folder: ModelFolder) -> None:
        """Read how inputs are made from files."""
        self.processor = self.processor_class.from_folder(folder.path)

    def folder_texts(self) -> dict[str, str]:
        """The file that says how inputs are made from files, as a text by file name."""
        return processor_text(self.processor)
