"""``regard.convert``: attention of torch and of transformers, computed by regard with the same results."""

from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import regard
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.layers.torch_attention import TorchAttention
from script_process import run_script
from unit.hf.model_types import MODEL_TYPES

WIDTH, HEADS, BATCH, QUERIES, KEYS = 20, 4, 3, 7, 11
CAUSAL = nn.Transformer.generate_square_subsequent_mask(QUERIES)
PADDING = torch.arange(QUERIES) >= torch.tensor([[7], [5], [3]])
BY_NAME = {kind.name: kind for kind in MODEL_TYPES}


def both(module: nn.Module) -> tuple[nn.Module, nn.Module]:
    """A module of torch with weights that no bias is 0 in, and its converted copy."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    converted = copy.deepcopy(module)
    regard.convert(converted)
    return module, converted


def assert_equal_with_gradients(theirs: nn.Module, ours: nn.Module, compute) -> None:
    """The outputs of ``compute(module)``, a list, and the gradients of all weights."""
    expected, found = compute(theirs), compute(ours)
    assert_close(found, expected, atol=1e-5, rtol=1e-5)
    upstream = [torch.randn_like(one) for one in expected]
    for module, outputs in ((theirs, expected), (ours, found)):
        module.zero_grad()
        torch.autograd.backward(outputs, upstream)
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 5, "vdim": 6}], ids=lambda options: "+".join(options) or "default"
)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("attn", [None, "bool", "float", "bias", "heads"])
@pytest.mark.parametrize("padding", [None, "bool", "float"])
@pytest.mark.filterwarnings("ignore:Support for mismatched")
def test_multihead_attention(padding, attn, need_weights, options, batch_first):
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=batch_first, **options))
    assert type(ours) is TorchAttention
    blocked = torch.rand(QUERIES, KEYS) < 0.4
    blocked[:, 0] = False  # every query attends to a key: elsewhere torch has NaN
    additive = torch.zeros(QUERIES, KEYS).masked_fill(blocked, -torch.inf)
    attn_mask = {
        None: None,
        "bool": blocked,
        "float": additive,
        "bias": additive + torch.randn(QUERIES, KEYS),
        "heads": additive + torch.randn(BATCH * HEADS, QUERIES, KEYS),
    }[attn]
    hidden = torch.arange(KEYS) >= torch.tensor([[11], [8], [4]])
    key_padding_mask = {None: None, "bool": hidden, "float": torch.zeros(BATCH, KEYS).masked_fill(hidden, -torch.inf)}
    widths = (WIDTH, options.get("kdim", WIDTH), options.get("vdim", WIDTH))
    lengths = (QUERIES, KEYS, KEYS)
    tokens = [torch.randn(BATCH, length, width) for length, width in zip(lengths, widths, strict=True)]
    tokens = tokens if batch_first else [one.transpose(0, 1) for one in tokens]

    def compute(module: nn.Module) -> list[Tensor]:
        output, weights = module(
            *tokens, key_padding_mask=key_padding_mask[padding], attn_mask=attn_mask, need_weights=need_weights
        )
        assert (weights is not None) == need_weights
        return [output, weights] if need_weights else [output]

    assert_equal_with_gradients(theirs, ours, compute)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("average", [False, True])
def test_self_attention_of_one_text_and_weights_of_each_head(average, training):
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS).train(training))
    tokens, padding = torch.randn(QUERIES, WIDTH), torch.arange(QUERIES) > 4
    for masks in ({}, {"key_padding_mask": padding}, {"attn_mask": CAUSAL.expand(HEADS, -1, -1)}):

        def compute(module, masks=masks):
            return list(module(tokens, tokens, tokens, average_attn_weights=average, **masks))

        assert_equal_with_gradients(theirs, ours, compute)
        with torch.no_grad():
            assert_close(compute(ours), compute(theirs), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("keys", [QUERIES, KEYS])
def test_is_causal(keys, padded, need_weights):
    """The mask is read beside padding and for weights; else the hint counts, which aligns the first tokens."""
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    query, key = torch.randn(BATCH, QUERIES, WIDTH), torch.randn(BATCH, keys, WIDTH)
    mask = torch.ones(QUERIES, keys, dtype=torch.bool).triu(1)
    padding = torch.arange(keys) >= torch.tensor([[keys], [5], [3]]) if padded else None

    def compute(module):
        output, weights = module(
            query, key, key, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights, is_causal=True
        )
        return [output] if weights is None else [output, weights]

    assert_equal_with_gradients(theirs, ours, compute)


def test_low_numbers_are_a_bias():
    """A row of -1e9 alone has the weights of a row of 0, in torch and here; -inf hides."""
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    tokens, mask = torch.randn(BATCH, QUERIES, WIDTH), torch.zeros(QUERIES, QUERIES)
    mask[2], mask[3, 1:] = -1e9, -1e9
    assert_close(ours(tokens, tokens, tokens, attn_mask=mask), theirs(tokens, tokens, tokens, attn_mask=mask))


def test_a_trained_mask_has_a_gradient():
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    tokens, mask = torch.randn(BATCH, QUERIES, WIDTH), CAUSAL.clone().requires_grad_()
    gradients = [
        torch.autograd.grad(one(tokens, tokens, tokens, attn_mask=mask, need_weights=False)[0].square().sum(), mask)[0]
        for one in (theirs, ours)
    ]
    assert_close(gradients[1], gradients[0].nan_to_num(0.0), atol=1e-5, rtol=1e-5)
    assert gradients[1].any()


def test_a_query_without_keys_gives_0():
    """Where torch has NaN."""
    _, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    nn.init.zeros_(ours.out_proj.bias)
    tokens = torch.randn(BATCH, QUERIES, WIDTH)
    output, weights = ours(
        tokens, tokens, tokens, key_padding_mask=torch.tensor([[False], [True], [False]]).expand(3, 7)
    )
    assert not output[1].any()
    assert not weights[1].any()
    assert output[::2].all()


def test_dropout():
    """Weights that are kept are scaled, so that the mean of many draws is the output without dropout."""
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, dropout=0.5, batch_first=True))
    tokens = torch.randn(BATCH, QUERIES, WIDTH)
    with torch.no_grad():
        expected, weights = theirs.eval()(tokens, tokens, tokens)
        many = tokens.repeat(100, 1, 1)
        draws = torch.cat([ours.train()(many, many, many)[0].view(100, *tokens.shape) for _ in range(20)])
        # Six standard errors: one draw of a coordinate is at most some units from the mean.
        assert_close(draws.mean(0), expected, atol=6 * float(draws.std(0).max()) / 2000**0.5, rtol=0)
        assert_close(ours(tokens, tokens, tokens)[1], weights, atol=1e-5, rtol=1e-5)
        assert_close(ours.eval()(tokens, tokens, tokens)[0], expected, atol=1e-5, rtol=1e-5)
        ours.train().dropout = 0.0
        assert_close(ours(tokens, tokens, tokens)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@torch.no_grad()
def test_other_dtypes(dtype):
    theirs, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to(dtype))
    tokens = torch.randn(BATCH, QUERIES, WIDTH, dtype=dtype)
    masks = {"attn_mask": CAUSAL.to(dtype), "key_padding_mask": torch.zeros(BATCH, QUERIES, dtype=dtype)}
    found, expected = (one(tokens, tokens, tokens, **masks) for one in (ours, theirs))
    assert found[0].dtype == found[1].dtype == dtype
    exact = copy.deepcopy(theirs).double()(*[tokens.double()] * 3, attn_mask=CAUSAL.double())
    for mine, other, true in zip(found, expected, exact, strict=True):
        limit = 1e-12 if dtype == torch.float64 else 2 * float((other.double() - true).abs().max())
        assert float((mine.double() - true).abs().max()) <= limit


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_autocast(masked):
    theirs, ours = both(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, dropout=0.0, batch_first=True))
    tokens = torch.randn(BATCH, QUERIES, WIDTH)
    masks = {"src_mask": CAUSAL + torch.randn(QUERIES, QUERIES)} if masked else {}
    exact = theirs(tokens, **masks)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = ours(tokens, **masks), theirs(tokens, **masks)
    assert found.dtype == expected.dtype
    assert float((found - exact).abs().max()) < 2 * float((expected - exact).abs().max())


MASKS = {
    "none": {},
    "causal": {"mask": CAUSAL},
    "bool": {"mask": CAUSAL < 0},
    "hint": {"mask": CAUSAL, "is_causal": True},
    "padding": {"src_key_padding_mask": PADDING},
    "both": {"mask": CAUSAL < 0, "src_key_padding_mask": PADDING},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
def test_transformer_encoder(norm_first, batch_first, masks, monkeypatch):
    """In training, in eval mode with gradients, and without them, where torch has its fast path."""
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, dropout=0.0, activation="gelu", batch_first=batch_first, norm_first=norm_first
    )
    theirs, ours = both(nn.TransformerEncoder(layer, 2))
    tokens = torch.randn(BATCH, QUERIES, WIDTH) if batch_first else torch.randn(QUERIES, BATCH, WIDTH)
    real = ~PADDING if "padding" in masks or masks == "both" else torch.ones(BATCH, QUERIES, dtype=torch.bool)
    calls = []
    forward = TorchAttention.forward
    monkeypatch.setattr(TorchAttention, "forward", lambda *one, **more: calls.append(1) or forward(*one, **more))

    def compute(module):
        output = module(tokens, **MASKS[masks])
        return [(output if batch_first else output.transpose(0, 1))[real]]

    assert_equal_with_gradients(theirs.train(), ours.train(), compute)
    assert_equal_with_gradients(theirs.eval(), ours.eval(), compute)
    with torch.no_grad():
        assert_close(compute(ours), compute(theirs), atol=1e-5, rtol=1e-5)
    assert len(calls) == 3 * 2


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor:UserWarning", "ignore:The PyTorch API of nested:UserWarning")
def test_transformer(batch_first):
    theirs, ours = both(
        nn.Transformer(WIDTH, HEADS, 2, 2, 24, dropout=0.0, batch_first=batch_first, norm_first=not batch_first)
    )
    report = regard.convert(ours)
    assert set(report.already) == {name for name, one in theirs.named_modules() if "Multihead" in type(one).__name__}
    assert len(report.already) == 6
    source, target = torch.randn(BATCH, KEYS, WIDTH), torch.randn(BATCH, QUERIES, WIDTH)
    hidden = torch.arange(KEYS) >= torch.tensor([[11], [8], [4]])
    tokens = (source, target) if batch_first else (source.transpose(0, 1), target.transpose(0, 1))

    def compute(module):
        return [
            module(
                *tokens,
                tgt_mask=CAUSAL < 0,
                tgt_key_padding_mask=PADDING & (torch.arange(QUERIES) > 0),
                memory_key_padding_mask=hidden,
            )
        ]

    assert_equal_with_gradients(theirs, ours, compute)
    with torch.no_grad():
        assert_close(compute(ours.eval()), compute(theirs.eval()), atol=1e-5, rtol=1e-5)


def test_weights_names_and_identity_stay():
    """An optimizer, a state dict and a second place of the same layer see no change."""
    layer = nn.MultiheadAttention(WIDTH, HEADS)
    model = nn.ModuleDict({"first": layer, "second": layer, "norm": nn.LayerNorm(WIDTH)})
    parameters, keys = list(model.parameters()), list(model.state_dict())
    layer.register_forward_hook(lambda *_: None)
    report = regard.convert(model)
    assert report.converted == {"first": "nn.MultiheadAttention"}
    assert model["first"] is model["second"] is layer
    assert [*map(id, model.parameters())] == [*map(id, parameters)]
    assert list(model.state_dict()) == keys
    assert len(layer._forward_hooks) == 1
    nn.ModuleDict({"first": nn.MultiheadAttention(WIDTH, HEADS)}).load_state_dict(
        {name: tensor for name, tensor in model.state_dict().items() if name.startswith("first")}
    )


def test_a_converted_model_is_saved_whole():
    _, ours = both(nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True).eval())
    stream = io.BytesIO()
    torch.save(ours, stream)
    stream.seek(0)
    loaded, tokens = torch.load(stream, weights_only=False), torch.randn(BATCH, QUERIES, WIDTH)
    assert torch.equal(loaded(tokens), ours(tokens))


class Own(nn.MultiheadAttention):
    """A subclass."""


class OwnAttention(nn.Module):
    """Attention in code of its own."""

    def forward(self, tokens):
        return torch.softmax(tokens @ tokens.mT, -1) @ tokens


def test_what_is_left_is_reported():
    model = nn.ModuleDict(
        {
            "plain": nn.MultiheadAttention(WIDTH, HEADS),
            "subclass": Own(WIDTH, HEADS),
            "extra": nn.MultiheadAttention(WIDTH, HEADS, add_bias_kv=True),
            "zero": nn.MultiheadAttention(WIDTH, HEADS, add_zero_attn=True),
            "own": OwnAttention(),
            "ours": regard.MultiHeadAttention(WIDTH, HEADS),
            "linear": nn.Linear(3, 5),
        }
    )
    report = regard.convert(model)
    assert report.converted == {"plain": "nn.MultiheadAttention"}
    assert report.already == {"ours": "MultiHeadAttention"}
    assert {name: reason.split()[0] for name, reason in report.left.items()} == {
        "subclass": "Own",
        "extra": "nn.MultiheadAttention",
        "zero": "nn.MultiheadAttention",
        "own": "OwnAttention",
    }
    assert "2 of 6 attention layers compute with regard" in str(report)
    assert "left: subclass (Own is a subclass of nn.MultiheadAttention, whose code may differ)" in str(report)
    assert type(model["subclass"]) is Own
    assert str(regard.convert(nn.Linear(3, 5))) == "Linear: no attention layer was found"
    assert "converted: the model itself" in str(regard.convert(nn.MultiheadAttention(WIDTH, HEADS)))


@pytest.mark.parametrize("name", ["llama", "bert", "siglip"])
def test_models_of_transformers(name):
    """siglip's pooling head is a layer of torch inside a model of transformers."""
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs("right")
    keys = list(model.state_dict())
    real = inputs["attention_mask"].bool()

    def compute():
        output = model(**inputs)
        return output.logits[real] if name != "siglip" else torch.stack([output.text_embeds, output.image_embeds])

    with torch.no_grad():
        expected = compute()
        outer = nn.ModuleDict({"inner": model, "head": nn.MultiheadAttention(WIDTH, HEADS)})
        report = regard.convert(outer)
        assert_close(compute(), expected, atol=1e-5, rtol=0)
    assert not report.left
    assert len(report.converted) == kind.layers + 1 + len(kind.own_code)
    assert all(one.startswith(("inner.", "head")) for one in report.converted)
    assert list(model.state_dict()) == keys
    assert regard.hf.check(model).uses_regard
    assert len(regard.convert(outer).already) == len(report.converted)


