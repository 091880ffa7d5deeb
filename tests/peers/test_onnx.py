"""The node tests of the package ``onnx`` for its operators of attention, each computed by regard.

The expected numbers are theirs; tolerances are bounds of the roundings of their reference in the dtype of the case.
"""

from __future__ import annotations

import pytest
import torch

from peers.onnx_attention import attention_call, attention_outputs, flex_call
from peers.onnx_cases import OnnxCase, read_cases
from peers.onnx_linear_attention import LinearAttention, compute, past_state
from regard.conformance import check
from regard.conformance.onnx_cases import OPERATORS, expected_outputs, make_case, read_node_tests
from regard.conformance.onnx_runtimes import check_onnx_runtime, compare_output
from regard.conformance.suites import ONNX_SCANS
from regard.positions import Rotary

pytestmark = pytest.mark.slow

PROB_MOD = "prob_mod changes the weights after the softmax"


def difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference; equal infinities do not differ."""
    assert actual.shape == expected.shape
    actual, expected = actual.double(), expected.double()
    return float((actual - expected).masked_fill(actual == expected, 0.0).abs().max())


def test_attention():
    cases = read_cases("Attention")
    assert len(cases) > 90
    wrong = {}
    for case in cases:
        found = attention_outputs(case, attention_call(case))
        for name, expected in case.outputs.items():
            actual, error = found[name]
            off = difference(actual, expected)
            if not off <= error:
                wrong[case.name, name] = (off, error)
    assert wrong == {}


def test_flex_attention():
    cases = read_cases("FlexAttention")
    assert len(cases) > 10
    wrong, refused = {}, {}
    for case in cases:
        if "prob_mod" in case.graphs:
            refused[case.name] = PROB_MOD
            continue
        call = flex_call(case)
        off = difference(call.output(), case.outputs["Y"])
        if not off <= call.output_error():
            wrong[case.name] = (off, call.output_error())
    assert wrong == {}
    assert refused == {"test_flexattention_prob_mod": PROB_MOD}


def test_linear_attention():
    cases = read_cases("LinearAttention")
    assert len(cases) > 13
    wrong = {}
    for case in cases:
        found, error = compute(case)
        for name, expected in case.outputs.items():
            off, bound = difference(found[name], expected), error * max(1.0, float(expected.abs().max()))
            if not off <= bound:
                wrong[case.name, name] = (off, bound)
    assert wrong == {}


def rotate(case: OnnxCase) -> torch.Tensor:
    """Rotate with the factors of the case, which belong to no position: cosines and sines are random numbers."""
    tokens, heads = case.inputs["input"], case.attributes.get("num_heads")
    split = tokens if heads is None else tokens.unflatten(-1, (heads, -1)).transpose(1, 2)
    cosine, sine = case.inputs["cos_cache"], case.inputs["sin_cache"]
    if "position_ids" in case.inputs:
        cosine, sine = cosine[case.inputs["position_ids"]], sine[case.inputs["position_ids"]]
    if case.attributes.get("interleaved"):
        layout, cosine, sine = "pairs", cosine.repeat_interleave(2, -1), torch.stack([-sine, sine], -1).flatten(-2)
    else:
        layout, cosine, sine = "halves", cosine.repeat(1, 1, 2), torch.cat([-sine, sine], -1)
    rotation = Rotary(split.shape[-1], layout=layout, rotated=cosine.shape[-1])
    rotated = rotation._rotate(split, cosine[:, None], sine[:, None])
    return rotated if heads is None else rotated.transpose(1, 2).flatten(2)


def test_rotary_embedding():
    cases = read_cases("RotaryEmbedding")
    assert len(cases) > 7
    for case in cases:
        # Two products and a sum, each rounded, of numbers of at most 1 times the largest input.
        bound = 3 * torch.finfo(torch.float32).eps * float(case.inputs["input"].abs().max())
        assert difference(rotate(case), case.outputs["output"]) <= bound, case.name


def test_exact_results_of_the_kit_are_theirs():
    """All outputs of all tests, but for the roundings of their dtype."""
    tests = [test for test in read_node_tests(*OPERATORS) if not test.without_case]
    assert len(tests) > 116
    for test in tests:
        exact = expected_outputs(test, make_case(test))
        for name, output in test.outputs.items():
            assert compare_output(name, output, *exact[name]) == (), (test.name, name)


@pytest.mark.parametrize(("runtime", "right"), [("onnxruntime", 174), ("onnx.reference", 234)])
def test_runtimes(runtime, right):
    """ONNX Runtime refuses dtypes and operators that it does not have; what is computed is right."""
    report = check_onnx_runtime(runtime)
    assert report.holds, report
    counts = report.counts()
    assert counts["right"] >= right
    assert counts["not tried"] == 2
    assert {outcome.reason for outcome in report.outcomes if outcome.verdict == "not tried"} == {f"its {PROB_MOD}"}


def test_attention_of_torch_passes_the_suite():
    report = check(torch.nn.functional.scaled_dot_product_attention, suite="onnx")
    assert report.holds, report
    assert report.counts()["right"] > 90


def test_scans_of_regard_pass_the_suite():
    """Kernels that take decays and rates: each test of LinearAttention is a case of one of three mechanisms."""

    def scan(query, key, value, log_decay, beta=None, scale=1.0, state=None):
        log_decay = log_decay[..., None] if log_decay.dim() == 3 else log_decay
        past = past_state(state, group=1)
        mechanism = LinearAttention(heads=query.shape[1], head_dim=query.shape[3], scale=scale, impl="auto")
        rates = {} if beta is None else {"beta": beta[..., None]}
        output, after = mechanism.step(query, key, value, past, decay=log_decay.expand_as(key), **rates)
        return output, after.sums

    counts = {}
    for mechanism in ONNX_SCANS:
        report = check(scan, mechanism=mechanism, suite="onnx", framework="torch")
        assert report.holds, report
        counts[mechanism] = report.counts()["right"]
    assert sum(counts.values()) >= 14, counts
