"""Comparisons for ``regard view``: of texts, translations or pictures, of two models, of mechanisms, or of heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, final

from regard.cli.loaded_model import ModelLoading
from regard.cli.view_media import read_media
from regard.cli.view_pairs import read_pairs
from regard.cli.view_texts import read_texts
from regard.errors import OptionError
from regard.fields import option_field
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.chinese_words import ChineseWords
    from regard.media import Medium
    from regard.models.model_folder import ModelFolder
    from regard.text.line import Line
    from regard.view.picture_comparison import PictureComparison
    from regard.view.picture_reading import PictureReading
    from regard.view.reading import PairReading, Reading
    from regard.view.reading_comparison import ReadingComparison


@final
@dataclass(frozen=True)
class ComparisonOptions:
    """Whether texts are compared with one another, or with the readings of another model."""

    compare: bool = option_field(
        False,
        "Compare the first text, translation or picture with each other one, head by head; one alone: the heads with "
        "each other; with --mechanism: exact attention with each mechanism.",
    )
    compare_model: str | None = option_field(
        None,
        "Compare the model with this one, such as another checkpoint of a training, on each text or picture.",
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
    model: str | ModelFolder,
    lines: list[Line],
    options: ComparisonOptions,
    *,
    truncate: bool,
    chinese_words: ChineseWords | None,
    loading: ModelLoading,
) -> list[ReadingComparison]:
    """Compare two models on each text, or the first text with the others, or the heads of one text."""
    from regard.view.reading_comparison import compare_readings

    def read(reader: str | ModelFolder) -> list[Reading]:
        return read_texts(reader, lines, truncate=truncate, chinese_words=chinese_words, loading=loading)

    return [compare_readings(*two, names=names) for two, names in _choose_sides(read, model, options, "text")]


def compare_translations(
    model: str,
    sources: list[str],
    targets: list[str],
    prefix: str | None,
    options: ComparisonOptions,
    loading: ModelLoading,
) -> list[ReadingComparison]:
    """Compare two models on each pair, or the first pair with the others, or its heads, by kind of attention."""
    from regard.view.reading_comparison import compare_pairs

    def read(reader: str | ModelFolder) -> list[PairReading]:
        return read_pairs(str(reader), sources, targets, prefix, loading)

    chosen = _choose_sides(read, model, options, "translation")
    return [comparison for two, names in chosen for comparison in compare_pairs(*two, names=names)]


def compare_media(
    medium: Medium,
    paths: list[str],
    model: str | ModelFolder | None,
    labels: list[str],
    options: ComparisonOptions,
    loading: ModelLoading,
) -> list[PictureComparison]:
    """Compare two models on each picture or sound, or the first one with the others, or its heads."""
    from regard.view.picture_comparison import compare_pictures

    def read(reader: str | ModelFolder) -> list[PictureReading]:
        return read_media(medium, paths, reader or None, labels, loading)

    chosen = _choose_sides(read, model or "", options, medium.singular)
    return [compare_pictures(*two, names=names) for two, names in chosen]


_Read = TypeVar("_Read")


def _choose_sides(
    read: Callable[[str | ModelFolder], list[_Read]], model: str | ModelFolder, options: ComparisonOptions, noun: str
) -> list[tuple[tuple[_Read, _Read], tuple[str, str]]]:
    """Read with the model, and with the other one if there is one: the readings to compare, and their names."""
    readings = read(model)
    if options.compare_model is not None:
        others = read(options.compare_model)
        names = (str(model), options.compare_model)
        return [(two, names) for two in zip(readings, others, strict=True)]
    first, *rest = readings
    if not rest:
        return [((first, first), (translate_message("head"), translate_message("nearest other head")))]
    name = translate_message(noun)
    return [((first, other), (f"{name} 1", f"{name} {number}")) for number, other in enumerate(rest, start=2)]
