"""``regard.audit``: try every property of a model that can be asked, and find where each leak begins."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from regard.arguments import explain_arguments
from regard.auditing.causes import find_cause
from regard.auditing.compare import Outcome
from regard.auditing.declared_mask import declared_mask_of
from regard.auditing.draws import Place, find_draws_of_rows
from regard.auditing.fingerprint import fingerprint
from regard.auditing.influence import compare_with_declared, infer_causal, measure_influence, replacements
from regard.auditing.layers import LeakingModule, find_leaking_module, measure_modules
from regard.auditing.make_subject import check_module, make_subject
from regard.auditing.noise import MAX_REPEATS, difference, largest, measure_noise
from regard.auditing.properties.property import Property
from regard.auditing.properties.table import PROPERTIES
from regard.auditing.results import AuditReport, Leak, ModuleInfluence, NoiseFloor, PropertyResult
from regard.auditing.subject import Row, Subject, failure, read_output
from regard.errors import RegardError, check_count, check_flag, check_kind, unknown_name_error


@explain_arguments
def audit(
    model: Any,
    inputs: Any = None,
    *,
    causal: bool | None = None,
    prefix: int | None = None,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    quick: bool = False,
    strict: bool = False,
    length: int | None = None,
    seed: int = 0,
) -> AuditReport:
    """Say which tokens leak into which outputs of a model: by how much, since which layer, and why.

    A copy of the model is run in float64, on random texts, in many ways that should make no difference.

    Args:
        model: a model of ``transformers`` or regard, a torch module, or a function of query, key and value.
        inputs: inputs of one call: token ids (batch, length), vectors (batch, length, width), a tuple of arguments, or
            a mapping of arguments by name. Models of ``transformers`` and regard that read text need none.
        causal: whether no output may depend on a later token; None asks the model.
        prefix: number of first tokens that see one another all the same, in every call of a causal model.
        only: names, or beginnings of names, of the properties to try; () tries all.
        skip: names, or beginnings of names, of properties that are not tried.
        quick: leave out properties that take long.
        strict: try properties, too, that hardly any model has, such as NaN in padding.
        length: tokens of a text; None takes the length of ``inputs``, or 13.
        seed: of the random texts.

    Raises OptionError for a model that cannot be called, RefusedError for one that fails on its own inputs.
    """
    check_flag("quick", quick)
    check_flag("strict", strict)
    chosen = choose_properties(only, skip, quick=quick, strict=strict)
    return run_audit(model, inputs, causal=causal, prefix=prefix, chosen=chosen, length=length, seed=seed)


def run_audit(
    model: Any,
    inputs: Any,
    *,
    chosen: Sequence[Property],
    causal: bool | None = None,
    prefix: int | None = None,
    length: int | None = None,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
    is_copied: bool = True,
) -> AuditReport:
    """Try the chosen properties, as ``audit`` does; ``progress`` is called with the number of those that were tried.

    Without ``is_copied`` the model itself is converted to float64: for a model that nobody else uses.
    """
    if causal is not None:
        check_flag("causal", causal)
    if prefix is not None:
        check_count("prefix", prefix, minimum=0, maximum=4096, example=5)
    if length is not None:
        check_count("length", length, minimum=4, maximum=4096, example=13)
    check_count("seed", seed, minimum=0, example=0)
    if isinstance(model, nn.Module):
        check_module(model)
    prints = fingerprint(model if isinstance(model, nn.Module) else None, getattr(model, "config", None))
    subject = make_subject(model, inputs, causal=causal, prefix=prefix, length=length, seed=seed, is_copied=is_copied)
    with quiet_model(subject):
        return _run_on(subject, chosen, prints, progress)


def _run_on(
    subject: Subject, chosen: Sequence[Property], prints: dict[str, str], progress: Callable[[int], None]
) -> AuditReport:
    noise = measure_noise(subject)
    if _is_random(subject, noise):
        subject = replace(subject, draws_of_rows=_find_draws(subject), notes=(*subject.notes, _DRAWS))
        noise = measure_noise(subject)
    measured = measure_influence(subject)
    if measured is None and subject.stream.dims:
        subject = replace(subject, unaligned=_describe_outputs(subject))
    if measured is not None and subject.causal is None:
        subject = infer_causal(measured, subject, noise)
    results = []
    for choice in chosen:
        results.append(_try(choice, subject, noise))
        progress(len(results))
    return AuditReport(
        subject.name,
        subject.kind,
        subject.stream.length,
        subject.seed,
        noise,
        tuple(results),
        None if measured is None else compare_with_declared(measured, subject, noise),
        subject.notes,
        prints,
        () if measured is None else _measure_modules(subject),
    )


_DRAWS = (
    "random numbers are drawn in eval mode: all properties but `random numbers` were tried with dropout that keeps "
    "everything, and with means in place of noise"
)


def _is_random(subject: Subject, noise: NoiseFloor) -> bool:
    """Whether another seed changes the outputs in eval mode."""
    call = subject.call([Row(subject.text(1))])
    outputs = subject.run(call)
    return difference(outputs, subject.run(replace(call, seed=11))) > noise.threshold(largest(outputs))


def _find_draws(subject: Subject) -> frozenset[Place]:
    def run(rows: int, around: Callable[[], AbstractContextManager[Any]]) -> None:
        subject.run(replace(subject.call([Row(subject.text(1))] * rows), around=around))

    return find_draws_of_rows(run)


def _describe_outputs(subject: Subject) -> str:
    """Why outputs do not belong to tokens."""
    call = subject.call([Row(subject.text(1))])
    (step,) = call.steps
    with subject.running(call):
        result = subject.function(**{name: subject.prepare(value) for name, value in step.arguments.items()})
    shape = tuple(read_output(result).shape)
    return f"outputs do not belong to tokens: for a text of {call.length} the model returns a tensor of shape {shape}"


def _measure_modules(subject: Subject) -> tuple[ModuleInfluence, ...]:
    try:
        return measure_modules(subject, replacements(subject), declared_mask_of(subject, subject.stream.length))
    # Hooks turn off fast paths of torch, and the code that then runs may raise errors of any kind.
    except Exception:
        return ()


@contextmanager
def quiet_model(subject: Subject) -> Iterator[None]:
    """A context in which nothing is said about the unusual calls of an audit, and no warning ends them."""
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        if subject.family == "transformers":
            from regard.hf.checkpoint import quiet_transformers

            stack.enter_context(quiet_transformers())
        yield


def choose_properties(
    only: Sequence[str], skip: Sequence[str], *, quick: bool = False, strict: bool = False
) -> tuple[Property, ...]:
    """The properties whose names begin with one of ``only`` and none of ``skip``. Raises OptionError for others."""
    names = [choice.name for choice in PROPERTIES]
    for argument, prefixes in (("only", only), ("skip", skip)):
        check_kind(argument, prefixes, (list, tuple), do=f"for example {argument}=['padding']")
    for prefix in (*only, *skip):
        if not isinstance(prefix, str) or not any(name.startswith(prefix) for name in names):
            raise unknown_name_error("property", prefix, names)
    return tuple(
        choice
        for choice in PROPERTIES
        if (choice.name.startswith(tuple(only)) if only else strict or not choice.is_strict)
        and not choice.name.startswith(tuple(skip))
        and (choice.is_quick or not quick)
    )


def _try(choice: Property, subject: Subject, noise: NoiseFloor) -> PropertyResult:
    """Try one property. An error of the model is a reason not to ask, and never the end of the audit."""
    reason = choice.cannot_ask(subject)
    if choice.is_by_token and subject.unaligned:
        reason = subject.unaligned
    if reason is None and not noise.is_finite:
        reason = "outputs are NaN or infinite for an ordinary text"
    if reason is None and noise.repeats > MAX_REPEATS:
        reason = f"two identical calls differ by {noise.repeats:.1e} of the largest output, whatever the seed"
    if reason is not None:
        return PropertyResult(choice.name, choice.promise, "cannot be asked", reason)
    try:
        outcome, count = choice.try_on(subject, noise)
    except RegardError as error:
        return PropertyResult(choice.name, choice.promise, "cannot be asked", error.what)
    # Models raise errors of any kind for inputs that they do not support.
    except Exception as error:
        return PropertyResult(choice.name, choice.promise, "cannot be asked", failure(error))
    leak = _explain(choice.name, subject, outcome, noise) if outcome.is_leak else None
    return PropertyResult(
        choice.name,
        choice.promise,
        "leaks" if leak else "holds",
        "",
        outcome.difference,
        outcome.threshold,
        count,
        leak,
    )


def _explain(name: str, subject: Subject, outcome: Outcome, noise: NoiseFloor) -> Leak:
    """Where a leak begins, and why."""
    if outcome.comparison is not None:
        try:
            found = find_leaking_module(subject, outcome.comparison, noise)
        # Hooks turn off fast paths of torch, and the code that then runs may raise errors of any kind.
        except Exception:
            found = None
    elif outcome.module is not None and subject.module is not None:
        found = LeakingModule(outcome.module, subject.module.get_submodule(outcome.module))
    else:
        found = None
    return Leak(
        outcome.change,
        outcome.output,
        outcome.source,
        found.name if found else "",
        type(found.module).__name__ if found else "",
        found.layer if found else None,
        outcome.cause or find_cause(name, subject, outcome, found, noise),
        found.differences if found else (),
    )


@explain_arguments
def property_names() -> Collection[str]:
    """Names of all properties, in the order in which they are tried."""
    return tuple(choice.name for choice in PROPERTIES)
