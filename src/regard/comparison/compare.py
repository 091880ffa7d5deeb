"""``compare``: the weights and output of a mechanism against exact attention, for sampled queries, in linear memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.comparison.measures import mass_covered, mass_kept, top_agreement
from regard.devices import to_float64
from regard.errors import LARGEST_LENGTH, OptionError, check_count, check_kind
from regard.kernels.request import Bias
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.clean_tokens import fill_zeros, is_finite
from regard.validation import query_rows

_ROWS_PER_PART = 64


@final
@explain_arguments
@dataclass(frozen=True)
class ComparisonSummary:
    """The measures of a comparison, each as one number over texts, heads and sampled queries that see any key.

    ``mass_kept``, ``mass_covered`` and ``top_agreement`` are means over queries; ``output_error`` is |O' - O| / |O|,
    with the Frobenius norm of all of their outputs. Each is NaN if no sampled query sees a key.
    """

    mass_kept: float
    mass_covered: float
    top_agreement: float
    output_error: float


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class Comparison:
    """A mechanism against exact attention, for sampled queries. The measures are defined in ``comparison.measures``.

    rows           (rows)                 indices of the sampled queries
    mass_kept      (batch, heads, rows)   how much of the exact weights the other keeps, from 0 to 1
    mass_covered   (batch, heads, rows)   exact weights of the keys to which the other gives any weight, from 0 to 1
    top_agreement  (batch, heads, rows)   part of the largest exact weights that are among the largest of the other
    difference     (batch, heads, rows)   |o' - o|, the Euclidean norm of the difference of the outputs
    exact_norm     (batch, heads, rows)   |o|, the Euclidean norm of the exact output

    All are NaN for a query that sees no key.
    """

    rows: Int[Tensor, " rows"]
    mass_kept: Float[Tensor, "batch heads rows"]
    mass_covered: Float[Tensor, "batch heads rows"]
    top_agreement: Float[Tensor, "batch heads rows"]
    difference: Float[Tensor, "batch heads rows"]
    exact_norm: Float[Tensor, "batch heads rows"]

    def __repr__(self) -> str:
        return f"Comparison({self.summary()!r}, rows={self.rows.shape[0]})"

    @property
    def output_error(self) -> Float[Tensor, "batch heads rows"]:
        """The relative error of each output: |o' - o| / |o|."""
        return self.difference / self.exact_norm

    def summary(self, *, head: int | None = None) -> ComparisonSummary:
        """Summarise all heads, or one. Raises OptionError if there is no such head."""
        heads = self.mass_kept.shape[1]
        if head is not None:
            check_count("head", head, minimum=0, maximum=heads - 1)
        some = slice(None) if head is None else slice(int(head), int(head) + 1)
        has_keys = ~self.exact_norm[:, some].isnan()

        def mean(measure: Tensor) -> float:
            return float(to_float64(measure[:, some][has_keys]).mean())

        def square(norm: Tensor) -> float:
            return float(to_float64(norm[:, some][has_keys]).square().sum())

        exact, difference = square(self.exact_norm), square(self.difference)
        return ComparisonSummary(
            mass_kept=mean(self.mass_kept),
            mass_covered=mean(self.mass_covered),
            top_agreement=mean(self.top_agreement),
            output_error=math.sqrt(difference / exact) if exact > 0 else math.nan,
        )


@explain_arguments
def sample_rows(queries: int, count: int = 64, *, seed: int = 0) -> Int[Tensor, " rows"]:
    """Draw ``count`` of ``queries`` indices, one from each of as many parts of the text, in ascending order.

    The same arguments give the same indices on every machine; all queries if there are no more than ``count``.
    """
    check_count("queries", queries, minimum=0, maximum=LARGEST_LENGTH)
    check_count("count", count, maximum=LARGEST_LENGTH)
    check_count("seed", seed, minimum=0, maximum=2**63 - 1)
    if queries <= count:
        return torch.arange(queries)
    edges = torch.arange(count + 1) * int(queries) // int(count)
    generator = torch.Generator().manual_seed(int(seed))
    drawn = torch.rand(int(count), generator=generator, dtype=torch.float64)
    return edges[:-1] + (drawn * edges.diff()).long()


