"""impl "fla": requests as flash-linear-attention takes them, and its kernels in Triton's interpreter (by night)."""

import dataclasses
import itertools
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import regard
from docs.pages import ROOT
from kernels.scan_inputs import VARIANTS, make_inputs
from regard import masks
from regard.conformance.oracles import scan as oracle
from regard.errors import RefusedError, ShapeError
from regard.kernels import select
from regard.kernels.hardware import Hardware
from regard.kernels.implementations import scan_fla
from regard.kernels.implementations.scan_fla import FLA, float32_reason, refusal, run_fla
from regard.kernels.reference.scan import ScanRequest
from regard.kernels.select import explain_choice

FRAMEWORKS = ROOT / "build" / "frameworks"
HOPPER = Hardware("cuda", (9, 0), has_triton=True)
FUNCTIONS = {
    "linear": ("simple_gla", "chunk_simple_gla"),
    "decay": ("simple_gla", "chunk_simple_gla"),
    "decay of channels": ("gla", "chunk_gla"),
    "delta": ("gated_delta_rule", "chunk_gated_delta_rule"),
    "gated delta": ("gated_delta_rule", "chunk_gated_delta_rule"),
    "delta of channels": ("kda", "chunk_kda"),
}


class StandIn:
    """The functions of fla as it documents them, token by token: tokens are (batch, length, heads, size)."""

    def __init__(self):
        self.called = []

    def find(self, module, function):
        self.called.append((module, function))
        return self.compute

    @staticmethod
    def compute(q, k, v, g, *, scale, output_final_state, beta=None, initial_state=None, cu_seqlens=None):
        assert output_final_state
        if cu_seqlens is not None:
            assert q.shape[0] == 1
            assert cu_seqlens.dtype == torch.int64
            assert initial_state is None or len(initial_state) == len(cu_seqlens) - 1
            results = []
            for text, (first, last) in enumerate(itertools.pairwise(cu_seqlens.tolist())):
                parts = [None if part is None else part[:, first:last].contiguous() for part in (q, k, v, g, beta)]
                state = None if initial_state is None else initial_state[text : text + 1]
                options = {"beta": parts.pop(), "initial_state": state, "scale": scale, "output_final_state": True}
                results.append(StandIn.compute(*parts, **options))
            return torch.cat([output for output, _ in results], 1), torch.cat([state for _, state in results])
        assert all(part.is_contiguous() for part in (q, k, v))
        assert g is None or g.dtype == torch.float32
        assert initial_state is None or initial_state.dtype == torch.float32
        wide = [None if part is None else part.double() for part in (q, k, v, g, beta)]
        query, key, value, gates, rates = wide
        batch, length, heads, head_dim = q.shape
        state = query.new_zeros(batch, heads, head_dim, v.shape[3]) if initial_state is None else initial_state.double()
        outputs = []
        for token in range(length):
            if gates is not None:
                decay = gates[:, token].exp()
                state = state * (decay[..., None, None] if gates.dim() == 3 else decay[..., None])
            update = value[:, token]
            if rates is not None:
                known = torch.einsum("bhk,bhkv->bhv", key[:, token], state)
                update = rates[:, token, :, None] * (update - known)
            state = state + key[:, token, :, :, None] * update[:, :, None]
            outputs.append(torch.einsum("bhk,bhkv->bhv", scale * query[:, token], state))
        return torch.stack(outputs, 1).to(q.dtype), state.float()


@pytest.fixture
def stand_in(monkeypatch):
    """Let impl "fla" compute on a CPU, by the stand-in."""
    functions = StandIn()
    monkeypatch.setattr(scan_fla, "_find_kernel", functions.find)
    anywhere = dataclasses.replace(FLA, refuses=lambda request: None)
    monkeypatch.setitem(select._IMPLEMENTATIONS_BY_NAME["scan"], "fla", anywhere)
    return functions


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_is_passed_to_its_function(variant):
    functions = StandIn()
    inputs = {name: None if part is None else part.float() for name, part in make_inputs(variant, 17, 5, 7).items()}
    result = run_fla(ScanRequest(**inputs, scale=0.3), functions.find)
    assert functions.called == [FUNCTIONS[variant]]
    arrays = {name: part.double().numpy() for name, part in inputs.items() if part is not None}
    if "beta" in arrays:
        arrays["beta"] = arrays["beta"][..., 0]
    for actual, expected in zip(result, oracle.scan(**arrays, scale=0.3), strict=True):
        assert actual.dtype == torch.float32
        np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=(17 + 5) * 2**-24 * np.abs(expected).max())


STARTS = torch.zeros(2, 17, dtype=torch.bool)
STARTS[0, [3, 4, 11]] = STARTS[1, [0, 16]] = True  # the second row begins with a text that continues none


