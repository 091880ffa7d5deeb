"""Faults made by hand: each replaces a part of a right kernel, which occurs in it exactly once, by a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

from conformance.mutants.packed_faults import PACKED

HERE = Path(__file__).parent


class Fault(NamedTuple):
    """A fault of a kernel: the right text and the wrong one."""

    kernel: str
    name: str
    right: str
    wrong: str


ATTENTION = [
    # masks
    ("mask ignored", "visible = visible & mask", "visible = visible"),
    ("polarity of the mask", "visible = visible & mask", "visible = visible & ~mask"),
    (
        "mask instead of the causal mask",
        "visible = visible & (key <= position)",
        "visible = visible if mask is not None else visible & (key <= position)",
    ),
    (
        "mask or causal",
        "visible = visible & (key <= position)",
        "visible = visible | (key <= position) if mask is not None else key <= position",
    ),
    ("own position hidden", "(key <= position)", "(key < position)"),
    ("next position visible", "(key <= position)", "(key <= position + 1)"),
    ("top-left alignment", "[:, None] + (keys - queries)", "[:, None]"),
    ("alignment by the longer side", "+ (keys - queries)", "+ abs(keys - queries)"),
    ("alignment never negative", "+ (keys - queries)", "+ max(keys - queries, 0)"),
    ("causal upside down", "(key <= position)", "(key >= position)"),
    (
        "mask of the first head",
        "array[batch % array.shape[0], head % array.shape[1]]",
        "array[batch % array.shape[0], 0]",
    ),
    (
        "mask of the first batch entry",
        "array[batch % array.shape[0], head % array.shape[1]]",
        "array[0, head % array.shape[1]]",
    ),
    # windows
    ("left edge one key short", "(key >= position - left)", "(key > position - left)"),
    ("left edge one key long", "(key >= position - left)", "(key >= position - left - 1)"),
    ("right edge one key short", "(key <= position + right)", "(key < position + right)"),
    ("right edge one key long", "(key <= position + right)", "(key <= position + right + 1)"),
    ("left bound 0 means unbounded", "if left >= 0:", "if left > 0:"),
    ("right bound 0 means unbounded", "if right >= 0:", "if right > 0:"),
    ("window ignored", "if window is not None:", "if window is not None and False:"),
    ("left bound ignored", "if left >= 0:", "if False:"),
    ("right bound ignored", "if right >= 0:", "if False:"),
    ("bounds exchanged", "left, right = window", "right, left = window"),
    ("window only with a causal mask", "if window is not None:", "if window is not None and causal:"),
    ("window counted from the start", "(key >= position - left)", "(key >= position - (keys - queries) - left)"),
    # scores
    ("no scale", "    scores = scale * (query @ key[tile].T)", "    scores = query @ key[tile].T"),
    (
        "scale of head_dim",
        "1 / np.sqrt(head_dim) if scale is None else scale)\n    output",
        "1 / head_dim if scale is None else scale)\n    output",
    ),
    (
        "scale ignored",
        "1 / np.sqrt(head_dim) if scale is None else scale)\n    output",
        "1 / np.sqrt(head_dim))\n    output",
    ),
    (
        "scale of value_dim",
        "1 / np.sqrt(head_dim) if scale is None else scale)\n    output",
        "1 / np.sqrt(value.shape[3]) if scale is None else scale)\n    output",
    ),
    (
        "scale a little off",
        "    scores = scale * (query @ key[tile].T)",
        "    scores = 1.002 * scale * (query @ key[tile].T)",
    ),
    ("scale after the bias", "    return scores\n", "    return scores if bias is None else scale * scores\n"),
    (
        "softcap ignored",
        "    if softcap is not None:\n        scores = softcap",
        "    if False:\n        scores = softcap",
    ),
    ("softcap without the factor", "softcap * np.tanh(scores / softcap)", "np.tanh(scores / softcap)"),
    (
        "softcap before the scale",
        "scores = softcap * np.tanh(scores / softcap)",
        "scores = scale * softcap * np.tanh(scores / scale / softcap)",
    ),
    (
        "softcap after the bias",
        "    return scores\n",
        "    return scores if softcap is None or bias is None else softcap * np.tanh(scores / softcap)\n",
    ),
    ("softcap clips", "softcap * np.tanh(scores / softcap)", "np.clip(scores, -softcap, softcap)"),
    ("bias ignored", "scores = scores + np.broadcast_to(bias, (len(query), len(key)))[:, tile]", "pass"),
    ("bias subtracted", "scores = scores + np.broadcast_to", "scores = scores - np.broadcast_to"),
    (
        "bias of the first tile",
        "(len(query), len(key)))[:, tile]",
        "(len(query), len(key)))[:, : tile.stop - tile.start]",
    ),
    (
        "bias ignored beside a mask",
        "score_tile(query[b, h], key[b, h // group], at_head(bias, b, h)",
        "score_tile(query[b, h], key[b, h // group], None if mask is not None else at_head(bias, b, h)",
    ),
    # softmax
    ("no maximum", "safe = np.where(np.isfinite(higher), higher, 0)", "safe = np.zeros_like(higher); higher = safe"),
    (
        "maximum of hidden scores too",
        "higher = np.maximum(highest, scores.max(1))",
        "higher = np.maximum(highest, score_tile(query[b, h], key[b, h // group], None, tile, scale, softcap).max(1))",
    ),
    ("maximum over rows of the tile", "scores.max(1))", "scores.max())"),
    ("sum not rescaled", "total = total * factor +", "total = total +"),
    ("output not rescaled", "summed = summed * factor[:, None] +", "summed = summed +"),
    ("running maximum not kept", "            highest = higher\n", "            highest = scores.max(1)\n"),
    ("sum of the last tile", "total = total * factor + exponentials.sum(1)", "total = exponentials.sum(1)"),
    ("no normalization", "summed / np.where(seen, total, 1)[:, None]", "summed"),
    ("normalized by the number of keys", "summed / np.where(seen, total, 1)[:, None]", "summed / keys"),
    (
        "first key twice",
        "total = total * factor + exponentials.sum(1)",
        "total = total * factor + exponentials.sum(1) + (exponentials[:, 0] if first == 0 else 0)",
    ),
    (
        "epsilon in the sum",
        "summed / np.where(seen, total, 1)[:, None]",
        "summed / (np.where(seen, total, 1)[:, None] + 1e-3)",
    ),
    (
        "base 2 without its factor",
        "exponentials = np.exp(scores - safe[:, None])",
        "exponentials = np.exp2(scores - safe[:, None])",
    ),
    # empty rows
    (
        "empty rows give NaN",
        "np.where(seen[:, None], summed / np.where(seen, total, 1)[:, None], 0)",
        "summed / total[:, None]",
    ),
    (
        "empty rows average the values",
        "np.where(seen[:, None], summed / np.where(seen, total, 1)[:, None], 0)",
        "np.where(seen[:, None], summed / np.where(seen, total, 1)[:, None], value[b, h // group].mean(0))",
    ),
    (
        "hidden scores of -1e4 in place of -inf",
        "scores = np.where(visible[:, tile], scores, -np.inf)",
        "scores = np.where(visible[:, tile], scores, -1e4)",
    ),
    (
        "hidden scores of -5",
        "scores = np.where(visible[:, tile], scores, -np.inf)",
        "scores = np.where(visible[:, tile], scores, -5)",
    ),
    (
        "mask added to NaN",
        "scores = np.where(visible[:, tile], scores, -np.inf)",
        "scores = scores + np.where(visible[:, tile], 0, -np.inf)",
    ),
    (
        "hidden values multiplied with 0",
        "np.where(visible[:, :, None], weights[:, :, None] * value[None], 0).sum(1)",
        "weights @ value",
    ),
    # tiles
    (
        "last tile skipped",
        "        for first in range(0, keys, TILE):\n            tile = slice(first, min(first + TILE, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
        "        for first in range(0, max(keys - TILE, 1), TILE):\n            tile = slice(first, min(first + TILE, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
    ),
    (
        "incomplete tile skipped",
        "        for first in range(0, keys, TILE):\n            tile = slice(first, min(first + TILE, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
        "        for first in range(0, max(keys - keys % TILE, min(keys, TILE)), TILE):\n            tile = slice(first, min(first + TILE, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
    ),
    (
        "tiles overlap",
        "tile = slice(first, min(first + TILE, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
        "tile = slice(first, min(first + TILE + 1, keys))\n            scores = score_tile(query[b, h], key[b, h // group]",
    ),
    (
        "mask of the first tile",
        "scores = np.where(visible[:, tile], scores, -np.inf)",
        "scores = np.where(visible[:, : tile.stop - tile.start], scores, -np.inf)",
    ),
    (
        "zeros that pad the last tile",
        "total = total * factor + exponentials.sum(1)",
        "total = total * factor + exponentials.sum(1) + (first + TILE - tile.stop) * np.exp(-safe)",
    ),
    # heads
    (
        "wrong repeat of key heads",
        "key[b, h // group], at_head(bias, b, h), tile, scale, softcap)\n            scores = np.where",
        "key[b, h % key.shape[1]], at_head(bias, b, h), tile, scale, softcap)\n            scores = np.where",
    ),
    ("wrong repeat of value heads", "value[b, h // group, tile]\n", "value[b, h % key.shape[1], tile]\n"),
    (
        "first key head for all",
        "key[b, h // group], at_head(bias, b, h), tile, scale, softcap)\n            scores = np.where",
        "key[b, 0], at_head(bias, b, h), tile, scale, softcap)\n            scores = np.where",
    ),
    ("values of the first batch entry", "value[b, h // group, tile]\n", "value[0, h // group, tile]\n"),
    # sinks
    (
        "sinks ignored",
        "np.full(queries, sinks[h], query.dtype), np.ones(queries, query.dtype)",
        "np.full(queries, sinks[h], query.dtype), np.zeros(queries, query.dtype)",
    ),
    ("sink of the first head", "np.full(queries, sinks[h], query.dtype)", "np.full(queries, sinks[0], query.dtype)"),
    (
        "sink without the maximum",
        "np.full(queries, sinks[h], query.dtype), np.ones",
        "np.full(queries, -np.inf, query.dtype), np.exp(sinks[h]) * np.ones",
    ),
    ("sinks scaled", "np.full(queries, sinks[h], query.dtype)", "np.full(queries, sinks[h] * scale, query.dtype)"),
    (
        "sink in each tile",
        "exponentials = np.exp(scores - safe[:, None])",
        "exponentials = np.exp(scores - safe[:, None]); total = total + (0 if sinks is None or first == 0 else np.exp(sinks[h] - highest))",
    ),
    # dropout
    ("dropout not rescaled", ".astype(dtype) / (1 - dropout)", ".astype(dtype)"),
    ("dropout rescaled by p", ".astype(dtype) / (1 - dropout)", ".astype(dtype) / dropout * 0.8"),
    (
        "dropout drops the mask",
        "visible = find_visible(queries, keys, at_head(mask, b, h), causal, window)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        highest",
        "visible = find_visible(queries, keys, None if dropout else at_head(mask, b, h), causal, window)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        highest",
    ),
    ("dropout of another share", "(drawn >= dropout)", "(drawn >= 0.8 * dropout)"),
    (
        "dropout before the softmax",
        "total = total * factor + exponentials.sum(1)",
        "total = total * factor + (exponentials * kept[:, tile]).sum(1)",
    ),
    ("dropout ignored", "    if not dropout:\n", "    if True:\n"),
    (
        "another dropout in the backward pass",
        "        seen, g = visible.any(1), h // group\n",
        "        seen, g = visible.any(1), h // group\n        kept = draw_kept(seed + 1, b, h, (queries, keys), dropout, query.dtype)\n",
    ),
    (
        "dropout missing in the gradient of values",
        "(weights * kept[:, tile]).T @ upstream[b, h]",
        "weights.T @ upstream[b, h]",
    ),
    (
        "dropout missing in the gradient of weights",
        "of_weights = kept[:, tile] * (upstream[b, h] @ v.T)",
        "of_weights = upstream[b, h] @ v.T",
    ),
    # lse
    ("lse without the maximum", "highest + np.log(np.where(seen, total, 1))", "np.log(np.where(seen, total, 1))"),
    (
        "lse in base 2",
        "highest + np.log(np.where(seen, total, 1))",
        "(highest + np.log(np.where(seen, total, 1))) / np.log(2).astype(query.dtype)",
    ),
    ("lse of the maximum alone", "highest + np.log(np.where(seen, total, 1))", "highest"),
    (
        "lse of the tile before the last",
        "            highest = higher\n",
        "            stale, highest = highest, higher\n        stale = stale if keys > TILE else highest\n        lse_before = stale\n        highest_of_output, highest = highest, stale\n",
    ),
    (
        "lse of empty rows 0",
        "np.where(seen, highest + np.log(np.where(seen, total, 1)), -np.inf)",
        "np.where(seen, highest + np.log(np.where(seen, total, 1)), 0)",
    ),
    # backward
    (
        "no scale in the gradient of the query",
        "of_query[b, h] += scale * (of_scores @ k)",
        "of_query[b, h] += of_scores @ k",
    ),
    ("no scale in the gradient of the key", "+= scale * (of_scores.T @ query[b, h])", "+= of_scores.T @ query[b, h]"),
    (
        "scale of head_dim in the backward pass",
        "1 / np.sqrt(head_dim) if scale is None else scale)\n    of_query",
        "1 / np.sqrt(head_dim))\n    of_query",
    ),
    ("gradient of the query of the last tile", "of_query[b, h] += scale", "of_query[b, h] = scale"),
    ("gradient of the last head of a group", "of_key[b, g, tile] += scale", "of_key[b, g, tile] = scale"),
    ("gradient of values of the last head", "of_value[b, g, tile] += (weights", "of_value[b, g, tile] = (weights"),
    (
        "gradients of heads in the wrong group",
        "seen, g = visible.any(1), h // group",
        "seen, g = visible.any(1), h % key.shape[1]",
    ),
    ("no row sum", "weights * (of_weights - row[:, None])", "weights * of_weights"),
    (
        "row sum of the weights' gradient alone",
        "row = (upstream[b, h] * output[b, h]).sum(1)",
        "row = upstream[b, h].sum(1)",
    ),
    (
        "no slope of the softcap",
        "            if softcap is not None:\n                of_scores",
        "            if False:\n                of_scores",
    ),
    ("slope of the softcap not squared", "/ softcap) ** 2)", "/ softcap))"),
    (
        "slope of the softcap in the gradient of the bias",
        "            if bias is not None:\n                place",
        "            if softcap is not None:\n                of_scores = of_scores * (1 - np.tanh(scale * (query[b, h] @ k.T) / softcap) ** 2)\n            if bias is not None:\n                place",
    ),
    ("no gradient of the bias", '"bias": of_bias', '"bias": None'),
    (
        "gradient of the bias is zeros",
        "                    place[:, tile] += of_scores\n",
        "                    pass\n",
    ),
    (
        "gradient of the bias of the last batch entry",
        "                    place[:, tile] += of_scores\n",
        "                    place[:, tile] = of_scores\n",
    ),
    ("gradient of the bias of one query", "of_scores.sum(0, keepdims=True)", "of_scores[:1]"),
    (
        "gradient of the bias scaled",
        "                    place[:, tile] += of_scores\n",
        "                    place[:, tile] += scale * of_scores\n",
    ),
    ("no gradient of the sinks", '"sinks": of_sinks', '"sinks": None'),
    ("sign of the gradient of the sinks", "of_sinks[h] -=", "of_sinks[h] +="),
    ("gradient of the sinks of the last batch entry", "of_sinks[h] -= (np", "of_sinks[h] = -(np"),
    (
        "stale lse in the backward pass",
        "finite_lse = np.where(seen, lse[b, h], 0)",
        "finite_lse = np.where(seen, lse[0, h], 0)",
    ),
    (
        "lse without the sink in the backward pass",
        "finite_lse = np.where(seen, lse[b, h], 0)",
        "finite_lse = np.where(seen, attention(query, key, value, mask, bias, causal, window, scale, softcap)[1][b, h], 0)",
    ),
    (
        "mask missing in the backward pass",
        "weights = np.where(visible[:, tile], np.exp",
        "weights = np.where(True, np.exp",
    ),
    (
        "window missing in the backward pass",
        "causal, window)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        seen",
        "causal, None)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        seen",
    ),
    (
        "causal mask missing in the backward pass",
        "causal, window)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        seen",
        "False, window)\n        kept = draw_kept(seed, b, h, (queries, keys), dropout, query.dtype)\n        seen",
    ),
    (
        "bias missing in the backward pass",
        "score_tile(query[b, h], padded, at_head(bias, b, h)",
        "score_tile(query[b, h], padded, None",
    ),
    ("sign of the gradient of values", "of_value[b, g, tile] += (weights", "of_value[b, g, tile] -= (weights"),
    (
        "values of the first head in the backward pass",
        "np.where(read, value[b, g, tile], 0)",
        "np.where(read, value[b, 0, tile], 0)",
    ),
    (
        "last tile skipped in the backward pass",
        "        for first in range(0, keys, TILE):\n            tile = slice(first, min(first + TILE, keys))\n            read",
        "        for first in range(0, max(keys - TILE, 1), TILE):\n            tile = slice(first, min(first + TILE, keys))\n            read",
    ),
    # memory
    (
        "inputs scaled in place",
        "    output = np.zeros((batch, heads, queries, value.shape[3]), query.dtype)\n    lse",
        "    query *= scale\n    scale = 1\n    output = np.zeros((batch, heads, queries, value.shape[3]), query.dtype)\n    lse",
    ),
    (
        "strides ignored",
        "    output = np.zeros((batch, heads, queries, value.shape[3]), query.dtype)\n    lse",
        "    query = query.ravel(order='K').reshape(query.shape)\n    output = np.zeros((batch, heads, queries, value.shape[3]), query.dtype)\n    lse",
    ),
    (
        "another sum in each call",
        "    lse = np.full(",
        "    query = query * (1 + 1e-6 * np.random.default_rng().random())\n    lse = np.full(",
    ),
]

SCAN = [
    (
        "no decay",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "            written",
    ),
    (
        "decay without the exponential",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "            memory = (1 + log_decay[b, h, t]) * memory\n            written",
    ),
    (
        "decay in base 2",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "            memory = np.exp2(log_decay[b, h, t]) * memory\n            written",
    ),
    (
        "decay of the token before",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "            memory = np.exp(log_decay[b, h, t - 1]) * memory\n            written",
    ),
    (
        "decay of the first head",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "            memory = np.exp(log_decay[b, 0, t]) * memory\n            written",
    ),
    (
        "decay after the write",
        "            memory = memory + np.outer(key[b, h, t], written)\n",
        "            memory = np.exp(log_decay[b, h, t]) * (memory + np.outer(key[b, h, t], written)) / np.exp(log_decay[b, h, t]) ** 0.5\n",
    ),
    (
        "no delta rule",
        "(value[b, h, t] - memory.T @ key[b, h, t])\n            memory = memory + np.outer(key[b, h, t], written)",
        "value[b, h, t]\n            memory = memory + np.outer(key[b, h, t], written)",
    ),
    ("rate ignored", "written = beta[b, h, t] * (", "written = ("),
    (
        "rate of the value alone",
        "written = beta[b, h, t] * (value[b, h, t] - memory.T @ key[b, h, t])",
        "written = beta[b, h, t] * value[b, h, t] - memory.T @ key[b, h, t]",
    ),
    ("rate through a sigmoid", "written = beta[b, h, t] * (", "written = 1 / (1 + np.exp(-beta[b, h, t])) * ("),
    (
        "error of the state before its decay",
        "            memory = np.exp(log_decay[b, h, t]) * memory\n            written = beta[b, h, t] * (value[b, h, t] - memory.T @ key[b, h, t])",
        "            written = beta[b, h, t] * (value[b, h, t] - memory.T @ key[b, h, t])\n            memory = np.exp(log_decay[b, h, t]) * memory",
    ),
    (
        "output before the write",
        "            memory = memory + np.outer(key[b, h, t], written)\n            output[b, h, t] = scale * (memory.T @ query[b, h, t])",
        "            output[b, h, t] = scale * (memory.T @ query[b, h, t])\n            memory = memory + np.outer(key[b, h, t], written)",
    ),
    (
        "no scale",
        "output[b, h, t] = scale * (memory.T @ query[b, h, t])",
        "output[b, h, t] = memory.T @ query[b, h, t]",
    ),
    ("scale of head_dim", "output[b, h, t] = scale * (memory", "output[b, h, t] = head_dim**-0.5 * (memory"),
    (
        "state not reset between heads",
        "        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "        memory = (memory if h else np.zeros_like(final[n, h])) if state is None else state[n, h].copy()",
    ),
    (
        "state not reset between batch entries",
        "        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "        memory = final[n - 1, h].copy() if state is None else state[n, h].copy()",
    ),
    (
        "state ignored",
        "np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "np.zeros_like(final[n, h])",
    ),
    (
        "state of the first batch entry",
        "np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "np.zeros_like(final[n, h]) if state is None else state[0, h].copy()",
    ),
    (
        "state written into the argument",
        "else state[n, h].copy()\n        for t in range(start, end):\n            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "else state[n, h]\n        for t in range(start, end):\n            memory *= np.exp(log_decay[b, h, t])\n            written",
    ),
    (
        "final state before the last token",
        "        final[n, h] = memory\n",
        "        final[n, h] = memory - np.outer(key[b, h, end - 1], written)\n",
    ),
    (
        "final state transposed",
        "        final[n, h] = memory\n",
        "        final[n, h] = memory.T if memory.shape[0] == memory.shape[1] else memory\n",
    ),
    (
        "final state decayed once more",
        "        final[n, h] = memory\n",
        "        final[n, h] = np.exp(log_decay[b, h, end - 1]) * memory\n",
    ),
    (
        "state reset after 64 tokens",
        "        for t in range(start, end):\n            memory = np.exp(log_decay[b, h, t]) * memory\n            written",
        "        for t in range(start, end):\n            memory = np.exp(log_decay[b, h, t]) * memory * (t % 64 != 0 or t == start)\n            written",
    ),
    (
        "key of the token before",
        "memory = memory + np.outer(key[b, h, t], written)",
        "memory = memory + np.outer(key[b, h, max(t - 1, 0)], written)",
    ),
    (
        "no gradient of the decay",
        "of_decay[b, h, t] = np.exp(log_decay[b, h, t]) * (of_memory * before[t - start]).sum()",
        "pass",
    ),
    (
        "gradient of the decay without its factor",
        "of_decay[b, h, t] = np.exp(log_decay[b, h, t]) * (",
        "of_decay[b, h, t] = (",
    ),
    (
        "gradient of the decay by the state after it",
        "(of_memory * before[t - start]).sum()",
        "(of_memory * decayed[t - start]).sum()",
    ),
    (
        "gradient of the rate without the key's state",
        "of_beta[b, h, t] = of_written @ missing",
        "of_beta[b, h, t] = of_written @ v",
    ),
    (
        "gradient of the value without the rate",
        "of_value[b, h, t] = rate * of_written",
        "of_value[b, h, t] = of_written",
    ),
    (
        "gradient of the key without the delta rule",
        "            of_key[b, h, t] -= decayed[t - start] @ (rate * of_written)\n",
        "",
    ),
    (
        "gradient of the state without the delta rule",
        "            of_memory = of_memory - np.outer(k, rate * of_written)\n",
        "",
    ),
    (
        "gradient of the query of the decayed state",
        "scale * (after @ upstream[b, h, t])",
        "scale * (decayed[t - start] @ upstream[b, h, t])",
    ),
    ("gradient of the query without the scale", "of_query[b, h, t] = scale * (after", "of_query[b, h, t] = (after"),
    ("gradient not decayed between tokens", "            of_memory = np.exp(log_decay[b, h, t]) * of_memory\n", ""),
    ("cu_seqlens ignored", "if cu_seqlens is None:", "if True:"),
    (
        "texts read one token late",
        "(0, cu_seqlens[n], cu_seqlens[n + 1])",
        "(0, cu_seqlens[n] + (n > 0), cu_seqlens[n + 1])",
    ),
    (
        "state not reset between texts",
        "        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "        memory = (final[n - 1, h] if start else np.zeros_like(final[n, h])) if state is None else state[n, h].copy()",
    ),
    (
        "state of the first text",
        "        memory = np.zeros_like(final[n, h]) if state is None else state[n, h].copy()",
        "        memory = np.zeros_like(final[n, h]) if state is None else state[n if b else min(n, batch - 1), h].copy()",
    ),
    (
        "no final state of an empty text",
        "        final[n, h] = memory\n",
        "        final[n, h] = memory if end > start else 0\n",
    ),
    (
        "gradient passes between texts",
        "        of_memory = np.zeros_like(memory)\n",
        "        of_memory = of_memory if start else np.zeros_like(memory)\n",
    ),
    ("no gradient of the state", "        of_state[n, h] = of_memory\n", ""),
]

CHUNK = [
    ("chunk sees later tokens", "earlier = np.tri(size, dtype=bool)", "earlier = np.tri(size, k=1, dtype=bool)"),
    ("chunk hides its own token", "earlier = np.tri(size, dtype=bool)", "earlier = np.tri(size, k=-1, dtype=bool)"),
    ("state not passed to the next chunk", "memory = np.exp(summed[-1])[:, None] * memory + (", "memory = ("),
    ("state not decayed over a chunk", "np.exp(summed[-1])[:, None] * memory + (", "memory + ("),
    ("queries do not decay the state", "(q * np.exp(summed)) @ memory", "q @ memory"),
    ("keys not decayed to the end of the chunk", "(k * np.exp(summed[-1] - summed)).T @ v", "k.T @ v"),
    ("no decay within a chunk", "(q[:, None] * k[None] * between).sum(-1)", "(q @ k.T)"),
    (
        "decay of the token before within a chunk",
        "np.where(earlier[:, :, None], summed[:, None] - summed[None], 0)",
        "np.where(earlier[:, :, None], summed[:, None] - np.roll(summed, 1, 0)[None], 0)",
    ),
    (
        "state without the scale",
        "scale * (products @ v + (q * np.exp(summed)) @ memory)",
        "scale * (products @ v) + (q * np.exp(summed)) @ memory",
    ),
    ("chunks run over the ends of texts", "min(first + CHUNK, end)", "min(first + CHUNK, length)"),
    ("last chunk skipped", "range(start, end, CHUNK)", "range(start, max(end - CHUNK, start + 1), CHUNK)"),
    (
        "incomplete chunk decayed as a whole one",
        "np.exp(summed[-1])[:, None] * memory",
        "np.exp(summed[-1] * CHUNK / size)[:, None] * memory",
    ),
    (
        "decay of the first channel",
        "np.cumsum(log_decay[b, h, chunk], axis=0)",
        "np.cumsum(np.repeat(log_decay[b, h, chunk][:, :1], head_dim, 1), axis=0)",
    ),
    (
        "decay summed over the whole text",
        "(q * np.exp(summed)) @ memory",
        "(q * np.exp(np.cumsum(log_decay[b, h], axis=0)[chunk])) @ memory",
    ),
]

FAULTS = [
    Fault(kernel, *row)
    for kernel, rows in (
        ("attention_kernel", ATTENTION),
        ("packed_kernel", PACKED),
        ("scan_kernel", SCAN),
        ("chunk_kernel", CHUNK),
    )
    for row in rows
]

MECHANISMS = {
    "attention_kernel": ("dot_product", "attention", "attention_backward"),
    "packed_kernel": ("dot_product", "attention", "attention_backward"),
    "scan_kernel": ("gated_delta", "scan", "scan_backward"),
    "chunk_kernel": ("gated_linear", "scan", None),
}
"""The mechanism of each kernel, and its functions forward and backward."""


@cache
def source(kernel: str) -> str:
    return (HERE / f"{kernel}.py").read_text(encoding="utf-8")


def build(kernel: str, fault: Fault | None = None) -> SimpleNamespace:
    """The functions of a kernel, with a fault or without one."""
    text = source(kernel)
    if fault is not None:
        assert text.count(fault.right) == 1, (fault.name, text.count(fault.right))
        text = text.replace(fault.right, fault.wrong)
    scope: dict[str, Callable] = {"__name__": kernel}
    exec(compile(text, f"{kernel}: {fault.name if fault else 'right'}", "exec"), scope)
    mechanism, forward, backward = MECHANISMS[kernel]
    functions = {"forward": scope[forward], "backward": scope.get(backward)}
    return SimpleNamespace(
        mechanism=mechanism, is_packed="find_texts" in scope and mechanism == "dot_product", **functions
    )
