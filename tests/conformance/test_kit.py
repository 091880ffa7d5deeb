"""The conformance kit: right kernels pass, each fault made by hand is caught, and usual faults are named."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch

import regard
from conformance.calls import build_mechanism, make_tensors
from conformance.claims import Claim
from conformance.mask_cases import LAYOUTS
from conformance.mutants.__main__ import is_named
from conformance.mutants.causes import CAUSES
from conformance.mutants.faults import FAULTS, MECHANISMS, build
from regard.conformance import check
from regard.conformance.equations import allowed_pairs
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import masks
from regard.errors import OptionError, RefusedError


def find_wrong(kernel, **options):
    functions = {"backward": kernel.backward, "framework": "numpy", "mechanism": kernel.mechanism, "strict": True}
    return check(kernel.forward, **functions, mask="allowed" if kernel.mechanism == "dot_product" else None, **options)


@pytest.mark.parametrize("kernel", MECHANISMS)
def test_right_kernels_pass(kernel):
    report = find_wrong(build(kernel))
    counts = report.counts()
    assert counts["wrong"] == counts["refused"] == counts["not tried"] == 0, report
    assert counts["right"] > 15


def test_faults_are_more_than_two_hundred():
    assert len({(fault.kernel, fault.name) for fault in FAULTS}) == len(FAULTS) > 200


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 16))])
def test_each_fault_is_caught(part):
    missed = [fault.name for fault in FAULTS[part::16] if find_wrong(build(fault.kernel, fault), fail_fast=True).holds]
    assert missed == []


@pytest.mark.slow
@pytest.mark.parametrize("part", range(24))
def test_faults_have_their_cause(part):
    named = [fault for fault in FAULTS if fault.name in CAUSES[fault.kernel]]
    assert len(named) == sum(map(len, CAUSES.values())) > 150
    reports = [(fault, find_wrong(build(fault.kernel, fault))) for fault in named[part::24]]
    assert [(fault.name, report.causes()) for fault, report in reports if not is_named(fault, report)] == []


def attend(query, key, value, allowed):
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])
    scores = np.where(allowed, scores, -np.inf)
    exponentials = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    return exponentials / np.maximum(exponentials.sum(-1, keepdims=True), 1e-30) @ value


def test_conventions_are_recognised():
    """Heads after the length, True hides, a name of its own, and two faults at once: no scale, top-left alignment."""

    def attention(xq, xk, xv, attn_mask=None, is_causal=False):
        query, key, value = (part.swapaxes(1, 2) for part in (xq, xk, xv))
        allowed = np.ones((query.shape[2], key.shape[2]), bool) if attn_mask is None else ~attn_mask
        if is_causal:
            allowed = allowed & np.tri(query.shape[2], key.shape[2], dtype=bool)
        return attend(query * np.sqrt(query.shape[-1]), key, value, allowed).swapaxes(1, 2)

    report = check(attention)
    assert report.framework == "numpy"
    assert report.conventions[0] == "tensors are (batch, length, heads, head_dim)"
    assert "mask: True may not attend" in report.conventions
    causes = list(report.causes())
    assert any("not scaled" in cause for cause in causes)
    assert any("aligned at the start" in cause for cause in causes)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("cap", "scores are not divided by the softcap before tanh"),
        ("sinks", "the sinks are added without the exponential's maximum"),
        ("all sinks", "the sinks are added without the exponential's maximum"),
        ("half", "the scores are rounded to bfloat16"),
    ],
)
def test_faults_of_scores_in_torch_are_named(fault, cause):
    def attention(query, key, value, mask=None, softcap=None, sinks=None, scale=None):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).transpose(-1, -2)
        scores = (scores.bfloat16().to(query.dtype) if fault == "half" else scores) * scale
        if softcap is not None:
            scores = softcap * torch.tanh(scores if fault == "cap" else scores / softcap)
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        highest = scores.amax(-1, keepdim=True).clamp(min=-1e30)
        sink = None if sinks is None else sinks[None, :, None, None]
        highest = highest if sink is None or fault == "sinks" else torch.maximum(highest, sink)
        exponentials = (scores - highest).exp()
        total = exponentials.sum(-1, keepdim=True)
        if sink is not None:
            total = total + (sink if "sinks" in fault else sink - highest).exp()
        values = value.repeat_interleave(query.shape[1] // value.shape[1], 1)
        return exponentials / total.clamp(min=1e-30) @ values

    assert list(check(attention).causes()) == [cause]


def test_torch_attention_is_right_where_queries_are_the_first_positions():
    report = check(torch.nn.functional.scaled_dot_product_attention, align="start", strict=True)
    assert report.framework == "torch"
    assert "a bias is passed as the mask" in report.conventions
    # PyTorch multiplies weights of 0 with hidden values, so Inf and NaN in them reach the output.
    assert all(outcome.case.endswith(("are inf", "are nan")) for outcome in report.wrong), report
    lenient = check(torch.nn.functional.scaled_dot_product_attention, align="start")
    assert lenient.holds, lenient
    assert any("strict" in outcome.reason for outcome in lenient.outcomes if outcome.verdict == "not tried")
    assert check(torch.nn.functional.scaled_dot_product_attention, fail_fast=True).counts()["wrong"] == 1


@pytest.mark.parametrize("impl", ["native", "reference"])
def test_regard_passes(impl):
    def attention(
        query, key, value, mask=None, bias=None, causal=False, window=None, scale=None, softcap=None, sinks=None
    ):
        rules = [regard.masks.keep(mask)] if mask is not None else []
        rules += [regard.masks.causal()] if causal else []
        rules += [regard.masks.window(*(None if side < 0 else side for side in window))] if window else []
        rule = None
        for part in rules:
            rule = part if rule is None else rule & part
        terms = {"mask": rule, "bias": bias, "scale": scale, "softcap": softcap, "sinks": sinks}
        return regard.attention(query, key, value, **terms, impl=impl)

    report = check(attention, strict=True)
    assert report.holds, report
    assert report.counts()["right"] > 80
    assert not report.counts()["not tried"]


def test_packed_rows_are_recognised():
    """A function of one cu_seqlens, whose texts have as many queries as keys."""

    def attention(q, k, v, cu_seqlens, causal=False, softmax_scale=None):
        output = torch.zeros_like(q)
        for start, end in itertools.pairwise(cu_seqlens.tolist()):
            text = (part[start:end].transpose(0, 1)[None] for part in (q, k, v))
            rule = regard.masks.causal() if causal else None
            output[start:end] = regard.attention(*text, mask=rule, scale=softmax_scale)[0].transpose(0, 1)
        return output

    report = check(attention, strict=True)
    assert report.holds, report
    assert report.conventions[0] == "tensors are (tokens of all texts, heads, head_dim)"
    assert report.counts()["right"] > 15
    reasons = {outcome.reason for outcome in report.outcomes if outcome.verdict == "not tried"}
    assert "the function takes no texts with other lengths of keys than of queries" in reasons


@pytest.mark.parametrize("name", ["additive", "sigmoid", "differential", "nsa"])
def test_mechanisms_of_the_catalogue_pass(name):
    def attention(query, key, value, mask=None, **parameters):
        built = regard.mechanism(name, heads=query.shape[1], head_dim=query.shape[3], **ORACLES[name].options).to(query)
        inner = dict(built.named_parameters())
        own = {name: parameters.pop(name.replace(".", "_")) for name in inner if name.replace(".", "_") in parameters}
        rule = None if mask is None else regard.masks.keep(mask)
        return torch.func.functional_call(built, own, (query, key, value, rule), parameters)

    names = {parameter: parameter.replace(".", "_") for parameter in ORACLES[name].shapes(LAYOUTS[0])}
    report = check(attention, mechanism=name, framework="torch", names=names, dtypes=("float64",))
    assert report.holds, report
    assert report.counts()["right"] >= 5


@pytest.mark.parametrize("name", ORACLES)
def test_shapes_of_parameters_are_those_of_the_module(name):
    layout = LAYOUTS[2]
    entry = next(row for row in regard.catalogue() if row.name == name)
    claim = Claim("any", name, "reference" if entry.mechanism.traits.implementations else "its own", "float32")
    tensors = make_tensors(claim, layout) | build_mechanism(claim, layout).state_dict()
    shapes = {key: tuple(tensor.shape) for key, tensor in tensors.items() if key not in ("query", "key", "value")}
    assert shapes == ORACLES[name].shapes(layout)


@pytest.mark.parametrize("window", [None, (2, 0), (None, 1), (3, None)])
def test_pairs_are_those_of_the_oracle(window):
    for queries, keys in ((5, 13), (11, 7), (7, 7)):
        arrays = {"query": np.zeros((1, 1, queries, 1)), "key": np.zeros((1, 1, keys, 1))}
        expected = masks.causal(queries, keys) & (True if window is None else masks.window(*window, queries, keys))
        np.testing.assert_array_equal(allowed_pairs({**arrays, "causal": True, "window": window})[0, 0], expected)


def test_bad_functions_are_refused_in_words():
    with pytest.raises(OptionError, match="takes no query, key and value"):
        check(lambda x: x)
    with pytest.raises(RefusedError, match=r"(?s)accepted no call.*got: *ValueError: never"):
        check(raise_always)
    with pytest.raises(OptionError, match="unknown mechanism"):
        check(lambda q, k, v: q, mechanism="dot")


def raise_always(query, key, value):
    raise ValueError("never")


def test_the_kit_needs_neither_torch_nor_the_kernels():
    unwanted = ("torch", "jax", "regard.kernels.select")
    program = f"import sys, regard.conformance; print([name for name in {unwanted} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert result.stdout.strip() == "[]"
