"""What the samples of the conformance suite cover together in every run, and that they follow from names alone."""

import pytest

from conformance import claims
from conformance.calls import build_mechanism, make_tensors
from conformance.claim_cases import MASK_OF_EVERY_SAMPLE, SAMPLED_CLAIMS, sample_groups
from conformance.claims import DTYPES, PORTABLE_CLAIMS, PROMISES
from conformance.mask_cases import LAYOUTS, MASK_CASES
from regard.kernels.request import Request, Terms

SAMPLED = [claim for claim in SAMPLED_CLAIMS if claim in PORTABLE_CLAIMS]


def layouts_of(promise):
    return LAYOUTS[2:] if promise == "determinism" else LAYOUTS


def test_every_mechanism_is_tested_with_every_mask():
    """With one half of the masks for some promises, and with the other half for the others."""
    tested: dict[str, set[str]] = {}
    for claim in SAMPLED:
        for _, _, mask_cases in sample_groups(claim, layouts_of(claim.promise)):
            tested.setdefault(claim.mechanism, set()).update(one.name for one in mask_cases)
    assert tested == {claim.mechanism: {one.name for one in MASK_CASES} for claim in SAMPLED}


@pytest.mark.parametrize("promise", [promise for promise in PROMISES if promise != "refusals"])
def test_every_promise_is_tested_with_every_mask_and_layout(promise):
    """Each implementation of a mechanism is tested in two dtypes, each mask with several mechanisms, and each dtype at
    each layout.
    """
    mechanisms_of: dict[str, set[str]] = {}
    seen = set()
    tested = [claim[:3] for claim in SAMPLED if claim.promise == promise]
    assert set(tested) == {claim[:3] for claim in PORTABLE_CLAIMS if claim.promise == promise}
    assert len(tested) == 2 * len(set(tested))
    for claim in (claim for claim in SAMPLED if claim.promise == promise):
        groups = sample_groups(claim, layouts_of(promise))
        assert groups
        for _, layout, mask_cases in groups:
            seen.add((claim.dtype, layout))
            for mask_case in mask_cases:
                mechanisms_of.setdefault(mask_case.name, set()).add(claim.mechanism)
    assert mechanisms_of.keys() == {one.name for one in MASK_CASES}
    assert min(len(mechanisms) for mechanisms in mechanisms_of.values()) >= 5
    assert seen == {(dtype, layout) for dtype in DTYPES for layout in layouts_of(promise)}


@pytest.mark.parametrize(
    "claim", [claim for claim in PORTABLE_CLAIMS if claim[0:4:3] == ("hidden", "float32")], ids=lambda claim: claim.name
)
def test_every_mechanism_supports_the_masks_of_every_sample(claim):
    """Otherwise a sample could consist of refused masks."""
    mechanism, tensors = build_mechanism(claim, LAYOUTS[2]), make_tensors(claim, LAYOUTS[2])
    inputs = [tensors[name] for name in ("query", "key", "value")]
    of_every_sample = [one for one in MASK_CASES if one.name in ("padding", *MASK_OF_EVERY_SAMPLE.values())]
    assert len(of_every_sample) == 1 + len(MASK_OF_EVERY_SAMPLE)
    for mask_case in of_every_sample:
        request = Request(*inputs, Terms(mask_case.mask(LAYOUTS[2]), scale=mechanism.scale))
        assert mechanism.refuses(request) is None


def test_another_mechanism_changes_no_sample():
    claim = SAMPLED[0]
    others = [one._replace(mechanism="another") for one in SAMPLED]
    assert sample_groups(claim, LAYOUTS, [*others, *SAMPLED]) == sample_groups(claim, LAYOUTS)


def test_claims_for_a_gpu_differ_from_the_others_in_their_device_alone(monkeypatch):
    """They are made of the same table, for a device that is not there."""
    monkeypatch.setattr(claims, "find_spec", lambda name: name)
    on_gpu = claims.list_claims("cuda")
    assert {claim.impl for claim in on_gpu} == {"its own", *claims.IMPLEMENTATIONS["cuda"]}
    assert {claim.mechanism for claim in on_gpu} == {claim.mechanism for claim in PORTABLE_CLAIMS}
    assert all(claim.marks and claim.name.endswith("-cuda") for claim in on_gpu)
    assert not any(claim.marks for claim in PORTABLE_CLAIMS)
    both = {claim._replace(device="cpu") for claim in on_gpu} & set(PORTABLE_CLAIMS)
    assert both == {claim for claim in PORTABLE_CLAIMS if claim.impl != "native"}
    of_fla = {claim.mechanism for claim in on_gpu if claim.impl == "fla"}
    assert of_fla == {"linear", "performer", "retention", "gated_linear", "mamba2", "gated_delta", "kda"}
    for claim in on_gpu:
        assert claim.dtype != "float64" or claim.impl not in ("flex", "fla")
        assert claim[::2] not in {("agreement", "fla", "cuda")} or claim.dtype != "float32"
        # On a GPU a sample has the masks that the other claims of the device leave to it, whatever the CPU tests.
        assert claim.promise == "refusals" or sample_groups(claim, LAYOUTS, on_gpu)