def scan_texts(inputs, starts, scale):
    """The oracle of each text of each row: output, and the state after the last text of the row."""
    outputs, states = [], []
    for row, begins in enumerate(starts):
        bounds = [0, *(begins.nonzero()[:, 0] + 0).tolist(), begins.shape[0]]
        state = None if inputs.get("state") is None else inputs["state"][row : row + 1]
        for number, (first, last) in enumerate(itertools.pairwise(bounds)):
            state = state if number == 0 else None
            if first < last:
                tokens = {name: part[row : row + 1, :, first:last] for name, part in inputs.items() if name != "state"}
                output, final = oracle.scan(**tokens, state=state, scale=scale)
                outputs.append(output)
        states.append(final)
    rows = np.split(np.concatenate(outputs, 2), len(starts), 2)
    return np.concatenate(rows), np.concatenate(states)


@pytest.mark.parametrize("has_state", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_several_texts_in_a_row(variant, has_state):
    inputs = {name: None if part is None else part.float() for name, part in make_inputs(variant, 17, 5, 7).items()}
    if not has_state:
        inputs["state"] = None
    arrays = {name: part.double().numpy() for name, part in inputs.items() if part is not None}
    if "beta" in arrays:
        arrays["beta"] = arrays["beta"][..., 0]
    exact = scan_texts(arrays, STARTS, 0.3)
    request = ScanRequest(**inputs, scale=0.3, starts=STARTS)
    for result in (
        run_fla(request, StandIn().find),
        *(select.select("scan", impl, request).compute(request) for impl in ("native", "reference")),
    ):
        for actual, expected in zip(result, exact, strict=True):
            assert actual.dtype == torch.float32
            close = (17 + 5) * 2**-24 * np.abs(expected).max()
            np.testing.assert_allclose(actual.numpy(), expected, rtol=0, atol=close)


@pytest.mark.parametrize("variant", VARIANTS)
def test_earlier_texts_have_no_influence(variant):
    inputs = {name: None if part is None else part.float() for name, part in make_inputs(variant, 17, 5, 7).items()}
    first = run_fla(ScanRequest(**inputs, starts=STARTS), StandIn().find)
    other = inputs | {"state": inputs["state"] * 3.0, "value": inputs["value"].clone()}
    other["value"][0, :, :11] = torch.nan
    result = run_fla(ScanRequest(**other, starts=STARTS), StandIn().find)
    assert torch.equal(result.output[0, :, 11:], first.output[0, :, 11:])
    assert torch.equal(result.output[1], first.output[1])
    assert torch.equal(result.state, first.state)


def test_starts_that_do_not_fit_are_refused():
    inputs = {name: None if part is None else part.float() for name, part in make_inputs("linear", 17, 5, 7).items()}
    for starts in (STARTS[:1], STARTS.long()):
        with pytest.raises(ShapeError, match="starts do not fit the query"):
            run_fla(ScanRequest(**inputs, starts=starts), StandIn().find)


SCANS = ("retention", "gated_linear", "mamba2", "gated_delta", "kda")


@pytest.mark.parametrize("impl", ["native", "reference", "fla"])
@pytest.mark.parametrize("name", [*SCANS, "linear", "performer"])
def test_documents_are_texts_of_their_own(name, impl, stand_in):
    """Each text alone is the oracle, also for gradients and with NaN in another text; the last text is padded."""
    torch.default_generator.manual_seed(5)
    lengths = (5, 1, 67, 64, 3)
    total, size = sum(lengths), 5
    layer = regard.mechanism(name, heads=2, head_dim=size, impl=impl)
    tokens = [torch.randn(2, heads, total, size, requires_grad=True) for heads in (2, 1, 1)]
    inputs = {extra.name: torch.randn(2, extra.heads, total, extra.size) for extra in layer.extra_inputs}
    ids = torch.repeat_interleave(torch.tensor([4, 9, 2, 0, 7]), torch.tensor(lengths))
    whole = layer(*tokens, masks.documents(ids) & masks.causal() & masks.padding([total, total - 2]), **inputs)
    parts, first = [], 0
    for length in lengths:
        span = slice(first, first + length)
        mask = masks.causal() & masks.padding([length, length - 2 if span.stop == total else length])
        extras = {label: tensor[:, :, span] for label, tensor in inputs.items()}
        parts.append(layer(*(side[:, :, span] for side in tokens), mask, **extras))
        first = span.stop
    alone = torch.cat(parts, 2)
    close = 5e-6 * float(alone.detach().abs().max())
    torch.testing.assert_close(whole, alone, rtol=0, atol=close)
    upstream = torch.randn(whole.shape)
    for ours, theirs in zip(*(torch.autograd.grad(part, tokens, upstream) for part in (whole, alone)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5 * float(theirs.abs().max()))
    key = tokens[1].detach().clone()
    key[:, :, 3] = torch.nan
    mask = masks.documents(ids) & masks.padding([total, total - 2])
    if name not in SCANS:  # a scan hides later keys itself
        mask = mask & masks.causal()
    poisoned = layer(tokens[0], key, tokens[2], mask, **inputs)
    assert poisoned[:, :, 3:5].isnan().all()
    clean = torch.cat([poisoned[:, :, :3], poisoned[:, :, 5:]], 2)
    expected = torch.cat([whole[:, :, :3], whole[:, :, 5:]], 2)
    torch.testing.assert_close(clean, expected, rtol=0, atol=close)


@pytest.mark.parametrize("impl", ["native", "reference", "fla"])
def test_weights_of_keys_are_those_of_their_text(impl, stand_in):
    """Weights of Performer's keys are divided by the largest so far: here the ones of other texts would leave 0/0."""
    torch.default_generator.manual_seed(5)
    layer = regard.mechanism("performer", heads=2, head_dim=5, seed=3, impl=impl)
    query, key, value = (torch.randn(1, 2, 203, 5) for _ in range(3))
    ids = torch.arange(203)[None] // 67
    key[:, :, ids[0] == 1] *= 30.0  # a weight is about exp(-|k|^2 / 2): the others weigh far more
    key[:, :, ids[0] == 2] *= 0.1
    whole = layer(query, key, value, masks.causal() & masks.documents(ids))
    for text in range(4):
        own = ids[0] == text
        alone = layer(query[:, :, own], key[:, :, own], value[:, :, own], masks.causal())
        torch.testing.assert_close(whole[:, :, own], alone, rtol=0, atol=2e-5 * float(alone.abs().max()))


@pytest.mark.parametrize(
    "mask",
    [
        masks.documents([0, 0, 1, 1, 0]),
        masks.documents([0, 0, 1, 1, 2], query_ids=[0, 0, 1, 1, 2]),
        masks.documents([0, 0, 1, 1, 2]) & masks.window(1, None),
    ],
    ids=str,
)
def test_documents_that_are_no_runs_are_refused(mask):
    query = torch.randn(1, 2, 5, 3)
    with pytest.raises(RefusedError, match="several documents must be runs of tokens"):
        regard.mechanism("retention", heads=2, head_dim=3)(query, query, query, mask)


@pytest.mark.parametrize("other", [None, masks.window(1, 1), masks.window(1, 0)], ids=str)
@pytest.mark.parametrize("name", ["linear", "performer"])
def test_documents_without_a_causal_mask_are_refused(name, other):
    query, documents = torch.randn(1, 2, 5, 3), masks.documents([0, 0, 1, 1, 2])
    layer = regard.mechanism(name, heads=2, head_dim=3)
    with pytest.raises(RefusedError, match="under a causal mask"):
        layer(query, query, query, documents if other is None else documents & other)
    assert layer(query, query, query, documents & masks.causal()).isfinite().all()


def test_a_decay_of_0_resets_the_state():
    inputs = make_inputs("decay", 17, 5, 7)
    inputs["log_decay"][:, :, 9] = -torch.inf
    inputs = {name: None if part is None else part.float() for name, part in inputs.items()}
    result = run_fla(ScanRequest(**inputs), StandIn().find)
    poisoned = inputs | {"state": inputs["state"] * 3.0, "value": inputs["value"].clone()}
    poisoned["value"][:, :, :9] = 1e6
    other = run_fla(ScanRequest(**poisoned), StandIn().find)
    assert torch.equal(other.output[:, :, 9:], result.output[:, :, 9:])


MECHANISMS = ("linear", "retention", "gated_linear", "mamba2", "gated_delta", "kda", "performer")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MECHANISMS)
def test_mechanisms_take_it(name, dtype, stand_in):
    torch.default_generator.manual_seed(5)
    layers = [regard.mechanism(name, heads=2, head_dim=5, impl=impl).to(dtype) for impl in ("fla", "reference")]
    layers[1].load_state_dict(layers[0].state_dict())
    query, key, value = (torch.randn(2, heads, 13, 5).to(dtype) for heads in (2, 1, 1))
    inputs = {extra.name: torch.randn(2, extra.heads, 13, extra.size).to(dtype) for extra in layers[0].extra_inputs}
    mask = masks.padding([13, 7]) & masks.causal()
    ours, theirs = (layer(query, key, value, mask, **inputs) for layer in layers)
    assert stand_in.called
    # In bfloat16, tokens are rounded once more, by 2^-9: two factors of a product and a value, of at most 13 of them.
    unit = 2e-6 if dtype == torch.float32 else 2.0**-8
    torch.testing.assert_close(ours, theirs, rtol=0, atol=13 * unit * float(theirs.detach().abs().max()))
    poisoned = [side.clone() for side in (key, value)]
    for side in poisoned:
        side[1, :, 7:] = torch.nan
    extras = {extra.name: inputs[extra.name].clone() for extra in layers[0].extra_inputs}
    for tensor in extras.values():
        tensor[1, :, 7:] = torch.nan
    assert torch.equal(layers[0](query, *poisoned, mask, **extras), ours)  # padding is exact, bit by bit


@pytest.mark.parametrize("name", MECHANISMS)
def test_masks_without_a_form_are_refused(name, stand_in):
    layer = regard.mechanism(name, heads=2, head_dim=5, impl="fla")
    query = torch.randn(1, 2, 13, 5)
    with pytest.raises(RefusedError, match="a mask must be causal, hide keys from all queries, or both"):
        layer(query, query, query, masks.window(3, 0))
    assert not stand_in.called


def test_decoding_continues_from_a_state(stand_in):
    layer = regard.mechanism("gated_delta", heads=2, head_dim=5, impl="fla")
    query, key, value = (torch.randn(1, 2, 13, 5) for _ in range(3))
    whole = layer(query, key, value, masks.causal())
    state, parts = layer.empty_state(), []
    for first, last in ((0, 7), (7, 8), (8, 13)):
        part, state = layer.step(*(side[:, :, first:last] for side in (query, key, value)), state, masks.causal())
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 2), whole, rtol=0, atol=1e-6)


