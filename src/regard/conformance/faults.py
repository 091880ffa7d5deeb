"""Wrong equations that kernels are known to compute: the one whose result matches a wrong kernel names its fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import AttentionEquation, ScanEquation, allowed_pairs, largest_error
from regard.conformance.oracles import attention, scan
from regard.conformance.oracles.softmax import visible_keys

SCALES: Mapping[str, Callable[[int], float]] = {
    "the scores are not scaled: a factor of 1 / sqrt(head_dim) is missing": lambda head_dim: 1.0,
    "the scores are scaled twice": lambda head_dim: 1 / head_dim,
    "the scores are multiplied with the root of head_dim": lambda head_dim: head_dim**0.5,
}
"""Wrong scales, by the size of a head."""
TILES = (8, 16, 32, 64, 128)


@final
@dataclass(frozen=True)
class Assumption:
    """A wrong scale that a kernel has in all cases: its other faults are looked for beside it."""

    sentence: str = ""

    def apply(self, case: Case) -> Case:
        """The case with the wrong scale, unless it has a scale of its own."""
        if not self.sentence or "scale" in case.arguments or not isinstance(case.equation, AttentionEquation):
            return case
        clean = None if case.clean is None else self.apply(case.clean)
        arguments = {**case.arguments, "scale": SCALES[self.sentence](case.layout.head_dim)}
        return replace(case, arguments=arguments, clean=clean, _slopes={})

    def name(self, case: Case, part: str, actual: np.ndarray, dtype: str) -> str:
        """The fault of a wrong result, of which this may be one."""
        assumed = self.apply(case)
        bounds = assumed.bounds(dtype)
        bound = bounds.get(part, bounds["output"])
        if assumed is not case and largest_error(actual, getattr(assumed.expected, part)) <= bound:
            return self.sentence
        return name_fault(assumed, part, actual, bound)


def assume_scale(case: Case, output: np.ndarray, dtype: str) -> Assumption:
    """The wrong scale that explains the output of a case, if any."""
    for sentence in SCALES:
        assumption = Assumption(sentence)
        if assumption.name(case, "output", output, dtype) == sentence:
            return assumption
    return Assumption()


def name_fault(case: Case, part: str, actual: np.ndarray, bound: float) -> str:
    """The fault whose result ``actual`` is within the bound; "" if none is known."""
    exact = case.expected.output if part == "output" else case.expected.lse if part == "lse" else case.expected.state
    found = _name_by_pattern(case, part, actual)
    if found or exact is None or actual.shape != exact.shape:
        return found or f"the shape is {actual.shape} instead of {None if exact is None else exact.shape}"
    wrong = {"output": _wrong_outputs, "lse": _wrong_lse, "state": _wrong_states}.get(part)
    with np.errstate(all="ignore"):
        for sentence, values in wrong(case) if wrong else ():
            if _explains(actual, values, exact, bound):
                return sentence
    return ""


def _explains(actual: np.ndarray, wrong: np.ndarray, exact: np.ndarray, bound: float) -> bool:
    """Whether a wrong result is that of a kernel, by far closer to it than to the exact one."""
    return largest_error(actual, wrong) <= min(4 * bound, largest_error(wrong, exact) / 16)


def _name_by_pattern(case: Case, part: str, actual: np.ndarray) -> str:
    """Faults that show where numbers are not finite, or where rows without visible keys are not 0."""
    expected = case.expected
    if part != "output" or actual.shape != expected.output.shape:
        return ""
    compared = ~np.isnan(expected.output)
    not_finite = ~np.isfinite(actual) & compared
    empty = ~expected.allowed.any(-1)
    if not_finite.any():
        if case.poison in ("inf", "nan"):
            return "hidden inf or nan reaches the output: a weight of 0 is multiplied with it, or it enters the scores"
        if case.poison == "1e30":
            return "hidden 1e30 reaches the output: it overflows before the mask"
        if empty.any() and not not_finite[~empty].any():
            return "a query that sees no key gives NaN: expected 0"
        if empty.any() and not np.any(not_finite, axis=1)[~np.any(empty, axis=1)].any():
            return "a query that sees no key in a head gives NaN in all heads: expected 0 in that head"
        if case.name.startswith("large"):
            return "exponentials overflow: the maximum of the visible scores is not subtracted first"
        return ""
    off = np.abs(np.where(compared, actual - expected.output, 0.0)).max(-1)
    if empty.any() and off[empty].max() > 1e-3 and off[~empty].max(initial=0.0) <= 1e-3:
        return "a query that sees no key gives an average of values: expected 0"
    return ""


def _compute(case: Case, allowed: np.ndarray | None = None, **changes: Any) -> np.ndarray:
    """The output with other arguments; ``allowed`` is who may attend."""
    given = {**case.arguments, **changes}
    allowed = allowed_pairs(given) if allowed is None else allowed
    return attention.attention(
        given["query"],
        given["key"],
        given["value"],
        allowed,
        given.get("bias"),
        given.get("scale"),
        given.get("softcap"),
        given.get("sinks"),
        given.get("dropout_mask"),
    )[0]


def _wrong_outputs(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(case.equation, ScanEquation):
        yield from _wrong_scans(case)
    if not isinstance(case.equation, AttentionEquation):
        return
    if case.poison == "" or case.poison == "another number":
        yield from _wrong_masks(case)
        yield from _wrong_windows(case)
    yield from _wrong_scores(case)
    yield from _wrong_groups(case)
    yield from _wrong_tiles(case)
    yield from _wrong_sums(case)


def _wrong_masks(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    arguments, layout = case.arguments, case.layout
    mask = arguments.get("mask")
    if mask is not None:
        full = np.broadcast_to(mask, (layout.batch, layout.heads, layout.queries, layout.keys))
        yield "the mask is ignored", _compute(case, mask=None)
        yield "the mask has the other polarity: True hides", _compute(case, mask=~full)
        yield "the mask of the first head is used for all heads", _compute(case, mask=full[:, :1])
        yield "the mask of the first batch entry is used for all", _compute(case, mask=full[:1])
        yield (
            "the mask is of keys and queries in the wrong order",
            (_compute(case, mask=full.swapaxes(2, 3)) if layout.queries == layout.keys else np.array(np.nan)),
        )
        if arguments.get("bias") is not None:
            yield "the bias is ignored beside the mask", _compute(case, bias=None)
        if arguments.get("dropout_mask") is not None:
            yield "the mask is dropped when dropout is used", _compute(case, mask=None)
    if arguments.get("causal"):
        yield "the causal mask is ignored", _compute(case, causal=False)
        yield f"the causal mask is {_other_alignment(case)}", _compute(case, align=_other(case))
        rest, shape = allowed_pairs({**arguments, "causal": False}), (layout.queries, layout.keys)
        offset = 0 if arguments.get("align") == "start" else layout.keys - layout.queries
        shifted = {step: np.tri(*shape, offset + step, dtype=bool) for step in (-1, 1)}
        yield "a query does not see its own position", _compute(case, rest & shifted[-1])
        yield "a query sees one key after its own position", _compute(case, rest & shifted[1])
        yield "the causal mask is upside down: queries see later keys", _compute(case, rest & ~shifted[-1])


def _other(case: Case) -> str:
    return "end" if case.arguments.get("align") == "start" else "start"


def _other_alignment(case: Case) -> str:
    """The alignment that the case does not have, in words."""
    if _other(case) == "start":
        return "aligned at the start (top left): queries are expected to be the last positions"
    return "aligned at the end (bottom right): queries are expected to be the first positions"


def _wrong_windows(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    if case.arguments.get("window") is None:
        return
    left, right = case.arguments["window"]
    edges = {
        "the window is ignored": (None, None),
        "the window's left bound is ignored": (None, right),
        "the window's right bound is ignored": (left, None),
        "the window's right bound is taken to be 0": (left, 0),
        "the bounds of the window are exchanged": (right, left),
    }
    if left is not None:
        edges["off by one at the window's left edge: one key too few"] = (left - 1, right)
        edges["off by one at the window's left edge: one key too many"] = (left + 1, right)
    if right is not None:
        edges["off by one at the window's right edge: one key too many"] = (left, right + 1)
        edges["off by one at the window's right edge: one key too few"] = (left, right - 1)
    for sentence, window in edges.items():
        yield sentence, _compute(case, window=window)
    yield f"the window is {_other_alignment(case)}", _compute(case, align=_other(case))


def _wrong_scores(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    arguments, head_dim = case.arguments, case.layout.head_dim
    scale = arguments.get("scale", 1 / np.sqrt(head_dim))
    if "scale" in arguments:
        yield "the argument of the scale is ignored", _compute(case, scale=None)
        yield "the scale is multiplied with 1 / sqrt(head_dim)", _compute(case, scale=scale / np.sqrt(head_dim))
    for sentence, wrong_scale in SCALES.items():
        yield sentence, _compute(case, scale=wrong_scale(head_dim))
    yield (
        "the scores are divided by the root of value_dim, not of head_dim",
        _compute(case, scale=1 / np.sqrt(case.layout.value_dim)),
    )
    if (bias := arguments.get("bias")) is not None:
        yield "the bias is ignored", _compute(case, bias=None)
        yield "the bias is scaled, too", _compute(case, bias=bias * scale)
        yield "the bias is subtracted", _compute(case, bias=-bias)
        yield "the bias of the first head is used for all heads", _compute(case, bias=bias[:, :1])
        yield "the bias of the first batch entry is used for all", _compute(case, bias=bias[:1])
    if (cap := arguments.get("softcap")) is not None:
        yield "the softcap is ignored", _compute(case, softcap=None)
        if bias is not None:
            yield (
                "the softcap is applied after the bias",
                _compute_from_scores(case, lambda s: cap * np.tanh((s + bias) / cap)),
            )
        yield (
            "the softcap is applied before the scale",
            _compute_from_scores(
                case, lambda s: scale * cap * np.tanh(s / scale / cap) + (0.0 if bias is None else bias)
            ),
        )
        yield (
            "the softcap lacks the factor after tanh",
            _compute_from_scores(case, lambda s: np.tanh(s / cap) + (0.0 if bias is None else bias)),
        )
    if (sinks := arguments.get("sinks")) is not None:
        yield "the sinks are ignored", _compute(case, sinks=None)
        yield "the sink of the first head is used for all heads", _compute(case, sinks=np.repeat(sinks[:1], len(sinks)))
        yield (
            "the sinks are used in the order of key heads",
            _compute(case, sinks=np.tile(sinks[: case.layout.key_heads], case.layout.group)),
        )
        yield "the sinks are scaled, too", _compute(case, sinks=sinks * scale)
        yield "the sinks are added without the exponential's maximum", _compute(case, sinks=-sinks)


def _compute_from_scores(case: Case, change: Any) -> np.ndarray:
    """The output, with the scaled products changed by a function that also adds the bias."""
    given, layout = case.arguments, case.layout
    key, value = (np.repeat(given[name], layout.group, axis=1) for name in ("key", "value"))
    scale = given.get("scale", 1 / np.sqrt(layout.head_dim))
    scores = change(scale * given["query"] @ key.swapaxes(2, 3))
    scores = np.where(visible_keys(case.expected.allowed, scores.shape), scores, -np.inf)
    highest = np.maximum(scores.max(-1, keepdims=True), -1e300)
    exponentials = np.exp(scores - highest)
    total = exponentials.sum(-1, keepdims=True)
    if given.get("sinks") is not None:
        total = total + np.exp(given["sinks"][None, :, None, None] - highest)
    weights: np.ndarray = exponentials / np.where(total == 0, 1.0, total)
    return weights @ value


def _wrong_groups(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    group, key_heads = case.layout.group, case.layout.key_heads
    if group == 1:
        return
    heads = np.arange(case.layout.heads)
    orders = {
        "key heads are repeated in the wrong order: head h reads h % key_heads, not h // group": heads % key_heads,
        "all heads read the first key head": heads * 0,
        "all heads read the last key head": heads * 0 + key_heads - 1,
        "heads read the key head after their own": (heads // group + 1) % key_heads,
    }
    for sentence, order in orders.items():
        changed = {name: case.arguments[name][:, order] for name in ("key", "value")}
        yield sentence, _compute(case, **changed)
        for name, array in changed.items():
            yield (
                f"{sentence} (of the {name}s alone)",
                _compute(
                    case,
                    **{
                        "key": np.repeat(case.arguments["key"], group, 1),
                        "value": np.repeat(case.arguments["value"], group, 1),
                        name: array,
                    },
                ),
            )


def _wrong_tiles(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    keys = case.layout.keys
    for tile in TILES:
        rest = keys % tile
        if not rest or keys < tile:
            continue
        allowed = case.expected.allowed & (np.arange(keys) < keys - rest)
        yield f"the keys of the last, incomplete tile of {tile} are ignored", _compute(case, allowed)
    for tile in TILES:
        if keys % tile and case.arguments.get("sinks") is None:
            padding = np.full(case.layout.heads, np.log(tile - keys % tile))
            yield f"keys that pad the last tile of {tile} take part with scores of 0", _compute(case, sinks=padding)
    for tile in TILES:
        if keys > tile:
            allowed = case.expected.allowed & (np.arange(keys) >= tile)
            yield f"the first tile of {tile} keys is ignored", _compute(case, allowed)
            yield (
                f"only the first tile of {tile} keys is read",
                _compute(case, case.expected.allowed & (np.arange(keys) < tile)),
            )


def _wrong_sums(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    exact = case.expected
    if exact.weights is None:
        return
    value = np.repeat(case.arguments["value"], case.layout.group, axis=1)
    kept = case.arguments.get("dropout_mask")
    if kept is not None:
        yield "weights that dropout keeps are not divided by 1 - p", (exact.weights * (kept > 0)) @ value
        yield (
            "dropout is applied before the softmax, so that the kept weights add up to 1",
            _compute(case, exact.allowed & (kept > 0), dropout_mask=None),
        )
    if case.layout.queries == case.layout.keys:
        yield "the softmax is over queries instead of keys", _softmax_of_queries(case) @ value
    scale = case.arguments.get("scale", 1 / np.sqrt(case.layout.head_dim))
    if not {"bias", "sinks", "softcap"} & case.arguments.keys():
        yield "exponentials are of base 2 without the factor of log2(e)", _compute(case, scale=scale * np.log(2))
    total = _sum_of_exponentials(case)
    yield "the output is not divided by the sum of the exponentials", exact.output * total[..., None]
    yield "the output is divided by the number of keys", exact.output * total[..., None] / case.layout.keys


def _sum_of_exponentials(case: Case) -> np.ndarray:
    """The sum of exp(score - maximum) of each query, 0 for one that sees nothing."""
    query, key, value, bias, scale = (case.arguments.get(name) for name in ("query", "key", "value", "bias", "scale"))
    terms = {name: case.arguments.get(name) for name in ("softcap", "sinks")}
    statistics = attention.observe(query, key, value, case.expected.allowed, bias, scale, **terms)  # type: ignore[arg-type]
    highest, lse = statistics.max_score, statistics.lse
    assert highest is not None
    return np.where(np.isfinite(lse), np.exp(lse - highest), 0.0)


def _softmax_of_queries(case: Case) -> np.ndarray:
    key = np.repeat(case.arguments["key"], case.layout.group, axis=1)
    scores = case.arguments["query"] @ key.swapaxes(2, 3) / np.sqrt(case.layout.head_dim)
    exponentials = np.where(case.expected.allowed, np.exp(scores), 0.0)
    shares: np.ndarray = exponentials / np.maximum(exponentials.sum(2, keepdims=True), 1e-300)
    return shares


def _wrong_lse(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    exact = case.expected.lse
    assert exact is not None
    yield "the lse is in base 2", exact / np.log(2)
    yield "the lse is negated", -exact
    yield "the logarithm of the sum is missing", np.exp(exact)
    query, key, value, bias, scale = (case.arguments.get(name) for name in ("query", "key", "value", "bias", "scale"))
    cap = case.arguments.get("softcap")
    without = attention.observe(query, key, value, case.expected.allowed, bias, scale, softcap=cap)  # type: ignore[arg-type]
    assert without.max_score is not None
    yield "the lse lacks the sink", without.lse
    yield "the lse is the maximum of the scores alone", without.max_score
    yield "the lse lacks the maximum of the scores", exact - without.max_score


def _scan(case: Case, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    given = {**case.arguments, **changes}
    query, key, value, log_decay, beta, state = (given.get(name) for name in ScanEquation.inputs)
    return scan.scan(query, key, value, log_decay, beta, state, given.get("scale", 1.0))  # type: ignore[arg-type]


def _wrong_scan_arguments(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = case.arguments
    if "scale" in arguments:
        yield "the scale is ignored", {"scale": 1.0}
        yield "the scale is 1 / sqrt(head_dim) whatever the argument", {"scale": 1 / np.sqrt(case.layout.head_dim)}
    if (decay := arguments.get("log_decay")) is not None:
        yield "the decay is ignored", {"log_decay": None}
        yield "the decay is that of the token before", {"log_decay": np.roll(decay, 1, axis=2)}
        yield "the decay is that of the token after", {"log_decay": np.roll(decay, -1, axis=2)}
        yield "the decay of the first channel is used for all", {"log_decay": decay[..., :1]}
        yield (
            "the decay of the first head is used for all heads",
            {"log_decay": np.broadcast_to(decay[:, :1], decay.shape)},
        )
        yield "the logarithm of the decay is taken in base 2", {"log_decay": decay * np.log(2)}
    if (beta := arguments.get("beta")) is not None:
        yield "beta is ignored in the write: the delta rule is missing", {"beta": None}
        yield "beta is taken to be 1", {"beta": np.ones_like(beta)}
        yield "beta is that of the token before", {"beta": np.roll(beta, 1, axis=2)}
        yield "beta goes through a sigmoid again", {"beta": 1 / (1 + np.exp(-beta))}
    if (state := arguments.get("state")) is not None:
        yield "the initial state is ignored", {"state": None}
        yield (
            "the initial state of the first batch entry is used for all",
            {"state": np.broadcast_to(state[:1], state.shape)},
        )
        yield (
            "the initial state of the first head is used for all heads",
            {"state": np.broadcast_to(state[:, :1], state.shape)},
        )


def _wrong_scans(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[0]
    exact = case.expected.output
    shifted = np.zeros_like(exact)
    query = case.arguments["query"]
    if case.layout.keys > 1:
        tokens = {name: case.arguments[name][:, :, :-1] for name in ("key", "value")}
        rest = {
            name: array[:, :, :-1] for name in ("log_decay", "beta") if (array := case.arguments.get(name)) is not None
        }
        shifted[:, :, 1:] = _scan(case, query=query[:, :, 1:], **tokens, **rest)[0]
        if "state" not in case.arguments:
            yield "the output is read before the token is written", shifted
    if case.layout.head_dim == case.layout.value_dim and "state" in case.arguments:
        yield "the initial state is transposed", _scan(case, state=case.arguments["state"].swapaxes(2, 3))[0]
    for tile in TILES:
        if case.layout.keys > tile:
            yield f"the state is reset at each chunk of {tile} tokens", _scan_in_chunks(case, tile)


def _scan_in_chunks(case: Case, tile: int) -> np.ndarray:
    names = ("query", "key", "value", "log_decay", "beta")
    parts = []
    for first in range(0, case.layout.keys, tile):
        part = {
            name: array[:, :, first : first + tile] for name in names if (array := case.arguments.get(name)) is not None
        }
        parts.append(_scan(case, **part, **({} if first == 0 else {"state": None}))[0])
    return np.concatenate(parts, axis=2)


def _wrong_states(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    exact = case.expected.state
    assert exact is not None
    if case.layout.head_dim == case.layout.value_dim:
        yield "the final state is transposed", exact.swapaxes(2, 3)
    yield "the final state lacks the last token", _without_last_token(case)
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[1]


def _without_last_token(case: Case) -> np.ndarray:
    names = ("query", "key", "value", "log_decay", "beta")
    return _scan(
        case, **{name: case.arguments[name][:, :, :-1] for name in names if case.arguments.get(name) is not None}
    )[1]


def name_gradient_fault(case: Case, name: str, gradient: np.ndarray | None, bound: float) -> str:
    """The fault of a gradient whose forward pass is right; "" if none is known."""
    if gradient is None:
        return f"there is no gradient of {name}"
    if gradient.shape != case.arguments[name].shape:
        return f"the gradient has the shape {gradient.shape} instead of {case.arguments[name].shape}"
    if not np.isfinite(gradient).all():
        empty = not case.expected.allowed.any(-1).all()
        hidden = f"hidden {case.poison} reaches the gradient" if case.poison else "the gradient is not finite"
        return f"{hidden}, where a query sees no key" if empty and not case.poison else hidden
    if not gradient.any():
        return f"the gradient of {name} is 0"
    exact = case.expected.gradients.get(name)
    if exact is not None:
        with np.errstate(all="ignore"):
            for sentence, values in _wrong_gradients(case, name, exact):
                if _explains(gradient, values, exact, bound):
                    return sentence if sentence.startswith("the ") else f"the gradient of {name} {sentence}"
    return ""


def _wrong_gradients(case: Case, name: str, exact: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    layout, arguments = case.layout, case.arguments
    scale = arguments.get("scale", 1 / np.sqrt(layout.head_dim))
    yield "lacks the factor of the scale", exact / scale
    yield "has the factor of the scale twice", exact * scale
    yield "has the wrong sign", -exact
    yield "is twice too large", 2 * exact
    yield "is half as large as it should be", exact / 2
    if "scale" in arguments:
        yield "the argument of the scale is ignored in the backward pass", exact / scale / np.sqrt(layout.head_dim)
    yield (
        "the softmax is differentiated without the sum of its row",
        _plain_gradients(case, row_sum=False).get(name, exact),
    )
    if "softcap" in arguments:
        yield "the slope of the softcap is missing", _plain_gradients(case, cap_slope=False).get(name, exact)
    if arguments.get("dropout_mask") is not None:
        yield "dropout is missing in the backward pass", _plain_gradients(case, dropout=False).get(name, exact)
    if layout.group > 1 and name in ("key", "value"):
        parts = _gradients_by_head(case)[name].reshape(layout.batch, layout.key_heads, layout.group, *exact.shape[2:])
        yield "is of the first of the heads that share a key head alone", parts[:, :, 0]
        yield "is of the last of the heads that share a key head alone", parts[:, :, -1]
        yield "is averaged over the heads that share a key head instead of added", exact / layout.group
        tiled = _gradients_by_head(case)[name].reshape(layout.batch, layout.group, layout.key_heads, *exact.shape[2:])
        yield "is added up over the wrong groups of heads", tiled.sum(1)
    if name == "bias" and arguments["bias"].shape[0] == 1:
        full = _gradients_by_head(case)["scores"]
        yield "the gradient of the bias is of the first batch entry alone", attention.sum_to(full[:1], exact.shape)
        yield "the gradient of the bias is of the last batch entry alone", attention.sum_to(full[-1:], exact.shape)
        yield "the gradient of the bias is averaged over the batch instead of added", exact / layout.batch


def _plain_gradients(
    case: Case, *, row_sum: bool = True, cap_slope: bool = True, dropout: bool = True
) -> dict[str, np.ndarray]:
    """Gradients for all pairs at once, with steps of the backward pass left out."""
    layout, given, weights = case.layout, case.arguments, case.expected.weights
    assert weights is not None
    scale = given.get("scale", 1 / np.sqrt(layout.head_dim))
    spread = {name: np.repeat(given[name], layout.group, axis=1) for name in ("key", "value")}
    kept = given.get("dropout_mask") if dropout else None
    kept = np.ones(1) if kept is None else kept
    of_weights = kept * (case.upstream @ spread["value"].swapaxes(2, 3))
    total = (weights * of_weights).sum(-1, keepdims=True) if row_sum else 0.0
    of_scores = weights * (of_weights - total)
    products = scale * given["query"] @ spread["key"].swapaxes(2, 3)
    slope = 1 - np.tanh(products / given["softcap"]) ** 2 if cap_slope and given.get("softcap") else 1.0
    of_products = scale * slope * of_scores
    by_head = {
        "key": of_products.swapaxes(2, 3) @ given["query"],
        "value": (kept * weights).swapaxes(2, 3) @ case.upstream,
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
    if given.get("bias") is not None:
        result["bias"] = attention.sum_to(of_scores, given["bias"].shape)
    return {**result, "scores": of_scores}


def _gradients_by_head(case: Case) -> dict[str, np.ndarray]:
    found = _plain_gradients(case)
    return {"key": found["key_by_head"], "value": found["value_by_head"], "scores": found["scores"]}
