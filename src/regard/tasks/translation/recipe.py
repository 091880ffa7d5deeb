"""The recipe of a translator: data, subwords and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.columns import PairFormat
from regard.errors import OptionError, short_repr
from regard.fields import declare, option_field
from regard.tasks import presets
from regard.tasks.recipe_fields import (
    SMOOTHING,
    Recipe,
    declare_attention,
    declare_data,
    declare_hyperparameters,
    declare_validation,
)

SIZES = (*presets.SIZES, "big")
"""The sizes of new Transformers."""
CELLS = ("gru", "lstm")
"""The cells of new recurrent models."""
T5_MODEL = "t5"
"""The name of a new T5."""
KINDS = (*SIZES, *CELLS, T5_MODEL)
"""The names of new models."""


@final
@explain_arguments
@dataclass(frozen=True)
class TranslationRecipe(Recipe):
    """The data and the model of a translator.

    Languages that ``where`` does not name are taken from the model to fine-tune. The folder of a model in ``model``, or
    its name on the Hub, is fine-tuned, and ``check_effect`` then refuses hyperparameters, attention and subwords. The
    length of a batch is the length of its longer side, padding included.

    Raises OptionError for values of the wrong type and numbers out of range.
    """

    data: tuple[Path, ...] = field(
        metadata=declare_data(
            "Training pairs: a file or folder; repeat for more. Two text files: the source first.", "pairs.tsv"
        )
    )
    validation: tuple[Path, ...] = field(
        default=(),
        metadata=declare_validation("Validation pairs. Default: 5 % of the data are held out.", "pairs.tsv"),
    )
    where: PairFormat = field(
        default_factory=PairFormat,
        metadata=declare(
            "Columns or fields of the files, and the languages.",
            example='for example PairFormat(source="de", target="en")',
        ),
    )
    model: str | None = option_field(
        None,
        "tiny, small, base or big (Transformers), gru or lstm, or t5; the folder of a model is fine-tuned. "
        "Default: chosen by the size of the data.",
        completions=KINDS,
        completes="models",
        metavar="MODEL",
        is_saved=False,
    )
    prefix: str | None = option_field(
        None,
        "Text before each source that names the task of a T5, such as 'translate English to German: '. Default: "
        "the one that the model was fine-tuned with, if any.",
        metavar="TEXT",
        is_saved=False,
    )
    attention: str | None = field(
        default=None,
        metadata=declare_attention(
            "Attention mechanism. Transformers: a name from `regard list`, default dot_product. gru and lstm: "
            "additive (default), luong_dot, luong_general, luong_concat, local_p or none."
        ),
    )
    hyperparameters: dict[str, Any] = field(
        default_factory=dict,
        metadata=declare_hyperparameters("layers=4, norm=pre or mechanism_options.projected=64 (of linformer)"),
    )
    vocabulary: int | None = option_field(
        None, "Number of subwords. Default: chosen by the size of the data.", minimum=1, of_new_model=True
    )
    algorithm: str | None = option_field(
        None,
        "Subword algorithm: bpe or unigram. Default: bpe.",
        completions=("bpe", "unigram"),
        option="--subwords",
        of_new_model=True,
    )
    sharing: str | None = option_field(
        None,
        "Vocabulary of both languages: joint, separate, or auto (by their letters). Default: auto.",
        completions=("joint", "separate", "auto"),
        of_new_model=True,
    )
    most_tokens: int = option_field(250, "Maximum tokens per side; longer pairs are skipped.", minimum=1)
    batch_tokens: int | None = option_field(
        None, "Tokens per batch. Default: chosen by the model size.", minimum=1, is_saved=False
    )
    smoothing: float = field(default=0.1, metadata=SMOOTHING)

    fixed = "the architecture or the subwords"

    @property
    def start(self) -> str | None:
        """The folder of the model to fine-tune, or its name on the Hub; None if a new model is trained."""
        return None if self.model in KINDS else self.model

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, as ``Recipe``, and the model to fine-tune."""
        return super().fields() | {"start": None if self.start is None else Path(self.start).name}

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect: on a model that is fine-tuned, or on a new one."""
        super().check_effect()
        if self.start is not None:
            return
        if self.prefix:
            raise OptionError(
                "a prefix has no effect on a new model, which has one task",
                expected="a prefix only for a pretrained model of several tasks, such as a T5",
                got=short_repr(self.prefix),
                do='leave it out, or name a T5 to fine-tune: `start="t5/"`',
            )
        fixed = {
            "`attention`": self.attention is not None,
            "`sharing='separate'`": self.sharing == "separate",
        }
        useless = ", ".join(name for name, is_given in fixed.items() if is_given)
        if self.model == T5_MODEL and useless:
            raise OptionError(
                "a T5 has scaled dot-product attention and one vocabulary",
                expected="settings that leave them as they are",
                got="settings that would change them",
                do=f"leave out {useless}, or train a Transformer: `model='small'`",
            )
