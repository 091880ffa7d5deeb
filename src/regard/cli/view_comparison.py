"""Comparisons for ``regard view``: of texts, of two models, of mechanisms, or of the heads of one text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from regard.cli.view_texts import read_texts
from regard.errors import OptionError
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view.reading_comparison import ReadingComparison


@final
@dataclass(frozen=True)
class ComparisonOptions:
    """Whether texts are compared with one another, or with the readings of another model."""

    compare: bool = option_field(
        False,
        "Compare the first text with each other one, head by head; one text: the heads with each other; with "
        "--mechanism: exact attention with each mechanism.",
    )
    compare_model: str | None = option_field(
        None,
        "Compare the model with this one, such as another checkpoint of a training, on each text.",
        metavar="MODEL",
    )

    @property
    def are_given(self) -> bool:
        """Whether something is compared."""
        return self.compare or self.compare_model is not None

    @property
    def given(self) -> dict[str, bool | str | None]:
        """The options by name, with their values."""
        return {"--compare": self.compare, "--compare-model": self.compare_model}

    def check_alone(self, *, mechanisms: bool) -> None:
        """Raise OptionError for another model beside ``--mechanism``."""
        if mechanisms and self.compare_model is not None:
            raise OptionError(
                "--compare-model cannot be used with --mechanism",
                expected="another model, or mechanisms",
                got="both",
                do="leave out one of the two",
            )


def compare_texts(
    model: str | ModelFolder, lines: list[Line], options: ComparisonOptions, *, truncate: bool
) -> list[ReadingComparison]:
    """Compare two models on each text, or the first text with the others, or the heads of one text."""
    from regard.view.reading_comparison import compare_readings

    readings = read_texts(model, lines, truncate=truncate)
    if options.compare_model is not None:
        others = read_texts(options.compare_model, lines, truncate=truncate)
        names = (str(model), options.compare_model)
        return [compare_readings(first, other, names=names) for first, other in zip(readings, others, strict=True)]
    first, *rest = readings
    if not rest:
        return [compare_readings(first, first, names=("head", "nearest other head"))]
    return [
        compare_readings(first, other, names=("text 1", f"text {number}")) for number, other in enumerate(rest, start=2)
    ]
