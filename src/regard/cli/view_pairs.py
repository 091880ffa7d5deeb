"""Sources and targets for ``regard view``: what a translator attends to while it reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from regard.cli.loaded_model import report_prefix
from regard.cli.progress import count_progress
from regard.errors import DataError, OptionError

if TYPE_CHECKING:
    from regard.models.model_folder import ModelFolder
    from regard.view.reading import PairReading


def read_pairs(model: str, sources: list[str], targets: list[str], prefix: str | None) -> list[PairReading]:
    """Read pairs of sources and targets with a translator or a T5. Raises OptionError for a wrong number of them."""
    _check_pairs(sources, targets)
    read = _make_pair_reader(model, prefix)
    translations: Sequence[str | None] = targets or [None] * len(sources)
    names = ["the source", "the target"] if len(sources) == 1 else ["source {}", "target {}"]
    readings = []
    with count_progress(len(sources), "translations") as advance:
        for number, (source, target) in enumerate(zip(sources, translations, strict=True), start=1):
            named = {"source_name": names[0].format(number), "target_name": names[1].format(number)}
            readings.append(read(source, target, **named))
            advance(number)
    return readings


def _make_pair_reader(model: str, prefix: str | None) -> Callable[..., PairReading]:
    """Load an encoder-decoder, and return the function that captures its attention.

    Raises OptionError for a ``prefix`` to a model that transformers reads, whose sources are read as they are.
    """
    from regard.cli.checkpoint_folder import load_checkpoint
    from regard.models import EncoderDecoder
    from regard.models.kinds import TRANSLATOR
    from regard.models.load import find_class
    from regard.models.model_folder import ModelFolder
    from regard.translation import Translator
    from regard.view.read_pair import read_pair

    folder = ModelFolder.open(model, TRANSLATOR)
    checkpoint = load_checkpoint(folder)
    if checkpoint is not None:
        if not checkpoint.is_encoder_decoder:
            raise _no_translator_error(model, type(checkpoint.model).__name__)
        if prefix is not None:
            raise OptionError(
                f"--prefix has no effect on {model}, which transformers reads",
                expected="a T5, or a translator of regard",
                got=f"a {type(checkpoint.model).__name__}",
                do="write the prefix in --source",
            )
        from regard.hf.read_source_and_target import read_source_and_target

        return partial(read_source_and_target, checkpoint)
    if not find_class(folder).kind.pairs:
        raise _no_translator_error(model, find_class(folder).__name__)
    translator = Translator(EncoderDecoder.load(folder), prefix=prefix)
    report_prefix(translator.prefix, prefix)
    translator.check_attention()
    return partial(read_pair, translator)


def _no_translator_error(model: str, got: str) -> OptionError:
    return OptionError(
        f"{model} is not a translator, so it cannot be used with --source",
        expected="a folder that `regard train translate` wrote, or an encoder-decoder of transformers",
        got=f"a {got}",
        do=f'give the text alone: regard view "..." --model {model}',
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


def missing_source_error(model: str | ModelFolder) -> OptionError:
    """The error for an encoder-decoder without a source."""
    return OptionError(
        f"{model} is an encoder-decoder, such as a translator, and --source is missing",
        expected="--source, and optionally --target",
        got="a text alone",
        do=f'regard view {model} --source "..."',
    )
