"""Tools of torch that rewrite or trace modules: ``quantize_dynamic`` and ``torch.onnx.export``."""

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_dynamic

import regard
from regard import masks
from regard.errors import ArgumentError, RefusedError
from regard.layers import FeedForward, GatedDeltaNet, Mamba2Mixer, MultiHeadAttention, encoder_block

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("DeprecationWarning", "FutureWarning", "UserWarning")
]  # of torch about its own tools

TOKENS = torch.linspace(-1, 1, 2 * 7 * 32).view(2, 7, 32).sin()
LAYERS = {
    "attention": lambda: MultiHeadAttention(32, 4),
    "longformer": lambda: MultiHeadAttention(32, 4, mechanism="longformer", mechanism_options={"window": 4}),
    "linformer": lambda: MultiHeadAttention(
        32, 4, mechanism="linformer", mechanism_options={"length": 7, "projected": 3}
    ),
    "encoder block": lambda: encoder_block(32, 4, 64),
    "feed-forward": lambda: FeedForward(32, 64),
    "gated delta net": lambda: GatedDeltaNet(32, 4, head_dim=8),
    "mamba 2": lambda: Mamba2Mixer(32, 4, value_dim=8, state_size=8),
}


def build(name):
    torch.manual_seed(3)
    return LAYERS[name]().eval()


@pytest.mark.parametrize("name", LAYERS)
def test_dynamically_quantized_layers(name):
    """Their linear layers have a packed weight, which is no tensor, and round to 8 bits: an error of some per cent."""
    layer = build(name)
    with torch.no_grad():
        expected = layer(TOKENS)
        output = quantize_dynamic(layer, {nn.Linear}, dtype=torch.qint8)(TOKENS)
    assert not torch.equal(output, expected)
    assert float((output - expected).abs().max()) < 0.1 * float(expected.abs().max())


@pytest.mark.parametrize("name", ["attention", "encoder block", "gated delta net"])
def test_the_older_exporter_of_onnx_is_refused_with_the_newer_one(name, tmp_path):
    pytest.importorskip("onnx")
    with pytest.raises(ArgumentError) as caught:
        torch.onnx.export(build(name), (TOKENS,), tmp_path / "model.onnx", dynamo=False)
    assert "dynamo=True" in caught.value.do


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "gated delta net"])
def test_layers_have_an_onnx_graph(name):
    """It has operations of ONNX alone, and none of the kernels."""
    pytest.importorskip("onnxscript")
    layer = build(name)
    program = torch.onnx.export(layer, (TOKENS,), dynamo=True, verbose=False)
    assert {node.domain for node in program.model.graph} <= {"", "pkg.onnxscript.torch_lib.common"}
    evaluated = program.call_reference({program.model.graph.inputs[0].name: TOKENS})[0]
    torch.testing.assert_close(torch.as_tensor(evaluated), layer(TOKENS), rtol=0, atol=1e-5)


def find_refusal(error):
    """The error of regard among the causes of an error; None if there is none."""
    while error is not None and not isinstance(error, RefusedError):
        error = error.__cause__
    return error


class Masked(nn.Module):
    """A layer that is always called with the same mask."""

    def __init__(self, layer, mask):
        super().__init__()
        self.layer, self.mask = layer, mask

    def forward(self, tokens):
        return self.layer(tokens, mask=self.mask)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [row.name for row in regard.catalogue()])
def test_every_mechanism_has_an_onnx_graph_or_is_refused_in_words(name, causal, tmp_path):
    """ONNX Runtime computes what the layer does, with all that it optimizes."""
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(3)
    options = {"linformer": {"length": 7, "projected": 3}, "longformer": {"window": 4}}.get(name)
    layer = MultiHeadAttention(32, 4, mechanism=name, mechanism_options=options).eval()
    model = Masked(layer, masks.causal() if causal else None)
    with torch.no_grad():
        try:
            expected = model(TOKENS)
        except RefusedError:
            return  # a mechanism without causal masks
        try:
            program = torch.onnx.export(model, (TOKENS,), dynamo=True, verbose=False)
        except Exception as error:  # of torch's exporter, which wraps every error
            refusal = find_refusal(error)
            if refusal is None:
                raise
            program = None
    if program is None:
        assert "ONNX" in str(refusal)
        return
    program.save(tmp_path / "model.onnx")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: TOKENS.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_what_onnx_cannot_compute_is_refused_in_words():
    pytest.importorskip("onnxscript")
    with pytest.raises(Exception, match=r".") as caught:  # of torch's exporter, which wraps every error
        torch.onnx.export(build("gated delta net"), (TOKENS,), dynamo=True, verbose=False)
    assert "delta rule has no ONNX graph" in find_refusal(caught.value).what
