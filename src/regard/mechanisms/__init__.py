"""Attention mechanisms: one file each, with its equation and paper at the top."""

from regard.mechanisms.additive import Additive
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.bigbird import BigBird
from regard.mechanisms.differential import Differential
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.dsa import DeepSeekSparseAttention
from regard.mechanisms.extra_input import ExtraInput
from regard.mechanisms.forgetting import Forgetting
from regard.mechanisms.gated_delta import GatedDelta
from regard.mechanisms.gated_linear import GatedLinear
from regard.mechanisms.kda import KimiDelta
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.linear import Linear
from regard.mechanisms.linear_state import LinearState
from regard.mechanisms.linformer import Linformer
from regard.mechanisms.local_p import LocalPredictive
from regard.mechanisms.longformer import Longformer
from regard.mechanisms.luong import LuongConcat, LuongDot, LuongGeneral
from regard.mechanisms.mamba2 import Mamba2
from regard.mechanisms.moba import MixtureOfBlocks
from regard.mechanisms.nsa import NativeSparseAttention
from regard.mechanisms.nystromformer import Nystromformer
from regard.mechanisms.page_pool import PagePool
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.performer import Performer
from regard.mechanisms.reformer import Reformer
from regard.mechanisms.retention import Retention
from regard.mechanisms.scored_mechanism import ScoredMechanism
from regard.mechanisms.sigmoid import Sigmoid
from regard.mechanisms.state import State, StateBytes
from regard.mechanisms.talking_heads import TalkingHeads
from regard.mechanisms.top_k import TopK
from regard.mechanisms.window_cache import WindowCache

__all__ = [
    "Additive",
    "BigBird",
    "DeepSeekSparseAttention",
    "Differential",
    "DotProduct",
    "ExtraInput",
    "Forgetting",
    "GatedDelta",
    "GatedLinear",
    "KeyValueCache",
    "KimiDelta",
    "Linear",
    "LinearState",
    "Linformer",
    "LocalPredictive",
    "Longformer",
    "LuongConcat",
    "LuongDot",
    "LuongGeneral",
    "Mamba2",
    "Mechanism",
    "MixtureOfBlocks",
    "NativeSparseAttention",
    "Nystromformer",
    "PagePool",
    "PagedCache",
    "Performer",
    "Reformer",
    "Retention",
    "ScoredMechanism",
    "Sigmoid",
    "State",
    "StateBytes",
    "TalkingHeads",
    "TopK",
    "Traits",
    "WindowCache",
]
