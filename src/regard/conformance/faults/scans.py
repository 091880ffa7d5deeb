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


def wrong_scans(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Outputs of wrong scans."""
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[0]
    if "cu_seqlens_q" in case.arguments:
        return
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


def wrong_states(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    """Final states of wrong scans."""
    exact = case.expected.state
    assert exact is not None
    if case.layout.head_dim == case.layout.value_dim:
        yield "the final state is transposed", exact.swapaxes(2, 3)
    if "cu_seqlens_q" not in case.arguments:
        yield "the final state lacks the last token", _without_last_token(case)
    for sentence, changes in _wrong_scan_arguments(case):
        yield sentence, _scan(case, **changes)[1]


def _without_last_token(case: Case) -> np.ndarray:
    names = ("query", "key", "value", "log_decay", "beta")
    return _scan(
        case, **{name: case.arguments[name][:, :, :-1] for name in names if case.arguments.get(name) is not None}
    )[1]
