"""The recipe of a masked language model: data, tokenizer, model, masks. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from regard.arguments import explain_arguments
from regard.fields import option_field
from regard.tasks.document_recipe import DocumentRecipe, declare_block, declare_tokenizer
from regard.tasks.recipe_fields import declare_start


@final
@explain_arguments
@dataclass(frozen=True)
class MaskedLanguageModelRecipe(DocumentRecipe):
    """The data, the model, a BERT, RoBERTa or ModernBERT, and its masks.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    start: str | None = field(
        default=None,
        metadata=declare_start(
            "Trained encoder to fine-tune: the folder of a BERT, RoBERTa or ModernBERT, or its name on the Hub. "
            "Default: random weights."
        ),
    )
    model: str | None = option_field(
        None,
        "Architecture of a new model: bert (default), roberta or modernbert.",
        choices=("bert", "roberta", "modernbert"),
        noun="architecture of a masked language model",
        is_saved=False,
        of_new_model=True,
    )
    tokenizer: str | None = field(
        default=None,
        metadata=declare_tokenizer(
            "Tokenizer of a new model: wordpiece, bpe (subwords), bytes or characters. Default: wordpiece.",
            ("wordpiece", "bpe", "bytes", "characters"),
        ),
    )
    block: int | None = field(
        default=None,
        metadata=declare_block(
            "Tokens of a training example, and the longest text of a new model. Default: that of its size."
        ),
    )
    lowercase: bool = option_field(
        False, "A new tokenizer makes no difference between upper and lower case.", before=("block",), of_new_model=True
    )
    mask_share: float = option_field(
        0.15,
        "Share of the tokens that are masked, above 0 and at most 1.",
        above=0.0,
        maximum=1.0,
        noun="`mask_share`",
        before=("block",),
    )

    kind = "a masked language model"
