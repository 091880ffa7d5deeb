"""How many queries and keys the kernels of this folder take at a time, by the size of heads and of their numbers.

Chosen such that the compiled kernels fit the shared memory and the registers of sm_80, sm_90 and gfx942, which
tests/kernels/test_tile_programs.py checks for each of them. No device has measured them.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch

from regard.kernels.tile_programs.kernel_arguments import Blocks

MAX_HEAD_BYTES = 512
"""Largest head_dim and value_dim of these kernels, in bytes: more would not fit the shared memory of gfx942."""
_LEAST_SIZE = 16
"""Least number of rows, columns and numbers of a product in Triton."""


@final
class Target(NamedTuple):
    """The kind of device that kernels are compiled for, by Triton's name: "cuda", "hip" or another."""

    backend: str

    @property
    def precision(self) -> str:
        """The precision of products of float32 that is closest to it, and for which there are fast instructions."""
        return "tf32x3" if self.backend == "cuda" else "ieee"


@final
class Launch(NamedTuple):
    """Blocks, and how a program is divided: its warps, and how many tiles it loads ahead of their use."""

    blocks: Blocks
    num_warps: int
    num_stages: int

    @property
    def for_gradients(self) -> Launch:
        """The launch of kernels of gradients: half the keys, which each warp holds whole in its registers."""
        return self._replace(blocks=self.blocks._replace(columns=max(_LEAST_SIZE, self.blocks.columns // 2)))

    @property
    def for_tables(self) -> Launch:
        """The launch for gradients of tables of biases: square blocks of cells."""
        side = self.for_gradients.blocks.columns
        return self._replace(blocks=self.blocks._replace(rows=side, columns=side))


def choose_launch(head_dim: int, value_dim: int, dtype: torch.dtype, target: Target) -> Launch:
    """Choose the launch of all kernels for heads of these sizes."""
    padded, padded_value = padded_size(head_dim), padded_size(value_dim)
    side = 64 if max(padded, padded_value) <= 64 else 32
    if dtype == torch.float32:
        side //= 2  # the parts of three products of TF32 are in registers, too
    blocks = Blocks(side, side, head_dim, padded, value_dim, padded_value, target.precision)
    return Launch(blocks, num_warps=4, num_stages=2)


def padded_size(size: int) -> int:
    """Return the least power of two, from 16, that is not below ``size``."""
    return max(_LEAST_SIZE, 1 << max(0, size - 1).bit_length())
