"""Promise 4: the same inputs give the same bits, forward and backward, every time.

In "native" also with any number of threads; the other implementations leave the order of sums to torch.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from conformance.calls import Run, build, run, tensors, upstream_of
from conformance.cases import Case, cases
from conformance.refused import is_refused
from conformance.trials import LAYOUTS


@cases("determinism", LAYOUTS[2:])
def test_same_inputs_same_bits(case: Case, as_users_call, proved) -> None:
    claim = case.claim
    ((_, at, trials),) = case.groups
    mechanism, given, upstream = build(claim, at), tensors(claim, at, bias=True), upstream_of(claim, at)
    for trial in trials:
        if is_refused(mechanism, given, trial, at):
            continue
        first = run(mechanism, given, trial.mask(at), upstream)
        assert_same(first, run(mechanism, given, trial.mask(at), upstream), trial.name)
        if claim.impl == "native":
            with threads(3):
                assert_same(first, run(mechanism, given, trial.mask(at), upstream), (trial.name, "3 threads"))
    proved(claim, everything=case.everything)


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    yield
    torch.set_num_threads(before)


def assert_same(first: Run, second: Run, note: object) -> None:
    assert torch.equal(first.output, second.output), note
    for name, gradient in first.gradients.items():
        assert torch.equal(gradient, second.gradients[name]), (note, name)
