"""``regard.attention`` and ``regard.why``: exact attention, and which implementation computes it.

Attention(Q, K, V) = softmax(scale * Q K^T + bias, where the mask allows) V        Vaswani et al. 2017, equation 1

With a softcap c, c tanh(scale * Q K^T / c) takes the place of scale * Q K^T; with sinks z, the sum of the softmax has
one term more, exp(z), and the weights of a query add up to less than 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from regard.arguments import explain_arguments
from regard.arrays import Array, call_on_tensors, is_foreign
from regard.errors import OptionError, check_choice
from regard.kernels.request import Bias, Request
from regard.kernels.select import Choice, attend, explain_choice
from regard.masks.base import Mask
from regard.validation import make_request

EXPLAINED = ("attention", "observe")
"""Operations whose choice ``why`` explains."""

_listeners: list[Callable[[Request], None]] = []


@contextmanager
def listen_to_attention(listener: Callable[[Request], None]) -> Iterator[None]:
    """Pass the request of each call of ``attention`` to ``listener``, before it is computed."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@explain_arguments
def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    bias: Bias | Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
    impl: str = "auto",
) -> Array:
    """Exact scaled dot-product attention.

    Args:
        query: (batch, heads, queries, head_dim), float16, bfloat16, float32 or float64. A tensor, or an array of
            another framework that supports DLPack (NumPy, JAX); then key, value, a bias and the result are arrays of
            that framework too, nothing is copied, and no gradients are kept.
        key: (batch, key_heads, keys, head_dim); heads is a multiple of key_heads (grouped queries).
        value: (batch, key_heads, keys, value_dim).
        mask: which queries may attend to which keys, from ``regard.masks``; None lets every query attend to every
            key. The output of a query that may attend to no key is exactly 0.
        bias: added to the scaled scores: a float tensor of 4 dimensions that broadcasts to (batch, heads,
            queries, keys), trained if it requires grad, or a position (``positions.ALiBi``, ``T5Buckets``,
            ``ShawRelative``, ``Relative2d``).
        scale: factor of the scores; None is 1/sqrt(head_dim).
        softcap: bound of the scores: a scaled score s becomes softcap * tanh(s / softcap), before the bias is added and
            the mask applied, as in Gemma 2. A number above 0; None: no bound.
        sinks: logits of attention sinks, (heads,) as in gpt-oss, or broadcasting to (batch, heads, queries, 1), of any
            float dtype: each adds exp(sink) to the sum by which the weights of a query are divided, as a key that every
            query may attend to would, whose value is 0. Trained if they require grad. A query that may attend to no
            key has an output of 0, and gives its sink no gradient.
        dropout: probability of setting a weight to 0 (the others are multiplied by 1/(1-p)). Applied whenever it
            is not 0: pass 0 outside of training.
        impl: "auto", "native", "reference", "sdpa" or "flex". A named implementation is used or refused with the
            reason; "auto" chooses one, and ``regard.why`` says which and why.

    Returns:
        (batch, heads, queries, value_dim), in the query's dtype.

    Raises:
        ShapeError, DtypeError, DeviceError, OptionError: invalid arguments; the message says what was expected and
            what was got.
        RefusedError: the named impl cannot compute this.

    Source: Vaswani et al. 2017, section 3.2.1. Softcap: Gemma Team 2024 (Gemma 2), section 2. Sinks: OpenAI 2025
    (gpt-oss model card), section 2.
    """
    terms = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks, "dropout": dropout}
    if is_foreign(query):
        return call_on_tensors(attention, query, key, value, **terms, impl=impl)
    request = make_request(query, key, value, **terms)
    for listener in _listeners:
        listener(request)
    output: Any = attend("attention", impl, request)
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
    softcap: float | None = None,
    sinks: Array | None = None,
    dropout: float = 0.0,
    operation: str = "attention",
) -> Choice:
    """Explain which impl "auto" picks for these arguments of ``attention``, and why it picks none of the others.

    With ``operation="observe"`` it explains the choice of ``regard.observe``, which has no dropout.

    Returns a ``Choice``: ``.impl``, ``.reasons`` (a sentence each), and a readable ``str``. Raises the same errors as
    the function that it explains, and OptionError for another ``operation``.
    """
    terms = {"mask": mask, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks, "dropout": dropout}
    if is_foreign(query):
        return call_on_tensors(why, query, key, value, **terms, operation=operation)
    check_choice("operation", operation, EXPLAINED)
    request = make_request(query, key, value, **terms)
    if operation == "observe":
        if request.terms.dropout:
            raise OptionError(
                "`observe` has no dropout",
                expected="dropout=0",
                got=f"dropout={request.terms.dropout:g}",
                do="leave it out: weights are reported before dropout",
            )
        return explain_choice("observe", request)
    return explain_choice("attention", request)
