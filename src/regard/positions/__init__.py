"""Positional encodings: added to embeddings, applied to queries and keys as rotations, or added to scores."""

from regard.positions.absolute import Learned, Sinusoidal
from regard.positions.alibi import ALiBi
from regard.positions.base import AbsolutePosition, DenseBias, DistanceBias, PairBias, Rotation
from regard.positions.distance_table import DistanceTable
from regard.positions.fourier import FourierFeatures, grid_positions
from regard.positions.learned_grid import LearnedGrid
from regard.positions.relative_2d import Relative2d
from regard.positions.relative_sinusoidal import RelativeSinusoidal
from regard.positions.rotary import Rotary
from regard.positions.scaling import DynamicScaling, LinearScaling, Llama3Scaling, LongRopeScaling, Scaling, YarnScaling
from regard.positions.shaw import ShawRelative
from regard.positions.t5 import T5Buckets

__all__ = [
    "ALiBi",
    "AbsolutePosition",
    "DenseBias",
    "DistanceBias",
    "DistanceTable",
    "DynamicScaling",
    "FourierFeatures",
    "Learned",
    "LearnedGrid",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "PairBias",
    "Relative2d",
    "RelativeSinusoidal",
    "Rotary",
    "Rotation",
    "Scaling",
    "ShawRelative",
    "Sinusoidal",
    "T5Buckets",
    "YarnScaling",
    "grid_positions",
]
