"""Wrong gradients of kernels whose forward pass is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import allowed_pairs, explains
from regard.conformance.faults.sums import TILES
from regard.conformance.oracles import attention


def name_gradient_fault(case: Case, name: str, gradient: np.ndarray | None, bound: float) -> str:
    """The fault of a gradient whose forward pass is right; "" if none is known."""
    if gradient is None:
        return f"there is no gradient of {name}"
    if gradient.shape != case.arguments[name].shape:
        return f"the gradient has the shape {gradient.shape} instead of {case.arguments[name].shape}"
    if not np.isfinite(gradient).all():
        empty = not case.expected.allowed.any(-1).all()
        if case.poison:
            return f"hidden {case.poison} reaches the gradient"
        return "the gradient is not finite, where a query sees no key" if empty else "the gradient is not finite"
    if not gradient.any():
        return f"the gradient of {name} is 0"
    exact = case.expected.gradients.get(name)
    if exact is not None:
        with np.errstate(all="ignore"):
            for sentence, values in _wrong_gradients(case, name, exact):
                if explains(gradient, values, exact, bound):
                    return sentence
    else:
        for sentence, mended in _mended_gradients(case, name, gradient):
            if case.equation.gradient_error(case, name, mended) <= bound:
                return sentence
    return ""


def _mended_gradients(case: Case, name: str, gradient: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Faults of a gradient that no formula gives, each with the gradient as it is right if it has the fault."""
    if "scale" in case.arguments:
        yield f"the gradient of {name} lacks the factor of the scale", gradient * case.arguments["scale"]
        yield f"the gradient of {name} has the factor of the scale twice", gradient / case.arguments["scale"]
    yield f"the gradient of {name} has the wrong sign", -gradient
    yield f"the gradient of {name} is twice too large", gradient / 2
    yield f"the gradient of {name} is half as large as it should be", gradient * 2
    if "beta" in case.arguments and name in ("key", "value"):
        yield f"the gradient of {name} lacks the factor beta", gradient * case.arguments["beta"][..., None]
    if name == "log_decay":
        yield f"the gradient of {name} lacks the factor of the decay", gradient * np.exp(case.arguments[name])


