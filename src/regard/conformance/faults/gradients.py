"""Wrong gradients of kernels whose forward pass is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import explains
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
    return ""


def _wrong_gradients(case: Case, name: str, exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    layout, arguments = case.layout, case.arguments
    scale = arguments.get("scale", 1 / np.sqrt(layout.head_dim))
    yield f"the gradient of {name} lacks the factor of the scale", exact / scale
    yield f"the gradient of {name} has the factor of the scale twice", exact * scale
    yield f"the gradient of {name} has the wrong sign", -exact
    yield f"the gradient of {name} is twice too large", 2 * exact
    yield f"the gradient of {name} is half as large as it should be", exact / 2
    if "scale" in arguments:
        yield "the argument of the scale is ignored in the backward pass", exact / scale / np.sqrt(layout.head_dim)
    yield (
        "the softmax is differentiated without the sum of its row",
        _gradients_with(case, row_sum=False).get(name, exact),
    )
    if "softcap" in arguments:
        yield "the slope of the softcap is missing", _gradients_with(case, cap_slope=False).get(name, exact)
    if arguments.get("dropout_mask") is not None:
        yield "dropout is missing in the backward pass", _gradients_with(case, dropout=False).get(name, exact)
    if layout.group > 1 and name in ("key", "value"):
        parts = _gradients_by_head(case)[name].reshape(layout.batch, layout.key_heads, layout.group, *exact.shape[2:])
        yield f"the gradient of {name} is of the first of the heads that share a key head alone", parts[:, :, 0]
        yield f"the gradient of {name} is of the last of the heads that share a key head alone", parts[:, :, -1]
        yield (
            f"the gradient of {name} is averaged over the heads that share a key head instead of added",
            exact / layout.group,
        )
        tiled = _gradients_by_head(case)[name].reshape(layout.batch, layout.group, layout.key_heads, *exact.shape[2:])
        yield f"the gradient of {name} is added up over the wrong groups of heads", tiled.sum(1)
    if name == "bias" and arguments["bias"].shape[0] == 1:
        full = _gradients_by_head(case)["scores"]
        yield "the gradient of the bias is of the first batch entry alone", attention.sum_to(full[:1], exact.shape)
        yield "the gradient of the bias is of the last batch entry alone", attention.sum_to(full[-1:], exact.shape)
        yield "the gradient of the bias is averaged over the batch instead of added", exact / layout.batch


def _gradients_with(
    case: Case, *, row_sum: bool = True, cap_slope: bool = True, dropout: bool = True
) -> dict[str, np.ndarray]:
    """Gradients for all pairs at once, with steps of the backward pass left out."""
    layout, arguments, weights = case.layout, case.arguments, case.expected.weights
    assert weights is not None
    scale = arguments.get("scale", 1 / np.sqrt(layout.head_dim))
    spread = {name: np.repeat(arguments[name], layout.group, axis=1) for name in ("key", "value")}
    dropout_mask = arguments.get("dropout_mask") if dropout else None
    dropout_mask = np.ones(1) if dropout_mask is None else dropout_mask
    of_weights = dropout_mask * (case.upstream @ spread["value"].swapaxes(2, 3))
    total = (weights * of_weights).sum(-1, keepdims=True) if row_sum else 0.0
    of_scores = weights * (of_weights - total)
    products = scale * arguments["query"] @ spread["key"].swapaxes(2, 3)
    slope = 1 - np.tanh(products / arguments["softcap"]) ** 2 if cap_slope and arguments.get("softcap") else 1.0
    of_products = scale * slope * of_scores
    by_head = {
        "key": of_products.swapaxes(2, 3) @ arguments["query"],
        "value": (dropout_mask * weights).swapaxes(2, 3) @ case.upstream,
    }
    grouped = {
        name: part.reshape(layout.batch, layout.key_heads, layout.group, *part.shape[2:]).sum(2)
        for name, part in by_head.items()
    }
    result = {
        "query": of_products @ spread["key"],
        **grouped,
        "key_by_head": by_head["key"],
        "value_by_head": by_head["value"],
    }
    if arguments.get("bias") is not None:
        result["bias"] = attention.sum_to(of_scores, arguments["bias"].shape)
    return {**result, "scores": of_scores}


def _gradients_by_head(case: Case) -> dict[str, np.ndarray]:
    gradients = _gradients_with(case)
    return {"key": gradients["key_by_head"], "value": gradients["value_by_head"], "scores": gradients["scores"]}
