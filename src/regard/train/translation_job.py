"""From files of pairs to a ``TranslationTask``: read, hold out, cut into subwords, choose a model.

Each choice that was left open is made here, and said.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar, final, get_args, get_type_hints

import numpy as np

from regard.errors import DataError, OptionError, unknown
from regard.models import Recurrent, RecurrentConfig, SequenceToSequence, Transformer, TransformerConfig, sequence_files
from regard.text.pairs import Found, Pair, Tally, Where, read_pairs
from regard.text.placeholders import ProtectedPair, protect
from regard.text.subword_training import least_size
from regard.text.subwords import Subwords
from regard.train.batches import Batches
from regard.train.corpus import Corpus, Sentences
from regard.train.run_folder import RunFolder
from regard.train.translation import TranslationTask
from regard.translation import Translator
from regard.translation.hold_out import held_out
from regard.translation.sizes import SIZES, Size, size_for, vocabulary_for, warning_for

CELLS = ("gru", "lstm")
SHARING = ("auto", "joint", "separate")
_RECURRENT = {"width": 256, "hidden": 512, "layers": 1, "dropout": 0.3}
"""A recurrent model for some ten thousands of pairs."""
_TOGETHER = 10_000
"""Sentences that are encoded at a time."""
_OF_SUBWORDS = ("vocabulary", "target_vocabulary", "pad_id", "start_id", "end_id")
"""Numbers of a config that follow from the subwords."""
_JOINT_FROM = 0.5
"""The share of a target's letters that the source must have for one vocabulary to serve both."""

Subword = tuple[Subwords, Subwords]
Config = TypeVar("Config", TransformerConfig, RecurrentConfig)


@final
@dataclass(frozen=True)
class Plan:
    """What to learn from, and with which model.

    Args:
        data: files of pairs; where: what their formats leave open.
        validation: files of pairs to measure with; none holds out some of ``data``.
        model: a size of ``SIZES``, a cell of ``CELLS`` for a recurrent model, a folder to start from, or None for the
            size that suits the data.
        numbers: of the model's config, in place of the size's.
        attention: of a recurrent model; None is additive.
        vocabulary: subwords; None is what suits the data. algorithm: how they are found; None is bpe. sharing: one
            vocabulary for both languages, or one each; None is by their letters.
        most_tokens: a pair with a longer side is left out.
        tokens: of a batch; None is the size's.
        languages: of source and target, such as ("de", "en"), where they are known; else those of the model that is
            started from.

    A model that is started from is as it is: with numbers, attention or subwords of its own ``prepared`` refuses it.
    """

    data: tuple[Path, ...]
    where: Where = field(default_factory=Where)
    validation: tuple[Path, ...] = ()
    model: str | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    attention: str | None = None
    vocabulary: int | None = None
    algorithm: str | None = None
    sharing: str | None = None
    most_tokens: int = 250
    tokens: int | None = None
    smoothing: float = 0.1
    seed: int = 1
    languages: tuple[str | None, str | None] = (None, None)

    def asked(self) -> dict[str, Any]:
        """All that decides what is learnt from, for a file of JSON."""
        return {name: _plain(value) for name, value in asdict(self).items()}


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


def subwords_of(folder: RunFolder) -> Subword | None:
    """The subwords that a run was begun with."""
    return sequence_files.read_subwords(folder.path)


def read(paths: Sequence[Path], where: Where, say: Callable[[str], None]) -> list[Pair]:
    """All pairs of the files; what was left out is said. Raises DataError where there is no pair."""
    return [one for one in found_in(paths, where, say) if isinstance(one, Pair)]


def found_in(paths: Sequence[Path], where: Where, say: Callable[[str], None]) -> list[Found]:
    """The same, with what was left out in its place."""
    tally = Tally()
    found = list(read_pairs(paths, where))
    pairs = sum(1 for _ in tally.count(found))
    for sentence in tally.sentences():
        say(sentence)
    if not pairs:
        raise DataError(
            "there is no pair to learn from",
            expected="sentences and their translations",
            got=f"0 pairs in {', '.join(map(str, paths))}",
            do="check the columns, fields or languages that the pairs are taken from",
        )
    return found


