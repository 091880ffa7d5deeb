"""Promise 2: a query with no visible keys gives exactly 0 and gradients of 0, never NaN and never an average."""

import numpy as np
import torch

from conformance.calls import build_mechanism, make_grad_output, make_tensors, run_with_gradients
from conformance.check_refusal import is_refused
from conformance.claim_cases import ClaimCase, parametrize_cases
from conformance.mask_cases import expand_allowed


@parametrize_cases("empty rows")
def test_a_query_that_sees_nothing_gives_nothing(case: ClaimCase, without_shape_checks, record_proof) -> None:
    claim, met, kept = case.claim, 0, 0
    for number, at, trials in case.groups:
        mechanism, given = build_mechanism(claim, at), make_tensors(claim, at, bias=number == 1)
        upstream = make_grad_output(claim, at)
        for trial in trials:
            if is_refused(mechanism, given, trial, at):
                continue
            mask, kept = trial.mask(at), kept + 1
            empty = torch.from_numpy(~expand_allowed(trial, at).any(-1)).to(upstream.device)
            met += int(empty.sum())
            whole = run_with_gradients(mechanism, given, mask, upstream)
            note = (trial.name, at)
            assert not whole.output[empty].any(), note
            assert whole.output.isfinite().all(), note
            assert not whole.gradients["query"][empty].any(), note
            assert all(gradient.isfinite().all() for gradient in whole.gradients.values()), note
            of_empty = run_with_gradients(mechanism, given, mask, upstream * empty[..., None])
            assert not any(gradient.any() for gradient in of_empty.gradients.values()), note
            if claim.impl not in ("sdpa", "flex"):
                seen = mechanism.observe(
                    given["query"], given["key"], given["value"], mask, bias=given.get("bias"), top=3
                )
                assert seen.lse is None or (seen.lse[empty] == -np.inf).all(), note
                assert seen.entropy is None or not seen.entropy[empty].any(), note
                assert (seen.top_keys[empty] == -1).all(), note
                assert not seen.top_weights[empty].any(), note
                assert not seen.output[empty].any(), note
    assert met > 2 * kept or not case.everything
    record_proof(claim, everything=case.everything)
