"""``regard.attention`` and ``regard.why``: the front door to exact attention.

Attention(Q, K, V) = softmax(scale * Q K^T + bias, where the mask allows) V        Vaswani et al. 2017, equation 1
"""

from __future__ import annotations

from typing import Any

from regard.arguments import explain_arguments
from regard.arrays import Array, call_on_tensors, is_foreign
from regard.kernels.request import Bias
from regard.kernels.select import Choice, explain_choice, select
from regard.masks.base import Mask
from regard.validation import make_request


@explain_arguments
def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> Array:
    """Exact scaled dot-product attention.

    Args:
        query: (batch, heads, queries, head_dim), float16, bfloat16, float32 or float64. A tensor, or an array of
            another framework (NumPy, JAX, whatever has DLPack), as then are key, value, a bias and the result: nothing
            is copied, and no gradients are kept.
        key: (batch, key_heads, keys, head_dim); heads is a multiple of key_heads (grouped queries).
        value: (batch, key_heads, keys, value_dim).
        mask: who may attend to whom, from ``regard.masks``; None lets everyone see everything. A query that
            may see nothing gives exactly 0.
        bias: added to the scaled scores: a float tensor of 4 dimensions that broadcasts to (batch, heads,
            queries, keys), trained if it requires grad, or a position (``positions.ALiBi``, ``T5Buckets``,
            ``ShawRelative``).
        scale: what scores are multiplied with; None is 1/sqrt(head_dim).
        dropout: probability with which a weight is set to 0 (the others grow by 1/(1-p)). Applied whenever it
            is not 0: pass 0 outside of training.
        impl: "auto", "native", "reference", "sdpa" or "flex". A named one is used or refused with the reason; "auto"
            chooses, and ``regard.why`` tells what and why.

    Returns:
        (batch, heads, queries, value_dim), in the query's dtype.

    Raises:
        ShapeError, DtypeError, DeviceError, OptionError: arguments that do not fit, each message with what was
            expected and got.
        RefusedError: the named impl cannot compute this.

    Source: Vaswani et al. 2017, section 3.2.1.
    """
    if is_foreign(query):
        terms = {"mask": mask, "scale": scale, "dropout": dropout, "impl": impl}
        return call_on_tensors(attention, query, key, value, bias, **terms)
    request = make_request(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    output: Any = select("attention", impl, request).compute(request)
    return output


@explain_arguments
def why(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Choice:
    """Which impl "auto" picks for these arguments of ``attention``, and why the others were refused or passed over.

    Returns a ``Choice``: ``.impl``, ``.reasons`` (a sentence each), and a readable ``str``. Raises as
    ``attention`` does.
    """
    if is_foreign(query):
        return call_on_tensors(why, query, key, value, bias, mask=mask, scale=scale, dropout=dropout)
    return explain_choice(
        "attention", make_request(query, key, value, mask=mask, bias=bias, scale=scale, dropout=dropout)
    )
