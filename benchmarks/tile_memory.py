"""What tiles with a running softmax save: peak memory, counted bytes and time, against torch's math path.

    python -m benchmarks.tile_memory --heads 4 --head-dim 64 --lengths 1024 2048 4096 8192
    python -m benchmarks.tile_memory --backward --lengths 1024 2048 4096

    peak      resident memory of the process at its highest point, less that before the first call
    bytes     sizes of the tensors that operators read and write in a call. Those of the math path are counted while it
              runs; views read and write nothing. The kernels are one operator in each direction, with query, key,
              value, output, two numbers for each query, and the gradients. A tile that stays in a cache is no tensor.
    time      shortest of several calls, in turn with nothing else

"math" is ``scaled_dot_product_attention`` restricted to its math backend: a matrix of scores, a softmax, a product.
"tiles" is ``regard.attention(impl="native")``. Each runs in a process of its own. Hardware counters of traffic are not
available on most virtual machines, so bytes are counted and not measured.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import regard
from benchmarks.subprocess_worker import SubprocessWorker

WAYS = ("math", "tiles")


@final
class CountBytes(TorchDispatchMode):
    """Count the bytes of the tensors that operators read and write while it is active."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; count its tensors unless its results are views of its arguments."""
        del types
        result = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(result)
        known = {one.untyped_storage().data_ptr() for one in read}
        is_view = all(one.untyped_storage().data_ptr() in known for one in written)
        if written and not (is_view and not func._schema.is_mutable):
            self.total += sum(one.nbytes for one in (*read, *written))
        return result


@final
class AttentionCall:
    """One way of computing attention on random tokens (1, heads, length, head_dim), in float32."""

    def __init__(self, way: str, heads: int, length: int, head_dim: int, backward: bool, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.way, self.backward = way, backward
        shape = (1, heads, length, head_dim)
        self.query, self.key, self.value = (torch.randn(shape, requires_grad=backward) for _ in range(3))
        regard.attention(*(torch.randn(1, 1, 8, 8) for _ in range(3)))  # loads the kernels
        self.before = _peak_bytes()

    def run(self) -> None:
        """Compute the output, and the gradients if they are measured too."""
        with torch.set_grad_enabled(self.backward):
            output = self._attend()
            if self.backward:
                torch.autograd.grad(output.sum(), (self.query, self.key, self.value))

    def peak(self) -> int:
        """Run once, and return by how much the peak memory grew."""
        self.run()
        return _peak_bytes() - self.before

    def seconds(self) -> float:
        """Run once, and return the time."""
        start = time.perf_counter()
        self.run()
        return time.perf_counter() - start

    def bytes(self) -> int:
        """Return the bytes of the tensors that operators read and write: counted in a run, or by their shapes."""
        if self.way == "tiles":
            return self._tile_bytes()
        with CountBytes() as counted:
            self.run()
        return counted.total

    def _attend(self) -> Tensor:
        if self.way == "tiles":
            return regard.attention(self.query, self.key, self.value, impl="native")
        with sdpa_kernel(SDPBackend.MATH):
            output: Tensor = scaled_dot_product_attention(self.query, self.key, self.value)
            return output

    def _tile_bytes(self) -> int:
        side, numbers = self.query.nbytes, 2 * self.query.nbytes // self.query.shape[3]
        forward = 4 * side + numbers  # query, key, value, output
        return forward + (5 * side + numbers + 3 * side if self.backward else 0)  # the gradient of the output too


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def _peak_bytes() -> int:
    """Peak resident memory of this process so far; getrusage counts kilobytes, on macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--backward", action="store_true", help="measure the backward pass too")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--tries", type=int, default=5, help="number of calls, of which the shortest counts")
    return parser.parse_args()


def measure(way: str, length: int, asked: argparse.Namespace) -> tuple[int, int, float]:
    """Return peak memory and counted bytes, and the shortest time in seconds."""
    worker = SubprocessWorker(AttentionCall, way, asked.heads, length, asked.head_dim, asked.backward, asked.threads)
    peak = worker.call("peak")
    return peak, worker.call("bytes"), min(worker.call("seconds") for _ in range(asked.tries))


def main() -> None:
    asked = parse_options()
    what = "forward and backward" if asked.backward else "forward"
    print(f"{asked.heads} heads of {asked.head_dim}, float32, {what}, {asked.threads} threads, no mask\n")
    print("| length | peak, math | peak, tiles | bytes, math | bytes, tiles | time, math | time, tiles |")
    print("|---|---|---|---|---|---|---|")
    for length in asked.lengths:
        columns = zip(*(measure(way, length, asked) for way in WAYS), strict=True)
        peaks, counted, times = columns
        cells = [f"{size / 1e6:,.0f} MB" for size in (*peaks, *counted)] + [f"{1e3 * one:,.1f} ms" for one in times]
        print(f"| {length:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
