"""Sentences and their translations for ``regard view``, read by a translator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from regard.cli.loaded_model import ModelLoading, report_prefix
from regard.cli.progress import track
from regard.cli.shared_options import Prefix
from regard.cli.view_texts import load_text_reader
from regard.errors import DataError, OptionError
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.translation import Translator
    from regard.view.read import TextModel
    from regard.view.reading import PairReading


@final
@dataclass(frozen=True)
class PairOptions:
    """The sentences that a translator is shown on."""

    source: tuple[str, ...] = option_field((), "Sentence to show a translator on; repeat for more.", metavar="TEXT")
    target: tuple[str, ...] = option_field(
        (), "Translation of each --source, in order. Default: the model translates.", metavar="TEXT"
    )
    prefix: Prefix = None

    @property
    def are_given(self) -> bool:
        """Whether there are sentences."""
        return bool(self.source or self.target)

    def check_no_prefix(self) -> None:
        """Raise OptionError for a prefix without sentences for a translator."""
        if self.prefix is not None:
            raise OptionError(
                "--prefix has no effect without --source",
                expected='--source "..." for a T5',
                got="--prefix",
                do="leave out --prefix",
            )


def choose_translator(arguments: list[str], model: str | None) -> str:
    """Return the translator's folder: the argument or ``--model``. Raises OptionError unless exactly one was given."""
    named = [*arguments, *([] if model is None else [model])]
    if len(named) != 1:
        raise OptionError(
            "--source needs exactly one model",
            expected="the folder of one translator",
            got=", ".join(map(repr, named)) if named else "none",
            do='regard view model/ --source "..."; quote a sentence of several words',
        )
    return named[0]


def read_pairs(
    model: str, sources: list[str], targets: list[str], prefix: str | None, loading: ModelLoading
) -> list[PairReading]:
    """Read pairs of sources and targets with a translator or a T5. Raises OptionError for a wrong number of them."""
    from regard.view.read_pair import read_pair

    _check_pairs(sources, targets)
    reader = _make_pair_reader(model, prefix, loading)
    translations: Sequence[str | None] = targets or [None] * len(sources)
    names = ["the source", "the target"] if len(sources) == 1 else ["source {}", "target {}"]
    readings = []
    with track(sources, "translations") as tracked:
        for number, (source, target) in enumerate(zip(tracked, translations, strict=True), start=1):
            named = {"source_name": names[0].format(number), "target_name": names[1].format(number)}
            readings.append(read_pair(reader, source, target, **named))
    return readings


def _make_pair_reader(model: str, prefix: str | None, loading: ModelLoading) -> Translator | TextModel:
    """Load an encoder-decoder.

    Raises OptionError for a ``prefix`` to a model that transformers reads, whose sources are read as they are.
    """
    from regard.models import EncoderDecoder
    from regard.translation import Translator
    from regard.view.read import TextModel

    loaded = load_text_reader(model, pairs=True, loading=loading)
    if isinstance(loaded, TextModel):
        if prefix is not None:
            raise OptionError(
                f"--prefix has no effect on {model}, which transformers reads",
                expected="a T5, or a translator of regard",
                got=f"a {loaded.name}",
                do="write the prefix in --source",
            )
        return loaded
    assert isinstance(loaded, EncoderDecoder), "the kind of the model says so"
    translator = Translator(loaded, prefix=prefix)
    report_prefix(translator.prefix, prefix)
    translator.check_attention()
    return translator


def _check_pairs(sources: list[str], targets: list[str]) -> None:
    """Raise OptionError unless there are no targets or one per source, DataError for an empty text."""
    if targets and len(targets) != len(sources):
        raise OptionError(
            "the numbers of sources and targets differ",
            expected="a --target for each --source, or none",
            got=f"{len(sources)} of --source, {len(targets)} of --target",
            do="leave out --target to let the model translate" if sources else 'add --source "..."',
        )
    for option, sentences in (("source", sources), ("target", targets)):
        for text in sentences:
            if not text.strip():
                raise DataError(
                    f"--{option} is empty", expected="a sentence", got=repr(text), do="give a sentence in quotes"
                )


def check_no_text_options(options: dict[str, Any]) -> None:
    """Raise OptionError for options that sentences for a translator do not have."""
    named = [option for option, value in options.items() if value not in (None, False)]
    if named:
        raise OptionError(
            f"{named[0]} cannot be used with --source",
            expected="texts for an encoder such as BERT, or --source for a translator",
            got="both",
            do="give --source once for each sentence",
        )
