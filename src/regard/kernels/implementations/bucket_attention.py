"""Attention of tokens that share a bucket: regard's kernels over sorted tokens, and plain torch."""

from __future__ import annotations

import torch

from regard.kernels import support
from regard.kernels.implementation import Implementation
from regard.kernels.operators.bucket_op import bucket_attention
from regard.kernels.reference.bucket_attention import BucketRequest, BucketResult, attend_in_buckets, attend_in_chunks
from regard.kernels.support import MAX_HEAD_DIM

_MAX_BUCKETS = 2**24
"""Sorting counts the tokens of each bucket."""


def _refuses(request: BucketRequest) -> str | None:
    """Refuse other devices, torch.func, heads wider than 256, and more buckets than can be counted."""
    sizes = request.query.shape[3], request.value.shape[3]
    if request.query.is_cpu and max(sizes) > MAX_HEAD_DIM:
        return (
            f"native takes a head_dim and value_dim of at most {MAX_HEAD_DIM}, and these are {sizes[0]} and {sizes[1]}"
        )
    if request.buckets > _MAX_BUCKETS:
        return f"native counts the tokens of at most {_MAX_BUCKETS:,} buckets, and there are {request.buckets:,}"
    key = request.query if request.key is None else request.key
    return support.unsupported_reason(request.query, key, request.value)


def _native(request: BucketRequest) -> BucketResult:
    """Compute with the kernels, round by round."""
    output, normalizer = bucket_attention(request)
    return BucketResult(output, normalizer[..., 1] == -torch.inf)


def _reference(request: BucketRequest) -> BucketResult:
    """Compute in plain torch."""
    return attend_in_buckets(request) if request.chunk is None else attend_in_chunks(request)


NATIVE = Implementation("native", _native, _refuses, why_chosen="regard's own kernels over sorted tokens")
REFERENCE = Implementation("reference", _reference, why_chosen="plain torch, on any device, any number of derivatives")
