"""HOW tokens mix: one file each, its equation and paper at the top."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.base import Mechanism, ScoredMechanism
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.luong import LuongConcat, LuongDot, LuongGeneral

__all__ = [
    "Additive",
    "DotProduct",
    "LuongConcat",
    "LuongDot",
    "LuongGeneral",
    "Mechanism",
    "ScoredMechanism",
]
