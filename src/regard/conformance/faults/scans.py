"""Wrong scans: decays, rates, states and chunks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from regard.conformance.cases import Case
from regard.conformance.equations import scan_texts
from regard.conformance.faults.packed import wrong_lengths
from regard.conformance.faults.sums import TILES


def _scan(case: Case, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    return scan_texts({**case.arguments, **changes})


def _wrong_scan_arguments(case: Case) -> Iterator[tuple[str, dict[str, Any]]]:
    arguments = case.arguments
    if "scale" in arguments:
        yield "the scale is ignored", {"scale": 1.0}
        yield "the scale is 1 / sqrt(head_dim) whatever the argument", {"scale": 1 / np.sqrt(case.layout.head_dim)}
    yield from wrong_lengths(arguments)
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
        yield "the delta rule is missing: keys and values are added without beta", {"beta": None}
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


def wrong_scans(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of a scan in words, with the output that it gives."""
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[0]
    if "cu_seqlens_q" in case.arguments:
        return
    for sentence, step in STEPS.items():
        yield sentence, _scan_with(case, step)[0]
    if case.layout.head_dim == case.layout.value_dim and "state" in case.arguments:
        yield "the initial state is transposed", _scan(case, state=case.arguments["state"].swapaxes(2, 3))[0]
    for tile in TILES:
        if case.layout.keys > tile:
            yield f"the state is reset at each chunk of {tile} tokens", _scan_in_chunks(case, tile)


STEPS = {
    "the output is read before the token is written": "read_before",
    "the output is read before the state decays and the token is written": "read_undecayed",
    "the delta rule reads the state before its decay": "error_undecayed",
    "beta multiplies the value alone, and not what the state holds for the key": "rate_of_value",
    "the delta rule is missing: what the state holds for the key is not subtracted": "no_delta",
    "the state decays after the token is written": "decay_after",
    "the state is not reset between heads": "of_heads",
    "the state is not reset between batch entries": "of_batch",
}
"""Faults of the steps of a scan, in words, and their names."""


def _scan_with(case: Case, fault: str) -> tuple[np.ndarray, np.ndarray]:
    """Output and final state of a scan with a fault of ``STEPS``, token by token."""
    arguments, layout = case.arguments, case.layout
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    output = np.zeros_like(case.expected.output)
    final = np.zeros((layout.batch, layout.heads, layout.head_dim, layout.value_dim))
    decays = arguments.get("log_decay", np.zeros((1, 1, 1, 1)))
    decays = np.exp(np.broadcast_to(decays, (*key.shape[:3], decays.shape[3])))
    beta = arguments.get("beta")
    for b, h in np.ndindex(layout.batch, layout.heads):
        before = {"of_heads": (b, h - 1) if h else None, "of_batch": (b - 1, h) if b else None}.get(fault)
        state = final[b, h] if before is None else final[before]
        state = state if arguments.get("state") is None else arguments["state"][b, h]
        for t in range(layout.keys):
            k, decay = key[b, h, t], decays[b, h, t][:, None]
            decayed = state if fault == "decay_after" else decay * state
            written = value[b, h, t]
            if beta is not None:
                held = (state if fault == "error_undecayed" else decayed).T @ k * (fault != "no_delta")
                written = (
                    beta[b, h, t] * (written - held) if fault != "rate_of_value" else beta[b, h, t] * written - held
                )
            after = decayed + np.outer(k, written)
            read = {"read_before": decayed, "read_undecayed": state}.get(fault, after)
            output[b, h, t] = arguments.get("scale", 1.0) * (read.T @ query[b, h, t])
            state = decay * after if fault == "decay_after" else after
        final[b, h] = state
    return output, final


def _scan_in_chunks(case: Case, tile: int) -> np.ndarray:
    names = ("query", "key", "value", "log_decay", "beta")
    parts = []
    for first in range(0, case.layout.keys, tile):
        part = {
            name: array[:, :, first : first + tile] for name in names if (array := case.arguments.get(name)) is not None
        }
        parts.append(_scan(case, **part, **({} if first == 0 else {"state": None}))[0])
    return np.concatenate(parts, axis=2)


def wrong_states(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Each fault of a final state in words, with the state that it gives."""
    exact = case.expected.state
    assert exact is not None
    if case.layout.head_dim == case.layout.value_dim:
        yield "the final state is transposed", exact.swapaxes(2, 3)
    if "cu_seqlens_q" not in case.arguments:
        yield "the final state lacks the last token", _without_last_token(case)
        for sentence, step in STEPS.items():
            yield sentence, _scan_with(case, step)[1]
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[1]


def _without_last_token(case: Case) -> np.ndarray:
    names = ("query", "key", "value", "log_decay", "beta")
    return _scan(
        case, **{name: case.arguments[name][:, :, :-1] for name in names if case.arguments.get(name) is not None}
    )[1]
