"""Promise 2: a query that may attend to nothing gives exactly 0 and gradients of 0, never NaN and never an average."""

import numpy as np
import torch

from conformance.calls import build, run, tensors, upstream_of
from conformance.cases import Case, cases
from conformance.refused import is_refused
from conformance.trials import allowed_of


@cases("empty rows")
def test_a_query_that_sees_nothing_gives_nothing(case: Case, as_users_call, proved) -> None:
    claim, met, kept = case.claim, 0, 0
    for number, at, trials in case.groups:
        mechanism, given = build(claim, at), tensors(claim, at, bias=number == 1)
        upstream = upstream_of(claim, at)
        for trial in trials:
            if is_refused(mechanism, given, trial, at):
                continue
            mask, kept = trial.mask(at), kept + 1
            empty = torch.from_numpy(~allowed_of(trial, at).any(-1)).to(upstream.device)
            met += int(empty.sum())
            whole = run(mechanism, given, mask, upstream)
            note = (trial.name, at)
            assert not whole.output[empty].any(), note
            assert whole.output.isfinite().all(), note
            assert not whole.gradients["query"][empty].any(), note
            assert all(gradient.isfinite().all() for gradient in whole.gradients.values()), note
            of_empty = run(mechanism, given, mask, upstream * empty[..., None])
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
    proved(claim, everything=case.everything)