def test_gradients_of_gradients_are_refused(stand_in):
    layer = regard.mechanism("retention", heads=2, head_dim=5, impl="fla")
    query = torch.randn(1, 2, 13, 5, requires_grad=True)
    output = layer(query, query, query, masks.causal()).sum()
    with pytest.raises(RefusedError, match="'fla' has no second derivatives"):
        torch.autograd.grad(output, query, create_graph=True, retain_graph=True)
    assert torch.autograd.grad(output, query)[0].isfinite().all()


def ask(target=HOPPER, dtype=torch.bfloat16, length=13, head_dim=5, beta=None):
    query = torch.zeros(1, 2, length, head_dim, dtype=dtype)
    return refusal(ScanRequest(query, query, query, beta=beta), target)


def test_refusals(monkeypatch):
    assert ask() is None
    assert "on cpu" in ask(Hardware("cpu"))
    assert "on mps" in ask(Hardware("mps"))
    assert "Triton, which is not installed" in ask(Hardware("cuda", (9, 0)))
    assert "no float64" in ask(dtype=torch.float64)
    assert "at least one token" in ask(length=0)
    assert ask(head_dim=257) is None
    assert "at most 256" in ask(head_dim=257, beta=torch.zeros(1, 2, 13, 1))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "break the graph" in ask()


