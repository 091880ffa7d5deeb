"""The form in which readings fit on a page: all are shown in the first of these forms that fits, by its predicted size.

    whole           queries, keys and values; of pictures and comparisons queries and keys
    no values       without the last step, the weighted sum
    weights         of each layer the weights alone, where they take less room than queries and keys: without steps
    summaries       of texts: what ``long_reading`` computes of each head
    squares         of pictures, and of comparisons of them: neighbouring tokens joined (``coarse_picture``)
    the first ones  of other readings: as many as fit, and at least one

Texts of which one has more than ``MAX_WHOLE_TOKENS`` are summarized at once. Sizes are those of ``page_size``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

from regard.errors import DataError
from regard.fields import repr_of_fields
from regard.language import translate
from regard.view.attention_layer import AttentionLayer
from regard.view.coarse_picture import count_joined, join_tokens, join_tokens_of_comparison
from regard.view.episode_reading import EpisodeReading
from regard.view.layer_weights import weights_alone
from regard.view.long_reading import LongReading, estimate_seconds, summarize_long
from regard.view.page_data import bytes_of_projections
from regard.view.page_size import (
    MAX_PAGE_BYTES,
    MAX_VECTOR_CHARACTERS,
    MAX_WHOLE_TOKENS,
    bytes_of_numbers,
    bytes_of_picture,
    bytes_of_summary,
    has_many_tokens,
)
from regard.view.picture_comparison import PictureComparison
from regard.view.picture_data import values_fit
from regard.view.picture_reading import PictureReading
from regard.view.reading import PairReading, Reading
from regard.view.reading_comparison import ReadingComparison
from regard.view.side_by_side import SideBySide

AnyReading: TypeAlias = (
    Reading
    | LongReading
    | PairReading
    | PictureReading
    | SideBySide
    | ReadingComparison
    | PictureComparison
    | EpisodeReading
)
"""Readings of texts, translations, pictures and other files, texts under several mechanisms, comparisons, episodes."""

ANNOUNCED_BYTES = 5_000_000
"""Size of a page from which it is said before the page is built."""
_MAX_FACTOR = 16
_WEIGHTS_REASON = "With queries and keys the page would be too large."
_Advance: TypeAlias = Callable[[int], None]
_Make: TypeAlias = Callable[[_Advance], Sequence[AnyReading]]


@final
@dataclass(frozen=True, eq=False)
class PagePlan:
    """The form of a page, before any work. Sentences are in the language in use.

    ``sentence`` says its size and what it leaves out, "" if it is small and leaves out nothing; ``notice`` says what it
    leaves out on the page itself, "" if it is whole or says that otherwise, as a page of summaries does. ``make`` makes
    the readings of the page, and calls its argument with the work done, in thousandths of a reading.
    """

    __repr__ = repr_of_fields

    size: float
    sentence: str
    notice: str
    make: _Make


def plan_page(readings: Sequence[AnyReading], *, always_summarize: bool = False) -> PagePlan:
    """Choose the form of a page of readings of one kind. ``always_summarize`` summarizes texts of any length."""
    are_texts = all(isinstance(reading, Reading | LongReading) for reading in readings)
    if are_texts and any(map(has_many_tokens, readings)):
        reason = translate("A text has more than {limit} tokens.", limit=f"{MAX_WHOLE_TOKENS:,}")
        return _plan_summaries(readings, reason)
    if are_texts and always_summarize:
        return _plan_summaries(readings, "")
    whole = _bytes_of_whole(readings)
    if whole <= MAX_PAGE_BYTES:
        return PagePlan(whole, _tell_size(whole) if whole >= ANNOUNCED_BYTES else "", "", lambda _: readings)
    reason = translate(
        "The whole page would have {size} MB, more than {limit} MB.",
        size=_megabytes(whole),
        limit=_megabytes(MAX_PAGE_BYTES),
    )
    size = _bytes_of(readings, _numbers_without_values)
    if size <= MAX_PAGE_BYTES:
        says = translate("It leaves out values, and with them the last step.")
        return _plan_reduced(size, reason, says, _change_all(readings, _without_values))
    size = _bytes_of(readings, _smallest_numbers)
    if size <= MAX_PAGE_BYTES:
        says = translate("It has the weights alone where they take less room than queries and keys, without steps.")
        return _plan_reduced(size, reason, says, _change_all(readings, _make_smallest))
    if are_texts:
        return _plan_summaries(readings, reason)
    if all(isinstance(reading, PictureReading | PictureComparison) for reading in readings):
        return _plan_squares(readings, reason)
    return _plan_first(readings, reason)


def _plan_summaries(readings: Sequence[AnyReading], reason: str) -> PagePlan:
    texts = [reading for reading in readings if isinstance(reading, Reading)]
    seconds, size = sum(map(estimate_seconds, texts)), sum(bytes_of_summary(text, len(texts)) for text in texts)
    says = translate(
        "Each head is summarized, which takes about {time}.",
        time=translate("{minutes} min", minutes=f"{seconds / 60:.0f}") if seconds >= 90 else f"{max(1, seconds):.0f} s",
    )

    def make(advance: _Advance) -> list[AnyReading]:
        return [
            summarize_long(reading, lambda done, before=1000 * number: advance(before + done), texts=len(texts))  # type: ignore[misc]
            if isinstance(reading, Reading)
            else reading
            for number, reading in enumerate(readings)
        ]

    return PagePlan(size, " ".join((reason, says, _tell_size(size))) if reason else "", "", make)


def _plan_squares(readings: Sequence[AnyReading], reason: str) -> PagePlan:
    factor, size = 1, float("inf")
    pictures = [part for reading in readings for part in _parts(reading) if isinstance(part, PictureReading)]
    while size > MAX_PAGE_BYTES and factor < _MAX_FACTOR:
        factor += 1
        numbers = sum(count_joined(picture, factor) for picture in pictures)
        size = bytes_of_numbers(numbers, sum(picture.heads for picture in pictures))
        size += sum(map(bytes_of_picture, pictures))

    def make(advance: _Advance) -> list[AnyReading]:
        made: list[AnyReading] = []
        for reading in readings:
            if isinstance(reading, PictureComparison):
                made.append(join_tokens_of_comparison(reading, factor))
            elif isinstance(reading, PictureReading):
                made.append(join_tokens(reading, factor))
            advance(1000 * len(made))
        return made

    says = translate(
        "It joins neighbouring tokens, {factor} by {factor}: queries by their mean, keys by their sum.", factor=factor
    )
    return _plan_reduced(size, reason, says, make)


def _plan_first(readings: Sequence[AnyReading], reason: str) -> PagePlan:
    sizes = [_bytes_of(readings[:count], _smallest_numbers) for count in range(1, len(readings) + 1)]
    count = sum(size <= MAX_PAGE_BYTES for size in sizes)
    if not count:
        return PagePlan(sizes[0], "", "", partial(_refuse, sizes[0]))
    says = translate("It shows the first {count} of {total}.", count=count, total=len(readings))
    make = _change_all(readings[:count], _make_smallest)
    return _plan_reduced(sizes[count - 1], reason, says, make)


def _refuse(size: float, _advance: _Advance) -> Sequence[AnyReading]:
    raise DataError(
        "the first of these alone is too large for a page",
        expected=f"at most {_megabytes(MAX_PAGE_BYTES)} MB",
        got=f"about {_megabytes(size)} MB",
        do="shorten its texts, or read the summary in the terminal, without a page",
    )


def _plan_reduced(size: float, reason: str, says: str, make: _Make) -> PagePlan:
    notice = " ".join(filter(None, (reason, says, _tell_size(size))))
    return PagePlan(size, notice, notice, make)


def _change_all(readings: Sequence[AnyReading], change: Callable[[AttentionLayer], AttentionLayer]) -> _Make:
    return lambda advance: [_change_layers(reading, change) for reading in readings]


def _tell_size(size: float) -> str:
    return translate("The page has about {size} MB.", size=_megabytes(size))


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.{1 if size < 1e7 else 0}f}"


def _parts(reading: AnyReading) -> Sequence[Reading | PictureReading]:
    """The readings of one text or picture in a reading."""
    if isinstance(reading, ReadingComparison | PictureComparison):
        return [reading.first] if reading.first is reading.second else [reading.first, reading.second]
    if isinstance(reading, SideBySide):
        computed = [panel.computed.layers for panel in reading.panels if panel.computed is not None]
        return [reading.exact, *(replace(reading.exact, layers=layers) for layers in computed)]
    if isinstance(reading, PairReading):
        return list(reading.attentions.values())
    return [reading] if isinstance(reading, Reading | PictureReading) else []


def _bytes_of(readings: Sequence[AnyReading], numbers: Callable[[AttentionLayer], int]) -> float:
    parts = [part for reading in readings for part in _parts(reading)]
    layers = [layer for reading in readings for layer in _layers_of(reading)]
    size = bytes_of_numbers(sum(map(numbers, layers)), sum(part.heads for part in parts))
    if any(isinstance(reading, Reading | PairReading | PictureReading) for reading in readings):
        size += bytes_of_projections(layers)
    return size + sum(bytes_of_picture(part) for part in parts if isinstance(part, PictureReading))


def _bytes_of_whole(readings: Sequence[AnyReading]) -> float:
    has_values = not isinstance(readings[0], PictureComparison | ReadingComparison) if readings else True
    if readings and isinstance(readings[0], PictureReading):
        has_values = values_fit([layer for reading in readings for layer in _layers_of(reading)], MAX_VECTOR_CHARACTERS)
    return _bytes_of(readings, (lambda layer: layer.size) if has_values else _numbers_without_values)


def _without_values(layer: AttentionLayer) -> AttentionLayer:
    return layer.without_values()


def _numbers_without_values(layer: AttentionLayer) -> int:
    return layer.without_values().size


def _numbers_of_weights(layer: AttentionLayer) -> int:
    return layer.heads * layer.queries * layer.keys


def _smallest_numbers(layer: AttentionLayer) -> int:
    return min(_numbers_of_weights(layer), _numbers_without_values(layer))


def _layers_of(reading: AnyReading) -> list[AttentionLayer]:
    return [
        layer
        for part in _parts(reading)
        for layer in (part.layers if isinstance(part, Reading) else [layer.attention for layer in part.layers])
    ]


def _make_smallest(layer: AttentionLayer) -> AttentionLayer:
    smaller = layer.without_values()
    return smaller if smaller.size <= _numbers_of_weights(layer) else weights_alone(layer, _WEIGHTS_REASON)


def _change_layers(reading: Any, change: Callable[[AttentionLayer], AttentionLayer]) -> Any:
    """The reading with other layers of the same weights."""
    if isinstance(reading, Reading):
        return replace(reading, layers=tuple(map(change, reading.layers)))
    if isinstance(reading, PictureReading):
        layers = (replace(layer, attention=change(layer.attention)) for layer in reading.layers)
        return replace(reading, layers=tuple(layers))
    if isinstance(reading, PairReading):
        sides: dict[str, Any] = {"alignment": reading.alignment, "source": reading.source, "target": reading.target}
        return replace(reading, **{name: side and _change_layers(side, change) for name, side in sides.items()})
    if isinstance(reading, ReadingComparison | PictureComparison):
        first = _change_layers(reading.first, change)
        is_self = reading.first is reading.second
        return replace(reading, first=first, second=first if is_self else _change_layers(reading.second, change))
    return reading
