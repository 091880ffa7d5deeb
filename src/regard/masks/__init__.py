"""Masks: which queries may attend to which keys. One polarity (True = may attend), combined by ``& | ~``."""

from regard.masks.band import causal, window
from regard.masks.base import Mask
from regard.masks.convert import from_cu_seqlens, from_multihead_attention, from_sdpa, from_transformers
from regard.masks.dense_mask import blocked, keep
from regard.masks.documents import documents
from regard.masks.global_tokens import global_tokens
from regard.masks.padding import padding, padding_of
from regard.masks.random_blocks import random_blocks
from regard.masks.tiles import TileMap

__all__ = [
    "Mask",
    "TileMap",
    "blocked",
    "causal",
    "documents",
    "from_cu_seqlens",
    "from_multihead_attention",
    "from_sdpa",
    "from_transformers",
    "global_tokens",
    "keep",
    "padding",
    "padding_of",
    "random_blocks",
    "window",
]
