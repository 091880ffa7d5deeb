"""A term of exact attention is declared once: whatever passes terms along has each of them."""

import inspect

import pytest
import torch

import regard
from regard import masks
from regard.kernels.implementations import flex, native, sdpa, triton
from regard.kernels.operators.kernel_arguments import COMPUTED_TERMS, to_kernel_arguments
from regard.kernels.request import Terms, make_term_check
from regard.kernels.select import BACKENDS
from regard.mechanisms import PagedCache
from regard.validation import make_request

NAMES = list(Terms._fields)
VALUES = {
    "mask": masks.causal(),
    "bias": torch.ones(1, 1, 3, 5),
    "scale": 0.75,
    "softcap": 2.0,
    "sinks": torch.ones(2),
    "dropout": 0.25,
}
WITHOUT = {
    regard.attention: set(),
    regard.why: set(),
    regard.observe: {"dropout"},
    PagedCache.attention: {"bias", "dropout"},
}


def request_with(name):
    query, key, value = torch.ones(1, 2, 3, 7), torch.ones(1, 2, 5, 7), torch.ones(1, 2, 5, 11)
    return make_request(query, key, value, **({} if name is None else {name: VALUES[name]}))


def test_every_term_is_tested():
    assert list(VALUES) == NAMES


@pytest.mark.parametrize("function", WITHOUT, ids=lambda function: function.__qualname__)
def test_public_functions_name_every_term(function):
    assert set(NAMES) - set(inspect.signature(function).parameters) == WITHOUT[function]


@pytest.mark.parametrize("name", NAMES)
def test_a_term_is_part_of_the_request(name, without_shape_checks):
    changed, plain = request_with(name), request_with(None)
    differing = [one for one in NAMES if getattr(changed.terms, one) is not getattr(plain.terms, one)]
    assert [one for one in differing if one != "scale"] == ([] if name == "scale" else [name])
    assert changed.terms.scale == (0.75 if name == "scale" else 7**-0.5)
    assert changed.replace(**{name: getattr(plain.terms, name)}).terms == plain.terms


@pytest.mark.parametrize("name", [name for name in NAMES if name != "scale"])
def test_messages_say_each_term(name, without_shape_checks):
    assert request_with(name).describe() != request_with(None).describe()
    assert name in request_with(name).describe()


@pytest.mark.parametrize("name", NAMES)
def test_kernels_get_each_term(name, without_shape_checks):
    with_term, without = to_kernel_arguments(request_with(name)), to_kernel_arguments(request_with(None))
    assert any(one is not other and one != other for one, other in zip(with_term, without, strict=True))
    assert with_term.to_kwargs().keys() >= without.to_kwargs().keys()


@pytest.mark.parametrize("name", NAMES)
def test_an_implementation_refuses_terms_that_it_does_not_list(name, without_shape_checks):
    terms = request_with(name).terms
    others = [one for one in NAMES if one not in (name, "scale")]
    assert make_term_check(NAMES)(terms) is None
    assert name == "scale" or name in make_term_check(("scale", *others))(terms)


def test_every_implementation_lists_its_terms(without_shape_checks):
    computed = {
        "native": COMPUTED_TERMS,
        "sdpa": sdpa.COMPUTED_TERMS,
        "flex": flex.COMPUTED_TERMS,
        "triton": triton.COMPUTED_TERMS,
    }
    assert {*computed, "reference"} == set(BACKENDS)  # "reference" computes all
    for name in set(NAMES) - set(sdpa.COMPUTED_TERMS):
        assert "torch's fused kernel has no " in sdpa.ATTENTION.refuses(request_with(name))
        assert native.ATTENTION.refuses(request_with(name)) is None or name not in COMPUTED_TERMS