def _wrong_gradients(case: Case, name: str, exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    layout, arguments = case.layout, case.arguments
    scale = arguments.get("scale", 1 / np.sqrt(layout.head_dim))
    yield f"the gradient of {name} lacks the factor of the scale", exact / scale
    yield f"the gradient of {name} has the factor of the scale twice", exact * scale
    yield f"the gradient of {name} has the wrong sign", -exact
    yield f"the gradient of {name} is twice too large", 2 * exact
    yield f"the gradient of {name} is half as large as it should be", exact / 2
    for sentence, gradients in _wrong_backward_passes(case):
        if name in gradients:
            yield sentence, gradients[name]
    yield from _wrong_parts_of_keys(case, name)
    if name in ("key", "value") and layout.group > 1:
        yield from _wrong_sums_over_heads(case, name, exact)
    if name in ("bias", "sinks"):
        yield from _wrong_sums_over_rows(case, name, exact)


def _wrong_backward_passes(case: Case) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Each fault of a backward pass in words, with the gradients that it gives."""
    layout, arguments, lse = case.layout, case.arguments, case.expected.lse
    assert lse is not None
    if "scale" in arguments:
        usual = _weights(case, scale=1 / np.sqrt(layout.head_dim))
        yield (
            "the argument of the scale is ignored in the backward pass",
            _backward(case, weights=usual, scale=1 / np.sqrt(layout.head_dim)),
        )
    yield "the softmax is differentiated without the sum of its row", _backward(case, row_sum=False)
    if "softcap" in arguments:
        yield "the slope of the softcap is missing", _backward(case, cap_slope=False)
    if arguments.get("dropout_mask") is not None:
        yield "dropout is missing in the backward pass", _backward(case, dropout=False)
    for sentence, stale in (
        ("the lse of the first batch entry is used in the backward pass", lse[:1]),
        ("the lse of the first head is used in the backward pass", lse[:, :1]),
    ):
        yield sentence, _backward(case, weights=_weights(case, lse=np.broadcast_to(stale, lse.shape)))
    if arguments.get("sinks") is not None:
        query, key, value, bias, scale = (arguments.get(name) for name in ("query", "key", "value", "bias", "scale"))
        cap = arguments.get("softcap")
        without = attention.observe(query, key, value, case.expected.allowed, bias, scale, softcap=cap)  # type: ignore[arg-type]
        yield "the lse in the backward pass lacks the sink", _backward(case, weights=_weights(case, lse=without.lse))
    for term, sentence in (
        ("mask", "the mask is missing in the backward pass"),
        ("causal", "the causal mask is missing in the backward pass"),
        ("window", "the window is missing in the backward pass"),
    ):
        if arguments.get(term) is not None:
            weights = _weights(case, allowed=allowed_pairs({**arguments, term: None}))
            yield sentence, _backward(case, weights=weights)
    if arguments.get("bias") is not None:
        yield "the bias is missing in the backward pass", _backward(case, weights=_weights(case, bias=0.0))
    if layout.group > 1:
        tiled = np.arange(layout.heads) % layout.key_heads
        yield (
            "heads read the wrong key heads in the backward pass: head h reads h % key_heads, not h // group",
            _backward(case, weights=_weights(case, order=tiled), order=tiled),
        )
    first = np.zeros(layout.heads, int)
    yield "all heads read the values of the first head in the backward pass", _backward(case, value_order=first)


def _wrong_parts_of_keys(case: Case, name: str) -> Iterator[tuple[str, np.ndarray]]:
    """Gradients of some tiles of keys alone."""
    if "cu_seqlens_q" in case.arguments:
        return
    place = np.arange(case.layout.keys)
    for tile in TILES:
        last = (case.layout.keys - 1) // tile * tile
        if last == 0 or name == "sinks":
            continue
        exact = case.expected.weights
        assert exact is not None
        for sentence, columns in (
            (f"the gradient of {name} is of the last tile of {tile} keys alone", place >= last),
            (f"the gradient of {name} lacks the last tile of {tile} keys", place < last),
        ):
            yield sentence, _backward(case, weights=exact * columns)[name]


def _wrong_sums_over_heads(case: Case, name: str, exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Wrong gradients of keys and values that several heads share."""
    layout, by_head = case.layout, _backward(case)[f"{name}_by_head"]
    parts = by_head.reshape(layout.batch, layout.key_heads, layout.group, *exact.shape[2:])
    yield f"the gradient of {name} is of the first of the heads that share a key head alone", parts[:, :, 0]
    yield f"the gradient of {name} is of the last of the heads that share a key head alone", parts[:, :, -1]
    yield (
        f"the gradient of {name} is averaged over the heads that share a key head instead of added",
        exact / layout.group,
    )
    tiled = by_head.reshape(layout.batch, layout.group, layout.key_heads, *exact.shape[2:])
    yield f"the gradient of {name} is added up over the wrong groups of heads", tiled.sum(1)


def _wrong_sums_over_rows(case: Case, name: str, exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Wrong gradients of inputs that batch entries and queries share."""
    full = _backward(case)["scores" if name == "bias" else "sinks_by_row"]

    def add(part: np.ndarray) -> np.ndarray:
        return attention.sum_to(part, exact.shape) if name == "bias" else part.sum((0, 2))

    if name == "sinks" or exact.shape[0] == 1:
        yield f"the gradient of {name} is of the first batch entry alone", add(full[:1])
        yield f"the gradient of {name} is of the last batch entry alone", add(full[-1:])
        yield f"the gradient of {name} is averaged over the batch instead of added", exact / case.layout.batch
    if name == "bias" and exact.shape[2] == 1:
        yield "the gradient of the bias is of the first query alone", add(full[:, :, :1])
        yield "the gradient of the bias is of the last query alone", add(full[:, :, -1:])
    if name == "bias" and "softcap" in case.arguments:
        yield "the gradient of the bias has the slope of the softcap", add(_backward(case)["products"])


def _weights(
    case: Case,
    *,
    allowed: np.ndarray | None = None,
    lse: np.ndarray | None = None,
    scale: float | None = None,
    bias: float | None = None,
    order: np.ndarray | None = None,
) -> np.ndarray:
    """The weights that a backward pass computes again from scores and lse, with other inputs than those of the case."""
    scores = _products(case, scale, order)
    if (cap := case.arguments.get("softcap")) is not None:
        scores = cap * np.tanh(scores / cap)
    if case.arguments.get("bias") is not None:
        scores = scores + (case.arguments["bias"] if bias is None else bias)
    lse = case.expected.lse if lse is None else lse
    assert lse is not None
    exponents = scores - np.where(np.isfinite(lse), lse, 0.0)[..., None]
    return np.where(case.expected.allowed if allowed is None else allowed, np.exp(exponents), 0.0)


def _products(case: Case, scale: float | None = None, order: np.ndarray | None = None) -> np.ndarray:
    """Scores before softcap and bias; head h reads key head ``order[h]``."""
    layout = case.layout
    scale = case.arguments.get("scale", 1 / np.sqrt(layout.head_dim)) if scale is None else scale
    order = np.arange(layout.heads) // layout.group if order is None else order
    products: np.ndarray = scale * case.arguments["query"] @ case.arguments["key"][:, order].swapaxes(2, 3)
    return products


def _backward(
    case: Case,
    *,
    weights: np.ndarray | None = None,
    scale: float | None = None,
    order: np.ndarray | None = None,
    value_order: np.ndarray | None = None,
    row_sum: bool = True,
    cap_slope: bool = True,
    dropout: bool = True,
) -> dict[str, np.ndarray]:
    """Gradients for all pairs at once, with other weights or key heads, or with steps left out."""
    layout, arguments, expected = case.layout, case.arguments, case.expected
    weights = expected.weights if weights is None else weights
    assert weights is not None
    assert expected.lse is not None
    order = np.arange(layout.heads) // layout.group if order is None else order
    factor = arguments.get("scale", 1 / np.sqrt(layout.head_dim)) if scale is None else scale
    key, value = arguments["key"][:, order], arguments["value"][:, order if value_order is None else value_order]
    drawn = arguments.get("dropout_mask")
    kept = 1.0 if drawn is None or not dropout else drawn
    total = (case.upstream * np.nan_to_num(expected.output)).sum(-1, keepdims=True) if row_sum else 0.0
    of_scores = weights * (kept * (case.upstream @ value.swapaxes(2, 3)) - total)
    cap = arguments.get("softcap")
    slope = 1 - np.tanh(_products(case, scale, order) / cap) ** 2 if cap_slope and cap is not None else 1.0
    of_products = slope * of_scores
    found = {
        "query": factor * of_products @ key,
        "key_by_head": factor * of_products.swapaxes(2, 3) @ arguments["query"],
        "value_by_head": (kept * weights).swapaxes(2, 3) @ case.upstream,
        "scores": of_scores,
        "products": of_products,
    }
    for name in ("key", "value"):
        found[name] = np.zeros_like(arguments[name])
        for head, key_head in enumerate(order):
            found[name][:, key_head] += found[f"{name}_by_head"][:, head]
    if arguments.get("bias") is not None:
        found["bias"] = attention.sum_to(of_scores, arguments["bias"].shape)
    if arguments.get("sinks") is not None:
        lse = np.where(np.isfinite(expected.lse), expected.lse, np.inf)
        found["sinks_by_row"] = (
            -np.exp(arguments["sinks"][None, :, None] - lse) * np.broadcast_to(total, (*lse.shape, 1))[..., 0]
        )
        found["sinks"] = found["sinks_by_row"].sum((0, 2))
    return found
