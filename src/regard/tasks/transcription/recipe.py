"""The recipe of a model that writes texts: data, labels, model and augmentation. None follows from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.arguments import explain_arguments
from regard.columns import Columns, text_columns_option
from regard.fields import option_field
from regard.tasks.recipe_fields import (
    declare_attention,
    declare_augmentation,
    declare_data,
    declare_hyperparameters,
    declare_size,
    declare_start,
    declare_validation,
)
from regard.tasks.sound_recipe import SoundRecipe

if TYPE_CHECKING:
    from regard.audio.sound_augmentation import SoundAugmentation

METRICS = {"cer": "character error rate", "wer": "word error rate", "loss": "loss"}
"""Metrics that may decide which weights are the best, and their names."""
_MASK_FRAMES = 0.05


@final
@explain_arguments
@dataclass(frozen=True)
class TranscriptionRecipe(SoundRecipe):
    """The data and the model of a transcriber.

    A trained model to start from keeps its ctc head, and new labels get random weights. Stripes of frames cover at most
    a twentieth of a sound unless ``mask_frames`` says otherwise (Gulati et al. 2020, section 3.2): a longer one may
    hide a whole word.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...] = field(
        metadata=declare_data("Sounds with their texts: a folder, a table or JSON lines; repeat for more.", "birds/")
    )
    validation: tuple[Path, ...] = field(
        default=(),
        metadata=declare_validation("Validation data. Default: 10 % of the sounds are held out.", "birds/"),
    )
    start: str | None = field(
        default=None,
        metadata=declare_start(
            "Trained model to start from: the folder of a Conformer, such as `regard train transcribe` or "
            "`regard train classify` writes. Default: random weights."
        ),
    )
    model: str | None = field(
        default=None,
        metadata=declare_size("Size of a new Conformer: tiny, small or base. Default: chosen by the number of sounds."),
    )
    attention: str | None = field(
        default=None,
        metadata=declare_attention(
            "Attention mechanism of a new Conformer: a name from `regard list`. Default: dot_product."
        ),
    )
    position: str | None = option_field(
        None,
        "Position of a new Conformer: relative, rotary or none. Default: relative.",
        completions=("relative", "rotary", "none"),
        is_saved=False,
        of_new_model=True,
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict, metadata=declare_hyperparameters("layers=4 or kernel=15")
    )
    batch: int = option_field(32, "Sounds per batch.", minimum=1)
    metric: str | None = option_field(
        None,
        "Validation metric that decides which weights are best: cer (character error rate), wer (word error rate) "
        "or loss. Default: cer, or wer with `tokenizer='words'`.",
        choices=METRICS,
    )
    augment: str = field(
        default="light",
        metadata=declare_augmentation(
            "Random changes of training data: none; light (stripes of bands and frames are hidden); or strong (also "
            "tempo, warp). Default: light.",
            "Sounds",
        ),
    )
    columns: Columns | None = field(default=None, metadata={**text_columns_option(), "before": ("start",)})
    tokenizer: str | None = option_field(
        None,
        "What the model writes a text in: characters, or words (by white space; it can write no others). "
        "Default: characters.",
        choices=("characters", "words"),
        noun="tokenizer of texts",
        before=("batch",),
    )

    @property
    def head(self) -> str:
        """The head of the model."""
        return "ctc"

    def augmentation(self) -> SoundAugmentation:
        """The augmentation of training sounds."""
        chosen = super().augmentation()
        is_open = chosen.mask_frames > 0 and self.mask_frames is None
        return chosen.override(mask_frames=_MASK_FRAMES) if is_open else chosen
