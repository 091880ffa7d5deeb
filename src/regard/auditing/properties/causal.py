"""Later tokens have no influence: token j is replaced, and outputs before j stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from regard.auditing.calls import Comparison, Span
from regard.auditing.compare import Outcome, compare_all
from regard.auditing.draws import DrawsByFeature
from regard.auditing.influence import replacements
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject


def _cannot_ask(subject: Subject) -> str | None:
    if not subject.stream.dims:
        return subject.stream.fixed
    if subject.causal is None:
        return "the model does not say whether it is causal: pass `causal=True` or `causal=False`"
    return None if subject.causal else "the model is bidirectional: outputs depend on later tokens by design"


def _comparisons(subject: Subject) -> Sequence[Comparison]:
    """Token j of row j + 1 differs from row 0. All rows are in one batch, so that their rounding agrees."""
    call = replacements(subject)
    return [
        Comparison(Span(call, 0), Span(call, token + 1), token, f"token {token} was replaced", token)
        for token in range(max(1, subject.prefix), call.batch - 1)
    ]


def _in_training(subject: Subject) -> Sequence[Comparison]:
    """The same in training mode, a row alone each time, so that dropout draws the same numbers."""
    text, other = subject.text(1), subject.text(2)
    length = subject.stream.length_of(text)
    base = subject.call([Row(text)], training=True)
    found = []
    for token in behind_prefix(subject, 1, length // 2, length - 1):
        changed = subject.call([Row(subject.stream.replace(text, token, other))], training=True)
        found.append(Comparison(Span(base), Span(changed), token, f"token {token} was replaced", token))
    return found


def _measure_training(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """Compare in training mode, and again with draws by feature if it differs: experts draw for the tokens they get."""
    comparisons = _in_training(subject)
    outcome = compare_all(subject, comparisons, noise)
    if outcome.is_leak:
        alike = [replace(pair, base=_by_feature(pair.base), other=_by_feature(pair.other)) for pair in comparisons]
        outcome = compare_all(subject, alike, noise)
    return [outcome]


def _by_feature(span: Span) -> Span:
    """The span of a call in which dropout drops the same features of every token."""
    return replace(span, call=replace(span.call, around=DrawsByFeature))


def behind_prefix(subject: Subject, *tokens: int) -> list[int]:
    """Tokens that are behind the prefix."""
    return [token for token in tokens if token >= subject.prefix]


def _cannot_train(subject: Subject) -> str | None:
    return "a function has no training mode" if subject.module is None else _cannot_ask(subject)


CAUSAL = (
    Property("causal", "no output depends on a later token", _cannot_ask, _comparisons),
    Property(
        "causal in training mode",
        "no output depends on a later token in training mode either, with the same dropout",
        _cannot_train,
        measure=_measure_training,
    ),
)