def prepared(plan: Plan, say: Callable[[str], None], *, subwords: Subword | None = None) -> Prepared:
    """The task of a plan. ``subwords`` are those of an earlier run; None trains them.

    Raises DataError for data that cannot be used, OptionError for a plan that makes no sense.
    """
    start = _start(plan)
    _check_effect(plan)
    learnt, measured = (_guarded(pairs) for pairs in _split(plan, say))
    warning = warning_for(len(learnt))
    if warning:
        say(warning)
    size = _size(plan, start, len(learnt))
    subwords = (start.subwords if start is not None else None) or subwords or _trained(plan, learnt, say)
    model = start or _built(plan, size, subwords)
    model.subwords = subwords
    if start is None:
        say(f"the model: {_described(plan, size, model)}")
    corpus, _ = _encoded(learnt, subwords, plan.most_tokens, say)
    measured_corpus, kept = _encoded(measured, subwords, plan.most_tokens, say)
    languages = _languages(plan, start)
    ids = {"start_id": model.start_id, "end_id": model.end_id}
    tokens = plan.tokens or size.tokens
    task = TranslationTask(
        model,
        batches=Batches(corpus, tokens=tokens, seed=plan.seed, **ids),
        measured=Batches(measured_corpus, tokens=tokens, seed=plan.seed, **ids),
        held_out=kept,
        smoothing=plan.smoothing,
        language=languages[1],
    )
    about = {"languages": list(languages), "pairs": len(corpus), "held_out": len(kept)}
    return Prepared(task, size, about)