def test_models_of_transformers_with_code_of_their_own():
    import transformers

    config = transformers.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4)
    model = transformers.AutoModelForCausalLM.from_config(config)
    report = regard.convert(model)
    assert not report.converted
    assert set(report.left.values()) == {"BloomAttention computes attention by code of its own"}
    assert model.config._attn_implementation != "regard"


def test_a_converted_model_is_recorded_as_before():
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, 24, batch_first=True), 2, enable_nested_tensor=False
    ).eval()
    tokens = torch.randn(BATCH, QUERIES, WIDTH)
    with torch.no_grad():
        with regard.record(model) as before:
            expected = model(tokens, mask=CAUSAL)
        regard.convert(model)
        with regard.record(model) as seen:
            assert_close(model(tokens, mask=CAUSAL), expected, atol=1e-5, rtol=1e-5)
    assert [layer.name for layer in seen] == ["layers.0.self_attn", "layers.1.self_attn"]
    weights = seen[0].weights()
    assert weights.shape == (BATCH, HEADS, QUERIES, QUERIES)
    assert torch.equal(weights > 0, (CAUSAL == 0).expand_as(weights))
    for layer, same in zip(seen, before, strict=True):
        assert layer.name == same.name
        assert_close(layer.weights(), same.weights(), atol=1e-5, rtol=0)


