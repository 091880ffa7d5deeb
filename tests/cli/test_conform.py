"""``regard conform``: exit codes, the table, JSON, vectors and models of ONNX."""

import json

import pytest
from safetensors.numpy import load_file

from regard.errors import OptionError
from shell_command import error_message, output, run

KERNEL = """
import numpy as np

def attention(q, k, v, causal=False):
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(part, group, 1) for part in (k, v))
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1])
    visible = np.tri(*scores.shape[2:], scores.shape[3] - scores.shape[2], dtype=bool) if causal else True
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), -1e30))
    weights = weights / np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return weights @ v

def exclusive(q, k, v, causal=False):
    return attention(q, k[:, :, :-1], v[:, :, :-1]) if causal else attention(q, k, v)
"""


@pytest.fixture(autouse=True)
def kernel(tmp_path, monkeypatch):
    """A module of the current folder, with a name of its own for each test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    name = f"kernel_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(KERNEL, encoding="utf-8")
    return name


def test_wrong_function_exits_with_1_and_says_why(kernel):
    result = run("conform", f"{kernel}:exclusive", columns=200)
    assert result.exit_code == 1, result.output
    assert "Faults that explain wrong results" in result.stdout
    assert "not tried" in result.stdout
    report = json.loads(run("conform", f"{kernel}:exclusive", "--json").stdout)
    assert report["holds"] is False
    assert report["framework"] == "numpy"
    assert report["counts"]["wrong"] == len([part for part in report["outcomes"] if part["verdict"] == "wrong"]) > 0


def test_inf_and_nan_behind_masks_alone_are_wrong_for_a_usual_kernel(kernel):
    report = json.loads(run("conform", f"{kernel}:attention", "--json").stdout)
    assert report["holds"]
    assert report["counts"]["right"] > 20
    report = json.loads(run("conform", f"{kernel}:attention", "--strict", "--json").stdout)
    assert report["causes"]
    assert all("hidden" in cause for cause in report["causes"])


def test_function_that_cannot_be_tried(kernel):
    assert "expected: MODULE:FUNCTION" in error_message(OptionError, "conform")
    assert "has no nothing" in error_message(OptionError, "conform", f"{kernel}:nothing")
    assert "there is no module" in error_message(OptionError, "conform", "no_such_kernel:attention")
    assert OptionError.exit_code == 2


def test_list_of_cases():
    listed = json.loads(run("conform", "--list", "--json", "--mechanism", "gated_delta").stdout)
    assert len(listed) == 21
    assert listed[0] == {"case": "1 token", "note": ""}
    assert "padding on the right" in output("conform", "--list")


@pytest.mark.slow
def test_list_of_node_tests():
    lines = output("conform", "--list", "--suite", "onnx").splitlines()
    assert len(lines) > 230
    assert "attention_4d_causal: a case of dot_product" in lines
    assert "linear_attention_gated_delta: a case of kda" in lines
    assert sum("not tried, since its prob_mod" in line for line in lines) == 2


def test_vectors(tmp_path):
    assert "21 cases" in output("conform", "--vectors", "cases.safetensors", "--mechanism", "gated_delta")
    assert "0/expected/output" in load_file(tmp_path / "cases.safetensors")


def test_model_of_onnx(tmp_path):
    from onnx import TensorProto, helper, save

    entries = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", f"h{name}", f"l{name}", "d"]) for name in "QKV"
    ]
    node = helper.make_node("Attention", ["Q", "K", "V"], ["Y"], softcap=2.0)
    graph = helper.make_graph([node], "graph", entries, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), tmp_path / "model.onnx")
    result = run("conform", "model.onnx", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["counts"]["right"] > 5
    graph.node[0].op_type = "Relu"
    del graph.node[0].attribute[:], graph.node[0].input[1:]
    save(helper.make_model(graph), tmp_path / "other.onnx")
    assert "have no effect" in error_message(OptionError, "conform", "model.onnx", "--mask", "hidden")
    assert "have no effect" in error_message(OptionError, "conform", "onnxruntime", "--mask", "hidden")
    assert "is not one node of Attention" in error_message(OptionError, "conform", "other.onnx")


ATTENTIONS = {
    "past": (23, ["", "past_key", "past_value"], ["present_key", "present_value"], {"is_causal": 1}),
    "lengths": (24, ["", "", "", "nonpad_kv_seqlen"], [], {"is_causal": 1}),
    "heads": (23, ["attn_mask"], [], {"q_num_heads": 6, "kv_num_heads": 2, "scale": 0.4}),
    "window": (25, ["", "past_key", "past_value"], ["present_key", "present_value"], {"left_window_size": 2}),
    "scores": (23, [], ["", "", "scores"], {"qk_matmul_output_mode": 1, "softcap": 2.0}),
    "masked scores": (23, [], ["", "", "scores"], {"qk_matmul_output_mode": 2, "is_causal": 1}),
    "weights": (23, [], ["", "", "scores"], {"qk_matmul_output_mode": 3}),
}
"""Opset, inputs and outputs after the first ones, and attributes of a node of Attention."""


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_of_onnx_with_caches(name, tmp_path):
    from onnx import TensorProto, helper, save

    from regard.conformance.onnx_model import check_onnx_model

    opset, inputs, outputs, attributes = ATTENTIONS[name]
    kinds = {"attn_mask": (TensorProto.BOOL, ["b", "h", "q", "k"]), "nonpad_kv_seqlen": (TensorProto.INT64, ["b"])}
    rank = 3 if "q_num_heads" in attributes else 4
    entries = [
        helper.make_tensor_value_info(part, kind, [f"{part}{size}" for size in sizes])
        for part in ["Q", "K", "V", *inputs]
        if part
        for kind, sizes in [kinds.get(part, (TensorProto.FLOAT, "bhld"[: 4 if "past" in part else rank]))]
    ]
    node = helper.make_node("Attention", ["Q", "K", "V", *inputs], ["Y", *outputs], **attributes)
    results = [helper.make_tensor_value_info(part, TensorProto.FLOAT, None) for part in ["Y", *outputs] if part]
    model = helper.make_model(
        helper.make_graph([node], "graph", entries, results),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
    )
    save(model, tmp_path / "model.onnx")
    report = check_onnx_model(tmp_path / "model.onnx")
    assert report.holds, report
    assert report.counts()["right"] > 7
    compared = [outcome.case for outcome in report.outcomes if "queries and" in outcome.case]
    assert len(compared) == 3 * (len([part for part in outputs if part]) + (len(inputs) == 4 or bool(outputs)))


def test_doctor(monkeypatch):
    """NaN for a query that sees no key is known of two of three calls of torch, and there is advice for each."""
    from regard.conformance import torch_calls

    layer = "nn.MultiheadAttention, "
    names = [f"{layer}need_weights=False", f"{layer}need_weights=True", f"{layer}inference, need_weights=False"]
    chosen = [call for call in torch_calls.CALLS if call.name in names]
    monkeypatch.setattr(torch_calls, "CALLS", chosen)
    result = run("doctor", "--json")
    assert result.exit_code == 1, result.output
    calls = {call["call"]: call for call in json.loads(result.stdout)["calls"]}
    assert calls[names[1]]["counts"]["right"] < calls[names[0]]["counts"]["right"]
    for name, do, issue in (
        (names[1], "need_weights=False", "160064"),
        (names[2], "set_fastpath_enabled(False)", "190486"),
    ):
        (empty,) = (row for row in calls[name]["advice"] if "sees no key" in row["fault"])
        assert do in empty["do"]
        assert empty["issue"].endswith(issue)
    assert "instead: set hidden keys and values to 0" in " ".join(run("doctor").stdout.split())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_inference_takes_the_fast_path(monkeypatch):
    """The kit calls it for each case of self-attention; queries that see no key aside, its results are right."""
    import torch

    from regard.conformance import check, torch_calls

    taken, compute = [], torch._native_multi_head_attention
    monkeypatch.setattr(torch, "_native_multi_head_attention", lambda *rest: taken.append(rest) or compute(*rest))
    for function in (
        *(torch_calls.fast_path(need_weights=flag) for flag in (False, True)),
        torch_calls.nested_fast_path,
    ):
        taken.clear()
        report = check(function, framework="torch", strict=True)
        assert all("sees no key" in cause for cause in report.causes()), report
        assert len(taken) > report.counts()["right"] >= 9
        reasons = [outcome.reason for outcome in report.outcomes if outcome.verdict == "refused"]
        assert all("self-attention" in reason or "Inf and NaN" in reason for reason in reasons), reasons


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch warns about attention that is not compiled
def test_flex_attention_without_gradients_is_right():
    from regard.conformance import check, torch_calls

    report = check(torch_calls.flex_attention, framework="torch", strict=True)
    assert all("inf or nan" in cause for cause in report.causes())
    assert report.counts()["right"] > 60
    assert any("backward" in outcome.reason for outcome in report.outcomes)