def _split(plan: Plan, say: Callable[[str], None]) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and to measure with."""
    pairs = read(plan.data, plan.where, say)
    if plan.validation:
        return pairs, read(plan.validation, plan.where, say)
    learnt, measured = held_out(pairs, seed=plan.seed)
    if not learnt or not measured:
        raise DataError(
            "there are too few different sentences to learn from some and measure with others",
            expected="at least 2 different sources",
            got=f"{len(pairs)} pairs",
            do="give more pairs, or others to measure with (--valid)",
        )
    say(f"{len(learnt):,} pairs to learn from; {len(measured):,} held out, to measure with")
    return learnt, measured


def _start(plan: Plan) -> SequenceToSequence | None:
    """The model of a folder, to go on from; None where a new one is to be made."""
    if plan.model is None or plan.model in (*SIZES, *CELLS):
        return None
    if not Path(plan.model).expanduser().is_dir():
        raise unknown("model to train", plan.model, (*SIZES, *CELLS, "or a model's folder"))
    return Translator.load(plan.model).model


def _check_effect(plan: Plan) -> None:
    """Raise OptionError for what the model that was chosen has no place for."""
    starts = plan.model is not None and plan.model not in (*SIZES, *CELLS)
    given = {
        "--set": starts and bool(plan.numbers),
        "--attention": plan.attention is not None and plan.model not in CELLS,
        "--vocabulary": starts and plan.vocabulary is not None,
        "--subwords": starts and plan.algorithm is not None,
        "--sharing": starts and plan.sharing is not None,
    }
    names = ", ".join(name for name, useless in given.items() if useless)
    if names:
        raise OptionError(
            f"{names} has no effect on {plan.model if starts else 'a Transformer'}",
            expected="a model that goes on as it is" if starts else "--model gru or lstm with --attention",
            got=names,
            do=f"leave out {names}" if starts else f"leave out {names}, or add --model gru",
        )


def _size(plan: Plan, start: SequenceToSequence | None, pairs: int) -> Size:
    """What training goes by: the size that was named or suits the data, or that of the model that is started from."""
    if isinstance(start, Transformer):
        return next((size for size in SIZES.values() if size.width >= start.config.width), SIZES["big"])
    return size_for(pairs, plan.model if plan.model in SIZES else None)


def _languages(plan: Plan, start: SequenceToSequence | None) -> tuple[str | None, str | None]:
    """Those that were named, else those that the model was trained for before."""
    source, target = (None, None) if start is None else start.languages
    return plan.languages[0] or source, plan.languages[1] or target


def _guarded(pairs: Sequence[Pair]) -> list[_Guarded]:
    return [_Guarded(pair, protect(pair.source, pair.target)) for pair in pairs]


def _trained(plan: Plan, pairs: Sequence[_Guarded], say: Callable[[str], None]) -> Subword:
    """Subwords learnt from the pairs."""
    sharing, algorithm = plan.sharing or "auto", plan.algorithm or "bpe"
    if sharing not in SHARING:
        raise unknown("way of sharing subwords", sharing, SHARING)
    sides = [[one.text.source for one in pairs], [one.text.target for one in pairs]]
    joint = sharing == "joint" or (sharing == "auto" and _alike(*sides))
    groups = [sides[0] + sides[1]] if joint else sides
    found = [
        Subwords.train(texts, size=plan.vocabulary or _size_of(texts, len(pairs)), algorithm=algorithm)
        for texts in groups
    ]
    say(
        f"{found[0].vocabulary:,} subwords for both languages"
        if joint
        else f"{found[0].vocabulary:,} subwords for the source, {found[1].vocabulary:,} for the target"
    )
    return found[0], found[-1]


def _size_of(texts: Sequence[str], pairs: int) -> int:
    """Subwords for so many pairs; more where characters alone, as of Chinese, take most of them."""
    size = vocabulary_for(pairs)
    return max(size, least_size(texts) + size // 2)


def _alike(sources: Sequence[str], targets: Sequence[str]) -> bool:
    """Whether most letters of the target occur in the source, as those of German do in English."""
    source, target = (_letters(texts) for texts in (sources, targets))
    shared = sum(count for letter, count in target.items() if letter in source)
    return shared >= _JOINT_FROM * sum(target.values())


def _letters(texts: Sequence[str]) -> dict[str, int]:
    """How often each letter occurs in some thousands of texts."""
    counts: dict[str, int] = {}
    for text in texts[:: max(1, len(texts) // 5000)]:
        for letter in text.lower():
            if unicodedata.category(letter).startswith("L"):
                counts[letter] = counts.get(letter, 0) + 1
    return counts


def _built(plan: Plan, size: Size, subwords: Subword) -> SequenceToSequence:
    """A new model."""
    source, target = subwords
    sizes = {"vocabulary": source.vocabulary, "target_vocabulary": None if source is target else target.vocabulary}
    shared = {"shared": "all" if source is target else "target"}
    if plan.model in CELLS:
        numbers = {"cell": plan.model, "attention": plan.attention or "additive", **_RECURRENT}
        return Recurrent(_config(RecurrentConfig, {**sizes, **shared, **numbers}, plan))
    names = ("width", "layers", "heads", "inner", "dropout", "attention_dropout", "inner_dropout", "norm")
    numbers = {name: getattr(size, name) for name in names}
    return Transformer(_config(TransformerConfig, {**sizes, **shared, **numbers}, plan))


def _config(kind: type[Config], numbers: dict[str, Any], plan: Plan) -> Config:
    """The config with the plan's own numbers. Raises OptionError for one that it does not have, or that is not free."""
    free = [one.name for one in dataclasses.fields(kind) if one.name not in _OF_SUBWORDS]
    types = get_type_hints(kind)
    for name, value in plan.numbers.items():
        if name in _OF_SUBWORDS:
            raise OptionError(
                f"{name} is decided by the subwords", expected="no --set of it", got=repr(value), do="use --vocabulary"
            )
        if name not in free:
            raise unknown(f"number of a {kind.__name__.removesuffix('Config')}", name, free)
        wanted = get_args(types[name]) or (types[name],)
        if type(value) not in wanted and not (float in wanted and type(value) is int):
            words = " or ".join("nothing" if one is NoneType else one.__name__ for one in wanted)
            raise OptionError(f"wrong {name}", expected=words, got=repr(value), do="correct it")
    given = {name: float(value) if types[name] is float else value for name, value in plan.numbers.items()}
    return kind(**{**numbers, **given})


def _described(plan: Plan, size: Size, model: SequenceToSequence) -> str:
    count = sum(weight.numel() for weight in model.parameters()) / 1e6
    if plan.model in CELLS:
        return f"{plan.model}, attention {model.config.attention}, {count:.1f} million weights"
    config = model.config
    layers = f"{config.layers} layers of {config.width}, {config.norm}-norm"
    return f"Transformer {size.name}, {layers}, {count:.1f} million weights"


def _encoded(
    pairs: Sequence[_Guarded], subwords: Subword, most: int, say: Callable[[str], None]
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
            do="split them into sentences, or allow more (--most-tokens)",
        )
    return Corpus(*(side.taken(fits) for side in sides)), kept


def _ids(texts: Sequence[str], subwords: Subwords) -> Iterator[list[int]]:
    """The ids of each text. Some thousands are encoded at a time: what lists of numbers take is 20 times the result."""
    for first in range(0, len(texts), _TOGETHER):
        yield from subwords.encode(texts[first : first + _TOGETHER])


def _plain(value: Any) -> Any:
    """As JSON has it; files by their names alone, since they may lie elsewhere when the run goes on."""
    if isinstance(value, Path):
        return value.name
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
