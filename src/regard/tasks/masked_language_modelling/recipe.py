"""The recipe of a masked language model: data, tokenizer, model, masks. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.errors import check_flag
from regard.tasks.document_recipe import DocumentRecipe
from regard.text.encoder_tokenizer import ENCODER_TOKENIZERS
from regard.text.token_masking import SHARE, check_share


@final
@dataclass(frozen=True)
class MaskedLanguageModelRecipe(DocumentRecipe):
    """The data, the model and its masks: see ``DocumentRecipe``. A new tokenizer is one of word pieces by default.

    Args:
        lowercase: whether a new tokenizer makes no difference between upper and lower case.
        mask_share: the share of the tokens that are masked.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    lowercase: bool = False
    mask_share: float = SHARE

    kind = "a masked language model"
    architectures = ("bert", "roberta", "modernbert")
    tokenizers = ENCODER_TOKENIZERS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("lowercase", self.lowercase)
        check_share(self.mask_share)

    def fields_of_new_model(self) -> dict[str, bool]:
        """The fields that only a new model has, as messages name them, and whether they are set."""
        return super().fields_of_new_model() | {"lowercase (--lowercase)": self.lowercase}
