"""The node tests of the package ``onnx`` for its operators of attention, each computed by regard.

The expected numbers are theirs; tolerances are bounds of the roundings of their reference in the dtype of the case.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from peers.onnx_attention import attention_call, attention_outputs, flex_call
from peers.onnx_cases import OnnxCase, read_cases
from peers.onnx_linear_attention import compute
from regard.conformance import check
from regard.conformance.onnx_cases import make_case, read_node_tests
from regard.positions import Rotary

pytestmark = pytest.mark.slow

PROB_MOD = "FlexAttention may change the weights after the softmax, which attention of regard does not"


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


def test_cases_of_the_kit_have_their_results():
    """The exact results of ``regard conform --suite onnx`` are theirs but for the roundings of their dtype."""
    tests = list(read_node_tests("Attention"))
    assert len(tests) > 90
    for test in tests:
        case, output = make_case(test), test.outputs["Y"].astype(np.float64)
        if output.ndim == 3:
            output = output.reshape(*output.shape[:2], case.layout.heads, -1).swapaxes(1, 2)
        error = np.abs(output - case.expected.output).max()
        assert error <= case.bounds(test.inputs["Q"].dtype.name)["output"], test.name


def test_attention_of_torch_passes_the_suite():
    report = check(torch.nn.functional.scaled_dot_product_attention, suite="onnx")
    assert report.holds, report
    assert report.counts()["right"] > 80
