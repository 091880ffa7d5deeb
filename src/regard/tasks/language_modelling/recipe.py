"""The recipe of a language model: data, tokenizer and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import option_field
from regard.tasks.document_recipe import DocumentRecipe, declare_block, declare_tokenizer
from regard.tasks.recipe_fields import declare_attention, declare_start


@final
@explain_arguments
@dataclass(frozen=True)
class LanguageModelRecipe(DocumentRecipe):
    """The data and the model, a GPT-2 or a Llama.

    Raises OptionError for values of the wrong type, numbers out of range, and kept adapters without a rank.
    """

    start: str | None = field(
        default=None,
        metadata=declare_start(
            "Trained language model to fine-tune: a folder, or a name on the Hub. Default: random weights."
        ),
    )
    model: str | None = option_field(
        None,
        "Architecture of a new model: gpt2 or llama. Default: gpt2, or llama with `attention=...`.",
        choices=("gpt2", "llama"),
        noun="architecture of a language model",
        is_saved=False,
        of_new_model=True,
    )
    attention: str | None = field(
        default=None,
        metadata=declare_attention(
            "Attention mechanism of a new llama: a name from `regard list`, or several for its layers in turn, such as "
            "gated_delta,gated_delta,dot_product. Default: dot_product."
        ),
    )
    tokenizer: str | None = field(
        default=None,
        metadata=declare_tokenizer(
            "Tokenizer of a new model: bpe (subwords), bytes or characters. Default: bpe.",
            ("bpe", "bytes", "characters"),
        ),
    )
    block: int | None = field(
        default=None,
        metadata=declare_block(
            "Tokens of a training example, and the context of a new model. Default: that of its size."
        ),
    )
    keep_adapters: bool = option_field(
        False, "With `lora`: save the adapters alone, in the layout of peft, instead of the whole model."
    )

    kind = "a language model"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_adapters and self.lora is None:
            raise OptionError(
                "`keep_adapters` has no effect without adapters",
                expected="`lora=...` as well",
                got="a model that is trained whole",
                do="leave it out, or give the rank: `lora=8`",
            )

    def check_effect(self) -> None:
        """Raise OptionError for fields without an effect on a model that is fine-tuned, and for a GPT-2's attention."""
        super().check_effect()
        if self.attention is not None and self.model == "gpt2":
            raise OptionError(
                "a GPT-2 has dot-product attention in every layer",
                expected='`model="llama"`, the default with `attention=...`',
                got=f"gpt2 with {self.attention}",
                do="leave one of the two out",
            )
