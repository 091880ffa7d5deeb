"""Files with their labels, and entries that were skipped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, final, runtime_checkable

import numpy as np
import numpy.typing as npt

from regard.arguments import explain_arguments
from regard.fields import repr_of_fields
from regard.text.skip_counts import Skipped


@runtime_checkable
class MediaFile(Protocol):
    """A picture or a sound of a data set, whatever is known about it."""

    @property
    def content(self) -> Path | npt.NDArray[np.uint8]:
        """A file, or an array of a packaged picture."""
        ...

    @property
    def place(self) -> str:
        """Where it was read, for messages."""
        ...


@runtime_checkable
class Labelled(Protocol):
    """A text or a file with its labels."""

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of its labels."""
        ...

    @property
    def place(self) -> str:
        """Where it was read, for messages."""
        ...


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class LabelledFile:
    """A picture or a sound, and its label: a file, or an array of a packaged picture, uint8 (height, width, ..).

    ``place`` says where it was read, for messages. Files are not opened before they are used.
    """

    __repr__ = repr_of_fields

    content: Path | npt.NDArray[np.uint8]
    label: str
    place: str

    @property
    def labels(self) -> tuple[str, ...]:
        """The label, as the labels of a text."""
        return (self.label,)


LabelledOrSkipped: TypeAlias = LabelledFile | Skipped
