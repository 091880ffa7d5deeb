"""Peak resident memory and time of one ``regard.observe``.

    python benchmarks/observe_memory.py --length 16384 --heads 8 --head-dim 64 --causal

The peak is that of the whole process, including torch; ``before`` is the process's memory before the call.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time

import torch

import regard
from regard import masks


def peak_bytes() -> int:
    """Peak resident memory of this process so far; getrusage counts kilobytes, on macOS bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=16384, help="number of queries and of keys")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--causal", action="store_true", help="use a causal mask")
    parser.add_argument("--backward", action="store_true", help="run a backward pass too")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    asked = parse_options()
    torch.manual_seed(asked.seed)
    shape = (asked.batch, asked.heads, asked.length, asked.head_dim)
    dtype = getattr(torch, asked.dtype)
    query, key, value = (torch.randn(shape, dtype=dtype, requires_grad=asked.backward) for _ in range(3))
    before = peak_bytes()
    start = time.perf_counter()
    seen = regard.observe(query, key, value, mask=masks.causal() if asked.causal else None)
    if asked.backward:
        assert seen.entropy is not None
        (seen.output.sum() + seen.entropy.sum()).backward()
    seconds = time.perf_counter() - start
    mask = "causal" if asked.causal else "no mask"
    print(f"observe {shape} {asked.dtype}, {mask}, {'with' if asked.backward else 'without'} backward")
    print(f"peak resident {peak_bytes() / 1e9:.2f} GB ({before / 1e9:.2f} GB before the call), {seconds:.1f} s")


if __name__ == "__main__":
    main()
