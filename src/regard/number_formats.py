"""The number formats that options and arguments name. It imports no torch, so that ``--help`` is fast."""

PRECISIONS = ("float32", "bfloat16")
"""Dtypes to compute in."""
WEIGHT_FORMATS = ("int8", "int4")
"""Formats of the weights of linear layers, beside the dtypes."""
CACHE_FORMATS = ("int8",)
"""Formats of keys and values in caches, beside the dtype of the model."""
