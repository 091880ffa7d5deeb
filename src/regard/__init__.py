"""regard: attention mechanisms for PyTorch, exact, fast, and open to inspection."""

from importlib.metadata import version as _version

from regard import masks, positions
from regard.attention import attention, why
from regard.catalogue import CatalogueRow, catalogue, mechanism, register_mechanism
from regard.contract import Observation
from regard.kernels.select import Choice
from regard.layers import MultiHeadAttention
from regard.models import load
from regard.observe import observe
from regard.record import record

__version__ = _version("regard")

__all__ = [
    "CatalogueRow",
    "Choice",
    "MultiHeadAttention",
    "Observation",
    "attention",
    "catalogue",
    "load",
    "masks",
    "mechanism",
    "observe",
    "positions",
    "record",
    "register_mechanism",
    "why",
]
