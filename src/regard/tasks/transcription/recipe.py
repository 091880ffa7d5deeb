"""The recipe of a model that writes texts: data, labels, model and augmentation. None follows from the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.audio.sound_augmentation import SoundAugmentation
from regard.errors import check_choice
from regard.tasks.recipe_fields import check_optional
from regard.tasks.sound_recipe import SoundRecipe
from regard.text.labelled.columns import Columns, check_columns
from regard.transcription.text_labels import TOKENIZERS

METRICS = {"cer": "character error rate", "wer": "word error rate", "loss": "loss"}
"""Metrics that may decide which weights are the best, and their names."""
_MASK_FRAMES = 0.05


@final
@dataclass(frozen=True)
class TranscriptionRecipe(SoundRecipe):
    """The data and the model of a transcriber: see ``SoundRecipe``.

    The data are folders with a text beside each sound, or tables of paths and texts. A trained model to start from
    keeps its ctc head, and new labels get random weights. Stripes of frames cover at most a twentieth of a sound unless
    ``mask_frames`` says otherwise (Gulati et al. 2020, section 3.2): a longer one may hide a whole word. ``metric`` is
    one of ``METRICS``; None is the character error rate, or the word error rate if labels are words.

    Args:
        columns: the columns of path and text in tables, by name or by number from 1; None finds them.
        tokenizer: what a label of a new model is: "characters" or "words"; None is characters.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    batch: int = 32
    columns: Columns | None = None
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_optional(self, texts=("tokenizer",), counts=())
        check_columns(self.columns, ("path", "text"))
        if self.tokenizer is not None:
            check_choice("tokenizer of texts", self.tokenizer, TOKENIZERS)
        if self.metric is not None:
            check_choice("metric", self.metric, METRICS)

    @property
    def head(self) -> str:
        """The head of the model."""
        return "ctc"

    def augmentation(self) -> SoundAugmentation:
        """The augmentation of training sounds."""
        chosen = super().augmentation()
        is_open = chosen.mask_frames > 0 and self.mask_frames is None
        return chosen.override(mask_frames=_MASK_FRAMES) if is_open else chosen
