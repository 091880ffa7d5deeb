"""From files of pairs to a ``TranslationTask``: read, hold out, cut into subwords, choose a model.

Each choice that was left open is made here, and said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np

from regard.errors import DataError, unknown
from regard.models import EncoderDecoder, Recurrent, Transformer, sequence_files
from regard.models.config_file import ConfigFile
from regard.text.pairs import Pair, Where
from regard.text.pairs.told import told_pairs
from regard.text.placeholders import ProtectedPair, protect
from regard.text.subword_training import normalized
from regard.text.subwords import Subwords
from regard.train.batches import Batches
from regard.train.corpus import Corpus, Sentences
from regard.train.new_model import check_numbers, described, new_model
from regard.train.new_subwords import BothSubwords, new_subwords
from regard.train.plan import CELLS, KINDS, Plan
from regard.train.run_folder import RunFolder
from regard.train.translation import TranslationTask
from regard.translation import Translator
from regard.translation.hold_out import held_out
from regard.translation.sizes import SIZES, Size, size_for, warning_for
from regard.translation.translator import MOST_TOKENS

_TOGETHER = 10_000
"""Sentences that are encoded at a time."""


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """What ``prepared`` gives: the task, the size that goes with the data, and what is to be known of the data."""

    task: TranslationTask
    size: Size
    about: dict[str, Any]

    @property
    def files(self) -> dict[str, str]:
        """The subwords, by the names of their files."""
        return sequence_files.subword_texts(self.task.model.subwords)


@final
class _Guarded(NamedTuple):
    """A pair, and its texts with placeholders for what is to be copied."""

    pair: Pair
    text: ProtectedPair


def subwords_of(folder: RunFolder) -> BothSubwords | None:
    """The subwords that a run was begun with."""
    return sequence_files.read_subwords(folder.path)


def layer_of(plan: Plan) -> str:
    """The kind of layer that the model's time goes into, of ``layers.precision``. Reads no data, and no weights.

    Raises CheckpointError for a folder to start from whose config.json cannot be read.
    """
    if plan.start is None:
        return str(plan.model) if plan.model in CELLS else "linear"
    folder = Path(plan.start).expanduser()
    if not folder.is_dir():
        return "linear"  # ``prepared`` refuses it
    config = ConfigFile.read(folder)
    return config.choice("cell", CELLS, default="gru") if config.model_type == Recurrent.model_type else "linear"


def prepared(plan: Plan, say: Callable[[str], None], *, subwords: BothSubwords | None = None) -> Prepared:
    """The task of a plan. ``subwords`` are those of an earlier run; None trains them.

    Raises DataError for data that cannot be used, OptionError for a plan that makes no sense.
    """
    start = _start(plan)
    plan.check_effect()
    if start is None:
        check_numbers(plan)
    languages = _languages(plan, start)
    where = replace(plan.where, source=languages[0], target=languages[1])
    learnt, measured = _split(plan, where, say)
    warning = warning_for(len(learnt))
    if warning:
        say(warning)
    size = _size(plan, start, len(learnt))
    subwords = (start.subwords if start is not None else None) or subwords
    subwords = subwords or new_subwords(plan, [one.text for one in learnt], say)
    model = start or new_model(plan, size, subwords)
    model.subwords = subwords
    if start is None:
        say(f"the model: {described(plan, size, model)}")
    # There is a place for the end too, and what is measured with is translated.
    most = min(plan.most_tokens, MOST_TOKENS - 1, (model.max_tokens or MOST_TOKENS) - 1)
    corpus, _ = _encoded(learnt, subwords, most, say)
    measured_corpus, kept = _encoded(measured, subwords, most, say)
    ids = {"pad_id": model.pad_id, "start_id": model.start_id, "end_id": model.end_id}
    tokens = plan.tokens or size.tokens
    task = TranslationTask(
        model,
        batches=Batches(corpus, tokens=tokens, seed=plan.seed, **ids),
        measured=Batches(measured_corpus, tokens=tokens, seed=plan.seed, **ids),
        held_out=kept,
        smoothing=plan.smoothing,
        language=languages[1],
    )
    if task.compares_by != "BLEU":
        say(f"held-out targets have no four words in a row, which BLEU needs: {task.compares_by} decides what is best")
    about = {"languages": list(languages), "pairs": len(corpus), "held_out": len(kept)}
    return Prepared(task, size, about)


def _split(plan: Plan, where: Where, say: Callable[[str], None]) -> tuple[list[_Guarded], list[_Guarded]]:
    """Pairs to learn from and to measure with."""
    pairs = _guarded(told_pairs(plan.data, where, say))
    sources = [normalized(one.text.source) for one in pairs]
    if plan.validation:
        measured = _guarded(told_pairs(plan.validation, where, say))
        known = len({normalized(one.text.source) for one in measured} & set(sources))
        if known:
            say(f"of the sources to measure with, {known:,} are learnt from too: scores will tell of memory")
        return pairs, measured
    held = held_out(sources, seed=plan.seed)
    learnt = [one for one, out in zip(pairs, held, strict=True) if not out]
    measured = [one for one, out in zip(pairs, held, strict=True) if out]
    if not learnt or not measured:
        raise DataError(
            "there are too few different sentences to learn from some and measure with others",
            expected="at least 2 different sources",
            got=f"{len(pairs)} pairs",
            do="give more pairs, or others to measure with (--valid)",
        )
    say(f"pairs: {len(learnt):,} to learn from; {len(measured):,} held out, to measure with")
    return learnt, measured


def _start(plan: Plan) -> EncoderDecoder | None:
    """The model of a folder, to go on from; None where a new one is to be made."""
    if plan.start is None:
        return None
    if not Path(plan.start).expanduser().is_dir():
        raise unknown("model to train", plan.start, (*KINDS, "or a model's folder"))
    return Translator.load(plan.start).model


def _size(plan: Plan, start: EncoderDecoder | None, pairs: int) -> Size:
    """What training goes by: the size that was named or suits the data, or that of the model that is started from."""
    if isinstance(start, Transformer):
        return next((size for size in SIZES.values() if size.width >= start.config.width), SIZES["big"])
    return size_for(pairs, plan.model if plan.model in SIZES else None)


def _languages(plan: Plan, start: EncoderDecoder | None) -> tuple[str | None, str | None]:
    """Those that were named, else those that the model was trained for before."""
    source, target = (None, None) if start is None else start.languages
    return plan.where.source or source, plan.where.target or target


def _guarded(pairs: Sequence[Pair]) -> list[_Guarded]:
    return [_Guarded(pair, protect(pair.source, pair.target)) for pair in pairs]


def _encoded(
    pairs: Sequence[_Guarded], subwords: BothSubwords, most: int, say: Callable[[str], None]
) -> tuple[Corpus, list[Pair]]:
    """The pairs as tokens, without those with a side that is too long."""
    sides = [
        Sentences.of(_ids([getattr(one.text, side) for one in pairs], own), own.vocabulary)
        for side, own in zip(("source", "target"), subwords, strict=True)
    ]
    fits = np.maximum(sides[0].lengths, sides[1].lengths) <= most
    kept = [one.pair for one, fit in zip(pairs, fits, strict=True) if fit]
    if len(kept) < len(pairs):
        long = [one.pair.place for one, fit in zip(pairs, fits, strict=True) if not fit]
        more = f" and {len(long) - 5:,} more" if len(long) > 5 else ""
        say(f"left out {len(long):,}, where a side has more than {most} tokens: {', '.join(long[:5])}{more}")
    if not kept:
        raise DataError(
            "every pair is too long",
            expected=f"pairs with at most {most} tokens on each side",
            got=f"{len(pairs)} pairs, all longer",
            do="split them into sentences, or allow more (--most-tokens; of learned positions --set max_length)",
        )
    return Corpus(*(side.taken(fits) for side in sides)), kept


def _ids(texts: Sequence[str], subwords: Subwords) -> Iterator[list[int]]:
    """The ids of each text. Some thousands are encoded at a time: what lists of numbers take is 20 times the result."""
    for first in range(0, len(texts), _TOGETHER):
        yield from subwords.encode(texts[first : first + _TOGETHER])
