"""Promise 3: a call that cannot be computed exactly is refused with the reason, never silently approximated."""

import pytest
import torch

import regard
from conformance.calls import build_mechanism, head_dim_of, make_tensors
from conformance.check_refusal import is_refused
from conformance.claims import CATALOGUE_ROWS, DTYPES, Claim, parametrize_claims
from conformance.mask_cases import LAYOUTS, MASK_CASES
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError


@parametrize_claims("refusals")
def test_unsupported_calls_are_refused(claim: Claim, without_shape_checks, record_proof) -> None:
    layout = LAYOUTS[1]
    mechanism, tensors = build_mechanism(claim, layout), make_tensors(claim, layout)
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    with pytest.raises(OptionError, match=r"(?s)unknown option.*'temprature'.*expected: (one of|none)"):
        regard.mechanism(claim.mechanism, heads=layout.heads, head_dim=head_dim_of(claim, layout), temprature=2.0)
    with pytest.raises(OptionError, match=r"(?s)not a regard mask.*got: .*bool.*to do: .*masks.keep"):
        mechanism(query, key, value, torch.ones(layout.queries, layout.keys, dtype=torch.bool))
    with pytest.raises(ShapeError, match=r"(?s)another batch size.*expected: .*2.*got: .*3"):
        mechanism(query, key, value, regard.masks.padding([1, 2, 3]))
    with pytest.raises(ShapeError, match=r"(?s)mask does not fit the keys.*13 keys.*11 keys"):
        mechanism(query, key, value, regard.masks.keep(torch.ones(5, 11, dtype=torch.bool)))
    expected = rf"\(batch, 3, queries, {head_dim_of(claim, layout)}\)"
    with pytest.raises(ShapeError, match=rf"(?s)query does not fit.*expected: {expected}.*got: .*\(2, 3, 5, 5\)"):
        mechanism(query[..., :5], key[..., :5], value)
    other = next(dtype for dtype in DTYPES.values() if dtype != key.dtype)
    with pytest.raises(DtypeError, match=r"(?s)different dtypes.*one dtype.*key torch"):
        mechanism(query, key.to(other), value)
    if not CATALOGUE_ROWS[claim.mechanism].bias:
        bias = torch.zeros(1, 1, layout.queries, layout.keys, device=query.device)
        with pytest.raises(RefusedError, match=r"(?s)refuses: a bias is .*to do: "):
            mechanism(query, key, value, bias=bias)
    for mask_case in MASK_CASES:
        is_refused(mechanism, tensors, mask_case, layout)
    if claim.impl != "its own":
        _check_refusals_of_the_implementation(claim, mechanism, tensors)
    if claim.mechanism == "dot_product":
        _check_refusals_of_the_public_functions(claim, tensors)
    record_proof(claim)


def _check_refusals_of_the_implementation(claim: Claim, mechanism, tensors) -> None:
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    relative = regard.positions.ShawRelative(query.shape[-1], 3).to(query)
    if not CATALOGUE_ROWS[claim.mechanism].bias:
        with pytest.raises(RefusedError, match=r"(?s)refuses: a bias is .*to do: "):
            mechanism(query, key, value, bias=relative)
    elif claim.impl in ("native", "sdpa", "flex"):
        with pytest.raises(RefusedError, match=rf"(?s){claim.impl}.*refuses.*ShawRelative.*impl=\"auto\""):
            mechanism(query, key, value, bias=relative)
    else:
        mechanism(query, key, value, bias=relative)
    names = ", ".join(sorted(("auto", *mechanism.traits.implementations)))
    with pytest.raises(OptionError, match=rf"(?s)unknown impl 'refrence'.*{names}.*'reference'\?"):
        regard.mechanism(claim.mechanism, heads=mechanism.heads, head_dim=mechanism.head_dim, impl="refrence")


def _check_refusals_of_the_public_functions(claim: Claim, tensors) -> None:
    query, key, value = tensors["query"], tensors["key"], tensors["value"]
    relative = regard.positions.ShawRelative(query.shape[-1], 3).to(query)
    if claim.impl in ("native", "sdpa", "flex"):
        with pytest.raises(RefusedError, match=rf"(?s){claim.impl}.*refuses.*ShawRelative.*impl=\"auto\""):
            regard.attention(query, key, value, bias=relative, impl=claim.impl)
        reason, bias = ("ShawRelative", relative) if claim.impl == "native" else ("no statistics", None)
        with pytest.raises(RefusedError, match=rf"(?s){claim.impl}.*{reason}"):
            regard.observe(query, key, value, bias=bias, impl=claim.impl)
    else:
        regard.attention(query, key, value, bias=relative, impl=claim.impl)
        with pytest.raises(
            OptionError, match=r"(?s)unknown impl 'refrence'.*auto, flex, native, reference, sdpa.*'reference'\?"
        ):
            regard.attention(query, key, value, impl="refrence")
        with pytest.raises(RefusedError, match=r"(?s)flex.*CUDA or XPU.*cpu"):
            regard.attention(query.cpu(), key.cpu(), value.cpu(), impl="flex")
