"""Promise 4: the bits of a result do not depend on the number of threads."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor


def assert_same_bits(compute: Callable[[], Tensor | Iterable[Tensor]], threads: Sequence[int] = (1, 2, 3)) -> None:
    """Compare what ``compute`` returns, a tensor or several, with each of these numbers of threads."""
    before, results = torch.get_num_threads(), []
    try:
        for count in threads:
            torch.set_num_threads(count)
            found = compute()
            results.append([found] if isinstance(found, Tensor) else [*found])
    finally:
        torch.set_num_threads(before)
    for count, other in zip(threads[1:], results[1:], strict=True):
        for place, pair in enumerate(zip(results[0], other, strict=True)):
            assert torch.equal(*pair), f"result {place} differs with {count} threads"