COMPILED = """
import copy, torch, regard
from torch import nn
theirs = nn.TransformerEncoderLayer(20, 4, 24, dropout=0.0, batch_first=True)
ours = copy.deepcopy(theirs)
regard.convert(ours)
tokens = torch.randn(3, 7, 20)
causal, padding = nn.Transformer.generate_square_subsequent_mask(7), torch.arange(7) >= torch.tensor([[7], [5], [3]])
compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
for masks in ({}, {"src_mask": causal}, {"src_key_padding_mask": padding}, {"src_mask": torch.randn(7, 7)}):
    torch.testing.assert_close(compiled(tokens, **masks), theirs(tokens, **masks), atol=1e-5, rtol=1e-5)
"""


@pytest.mark.slow
def test_compiled_in_one_graph():
    """In a process of its own, without checks of types at run time."""
    result = run_script(COMPILED)
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"attn_mask": torch.zeros(7, 7, dtype=torch.long)}, DtypeError),
        ({"key_padding_mask": [[0] * 7]}, DtypeError),
        ({"attn_mask": torch.zeros(5, 7, 7)}, ShapeError),
        ({"attn_mask": torch.zeros(7)}, ShapeError),
        ({"attn_mask": torch.zeros(6, 7)}, ShapeError),
        ({"key_padding_mask": torch.zeros(7, dtype=torch.bool)}, ShapeError),
        ({"key_padding_mask": torch.zeros(3, 6, dtype=torch.bool)}, ShapeError),
        ({"is_causal": True}, OptionError),
        ({"query": torch.zeros(3, 7, 5)}, ShapeError),
        ({"query": torch.zeros(7, WIDTH)}, ShapeError),
        ({"query": torch.zeros(7)}, ShapeError),
    ],
)
def test_wrong_arguments_of_a_converted_layer(arguments, error):
    _, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    tokens = torch.zeros(BATCH, QUERIES, WIDTH)
    with pytest.raises(error):
        ours(**{"query": tokens, "key": tokens, "value": tokens} | arguments)


def test_nested_tensors_are_refused():
    _, ours = both(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([torch.zeros(3, WIDTH), torch.zeros(5, WIDTH)])
    with pytest.raises(RefusedError, match="nested"):
        ours(nested, nested, nested)


def test_other_objects_are_refused():
    with pytest.raises(OptionError, match="wrong model"):
        regard.convert("model")
