"""The recipe of a translator: data, subwords and model. Fields that are None are chosen by the data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import OptionError, check_count, check_kind, check_number, short_repr
from regard.tasks.recipe_fields import check_effect_on_trained_model, check_optional, check_paths, to_json_fields
from regard.tasks.translation.presets import SIZES
from regard.text.pairs import PairFormat

CELLS = ("gru", "lstm")
"""The cells of new recurrent models."""
T5_MODEL = "t5"
"""The name of a new T5."""
KINDS = (*SIZES, *CELLS, T5_MODEL)
"""The names of new models."""


@final
@dataclass(frozen=True)
class TranslationRecipe:
    """The data and the model of a translator.

    Args:
        data: files of pairs, or folders of gettext catalogues (.po, .mo).
        where: columns or fields of the files, and the languages; languages that it does not name are those of the model
            to fine-tune.
        validation: files of validation pairs; without any, some of ``data`` are held out.
        model: a size of ``SIZES``, a cell of ``CELLS`` for a recurrent model, "t5" for a T5 of the size that suits the
            data, the folder of a model to fine-tune or its name on the Hub, or None for the size that suits the data.
        hyperparameters: values that override those of the model's config.
        attention: the attention mechanism: of a Transformer's self-attention, by default dot_product; of a recurrent
            model, by default additive.
        vocabulary: number of subwords; None chooses it by the data. algorithm: bpe or unigram; None is bpe. sharing:
            joint, separate or auto vocabularies; None is auto, which compares the letters of the languages.
        most_tokens: maximum tokens of a side; pairs with a longer side are skipped.
        batch_tokens: maximum tokens of a batch on its longer side, padding included; None is the size's.
        smoothing: label smoothing factor, from 0 to 1.
        prefix: text before each source that names the task, if a pretrained model of several tasks is fine-tuned, such
            as a T5; None is the one that it was fine-tuned with before.

    Raises OptionError for values of the wrong type and numbers out of range. Fine-tuning cannot change the model:
    ``check_effect`` refuses hyperparameters, attention and subwords together with a folder in ``model``.
    """

    data: tuple[Path, ...]
    where: PairFormat = field(default_factory=PairFormat)
    validation: tuple[Path, ...] = ()
    model: str | None = None
    hyperparameters: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    vocabulary: int | None = None
    algorithm: str | None = None
    sharing: str | None = None
    most_tokens: int = 250
    batch_tokens: int | None = None
    smoothing: float = 0.1
    prefix: str | None = None

    def __post_init__(self) -> None:
        check_paths(self, example="pairs.tsv")
        check_kind("where", self.where, PairFormat, do='for example PairFormat(source="de", target="en")')
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        texts = ("model", "attention", "algorithm", "sharing", "prefix")
        check_optional(self, texts=texts, counts=("vocabulary", "batch_tokens"))
        check_count("most_tokens", self.most_tokens)
        check_number("smoothing", self.smoothing, least=0.0, most=1.0)

    @property
    def start(self) -> str | None:
        """The folder of the model to fine-tune, or its name on the Hub; None if a new model is trained."""
        return None if self.model in KINDS else self.model

    def fields(self) -> dict[str, Any]:
        """The fields as JSON values, except those of the model, which the data may decide."""
        return to_json_fields(self, left_out=("model", "hyperparameters", "attention", "batch_tokens", "prefix"))

    def check_effect(self) -> None:
        """Raise OptionError for fields that have no effect: on a model that is fine-tuned, or on a new one."""
        if self.start is None:
            self._check_effect_on_new_model()
            return
        useless = {
            "hyperparameters (--set)": bool(self.hyperparameters),
            "attention (--attention)": self.attention is not None,
            "vocabulary (--vocabulary)": self.vocabulary is not None,
            "algorithm=... (--subwords)": self.algorithm is not None,
            "sharing (--sharing)": self.sharing is not None,
        }
        check_effect_on_trained_model(self.start, useless, parts="the architecture or the subwords")

    def _check_effect_on_new_model(self) -> None:
        if self.prefix:
            raise OptionError(
                "a new model has a single task, so a prefix would tell it nothing",
                expected="a prefix only for a pretrained model of several tasks, such as a T5",
                got=short_repr(self.prefix),
                do='leave it out, or name a T5 to fine-tune: model="t5/" (--from t5/)',
            )
        fixed = {
            "attention (--attention)": self.attention is not None,
            "sharing='separate' (--sharing separate)": self.sharing == "separate",
        }
        useless = ", ".join(name for name, is_given in fixed.items() if is_given)
        if self.model == T5_MODEL and useless:
            raise OptionError(
                "a T5 has scaled dot-product attention and one vocabulary",
                expected="settings that leave them as they are",
                got="settings that would change them",
                do=f"leave out {useless}, or train a Transformer: model='small' (--model small)",
            )
