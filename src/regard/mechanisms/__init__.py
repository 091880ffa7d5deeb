"""Attention mechanisms: one file each, with its equation and paper at the top."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.base import Mechanism, ScoredMechanism
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.linear import Linear, LinearState
from regard.mechanisms.linformer import Linformer
from regard.mechanisms.local_p import LocalPredictive
from regard.mechanisms.luong import LuongConcat, LuongDot, LuongGeneral
from regard.mechanisms.page_pool import PagePool
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.state import State

__all__ = [
    "Additive",
    "DotProduct",
    "KeyValueCache",
    "Linear",
    "LinearState",
    "Linformer",
    "LocalPredictive",
    "LuongConcat",
    "LuongDot",
    "LuongGeneral",
    "Mechanism",
    "PagePool",
    "PagedCache",
    "ScoredMechanism",
    "State",
]
