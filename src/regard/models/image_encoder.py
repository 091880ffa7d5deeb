"""The base of models that read pictures: ViT, DeiT and others.

    hidden = encoder(pixels)            (batch, tokens, width), a hidden state for each token of the picture
    pooled                              (batch, width), one vector for the picture
    logits = head(pooled)               (batch, labels), with a head

The head is a part of the file in some folders and not in others: a model has the parts whose weights its file holds,
and as many labels as the head has rows.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import check_kind
from regard.masks import Mask
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.check_mechanisms import check_mechanisms
from regard.models.config_file import ConfigFile
from regard.models.label_names import read_labels
from regard.models.weight_names import Origin, WeightNames
from regard.vision import ImageProcessor
from regard.vision.image_processor import FILE as PROCESSOR_FILE


@final
@dataclass(frozen=True, eq=False)
class ImageOutput:
    """The output of an image encoder.

    hidden  (batch, tokens, width)    hidden states after the last norm; tokens before those of the picture come first
    pooled  (batch, width)            the vector that the head reads
    logits  (batch, labels)           None without a head
    layers  layers + 1 tensors        the embedding, then each layer's output, before the last norm; None without
                                      ``keep_layers``

    A model with a distillation head, a DeiT, has the logits of both heads as well, else they are None: ``class_logits``
    and ``distillation_logits``, (batch, labels). ``logits`` is their mean.
    """

    hidden: Float[Tensor, "batch tokens width"]
    pooled: Float[Tensor, "batch pooled"]
    logits: Float[Tensor, "batch labels"] | None = None
    layers: tuple[Float[Tensor, "batch _ _"], ...] | None = None
    class_logits: Float[Tensor, "batch labels"] | None = None
    distillation_logits: Float[Tensor, "batch labels"] | None = None

    def __repr__(self) -> str:
        layers = "None" if self.layers is None else f"{len(self.layers)} tensors"
        logits = None if self.logits is None else tuple(self.logits.shape)
        return (
            f"ImageOutput(hidden {tuple(self.hidden.shape)}, pooled {tuple(self.pooled.shape)}, logits {logits}, "
            f"layers {layers})"
        )


@final
@dataclass(frozen=True)
class TokenGrid:
    """How the tokens of an attention layer lie over the picture.

    First come the tokens that ``prefix`` names, such as "class", then ``rows`` x ``columns`` tokens, row by row from
    the top left.
    """

    rows: int
    columns: int
    prefix: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return len(self.prefix) + self.rows * self.columns


class ImageEncoder(nn.Module, ABC):
    """A model that reads pictures and returns hidden states; a classifier, if it has a head.

    ``processor`` makes its pixels from pictures; None if the model folder does not say how. ``notes`` lists weights
    that loading skipped.
    """

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters, with ``layers`` and ``labels``; labels=() is a model without a head."""

    optional_parts: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Modules that a file may lack beside the head, and the tensor of each that tells. Each is a flag of the config."""

    head_weight: ClassVar[str] = "head.weight"
    """The weight of the head, (labels, width)."""

    config: Any
    """The hyperparameters of the model."""

    processor: ImageProcessor | None = None
    """How the model's pixels are made from pictures; None if the model folder does not say."""

    notes: tuple[str, ...] = ()
    """Messages about weights that loading skipped."""

    metadata: Mapping[str, Any] = MappingProxyType({})
    """Metadata of the training: steps, data, scores."""

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}()")
        self.config = config

    @abstractmethod
    def forward(self, pixels: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> ImageOutput:
        """Compute the hidden states of pictures.

        Args:
            pixels: (batch, channels, height, width), floating point, already normalised (``processor``).
            mask: which tokens may attend to which, over all tokens of a layer (``token_grids``).
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError or DtypeError for pixels that do not fit, RefusedError for a mask that the model cannot use.
        """

    def embed(self, pixels: Tensor) -> Float[Tensor, "batch vector"]:
        """Compute one vector for each picture, as ``regard embed`` writes it: the pooled vector."""
        pooled: Tensor = self(pixels).pooled
        return pooled

    @property
    def vector_width(self) -> int:
        """The number of components of a vector of ``embed``."""
        return self.width

    @property
    def picture_size(self) -> tuple[int, int]:
        """The height and width, in pixels, of the pictures that the model was trained for.

        Positions that were learned are interpolated for others.
        """
        size: tuple[int, int] = self.config.picture_size
        return size

    @property
    def channels(self) -> int:
        """The number of channels of a picture."""
        return int(self.config.channels)

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""

    @abstractmethod
    def token_grids(self, height: int, width: int) -> tuple[TokenGrid, ...]:
        """How tokens lie over a picture of this size, for each attention layer, in the order of their calls.

        Raises ShapeError for a size that the model does not read.
        """

    @classmethod
    @abstractmethod
    def read_config(cls, config: ConfigFile) -> Any:
        """Read the hyperparameters, without labels, from config.json.

        Raises CheckpointError for missing or unusable fields.
        """

    @classmethod
    @abstractmethod
    def make_weight_names(cls, config: Any) -> WeightNames:
        """Make the table of the names of weights in a file: also of the parts that a file may lack."""

    @abstractmethod
    def config_fields(self) -> dict[str, Any]:
        """The fields of config.json."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; () without a head."""
        return tuple(self.config.labels)

    @property
    def weight_names(self) -> WeightNames:
        """The table of the model's weight names in a file."""
        return self.make_weight_names(self.config)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.parameters()).device

    @classmethod
    def count_layers(cls, config: Any) -> int:
        """The number of layers of a model, to be compared with the weights before any layer is built."""
        return int(config.layers)

    @classmethod
    def from_folder(cls, folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> Self:
        """Load the model of ``folder``, whose config.json is ``config``, in eval mode on the CPU.

        Raises CheckpointError for files that do not belong together.
        """
        stored = checkpoint_reader.stored_tensors(folder)
        hyperparameters = cls.read_config(config)
        sequence_files.check_depth(cls.count_layers(hyperparameters), stored)
        origins, skipped = cls.make_weight_names(hyperparameters).origins(stored)
        hyperparameters = config.build_again(hyperparameters, **cls._stored_parts(config, origins))
        with checkpoint_reader.init_on_meta():
            model = cls(hyperparameters)
        checkpoint_reader.load_weights(model, origins, dtype)
        model.processor = ImageProcessor.from_folder(folder)
        model.metadata = sequence_files.read_metadata(folder)
        model.notes = checkpoint_reader.loading_notes(folder, skipped)
        return model.eval()

    def save(
        self,
        folder: str | Path,
        *,
        overwrite: bool = False,
        keep_others: bool = False,
        max_shard_bytes: int = checkpoint_writer.MAX_SHARD_BYTES,
    ) -> None:
        """Write the model to a folder that ``regard.load`` reads; it appears complete or not at all.

        Weights of more than ``max_shard_bytes`` are written in several files with an index. Raises OutputExistsError if
        the folder exists, unless ``overwrite``, and with ``overwrite`` if it holds files that are not of a model,
        unless ``keep_others``, which keeps them; and RefusedError for a model whose mechanism was replaced by another
        than its config has.
        """
        check_mechanisms(self, self.config)
        files = {"config.json": checkpoint_writer.config_text(self.config_fields(), next(self.parameters()).dtype)}
        if self.processor is not None:
            files[PROCESSOR_FILE] = json.dumps(self.processor.fields(), indent=2) + "\n"
        checkpoint_writer.write_folder(
            checkpoint_writer.to_folder_path(folder),
            files | sequence_files.metadata_files(self.metadata),
            self.weight_names.to_file(self.state_dict()),
            overwrite=overwrite,
            keep_others=keep_others,
            max_shard_bytes=max_shard_bytes,
        )

    @classmethod
    def _stored_parts(cls, config: ConfigFile, origins: Mapping[str, Origin]) -> dict[str, Any]:
        """The hyperparameters that the weights of a file decide: the labels, and which parts there are."""
        head = origins.get(cls.head_weight)
        shape = None if head is None else head.stored_shape()
        labels = read_labels(config, shape[0]) if shape else ()
        return {"labels": labels} | {part: tensor in origins for part, tensor in cls.optional_parts.items()}