@explain_arguments
def compare(
    exact: Mechanism,
    other: Mechanism,
    query: Float[Tensor, "batch heads queries head_dim"],
    key: Float[Tensor, "batch key_heads keys head_dim"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    mask: Mask | None = None,
    *,
    bias: Bias | None = None,
    rows: Sequence[int] | Tensor | None = None,
    top: int = 8,
    inputs: Mapping[str, Tensor] | None = None,
) -> Comparison:
    """Compare the weights and output of ``other`` with ``exact``, for the same queries, keys and values.

    Args:
        exact: a mechanism whose weights are a distribution, such as ``regard.mechanism("dot_product", ..)``.
        other: the mechanism to compare, made for the same heads and head_dim.
        query, key, value, mask, bias: of the call, as for ``Mechanism``.
        rows: indices of the queries to compare, for example from ``sample_rows``; None is all queries.
        top: number of keys whose agreement is measured.
        inputs: extra inputs by name; each mechanism takes those that it declares.

    Time is one call of ``other``, and for each 64 rows one call forward and backward: exact weights are
    computed for the sampled rows alone, so that texts of 100,000 tokens can be measured. No gradients are recorded.

    Raises OptionError if the weights of ``exact`` are not a distribution, RefusedError if one of the mechanisms refuses
    the call, and the errors of ``regard.attention``.
    """
    for name, mechanism in (("exact", exact), ("other", other)):
        check_kind(name, mechanism, Mechanism, do="for example regard.mechanism('dot_product', heads=8, head_dim=64)")
    check_count("top", top)
    check_kind("inputs", {} if inputs is None else inputs, Mapping, do='for example inputs={"forget": gates}')
    if exact.weights_are != "distribution":
        raise OptionError(
            f"the weights of {type(exact).__name__} are not a distribution, and the measures compare with one",
            expected="an exact mechanism whose weights are 0 or more, with a sum of 1",
            got=f"weights_are={exact.weights_are!r}",
            do="use regard.mechanism('dot_product', ..) as exact",
        )
    with torch.no_grad():
        given = [_declared(mechanism, inputs or {}) for mechanism in (exact, other)]
        output = other(query, key, value, mask, bias=bias, **given[1])
        exact.make_request(query, key, value, mask, bias, given[0])
        index = query_rows(rows, query.shape[2], query.device)
        index = torch.arange(query.shape[2], device=query.device) if index is None else index
        parts = []
        for some in index.split(_ROWS_PER_PART):
            weights = exact.weights(query, key, mask=mask, bias=bias, rows=some, **given[0])
            others = other.weights(query, key, mask=mask, bias=bias, rows=some, **given[1])
            parts.append(_measure(weights, others, value, output[:, :, some].to(weights.dtype), top))
        if not parts:
            parts = [(output.new_zeros(*output.shape[:2], 0),) * 5]
        columns = [torch.cat(column, dim=2) for column in zip(*parts, strict=True)]
    return Comparison(index, *columns)


def _declared(mechanism: Mechanism, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    names = {extra_input.name for extra_input in mechanism.extra_inputs}
    return {name: tensor for name, tensor in inputs.items() if name in names}


def _measure(
    exact: Float[Tensor, "batch heads rows keys"],
    other: Float[Tensor, "batch heads rows keys"],
    value: Float[Tensor, "batch key_heads keys value_dim"],
    output: Float[Tensor, "batch heads rows value_dim"],
    top: int,
) -> tuple[Tensor, ...]:
    """Compute the measures of some rows, NaN for rows of no exact weight."""
    exact_output = _weigh(exact, value.to(exact.dtype))
    measures = (
        mass_kept(exact, other),
        mass_covered(exact, other),
        top_agreement(exact, other, top),
        (output - exact_output).norm(dim=-1),
        exact_output.norm(dim=-1),
    )
    empty = (exact == 0).all(-1)
    return tuple(measure.masked_fill(empty, torch.nan) for measure in measures)


def _weigh(
    weights: Float[Tensor, "batch heads rows keys"], value: Float[Tensor, "batch key_heads keys value_dim"]
) -> Float[Tensor, "batch heads rows value_dim"]:
    """Compute the output of some rows of weights; a value that is not finite reaches the rows with weight for it."""
    value = value.repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
    bad = ~is_finite(value)
    broken = ((weights != 0) & bad[:, :, None]).any(-1)
    return (weights @ fill_zeros(value, bad)).masked_fill(broken[..., None], torch.nan)
