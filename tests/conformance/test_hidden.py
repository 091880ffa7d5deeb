"""Promise 1: values behind the mask have no influence: they change no bit of the output or of any gradient.

The test chooses a few rows, one per batch entry and group of heads that share keys; only they have an output gradient.
Then it overwrites everything that the mask hides from them, in keys, values and bias, and all other queries.
No bit of the chosen rows' results may change, and the gradient of each overwritten number is exactly 0.
Each mask is tested with each kind of number, spread over the layouts and rounds.
"""

import numpy as np
import torch

from conformance.calls import (
    CallResult,
    NamedTensors,
    build_mechanism,
    make_grad_output,
    make_tensors,
    run_with_gradients,
)
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.mask_cases import Layout, expand_allowed

ROUNDS = 2
POISONS = ("another number", "huge", "NaN", "Inf", "-Inf")


def poison_value(kind: str, dtype: torch.dtype) -> float:
    largest = torch.finfo(dtype).max
    return {"another number": 13.0, "huge": largest, "NaN": np.nan, "Inf": np.inf, "-Inf": -np.inf}[kind]


def choose_rows(at: Layout, turn: int) -> np.ndarray:
    """(batch, heads, queries): True for one row of one head in each batch entry and group of heads."""
    rows = np.zeros((at.batch, at.heads, at.queries), dtype=bool)
    for batch in range(at.batch):
        for group in range(at.key_heads):
            head = group * at.group + turn % at.group
            rows[batch, head, (3 * turn + 5 * batch + 2 * group) % at.queries] = True
    return rows


def hidden_keys(at: Layout, rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """(batch, key heads, keys): True if no chosen row may see the key."""
    seen = (allowed & rows[..., None]).any(2)
    return ~seen.reshape(at.batch, at.key_heads, at.group, at.keys).any(2)


def overwrite(given: NamedTensors, marks: NamedTensors, number: float) -> NamedTensors:
    """Set marked elements to ``number`` with alternating signs, so that sums of huge numbers may cancel to NaN."""
    changed = {}
    for name, tensor in given.items():
        signs = torch.ones_like(tensor)
        signs[..., 1::2] = -1
        changed[name] = torch.where(marks[name], number * signs, tensor)
    return changed


def assert_untouched(
    before: CallResult, after: CallResult, marks: NamedTensors, rows: torch.Tensor, note: tuple
) -> None:
    assert before.output.isfinite().all(), note
    assert torch.equal(after.output[rows], before.output[rows]), note
    for name, gradient in after.gradients.items():
        if name in marks:
            mark = marks[name].expand_as(gradient)
            assert not gradient[mark].any(), (*note, f"gradient of what was overwritten in {name}")
            assert torch.equal(gradient[~mark], before.gradients[name][~mark]), (*note, f"gradient of {name}")
        else:
            assert torch.equal(gradient, before.gradients[name]), (*note, f"gradient of {name}")


@parametrize_cases("hidden")
def test_what_is_hidden_has_no_influence(case: ClaimCase, without_shape_checks, record_proof) -> None:
    # FlexAttention multiplies weights of 0 with values, so its promise is limited to numbers that cannot overflow.
    claim = case.claim
    for number, at, trials in case.groups:
        mechanism = build_mechanism(claim, at)
        for trial in trials:
            if is_refused(mechanism, make_tensors(claim, at), trial, at):
                continue
            allowed, mask = expand_allowed(trial, at), trial.mask(at)
            for turn in case.rounds(ROUNDS):
                given = make_tensors(claim, at, bias=(number + turn) % 2 == 0)
                rows = choose_rows(at, turn)
                hidden = torch.from_numpy(hidden_keys(at, rows, allowed))[..., None]
                marks = {"query": torch.from_numpy(~rows)[..., None], "key": hidden, "value": hidden}
                if mask is None:  # nothing is hidden, so queries are not overwritten
                    marks["query"] = torch.zeros_like(marks["query"])
                if "bias" in given:
                    marks["bias"] = torch.from_numpy(~allowed.any(0, keepdims=True))
                device = given["query"].device
                marks = {name: mark.to(device) for name, mark in marks.items()}
                chosen = torch.from_numpy(rows).to(device)
                upstream = make_grad_output(claim, at) * chosen[..., None]
                before = run_with_gradients(mechanism, given, mask, upstream)
                place = ROUNDS * number + turn
                kinds = POISONS[:1] if claim.impl == "flex" else (POISONS[place % 5], POISONS[(place + 2) % 5])
                for kind in kinds:
                    changed = overwrite(given, marks, poison_value(kind, given["query"].dtype))
                    after = run_with_gradients(mechanism, changed, mask, upstream)
                    assert_untouched(before, after, marks, chosen, (trial.name, at, turn, kind))
    record_proof(claim, everything=case.everything)
