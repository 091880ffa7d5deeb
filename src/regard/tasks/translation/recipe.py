"""The recipe of a translator: which data, which subwords, which model. What it leaves open is chosen by the data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, final

from regard.errors import OptionError, check_count, check_kind, check_number
from regard.tasks.translation.presets import SIZES
from regard.text.pairs import PairFormat

CELLS = ("gru", "lstm")
"""The kinds of recurrent models."""
KINDS = (*SIZES, *CELLS)
"""The kinds of new models."""


@final
@dataclass(frozen=True)
class TranslationRecipe:
    """What to learn from, and as which model.

    Args:
        data: files of pairs, or folders of catalogues.
        where: what their formats leave open, and the languages; those that it does not name are those of the model that
            is started from.
        validation: files of validation pairs; without any, some of ``data`` are held out.
        model: a size of ``SIZES``, a cell of ``CELLS`` for a recurrent model, a folder to start from, or None for the
            size that suits the data.
        hyperparameters: of the model's config, in place of the size's.
        attention: the mechanism: of a Transformer's self-attention, by default dot_product, or of a recurrent model, by
            default additive.
        vocabulary: subwords; None is what suits the data. algorithm: how they are found; None is bpe. sharing: one
            vocabulary for both languages, or one each; None is by their letters.
        most_tokens: a pair with a longer side is left out.
        batch_tokens: of a batch, the longer side with its padding; None is the size's.
        smoothing: of labels, from 0 to 1.

    Raises OptionError for values of another kind, and numbers out of range. Fine-tuning cannot change the model:
    ``check_effect`` refuses hyperparameters, attention and subwords beside a folder to start from.
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

    def __post_init__(self) -> None:
        for name in ("data", "validation"):
            check_kind(name, getattr(self, name), tuple, do=f'for example {name}=(Path("pairs.tsv"),)')
            for path in getattr(self, name):
                check_kind(name, path, Path, do=f'for example {name}=(Path("pairs.tsv"),)')
        check_kind("where", self.where, PairFormat, do='for example PairFormat(source="de", target="en")')
        check_kind("hyperparameters", self.hyperparameters, dict, do='for example hyperparameters={"layers": 4}')
        for name in ("model", "attention", "algorithm", "sharing"):
            if getattr(self, name) is not None:
                check_kind(name, getattr(self, name), str, do=f"leave {name} out for the usual value")
        check_count("most_tokens", self.most_tokens)
        for name in ("vocabulary", "batch_tokens"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_number("smoothing", self.smoothing, least=0.0, most=1.0)

    @property
    def start(self) -> str | None:
        """The folder of the model to go on from; None where a new one is to be made."""
        return None if self.model in KINDS else self.model

    def fields(self) -> dict[str, Any]:
        """All that decides what is learned from, for a file of JSON; but for the model, which the data may decide."""
        left_open = ("model", "hyperparameters", "attention", "batch_tokens")
        fields = {name: _to_json_value(value) for name, value in asdict(self).items() if name not in left_open}
        return fields | {"start": None if self.start is None else Path(self.start).name}

    def check_effect(self) -> None:
        """Raise OptionError for what the model that was chosen has no place for."""
        starts = self.start is not None
        given = {
            "--set": starts and bool(self.hyperparameters),
            "--attention": starts and self.attention is not None,
            "--vocabulary": starts and self.vocabulary is not None,
            "--subwords": starts and self.algorithm is not None,
            "--sharing": starts and self.sharing is not None,
        }
        names = ", ".join(name for name, useless in given.items() if useless)
        if names:
            raise OptionError(
                f"{names} has no effect on {self.start}",
                expected="a model that goes on as it is",
                got=names,
                do=f"leave out {names}",
            )


def _to_json_value(value: Any) -> Any:
    """As JSON has it; files by their names alone, since they may lie elsewhere when the run goes on."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, tuple | list):
        return [_to_json_value(one) for one in value]
    return value
