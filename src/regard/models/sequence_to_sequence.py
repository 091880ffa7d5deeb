"""What all models share that write one sequence while they look at another.

    logits_t = model(y_1 .. y_t-1, memory of x)           the distribution of the token y_t

Training gives all targets at once; decoding goes a token at a time, with a state that is passed in and returned. So the
search for the best translation knows no model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.masks import Mask
from regard.models import checkpoint_reader, checkpoint_writer, sequence_files
from regard.models.config_file import ConfigFile
from regard.text.subword_training import END_ID, PAD_ID, START_ID, UNKNOWN_ID
from regard.text.subwords import Subwords


@final
@dataclass(frozen=True, eq=False)
class SequenceOutput:
    """What such a model gives for a whole target.

    hidden  (batch, target length, width)         before the vocabulary
    logits  (batch, target length, vocabulary)    of the token that follows each
    """

    hidden: Float[Tensor, "batch length width"]
    logits: Float[Tensor, "batch length vocabulary"]

    def __repr__(self) -> str:
        return f"SequenceOutput(hidden {tuple(self.hidden.shape)}, logits {tuple(self.logits.shape)})"


class State(Protocol):
    """What a model remembers between two steps of decoding, one row for each sequence that is being written."""

    def reordered(self, entries: Int[Tensor, " rows"]) -> State:
        """The state of the given rows, in that order; a row may come more than once."""
        ...


class SequenceToSequence(nn.Module, ABC):
    """A model of (source ids, target ids), with a state for decoding.

    ``vocabularies`` are the sizes of source and target; ``pad_id`` fills up the shorter sequences of a batch,
    ``start_id`` begins a target, ``end_id`` ends it.
    """

    model_type: ClassVar[str]
    """What config.json calls it."""

    config_class: ClassVar[type[Any]]
    """The dataclass of its numbers, from which it is built."""

    config: Any
    vocabularies: tuple[int, int]
    pad_id: int
    start_id: int
    end_id: int
    subwords: tuple[Subwords, Subwords] | None = None
    """What turns source and target into ids; the same object twice where both share one vocabulary."""

    about: Mapping[str, Any] = MappingProxyType({})
    """How the model came about: languages, data, scores."""

    @abstractmethod
    def __init__(self, config: Any) -> None:
        super().__init__()

    @property
    def unknown_id(self) -> int | None:
        """The token of a target that stands for unknown text, as its subwords say.

        Without subwords it is that of ``Subwords.train`` where padding, start and end are; else None, for no token.
        """
        if self.subwords is not None:
            return self.subwords[1].unknown_id
        return UNKNOWN_ID if (self.pad_id, self.start_id, self.end_id) == (PAD_ID, START_ID, END_ID) else None

    @property
    def most_tokens(self) -> int | None:
        """The longest sequence that there are positions for; None is any."""
        return None

    @property
    def attends(self) -> bool:
        """Whether the target looks at the source by attention, so that ``attended`` has something to tell."""
        return True

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Of source and target, as far as anybody said when it was trained."""
        named = self.about.get("languages")
        if not isinstance(named, list) or len(named) != 2:
            return None, None
        source, target = (one if isinstance(one, str) else None for one in named)
        return source, target

    @property
    @abstractmethod
    def tied(self) -> Mapping[str, str]:
        """The names of weights that are another weight, and that one's name."""

    @abstractmethod
    def tie(self) -> None:
        """Make tied weights one, as they are after construction: to be called after weights were replaced."""

    def save(self, folder: str | Path, *, overwrite: bool = False, keep_others: bool = False) -> None:
        """Write a folder that ``regard.load`` reads; it appears complete or not at all.

        Raises OutputExistsError where it exists, unless ``overwrite``; and where it then holds what is not of a model,
        unless ``keep_others``, which leaves that in the folder.
        """
        sequence_files.write(
            checkpoint_writer.as_folder(folder),
            config={"model_type": self.model_type, **asdict(self.config)},
            weights={name: tensor for name, tensor in self.state_dict().items() if name not in self.tied},
            subwords=self.subwords,
            about=self.about,
            overwrite=overwrite,
            keep_others=keep_others,
        )

    @classmethod
    def from_folder(cls, folder: Path, config: ConfigFile, *, dtype: torch.dtype) -> SequenceToSequence:
        """The model of a folder, in eval mode. Raises CheckpointError for one that cannot be used."""
        stored = checkpoint_reader.stored_tensors(folder)
        numbers = config.typed(cls.config_class)
        sequence_files.check_depth(_depth(numbers), stored)
        with checkpoint_reader.without_memory():
            model = cls(numbers)
        origins = {name: stored[origin] for name, origin in model.tied.items() if origin in stored}
        checkpoint_reader.fill(model, origins | stored, dtype)
        model.tie()
        model.subwords = sequence_files.read_subwords(folder)
        sequence_files.check_vocabularies(model.subwords, model.vocabularies)
        model.about = sequence_files.read_about(folder)
        return model.eval()

    @abstractmethod
    def forward(self, source: Tensor, target: Tensor, *, mask: Mask | None = None) -> SequenceOutput:
        """Logits for every place of a target that is known.

        Args:
            source: ids (batch, source length).
            target: ids (batch, target length), the first of them ``start_id``.
            mask: who may attend in the source: for padded ids ``masks.padding(lengths)``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """

    @abstractmethod
    def start(self, source: Tensor, *, lengths: Tensor | None = None) -> Any:
        """The state after reading ``source`` (batch, source length), before the first token is written.

        ``lengths`` (batch,) are those of the sources, where some are padded on the right.
        """

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Float[Tensor, "rows vocabulary"], Any]:
        """The logits of what follows ``tokens`` (rows), and the next state. The first tokens are ``start_id``."""

    @abstractmethod
    def attended(
        self, source: Tensor, target: Tensor, *, mask: Mask | None = None
    ) -> Float[Tensor, "batch length source"]:
        """How the source was weighed when the token after each place of a known target was written.

        The weights that an alignment is read from: where there are several heads, their average. Arguments as for
        ``forward``. Raises RefusedError for a model without attention.
        """

    @abstractmethod
    def step_attended(
        self, tokens: Tensor, state: Any
    ) -> tuple[Float[Tensor, "rows vocabulary"], Any, Float[Tensor, "rows source"]]:
        """``step``, and how the source was weighed in it, as in ``attended``. Slower than ``step``."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device


def _depth(config: Any) -> int:
    """The most layers of a stack."""
    return max(config.layers, getattr(config, "decoder_layers", None) or 0)
