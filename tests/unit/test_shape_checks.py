"""The suite checks the shapes in the package's annotations, in each call of any test."""

from collections.abc import Iterator
from dataclasses import dataclass

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

checked = jaxtyping.jaxtyped(typechecker=None)  # what --jaxtyping-packages applies, from tests/support/shape_checks.py


@checked
def scale_rows(rows: Float[Tensor, "count width"], factors: Float[Tensor, " count"]) -> Float[Tensor, "count width"]:
    return rows * factors[:, None] if factors.isfinite().all() else rows.T


@checked
def yield_rows(rows: Float[Tensor, "count width"]) -> Iterator[Float[Tensor, " width"]]:
    yield from rows


@checked
@dataclass
class Table:
    rows: Float[Tensor, "count width"]
    mean: Float[Tensor, " width"]


def test_arguments_results_and_fields_agree_in_the_sizes_of_their_axes():
    rows = torch.ones(3, 5)
    assert scale_rows(rows, torch.ones(3)).shape == (3, 5)
    assert len(list(yield_rows(rows))) == 3
    assert Table(rows, torch.ones(5)).mean.shape == (5,)
    for wrong in (
        lambda: scale_rows(rows, torch.ones(5)),
        lambda: scale_rows(rows, torch.ones(3, dtype=torch.int64)),
        lambda: scale_rows(rows, factors=torch.full((3,), torch.inf)),
        lambda: yield_rows(torch.ones(3)),
        lambda: Table(rows, torch.ones(3)),
    ):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()


@pytest.mark.usefixtures("without_shape_checks")
def test_a_test_can_do_without():
    assert scale_rows(torch.ones(5), torch.ones(3)).shape == (3, 5)


def test_functions_of_the_package_are_checked():
    from regard.contract import Frame

    with pytest.raises(jaxtyping.TypeCheckError):
        Frame(3, 3).query_positions(torch.ones(1, 2, dtype=torch.int64))
