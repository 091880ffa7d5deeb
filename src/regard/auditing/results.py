"""Results of an audit: what was tried, what leaks, by how much, where, and why.

Everything is plain data (strings, numbers, tuples), so that a report can be compared, written as JSON and drawn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from regard.arguments import explain_arguments
from regard.errors import check_flag, check_kind
from regard.language import check_language

Verdict: TypeAlias = Literal["holds", "leaks", "cannot be asked"]
"""The answer about a property."""


@final
@explain_arguments
@dataclass(frozen=True)
class ModuleDifference:
    """How much the inputs and outputs of a module differ, relative to its largest number, where a property forbids it.

    None stands for a module without inputs or outputs by position.
    """

    name: str
    module_class: str
    inputs: float | None
    outputs: float | None


@final
@explain_arguments
@dataclass(frozen=True)
class ModuleInfluence:
    """How much replaced tokens change the outputs of a module, relative to its largest number.

    allowed    the largest change by a token that the declared mask allows
    forbidden  the largest change by one that it forbids; None if it forbids none
    """

    name: str
    module_class: str
    allowed: float
    forbidden: float | None


@final
@explain_arguments
@dataclass(frozen=True)
class Leak:
    """The largest difference that a property forbids, and its origin.

    change       what was changed, in words
    output       position of the output that differs; None if outputs do not belong to positions
    input        position of the input that was changed; None if it was not a single one
    module       name of the first module whose outputs differ though its inputs agree; "" is the model itself
    module_class its class; "" if it was not found
    layer        number of the layer in that name; None without a number
    cause        why, where the evidence says it; else ""
    modules      all modules in the order in which their calls end
    """

    change: str
    output: int | None
    input: int | None
    module: str
    module_class: str
    layer: int | None
    cause: str
    modules: tuple[ModuleDifference, ...] = ()


@final
@explain_arguments
@dataclass(frozen=True)
class PropertyResult:
    """The answer about one property.

    difference   the largest difference between outputs that should be equal; None if it was not measured
    threshold    differences up to this are rounding (``noise``); None if none was measured
    reason       why the property cannot be asked; else ""
    comparisons  number of pairs of outputs that were compared
    """

    name: str
    promise: str
    verdict: Verdict
    reason: str = ""
    difference: float | None = None
    threshold: float | None = None
    comparisons: int = 0
    leak: Leak | None = None


@final
@explain_arguments
@dataclass(frozen=True)
class NoiseFloor:
    """The differences between outputs of calls that mean the same: see ``regard.auditing.noise`` for the rule.

    relative     the largest of the following, divided by the largest output
    precision    the type of numbers in which the model was run
    """

    relative: float
    repeats: float
    permutation: float
    batch_size: float
    rounding: float
    precision: str
    is_finite: bool = True
    """Whether the outputs for an ordinary text are finite."""

    def threshold(self, scale: float) -> float:
        """The largest difference that counts as rounding, between outputs of at most ``scale``."""
        from regard.auditing.noise import SAFETY

        return SAFETY * self.relative * scale


@final
@explain_arguments
@dataclass(frozen=True)
class InfluenceMatrix:
    """Who influences whom: the measured mask beside the one that the model declares.

    measured     row i, column j: the largest change of output i when token j is replaced, divided by the largest output
    threshold    changes up to this are rounding
    declared     row i, column j: whether the model declares that output i may depend on token j; None if it does not
    """

    measured: tuple[tuple[float, ...], ...]
    threshold: float
    declared: tuple[tuple[bool, ...], ...] | None = None

    @property
    def unexpected(self) -> tuple[tuple[int, int], ...]:
        """Pairs (output, input) with an influence that the declared mask forbids."""
        return self._differences(declared=False)

    @property
    def missing(self) -> tuple[tuple[int, int], ...]:
        """Pairs (output, input) without an influence that the declared mask allows."""
        return self._differences(declared=True)

    def _differences(self, *, declared: bool) -> tuple[tuple[int, int], ...]:
        return tuple(
            (output, source)
            for output, row in enumerate(self.declared or ())
            for source, allowed in enumerate(row)
            if allowed == declared and (self.measured[output][source] > self.threshold) != declared
        )


@final
@explain_arguments
@dataclass(frozen=True)
class AuditReport:
    """The result of ``regard.audit``.

    kind         what the model reads and writes, in words
    length       number of tokens of the texts that were tried
    notes        what the reader should know about the run, such as a smaller precision
    fingerprint  versions of packages, and hashes of the weights and of the config
    modules      all modules with outputs by position, in the order in which their calls end
    """

    model: str
    kind: str
    length: int
    seed: int
    noise: NoiseFloor | None
    results: tuple[PropertyResult, ...]
    influence: InfluenceMatrix | None = None
    notes: tuple[str, ...] = ()
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    modules: tuple[ModuleInfluence, ...] = ()

    @property
    def leaks(self) -> tuple[PropertyResult, ...]:
        """The properties that do not hold."""
        return tuple(result for result in self.results if result.verdict == "leaks")

    @property
    def exit_code(self) -> int:
        """0 if all properties that could be asked hold, 1 if one does not, 2 if none could be asked."""
        if self.leaks:
            return 1
        return 0 if any(result.verdict == "holds" for result in self.results) else 2

    def __getitem__(self, name: str) -> PropertyResult:
        """The result of a property by its name. Raises KeyError if it was not tried."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

    def to_json(self) -> str:
        """The report as JSON on one line, the same for the same report. What is not finite is the text "inf"."""
        fields = _without_infinity(asdict(self)) | {"exit_code": self.exit_code}
        return json.dumps(fields, ensure_ascii=False, allow_nan=False)

    def save(self, path: str | Path, *, overwrite: bool = False, language: str | None = None) -> Path:
        """Write the report to a file, as a page (.html) or as JSON (.json), and return its path.

        ``language`` is that of a page, "en" or "zh"; None is that of the environment. Raises OptionError for a name
        with another ending, OutputExistsError if the file exists and ``overwrite`` is False, OutputError if it cannot
        be written.
        """
        from regard.auditing.report_page import save_report

        check_kind("path", path, (str, Path), do='"audit.html"')
        check_flag("overwrite", overwrite)
        check_language(language)
        save_report(self, Path(path), overwrite=overwrite, language=language)
        return Path(path)

    def __str__(self) -> str:
        from regard.auditing.describe_report import describe_report

        return describe_report(self)


def _without_infinity(value: Any) -> Any:
    """A value in which numbers that JSON does not have are texts."""
    if isinstance(value, Mapping):
        return {name: _without_infinity(part) for name, part in value.items()}
    if isinstance(value, tuple | list):
        return [_without_infinity(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
