"""The recipe of a CLIP: data, model and augmentation. Fields that are None follow from the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.arguments import explain_arguments
from regard.columns import Columns, text_columns_option
from regard.fields import option_field
from regard.tasks.recipe_fields import (
    DEFAULT_MEMORY,
    MEMORY,
    SKIP_BAD,
    Recipe,
    declare_data,
    declare_hyperparameters,
    declare_size,
    declare_start,
    declare_validation,
)

if TYPE_CHECKING:
    from regard.vision.augmentation import Augmentation

_CROPPED = 8
"""The edge of a picture, in parts that augmentation may cut off."""


@final
@explain_arguments
@dataclass(frozen=True)
class ClipRecipe(Recipe):
    """The data and the model of a CLIP.

    ``hyperparameters`` "text.NAME" and "vision.NAME" belong to the towers. Each picture of a batch is compared with
    all its texts.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...] = field(
        metadata=declare_data("Pictures with their texts: a folder, a table or JSON lines; repeat for more.", "photos/")
    )
    validation: tuple[Path, ...] = field(
        default=(),
        metadata=declare_validation(
            "Validation data. Default: 10 % of the pictures are held out, with all their texts.", "photos/"
        ),
    )
    columns: Columns | None = field(default=None, metadata=text_columns_option())
    start: str | None = field(
        default=None,
        metadata=declare_start(
            "CLIP to start from: a folder, or a name on the Hub, such as openai/clip-vit-base-patch32. Default: random "
            "weights."
        ),
    )
    model: str | None = field(
        default=None,
        metadata=declare_size("Size of a new CLIP: tiny, small or base. Default: chosen by the number of pairs."),
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict,
        metadata=declare_hyperparameters("text.layers=4 or vision.width=192", first="text.layers"),
    )
    vocabulary: int | None = option_field(
        None,
        "Number of subwords of a new CLIP. Default: chosen by its size.",
        minimum=1,
        is_saved=False,
        of_new_model=True,
    )
    most_tokens: int | None = option_field(
        None, "Maximum tokens of a text; longer texts are cut. Default: 77.", minimum=1
    )
    batch: int = option_field(128, "Pairs per batch.", minimum=2)
    picture_size: int | None = option_field(
        None,
        "Height and width of a new CLIP's pictures. Default: chosen by the data, at most 128.",
        minimum=1,
        maximum=2**12,
        shell_range=(1, None),
        panel="Pictures",
        is_saved=False,
        of_new_model=True,
    )
    crop: int | None = option_field(
        None,
        "Augmentation: pixels that may be cut off on each side. Default: an eighth of the edge.",
        minimum=0,
        panel="Pictures",
    )
    flip: bool = option_field(
        False,
        "Augmentation: mirror half of the pictures. Texts that tell left from right are wrong then.",
        option="--flip/--no-flip",
        panel="Pictures",
    )
    memory: float = field(default=DEFAULT_MEMORY, metadata=MEMORY)
    skip_bad: bool = field(default=False, metadata=SKIP_BAD)

    fixed = "the architecture or the tokenizer"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.augmentation(32)  # raises for parts that are out of range

    def augmentation(self, edge: int) -> Augmentation:
        """The augmentation of pictures whose edge is ``edge``."""
        from regard.vision.augmentation import Augmentation

        return Augmentation(crop=max(1, edge // _CROPPED) if self.crop is None else self.crop, flip=self.flip)