def test_auto_takes_it_in_half_precision(monkeypatch):
    half, single = (torch.zeros(1, 2, 13, 5, dtype=dtype) for dtype in (torch.bfloat16, torch.float32))
    assert float32_reason(ScanRequest(half, half, half)) is None
    assert "TF32" in float32_reason(ScanRequest(single, single, single))
    choice = explain_choice("scan", ScanRequest(single, single, single))
    assert "on cpu" in choice.reasons["fla"]
    on_device = dataclasses.replace(FLA, refuses=lambda request: None)
    monkeypatch.setitem(select._IMPLEMENTATIONS, "scan", (on_device, select._IMPLEMENTATIONS["scan"][-1]))
    assert explain_choice("scan", ScanRequest(half, half, half)).impl == "fla"
    assert "not measured on a device" in explain_choice("scan", ScanRequest(half, half, half)).reasons["fla"]
    assert explain_choice("scan", ScanRequest(single, single, single)).impl == "reference"


@pytest.mark.slow
def test_the_kernels_of_fla_agree_with_the_oracle():
    """Forward and backward, with an initial state, in float32: an error is that of a sum of 67 + 16 products."""
    assert FRAMEWORKS.is_dir(), "make frameworks installs Triton and flash-linear-attention"
    path = os.pathsep.join([str(FRAMEWORKS), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, "-W", "ignore", "-m", "kernels.fla_in_interpreter"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found.keys() == {*VARIANTS, *(f"{variant}, several texts" for variant in VARIANTS)}
    for variant, errors in found.items():
        assert len(errors) >= 6
        for name, error in errors.items():
            assert error <= 67 + 16, (variant, name, error)
