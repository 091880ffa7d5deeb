"""Promise 1: values behind the mask have no influence: they change no bit of the output or of any gradient.

The test chooses a few rows, one per batch entry and group of heads that share keys; only they have an output gradient.
Then it overwrites everything that the mask hides from them, in keys, values and bias, and all other queries. If a
mechanism mixes queries (``mixes_queries``), it overwrites the other queries of hidden tokens only, where there are as
many queries as keys, so that both are the same tokens. If it mixes heads (``mixes_heads``), the chosen rows are the
same in all heads.
No bit of the chosen rows' results may change, and the gradient of each overwritten number is exactly 0.
Each mask is tested with each kind of number, spread over the layouts and rounds, and so are the memory layouts of all
tensors and of the output gradient: by token, amid a fused projection, misaligned ..
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from conformance.calls import (
    CallResult,
    NamedTensors,
    build_mechanism,
    extra_inputs,
    make_grad_output,
    make_tensors,
    run_with_gradients,
)
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.claims import Claim
from conformance.mask_cases import Layout, expand_allowed
from memory_layouts import OWN_NUMBERS
from regard.mechanisms import ExtraInput

ROUNDS = 2
POISONS = ("another number", "huge", "NaN", "Inf", "-Inf")


def poison_value(kind: str, dtype: torch.dtype) -> float:
    largest = torch.finfo(dtype).max
    return {"another number": 13.0, "huge": largest, "NaN": np.nan, "Inf": np.inf, "-Inf": -np.inf}[kind]


def choose_stores(claim: Claim, names: Sequence[str], number: int) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Choose a memory layout for each tensor, and for the gradient of the output; on a GPU it is always contiguous."""
    layouts = list(OWN_NUMBERS.values())
    if not claim.is_portable:
        return {}
    return {name: layouts[(number + 3 * place) % len(layouts)] for place, name in enumerate(["upstream", *names])}


def choose_rows(layout: Layout, round_number: int, *, all_heads: bool) -> np.ndarray:
    """(batch, heads, queries): True for one row of one head in each batch entry and group of heads, or of all heads."""
    rows = np.zeros((layout.batch, layout.heads, layout.queries), dtype=bool)
    for batch in range(layout.batch):
        for group in range(layout.key_heads):
            head = group * layout.group + round_number % layout.group
            row = (3 * round_number + 5 * batch + 2 * group) % layout.queries
            rows[batch, head, row] = True
        if all_heads:
            rows[batch] = rows[batch, head]
    return rows


def hidden_keys(layout: Layout, rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """(batch, key heads, keys): True if no chosen row may see the key."""
    visible = (allowed & rows[..., None]).any(2)
    return ~visible.reshape(layout.batch, layout.key_heads, layout.group, layout.keys).any(2)


def hidden_extra_input(one: ExtraInput, rows: np.ndarray, allowed: np.ndarray) -> torch.Tensor:
    """(batch, heads of the input, length, 1): True for tokens that chosen rows do not use."""
    used = rows if one.side == "query" else (allowed & rows[..., None]).any(2)
    used = used if one.heads == rows.shape[1] else used.any(1, keepdims=True)
    return torch.from_numpy(~used)[..., None]


def other_queries(mechanism, layout: Layout, rows: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """(batch, heads, queries): True for queries that have no influence on the chosen rows."""
    if not mechanism.traits.mixes_queries:
        return ~rows
    return ~rows & ~allowed.any(2) if layout.queries == layout.keys else np.zeros_like(rows)


def overwrite(tensors: NamedTensors, marks: NamedTensors, number: float) -> NamedTensors:
    """Set marked elements to ``number`` with alternating signs, so that sums of huge numbers may cancel to NaN."""
    changed = {}
    for name, tensor in tensors.items():
        signs = torch.ones_like(tensor)
        signs[..., 1::2] = -1
        changed[name] = torch.where(marks[name], number * signs, tensor)
    return changed


def assert_unchanged(
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
def test_masked_positions_have_no_influence(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim = case.claim
    for number, layout, mask_cases in case.groups:
        mechanism = build_mechanism(claim, layout)
        for mask_number, mask_case in enumerate(mask_cases):
            if is_refused(mechanism, make_tensors(claim, layout), mask_case, layout):
                continue
            allowed, mask = expand_allowed(mask_case, layout), mask_case.mask(layout)
            for round_number in case.rounds(ROUNDS):
                tensors = make_tensors(claim, layout, bias=(number + round_number) % 2 == 0)
                rows = choose_rows(layout, round_number, all_heads=mechanism.traits.mixes_heads)
                other = other_queries(mechanism, layout, rows, allowed)
                hidden = torch.from_numpy(hidden_keys(layout, rows, allowed))[..., None]
                marks = {"query": torch.from_numpy(other)[..., None], "key": hidden, "value": hidden}
                for one in extra_inputs(claim, layout):
                    marks[one.name] = hidden_extra_input(one, rows, allowed)
                if mask is None:  # nothing is hidden, so queries are not overwritten
                    marks["query"] = torch.zeros_like(marks["query"])
                if "bias" in tensors:
                    marks["bias"] = torch.from_numpy(~allowed.any(0, keepdims=True))
                device = tensors["query"].device
                marks = {name: mark.to(device) for name, mark in marks.items()}
                chosen = torch.from_numpy(rows).to(device)
                upstream = make_grad_output(claim, layout) * chosen[..., None]
                test_number = ROUNDS * number + round_number
                stores = choose_stores(claim, list(tensors), mask_number + test_number)
                before = run_with_gradients(mechanism, tensors, mask, upstream, stores)
                kinds = (
                    (POISONS[test_number % 5], POISONS[(test_number + 2) % 5])
                    if claim.holds_for_nonfinite
                    else POISONS[:1]
                )
                for kind in kinds:
                    changed = overwrite(tensors, marks, poison_value(kind, tensors["query"].dtype))
                    after = run_with_gradients(mechanism, changed, mask, upstream, stores)
                    assert_unchanged(before, after, marks, chosen, (mask_case.name, layout, round_number, kind))
    record_proof(claim, complete=case.complete)
