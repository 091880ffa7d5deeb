"""The equations that kernels are checked against: arguments in, the exact results in float64 out.

Arguments have the names of ``regard.conformance.arguments``. An equation only reads what its oracle reads, so numbers
that a mask hides may be anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

import numpy as np

from regard.conformance.layout import Layout
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import attention, scan
from regard.conformance.oracles.complex_step import slope
from regard.conformance.tolerance import attention_bounds, relative_bound

if TYPE_CHECKING:
    from regard.conformance.cases import Case

SCAN_INPUTS = ("query", "key", "value", "log_decay", "beta", "state")
DIRECTIONS = 3
"""Directions along which gradients are compared that no formula gives."""
Arguments = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Expected:
    """The exact results of a case; ``allowed`` (batch, heads, queries, keys) is who may attend."""

    output: np.ndarray
    allowed: np.ndarray
    weights: np.ndarray | None = None
    lse: np.ndarray | None = None
    state: np.ndarray | None = None
    gradients: Mapping[str, np.ndarray] = field(default_factory=dict)


class Equation(ABC):
    """An equation with its oracle and the bounds of its rounding errors."""

    inputs: tuple[str, ...]
    """Arguments that are arrays with gradients."""
    fixed: tuple[str, ...] = ()
    """Arguments of cases that belong to the mechanism, and that no function takes."""

    @abstractmethod
    def compute(self, arguments: Arguments, upstream: np.ndarray) -> Expected:
        """The exact results; ``upstream`` is the gradient of the output."""

    @abstractmethod
    def bounds(self, case: Case, dtype: str) -> Mapping[str, float]:
        """The allowed error of "output", "lse", "state", and of the gradient of each input by its name."""

    def gradient_error(self, case: Case, name: str, gradient: np.ndarray) -> float:
        """The largest error of a gradient. Without a formula it is compared along random signs.

        The errors of N numbers with random signs add up to at most 6 sqrt(N) times the bound of each, except in one
        case in 10^7 (Hoeffding's inequality).
        """
        if name in case.expected.gradients:
            return largest_error(gradient, case.expected.gradients[name])
        errors = [0.0]
        for number in range(DIRECTIONS):
            signs = np.random.default_rng([number, *gradient.shape]).choice([-1.0, 1.0], gradient.shape)
            exact = case.slope(name, number, signs)
            errors.append(abs(float((gradient * signs).sum()) - exact) / (6 * np.sqrt(gradient.size)))
        return float(np.max(errors))  # of NaN it is NaN


def largest_error(actual: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference; NaN and another shape are infinitely wrong."""
    return np.inf if actual.shape != exact.shape else float(differences(actual, exact).max(initial=0.0))


def explains(actual: np.ndarray, wrong: np.ndarray, exact: np.ndarray, bound: float) -> bool:
    """Whether the result of a wrong equation is the one of a kernel, and by far closer to it than to the exact one."""
    if wrong.shape != exact.shape:
        return False
    wrong = np.where(np.isnan(exact), np.nan, wrong)
    return largest_error(actual, wrong) <= min(4 * bound, largest_error(wrong, exact) / 16)


def differences(actual: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Each difference: 0 for equal infinities and where the exact number is NaN, infinite for another NaN."""
    with np.errstate(invalid="ignore"):
        error = np.where((actual == exact) | np.isnan(exact), 0.0, np.abs(actual - exact))
    return np.where(np.isnan(error), np.inf, error)


@final
class AttentionEquation(Equation):
    """Exact attention with every term: masks, bias, scale, softcap, sinks and dropout."""

    inputs = ("query", "key", "value", "bias", "sinks")

    def compute(self, arguments: Arguments, upstream: np.ndarray) -> Expected:
        """Return output, weights, lse and gradients by the oracle's formulas."""
        allowed = allowed_pairs(arguments)
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        terms: dict[str, Any] = {name: arguments.get(name) for name in ("bias", "scale", "softcap", "sinks")}
        dropout_mask = arguments.get("dropout_mask")
        output, weights = attention.attention(query, key, value, allowed, dropout_mask=dropout_mask, **terms)
        statistics = attention.observe(query, key, value, allowed, **terms)
        gradients = attention.backward(
            query, key, value, upstream, allowed, dropout_mask=dropout_mask, **terms
        )._asdict()
        lse, gradients = statistics.lse, {name: part for name, part in gradients.items() if part is not None}
        if "cu_seqlens_q" in arguments:  # nothing is expected of rows past the last text
            for array in (output, lse, gradients["query"]):
                array[:, :, arguments["cu_seqlens_q"][-1] :] = np.nan
            for array in (gradients["key"], gradients["value"]):
                array[:, :, arguments["cu_seqlens_k"][-1] :] = np.nan
        return Expected(output, allowed, weights, lse, gradients=gradients)

    def bounds(self, case: Case, dtype: str) -> Mapping[str, float]:
        """The bounds that ``regard.conformance.tolerance`` derives."""
        return attention_bounds(case, dtype)


def attention_with(case: Case, allowed: np.ndarray | None = None, **changes: Any) -> np.ndarray:
    """The output of attention with other arguments than those of a case; ``allowed`` is who may attend."""
    arguments = {**case.arguments, **changes}
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    terms = {name: arguments.get(name) for name in ("bias", "scale", "softcap", "sinks", "dropout_mask")}
    return attention.attention(query, key, value, allowed_pairs(arguments) if allowed is None else allowed, **terms)[0]


def allowed_pairs(arguments: Arguments) -> np.ndarray:
    """Who may attend (batch, heads, queries, keys): mask, causal mask and window together.

    The last query is at the position of the last key, or with ``align`` "start" the first at that of the first key;
    in packed rows, those of its text.
    """
    if "cu_seqlens_q" in arguments:
        return allowed_in_texts(arguments, texts(arguments["cu_seqlens_q"]), texts(arguments["cu_seqlens_k"]))
    queries, keys = arguments["query"].shape[2], arguments["key"].shape[2]
    offset = 0 if arguments.get("align") == "start" else keys - queries
    allowed = np.ones((*arguments["query"].shape[:3], keys), dtype=bool)
    if arguments.get("mask") is not None:
        allowed &= arguments["mask"]
    if arguments.get("causal"):
        allowed &= np.tri(queries, keys, offset, dtype=bool)
    if arguments.get("window") is not None:
        left, right = arguments["window"]
        distance = np.arange(keys)[None, :] - np.arange(queries)[:, None] - offset
        allowed &= (distance >= (-keys - queries if left is None else -left)) & (
            distance <= (keys + queries if right is None else right)
        )
    return allowed


def allowed_in_texts(arguments: Arguments, of_queries: list[slice], of_keys: list[slice]) -> np.ndarray:
    """Who may attend in a packed row, whose texts are these tokens."""
    query, key = arguments["query"], arguments["key"]
    rules = {name: arguments.get(name) for name in ("causal", "window", "align")}
    allowed = np.zeros((*query.shape[:3], key.shape[2]), dtype=bool)
    for rows, columns in zip(of_queries, of_keys, strict=True):
        text = {"query": query[:, :, rows], "key": key[:, :, columns], **rules}
        allowed[:, :, rows, columns] = allowed_pairs(text)
    return allowed


def texts(cu_seqlens: np.ndarray) -> list[slice]:
    """The tokens of each text of a packed row; ``cu_seqlens`` (texts + 1,) are the sums of the lengths before it."""
    return [slice(int(first), int(end)) for first, end in pairwise(cu_seqlens)]


@final
class ScanEquation(Equation):
    """The scan family: a state that decays and is written to, with or without the delta rule."""

    def __init__(self, fixed: tuple[str, ...] = ()) -> None:
        self.fixed = fixed
        self.inputs = tuple(name for name in SCAN_INPUTS if name not in fixed)

    def compute(self, arguments: Arguments, upstream: np.ndarray) -> Expected:
        """Return the output and the final state."""
        output, state = scan_texts(arguments)
        return Expected(output, np.ones((*output.shape[:3], output.shape[2]), dtype=bool), state=state)

    def bounds(self, case: Case, dtype: str) -> Mapping[str, float]:
        """Sums of as many terms as there are tokens and channels, relative to the largest number."""
        layout = case.layout
        terms = 4 * layout.head_dim + 4 * layout.keys + 2 * layout.value_dim + 16
        return _relative_bounds(self, case, relative_bound(terms, dtype, roundings=8))


def scan_texts(arguments: Arguments) -> tuple[np.ndarray, np.ndarray]:
    """The output and the final state of a scan; with ``cu_seqlens_q``, each text of the row has a state of its own."""
    inputs = {name: array for name in SCAN_INPUTS if (array := arguments.get(name)) is not None}
    scale, cu_seqlens = arguments.get("scale", 1.0), arguments.get("cu_seqlens_q")
    if cu_seqlens is None:
        return scan.scan(**inputs, scale=scale)
    state, parts = inputs.pop("state", None), []
    for number, rows in enumerate(texts(cu_seqlens)):
        text = {name: array[:, :, rows] for name, array in inputs.items()}
        parts.append(scan.scan(**text, state=None if state is None else state[number : number + 1], scale=scale))
    return np.concatenate([output for output, _ in parts], axis=2), np.concatenate([final for _, final in parts])


@final
class MechanismEquation(Equation):
    """A mechanism of the catalogue, by the forward equation of its oracle."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.inputs = ("query", "key", "value", *ORACLES[name].shapes(Layout(1, 1, 1, 1, 1, 1, 1)))

    def compute(self, arguments: Arguments, upstream: np.ndarray) -> Expected:
        """Return the output alone."""
        allowed = allowed_pairs(arguments)
        query, key, value = (arguments[name] for name in ("query", "key", "value"))
        return Expected(ORACLES[self.name].forward(query, key, value, allowed, arguments), allowed)

    def bounds(self, case: Case, dtype: str) -> Mapping[str, float]:
        """The bound of the conformance suite of regard."""
        layout = case.layout
        parts = ORACLES[self.name].head_parts
        terms = 2 * layout.head_dim * parts + layout.keys * layout.queries * layout.group + layout.value_dim
        return _relative_bounds(self, case, relative_bound(terms, dtype, roundings=8))


def _relative_bounds(equation: Equation, case: Case, bound: float) -> Mapping[str, float]:
    """The bound times the largest number of each result; of a gradient, of the exact slopes."""
    expected = case.expected
    largest = {"output": np.abs(expected.output).max(initial=1.0)}
    if expected.state is not None:
        largest["state"] = np.abs(expected.state).max(initial=1.0)
    for name in case.inputs:
        size = np.sqrt(case.arguments[name].size)
        signs = np.random.default_rng([0, *case.arguments[name].shape]).choice([-1.0, 1.0], case.arguments[name].shape)
        largest[name] = max(1.0, abs(case.slope(name, 0, signs)) / size, largest["output"])
    return {name: bound * float(size) for name, size in largest.items()}


def directional_derivative(case: Case, name: str, signs: np.ndarray) -> float:
    """The exact slope of the sum of output * upstream when an input of a case moves along ``signs``."""
    arrays = {name: array for name, array in case.arguments.items() if isinstance(array, np.ndarray)}
    rest = {name: value for name, value in case.arguments.items() if name not in arrays}

    def output_times_upstream(moved: Mapping[str, np.ndarray]) -> np.ndarray:
        return case.equation.compute({**rest, **moved}, case.upstream).output * case.upstream

    return slope(output_times_upstream, arrays, name, signs)
