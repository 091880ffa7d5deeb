"""A report in words: the lines of ``print(report)``, and the parts that the terminal and the page share."""

from __future__ import annotations

from regard.auditing.results import AuditReport, Leak, PropertyResult
from regard.language import translate, translate_message, use_language

_MARKS = {"holds": "holds", "leaks": "LEAKS"}


def describe_report(report: AuditReport) -> str:
    """The report as lines: a head, a line for each property that was tried, the others by reason, and the verdict."""
    lines = [describe_subject(report), f"  {describe_noise(report)}"]
    lines += [f"  note: {note}" for note in report.notes]
    tried = [result for result in report.results if result.verdict != "cannot be asked"]
    width = max((len(result.name) for result in tried), default=0)
    for result in tried:
        lines.append(f"  {result.name:<{width}}  {_MARKS[result.verdict]:<5}  {describe_result(result)}".rstrip())
        if result.leak is not None:
            lines += [f"  {'':<{width}}         {line}" for line in describe_leak(result.leak)]
    with use_language("en"):
        lines += [f"  {line}" for line in describe_reasons(report)]
    unasked = len(report.results) - len(tried)
    lines.append(f"  {len(report.leaks)} of {len(tried)} properties leak; {unasked} cannot be asked")
    return "\n".join(lines)


def describe_subject(report: AuditReport) -> str:
    """The model, what it reads, and the number of tokens; pictures and sounds have none."""
    head = f"{report.model}: {report.kind}"
    return f"{head}, {report.length} tokens" if report.length > 1 else head


def describe_head(report: AuditReport) -> str:
    """The model and how it was run, in the language in use."""
    model, noise = translate_message(describe_subject(report)), translate_message(describe_noise(report))
    return translate("{model}; {noise}", model=model, noise=noise)


def label_property(name: str) -> str:
    """The name of a property in the language in use, with the name that options take."""
    label = translate_message(name)
    return name if label == name else f"{label}（{name}）"


def describe_noise(report: AuditReport) -> str:
    """The precision of the run and the noise floor."""
    noise = report.noise
    return f"run in {noise.precision}; noise floor {noise.relative:.1e} of the largest output" if noise else "not run"


def describe_result(result: PropertyResult) -> str:
    """The largest difference and what counts as rounding; "" if nothing was measured."""
    if result.difference is None or result.threshold is None:
        return ""
    return f"difference {result.difference:.1e}; rounding up to {result.threshold:.1e}"


def describe_leak(leak: Leak) -> list[str]:
    """Where a leak is, and why."""
    lines = [leak.change if leak.output is None else f"{leak.change}: output {leak.output} differs"]
    if leak.module_class:
        lines.append(f"begins in {leak.module or 'the model itself'} ({leak.module_class})")
    if leak.cause:
        lines.append(leak.cause)
    return lines


def describe_reasons(report: AuditReport) -> list[str]:
    """The properties that cannot be asked, a line for each reason. Their names stay: they are values of ``--only``."""
    groups: dict[str, list[str]] = {}
    for result in report.results:
        if result.verdict == "cannot be asked":
            groups.setdefault(result.reason, []).append(result.name)
    return [
        translate("not asked: {names} ({reason})", names=", ".join(names), reason=translate_message(reason))
        for reason, names in groups.items()
    ]
