"""Promise 2: a query with no visible keys gives exactly 0 and gradients of 0, never NaN and never an average."""

import numpy as np
import torch

from conformance.calls import build_mechanism, make_grad_output, make_tensors, run_with_gradients
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.mask_cases import expand_allowed


@parametrize_cases("empty rows")
def test_empty_rows_give_zero_output_and_gradients(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim, empty_rows, supported_masks = case.claim, 0, 0
    for number, layout, mask_cases in case.groups:
        mechanism, tensors = build_mechanism(claim, layout), make_tensors(claim, layout, bias=number == 1)
        upstream = make_grad_output(claim, layout)
        for mask_case in mask_cases:
            if is_refused(mechanism, tensors, mask_case, layout):
                continue
            mask, supported_masks = mask_case.mask(layout), supported_masks + 1
            empty = torch.from_numpy(~expand_allowed(mask_case, layout).any(-1)).to(upstream.device)
            empty_rows += int(empty.sum())
            full = run_with_gradients(mechanism, tensors, mask, upstream)
            note = (mask_case.name, layout)
            assert not full.output[empty].any(), note
            assert full.output.isfinite().all(), note
            assert not full.gradients["query"][empty].any(), note
            assert all(gradient.isfinite().all() for gradient in full.gradients.values()), note
            only_empty = run_with_gradients(mechanism, tensors, mask, upstream * empty[..., None])
            assert not any(gradient.any() for gradient in only_empty.gradients.values()), note
            if claim.impl not in ("sdpa", "flex"):  # they have no statistics
                observation = mechanism.observe(mask=mask, top=3, **tensors)
                assert observation.lse is None or (observation.lse[empty] == -np.inf).all(), note
                assert observation.entropy is None or not observation.entropy[empty].any(), note
                assert (observation.top_keys[empty] == -1).all(), note
                assert not observation.top_weights[empty].any(), note
                assert not observation.output[empty].any(), note
    assert empty_rows > 2 * supported_masks or not case.complete
    record_proof(claim, complete=case.complete)
