"""Fourier features of positions on a grid, for inputs with one, two or three axes: sound, pictures, videos.

    p = (p_1, .., p_d) in [-1, 1]^d                                   the position of a sample, a pixel, a voxel
    f_k = linspace(1, r / 2, K)_k                                     frequencies; r is the resolution of an axis, so
                                                                      that the last is the Nyquist frequency
    features(p) = (p, sin(pi f_k p_i), cos(pi f_k p_i))               d + 2 d K numbers

Jaegle et al. 2021, "Perceiver: general perception with iterative attention", section 3.2 and appendix D; after
Mildenhall et al. 2020 (NeRF), section 5.1. Positions (n, d) -> features (n, d + 2 d K): the positions, all sines, all
cosines, each axis by axis. They are concatenated with the input, not added.

They are computed in float32, also for models in other dtypes, as by the published code: at 30,720 samples the last
frequency times pi is near 48,000, where float32 angles are rounded by up to 0.002, and trained weights have seen
exactly these numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import ShapeError, check_count, check_kind, check_size
from regard.tensors import check_tensor


@final
@explain_arguments
class FourierFeatures(nn.Module):
    """Fourier features of positions in [-1, 1]^d; no parameters.

    ``resolution`` is the largest number of positions along each axis; ``bands`` the number of frequencies.
    """

    def __init__(self, resolution: Sequence[int], bands: int) -> None:
        super().__init__()
        _check_axes("resolution", resolution)
        self.resolution = tuple(resolution)
        check_size("bands", bands)
        self.bands = bands

    @property
    def width(self) -> int:
        """The number of features of a position: d + 2 d bands."""
        return len(self.resolution) * (1 + 2 * self.bands)

    def forward(self, positions: Float[Tensor, "n axes"]) -> Float[Tensor, "n features"]:
        """Compute the features of positions, in float32. Raises ShapeError for another number of axes."""
        axes = len(self.resolution)
        check_tensor("positions", positions, f"(n, {axes})", do="for example grid_positions((5, 7))")
        if positions.dim() != 2 or positions.shape[1] != axes:
            raise ShapeError(
                "positions do not have the axes of the features",
                expected=f"(n, {axes})",
                got=str(tuple(positions.shape)),
                do="give each position one number for each axis",
            )
        positions = positions.float()
        frequencies = torch.stack(
            [torch.linspace(1.0, size / 2, self.bands, device=positions.device) for size in self.resolution]
        )
        angles = math.pi * (positions[:, :, None] * frequencies).flatten(1)
        return torch.cat([positions, angles.sin(), angles.cos()], dim=-1)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"resolution={self.resolution}, bands={self.bands}"


@explain_arguments
def grid_positions(shape: Sequence[int], *, device: torch.device | str | None = None) -> Float[Tensor, "n axes"]:
    """The positions of all cells of a grid, row by row: (product of ``shape``, axes), from -1 to 1 along each axis."""
    _check_axes("shape", shape)
    axes = [torch.linspace(-1.0, 1.0, size, dtype=torch.float32, device=device) for size in shape]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"), dim=-1).reshape(-1, len(axes))


def _check_axes(name: str, sizes: Any) -> None:
    """Raise OptionError unless ``sizes`` are a tuple or list of 1 to 8 sizes."""
    check_kind(name, sizes, (tuple, list), do=f"for example {name}=(28, 28)")
    check_count("number of axes", len(sizes), maximum=8)
    for size in sizes:
        check_size(name, size)
