"""The base of models that read pictures or sounds, and their folders: config.json, the weights and the processor.

A model has the parts whose weights its file holds, and as many labels as its head has rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from regard.errors import check_kind
from regard.models.checkpoint_reader import check_depth
from regard.models.model import Model, processor_text
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import Origin

if TYPE_CHECKING:
    from regard.audio import AudioProcessor
    from regard.vision import ImageProcessor


class MediaEncoder(Model, ABC):
    """A model that reads pictures or sounds and returns hidden states; a classifier, if it has a head.

    ``processor`` makes its inputs from files; None if the model folder does not say how. ``notes`` lists messages about
    its weights.
    """

    config_class: ClassVar[type[Any]]
    """The dataclass of the hyperparameters, with ``layers`` and ``labels``; labels=() is a model without a head."""

    processor_class: ClassVar[type[AudioProcessor] | type[ImageProcessor]]
    """The class of ``processor``."""

    processor: Any = None
    """How the model's inputs are made from files; None if the model folder does not say."""

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()
        check_kind("config", config, self.config_class, do=f"pass a {self.config_class.__name__}()")
        self.config = config

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of components of a hidden state after the last layer."""

    @classmethod
    def count_layers(cls, config: Any) -> int:
        """The number of layers of a model, to be compared with the weights before any layer is built."""
        return int(config.layers)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, in the order of the logits; () without a head."""
        return tuple(self.config.labels)

    @classmethod
    def check_layers(cls, folder: ModelFolder, config: Any, origins: Mapping[str, Origin]) -> None:
        """Raise CheckpointError for more layers than tensors, before any layer is built."""
        del origins
        check_depth(cls.count_layers(config), folder.stored)

    def read_files(self, folder: ModelFolder) -> None:
        """Read how inputs are made from files."""
        self.processor = self.processor_class.from_folder(folder.path)

    def folder_texts(self) -> dict[str, str]:
        """The file that says how inputs are made from files, as a text by file name."""
        return processor_text(self.processor)
