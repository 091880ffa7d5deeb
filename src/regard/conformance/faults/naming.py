"""The name of a fault: the wrong equation whose result is that of the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import AttentionEquation, ScanEquation, explains, largest_error
from regard.conformance.faults.packed import wrong_packing
from regard.conformance.faults.scans import wrong_scans, wrong_states
from regard.conformance.faults.scores import SCALES, wrong_scores
from regard.conformance.faults.sums import wrong_groups, wrong_lse, wrong_running_sums, wrong_sums, wrong_tiles
from regard.conformance.faults.visibility import wrong_masks, wrong_windows


@final
@dataclass(frozen=True)
class Assumption:
    """A wrong scale that a kernel has in all cases: its other faults are looked for beside it."""

    sentence: str = ""

    def apply(self, case: Case) -> Case:
        """The case with the wrong scale, unless it has a scale of its own."""
        if not self.sentence or "scale" in case.arguments or not isinstance(case.equation, AttentionEquation):
            return case
        clean = None if case.clean is None else self.apply(case.clean)
        arguments = {**case.arguments, "scale": SCALES[self.sentence](case.layout.head_dim)}
        return replace(case, arguments=arguments, clean=clean, _slopes={})

    def name(self, case: Case, part: str, actual: np.ndarray, dtype: str) -> str:
        """The fault of a wrong result, of which this may be one."""
        assumed = self.apply(case)
        bounds = assumed.bounds(dtype)
        bound = bounds.get(part, bounds["output"])
        if assumed is not case and largest_error(actual, getattr(assumed.expected, part)) <= bound:
            return self.sentence
        return name_fault(assumed, part, actual, bound)


def assume_scale(case: Case, output: np.ndarray, dtype: str) -> Assumption:
    """The wrong scale that explains the output of a case, if any."""
    for sentence in SCALES:
        assumption = Assumption(sentence)
        if assumption.name(case, "output", output, dtype) == sentence:
            return assumption
    return Assumption()


def name_fault(case: Case, part: str, actual: np.ndarray, bound: float) -> str:
    """The fault whose result ``actual`` is within the bound; "" if none is known."""
    exact = case.expected.output if part == "output" else case.expected.lse if part == "lse" else case.expected.state
    pattern = _name_by_pattern(case, part, actual)
    if pattern or exact is None or actual.shape != exact.shape:
        return pattern or f"the shape is {actual.shape} instead of {None if exact is None else exact.shape}"
    wrong = {"output": _wrong_outputs, "lse": wrong_lse, "state": wrong_states}.get(part)
    with np.errstate(all="ignore"):
        for sentence, values in wrong(case) if wrong else ():
            if explains(actual, values, exact, bound):
                return sentence
    return ""


def _name_by_pattern(case: Case, part: str, actual: np.ndarray) -> str:
    """Faults that show where numbers are not finite, or where rows without visible keys are not 0."""
    expected = case.expected
    if part == "lse" and expected.lse is not None and actual.shape == expected.lse.shape:
        unseen = np.isneginf(expected.lse)
        others = np.allclose(actual[~unseen], expected.lse[~unseen], rtol=1e-3)
        if unseen.any() and others and not np.isneginf(actual[unseen]).any():
            return "the lse of a query that sees no key is another number: expected -inf"
    if part != "output" or actual.shape != expected.output.shape:
        return ""
    compared = ~np.isnan(expected.output)
    not_finite = ~np.isfinite(actual) & compared
    empty = ~expected.allowed.any(-1)
    if not_finite.any():
        if case.poison in ("inf", "nan"):
            return "hidden inf or nan reaches the output: a weight of 0 is multiplied with it, or it enters the scores"
        if case.poison == "1e30":
            return "hidden 1e30 reaches the output: it overflows before the mask"
        if empty.any() and not not_finite[~empty].any():
            return "a query that sees no key gives NaN: expected 0"
        if empty.any() and not np.any(not_finite, axis=1)[~np.any(empty, axis=1)].any():
            return "a query that sees no key in a head gives NaN in all heads: expected 0 in that head"
        if case.name.startswith("large"):
            return "exponentials overflow: the maximum of the visible scores is not subtracted first"
        return ""
    off = np.abs(np.where(compared, actual - expected.output, 0.0)).max(-1)
    if empty.any() and off[empty].max() > 1e-3 and off[~empty].max(initial=0.0) <= 1e-3:
        return "a query that sees no key gives an average of values: expected 0"
    return ""


def _wrong_outputs(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(case.equation, ScanEquation):
        yield from wrong_scans(case)
    if not isinstance(case.equation, AttentionEquation):
        return
    if case.poison == "" or case.poison == "another number":
        yield from wrong_masks(case)
        yield from wrong_windows(case)
        yield from wrong_packing(case)
    yield from wrong_scores(case)
    yield from wrong_groups(case)
    yield from wrong_tiles(case)
    yield from wrong_sums(case)
    yield from wrong_running_sums(case)
