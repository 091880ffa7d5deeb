"""The error of a kernel's result.

With eps of the dtype, and wide the epsilon of the dtype of sums (float32 for half precision), it is at most

    (L * wide + 8 * eps / 2) * largest,    L = head_dim + value_dim + terms

where largest = max(1, max |reference|): a score is a sum of head_dim terms, its gradient of value_dim, a result of
``terms``; and at most 8 intermediate numbers are rounded to the dtype.
"""

import torch
from torch import Tensor

from regard.kernels import results


def assert_within_rounding(
    name: str, ours: Tensor, exact: Tensor, terms: float, dtype: torch.dtype, largest: float | None = None
) -> None:
    allowed = terms * torch.finfo(results.accumulation_dtype(dtype)).eps + 8 * torch.finfo(dtype).eps / 2
    largest = max(1.0, float(exact.abs().max()) if largest is None else largest)
    error = float((ours.double() - exact).abs().max()) / largest
    assert error <= allowed, f"{name}: error {error:.2e} of the largest, allowed {allowed:.2e}"
