"""``run_on_text``: what each mechanism costs and changes in a trained model, on a text of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.bench.choose_mechanisms import choose_mechanisms
from regard.bench.replacement import Replacement, measure_replacements, neighbour_count
from regard.bench.report import BenchReport, finite_or_none
from regard.bench.run import Advance, measure
from regard.bench.settings import BenchSettings, check_lengths
from regard.bench.text_errors import HeadError, TextErrors
from regard.bench.text_windows import TextWindows
from regard.errors import OptionError, check_kind, check_size
from regard.layers import MultiHeadAttention
from regard.mechanisms import Mechanism
from regard.models.base import Encoder

_LONGEST_DEFAULT = 512
"""Longest window by default, for a model without a maximum length."""


@final
@explain_arguments
@dataclass(frozen=True)
class TextReport:
    """The measurements of ``run_on_text``.

    Args:
        shapes: times, memory and errors at each length; errors are measured in the model's layers on the text.
        heads: the measures of each mechanism in each head of each layer, at each length.
        replacements: the model with each mechanism in place of its own, the model itself first.
        model: its name.
        length, texts, available: windows that were turned into vectors: their length, their number, and how many
            there are in the text.
        cosine_between_texts: mean cosine between the vectors of different windows; None for a single one.
    """

    shapes: BenchReport
    heads: tuple[HeadError, ...]
    replacements: tuple[Replacement, ...]
    model: str
    length: int
    texts: int
    available: int
    cosine_between_texts: float | None

    def to_json(self) -> dict[str, Any]:
        """Convert to values that JSON has."""
        heads = [
            {"mechanism": head.mechanism, "length": head.length, "layer": head.layer, "head": head.head}
            | {name: finite_or_none(value) for name, value in asdict(head.measures).items()}
            for head in self.heads
        ]
        return self.shapes.to_json() | {
            "model": self.model,
            "heads": heads,
            "windows": {"length": self.length, "measured": self.texts, "in_the_text": self.available},
            "neighbours": neighbour_count(self.texts),
            "cosine_between_texts": self.cosine_between_texts,
            "replacements": [replacement.to_json() for replacement in self.replacements],
        }


@explain_arguments
def run_on_text(
    text: str | Iterable[str],
    model: str | Path | Encoder = "minilm",
    mechanisms: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    texts: int = 32,
    advance: Advance | None = None,
    **settings: Any,
) -> TextReport:
    """Measure mechanisms in place of a model's exact attention, on a text.

    Args:
        text: a text, or its lines; it is cut into windows.
        model: an encoder, or the name or folder of one.
        mechanisms: as for ``run``.
        texts: maximum number of windows that are turned into vectors.
        advance: called with the number of finished steps: one per mechanism and length, and one more per mechanism.
        settings: fields of ``BenchSettings``, except heads, head_dim and causal, which are the model's. ``lengths`` of
            more tokens than the model reads are measured without an error. By default they are a quarter, a half and
            all of the model's maximum length.

    Raises OptionError for settings out of range or of the model, DataError for a text shorter than the shortest window,
    and CheckpointError for a model that cannot be used.
    """
    choices = choose_mechanisms(mechanisms)
    check_size("texts", texts)
    for name in ("heads", "head_dim", "causal"):
        if name in settings:
            raise OptionError(
                f"{name} cannot be chosen for a model",
                expected="shapes and masks of the model itself",
                got=f"{name}={settings[name]!r}",
                do=f"leave out {name}, or measure a shape without a text",
            )
    encoder = _load(model, settings.get("dtype", "float32"))
    layer = _attention_layer(encoder)
    lengths = settings.pop("lengths", None)
    lengths = check_lengths(default_lengths(encoder.max_tokens) if lengths is None else lengths)
    checked = BenchSettings(lengths=lengths, heads=layer.heads, head_dim=layer.head_dim, **settings)
    encoder = encoder.to(checked.device)
    windows = TextWindows([text] if isinstance(text, str) else text, encoder)
    length = _vector_length(checked.lengths, encoder.max_tokens)
    ids = windows.cut(length, texts)
    name = type(model).__name__ if isinstance(model, Encoder) else str(model)
    errors = TextErrors(encoder, windows, checked, name)
    shapes = measure(choices, checked, errors, advance)
    done = len(choices) * len(checked.lengths)

    def advance_part(part: float) -> None:
        if advance is not None:
            advance(done + int(part * len(choices)))

    replacements, between = measure_replacements(encoder, choices, ids, checked, advance_part)
    return TextReport(
        shapes, tuple(errors.heads), tuple(replacements), name, length, len(ids), windows.count(length), between
    )


def default_lengths(max_tokens: int | None) -> tuple[int, ...]:
    """A quarter, a half and all of a model's maximum length."""
    longest = _LONGEST_DEFAULT if max_tokens is None else max_tokens
    return tuple(max(1, longest // part) for part in (4, 2, 1))


def _load(model: str | Path | Encoder, dtype: Any) -> Encoder:
    check_kind("model", model, (str, Path, Encoder), do='for example "minilm"')
    if isinstance(model, Encoder):
        return model.eval()
    checked = BenchSettings(dtype=dtype)
    loaded = Encoder.load(model, dtype=checked.torch_dtype)
    for module in loaded.modules():
        if isinstance(module, Mechanism):
            module.dropout = 0.0  # it has no effect here, so that its absence in another mechanism is no news
    return loaded


def _attention_layer(model: Encoder) -> MultiHeadAttention:
    """Return the first attention layer of a model. Raises OptionError if it has none."""
    for module in model.modules():
        if isinstance(module, MultiHeadAttention):
            return module
    raise OptionError(
        f"{type(model).__name__} has no attention layer whose mechanism can be replaced",
        expected="a model with regard.MultiHeadAttention layers",
        got="none among its modules",
        do="use another model",
    )


def _vector_length(lengths: Sequence[int], max_tokens: int | None) -> int:
    """Return the longest of the lengths that the model reads. Raises OptionError if there is none."""
    fitting = [length for length in lengths if max_tokens is None or length <= max_tokens]
    if not fitting:
        raise OptionError(
            "all lengths are longer than the model reads",
            expected=f"a length of at most {max_tokens}",
            got=", ".join(map(str, lengths)),
            do="add a shorter `length`",
        )
    return fitting[-1]
