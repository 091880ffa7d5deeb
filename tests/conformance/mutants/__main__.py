"""Print the share of the faults that the kit catches, beside that of the usual test: ``make conformance``.

A fault has its cause if the sentence that explains most wrong cases is the right one, of ``causes``.
"""

from __future__ import annotations

from conformance.mutants.causes import CAUSES
from conformance.mutants.faults import FAULTS, MECHANISMS, Fault, build
from conformance.mutants.usual_test import passes
from regard.conformance import Report, check


def is_named(fault: Fault, report: Report) -> bool:
    """Whether the cause of most wrong cases is the right one."""
    words, causes = CAUSES[fault.kernel].get(fault.name), report.causes()
    return bool(words and causes) and words in max(causes, key=lambda cause: len(causes[cause]))


def main() -> None:
    print("| kernel | faults | caught by the kit | with its cause | usual test, output | usual test, gradients too |")
    print("|---|--:|--:|--:|--:|--:|")
    totals = [0] * 5
    for kernel in MECHANISMS:
        counts = [0] * 5
        for fault in (fault for fault in FAULTS if fault.kernel == kernel):
            built = build(kernel, fault)
            form = "allowed" if built.mechanism == "dot_product" else None
            report = check(
                built.forward,
                backward=built.backward,
                mechanism=built.mechanism,
                framework="numpy",
                mask=form,
                strict=True,
            )
            found = (
                1,
                not report.holds,
                is_named(fault, report),
                not passes(built, backward=False),
                not passes(built, backward=True),
            )
            counts = [count + bool(caught) for count, caught in zip(counts, found, strict=True)]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        print(f"| {kernel} | {' | '.join(map(str, counts))} |", flush=True)
    print(f"| all | {' | '.join(map(str, totals))} |")


if __name__ == "__main__":
    main()
