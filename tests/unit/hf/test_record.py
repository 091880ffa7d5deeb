"""``regard.record`` for models of ``transformers``: the weights that "eager" returns, and memory linear in length."""

from __future__ import annotations

import subprocess
import sys
from itertools import pairwise, product

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close

import regard
import regard.hf
from regard.errors import OptionError
from regard.recording.recorded_call import RecordedDistanceBias
from script_process import run_script
from slow_parameters import slow_except
from unit.hf.comparison import generate
from unit.hf.model_types import MODEL_TYPES, ModelType

BY_NAME = {kind.name: kind for kind in MODEL_TYPES}
FAST = ("llama", "gemma2", "gpt_oss", "t5")
WEIGHTS = ("encoder_attentions", "attentions", "decoder_attentions", "cross_attentions")
HALF = ("swin", "diffllama")  # Swin returns half of its weights; DiffLlama calls attention twice in a layer
RETURNING = [kind for kind in MODEL_TYPES if kind.returns_weights and kind.name not in HALF]
SIZES = {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4}


def eager_weights(model, inputs) -> list[torch.Tensor]:
    """The weights of all layers: those of a decoder in the order of its layers, self-attention first."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    weights = list(output.get("encoder_attentions") or ()) + list(output.get("attentions") or ())
    crossed = output.get("cross_attentions") or ()
    for layer, own in enumerate(output.get("decoder_attentions") or ()):
        weights += [own, *crossed[layer : layer + 1]]
    return weights


@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow) for one in RETURNING],
)
def test_weights_of_each_layer_equal_eager(kind: ModelType):
    model = kind.build()
    sides = ("left", "right") if kind.pads_left else ("right",) if kind.takes_padding else (None,)
    for side in sides:
        inputs = kind.inputs(side)
        expected = eager_weights(model, inputs)
        model.set_attn_implementation("regard")
        with torch.no_grad():
            plain = model(**inputs)[0]
        with torch.no_grad(), regard.record(model) as seen:
            assert torch.equal(model(**inputs)[0], plain)
        for call, weights in zip(attention_calls(model, seen), expected, strict=True):
            found = call.weights()
            real = visible_rows(call, inputs, model)
            assert_close(found[real], weights[..., : found.shape[3]][real].to(found.dtype), atol=1e-5, rtol=0)
            assert weights[..., found.shape[3] :][real[..., None].expand_as(weights)[..., found.shape[3] :]].sum() == 0
            rows = [0, found.shape[2] - 1]
            assert_close(call.weights(rows=rows), found[:, :, rows])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "kind",
    [pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow) for one in RETURNING],
)
def test_models_that_do_not_compute_with_regard(kind: ModelType, implementation):
    """Their own operations are recorded, under the same names, and the output keeps its bits."""
    model = kind.build()
    side = "left" if kind.pads_left else "right" if kind.takes_padding else None
    inputs = kind.inputs(side)
    expected = eager_weights(model, inputs)
    refusal = None
    try:
        model.set_attn_implementation(implementation)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:  # transformers has no such implementation of this type
        assert "does not support" in refusal
        return
    with torch.no_grad():
        plain = model(**inputs)[0]
        with regard.record(model) as seen:
            assert torch.equal(model(**inputs)[0], plain)
    for call, weights in zip(attention_calls(model, seen), expected, strict=True):
        found = call.weights()
        real = visible_rows(call, inputs, model)
        assert_close(found[real], weights[..., : found.shape[3]][real].to(found.dtype), atol=1e-5, rtol=0)


def attention_calls(model, seen):
    """The calls of the layers that ``transformers`` returns weights of: Inkling attends to earlier layers as well."""
    layers = set(regard.hf.check(model).through_interface)
    assert {call.name for call in seen} >= layers
    return [call for call in seen if call.name in layers]


def visible_rows(call, inputs, model) -> torch.Tensor:
    """True for queries that are not padding, where eager and regard differ if nothing is visible."""
    batch, heads, queries, _ = call.query.shape
    tokens = inputs.get("attention_mask")
    if tokens is not None and hasattr(model, "_get_output_attention_mask"):  # of frames, of which several are a query
        tokens = model._get_output_attention_mask(tokens, target_length=queries)
    if tokens is None or tokens.shape[1] != queries:
        return torch.ones(batch, heads, queries, dtype=torch.bool)
    return tokens.bool()[:, None].expand(batch, heads, queries)


@pytest.mark.parametrize("name", FAST)
def test_statistics_and_the_output(name):
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs("left")
    model.set_attn_implementation("regard")
    with torch.no_grad(), regard.record(model) as seen:
        model(**inputs)
    for call in seen:
        weights, found = call.weights(), call.observe(top=3, rows=[2])
        values = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], dim=1)
        assert_close(found.output, weights @ values, atol=1e-5, rtol=1e-5)
        assert_close(found.received, weights.sum(2), atol=1e-5, rtol=1e-5)
        assert_close(found.rows, weights[:, :, [2]], atol=1e-6, rtol=0)
        assert_close(found.top_weights, weights.topk(3).values, atol=1e-6, rtol=0)
        assert (call.mechanism.weights_are == "non-negative") == (name == "gpt_oss")


def test_a_name_finds_the_layer():
    kind = BY_NAME["t5"]
    model, inputs = kind.build(), kind.inputs()
    model.set_attn_implementation("regard")
    with torch.no_grad(), regard.record(model) as seen:
        model(**inputs)
    assert [call.name for call in seen][:3] == [
        "encoder.block.0.layer.0.SelfAttention",
        "encoder.block.1.layer.0.SelfAttention",
        "decoder.block.0.layer.0.SelfAttention",
    ]
    crossed = seen["decoder.block.0.layer.1.EncDecAttention"]
    assert crossed.weights().shape == (3, 4, 7, 13)
    assert crossed.bias is None  # zeros
    assert isinstance(seen[1].bias, RecordedDistanceBias)
    with torch.no_grad(), regard.record(model.encoder) as inner:
        model(**inputs)
    assert [call.name for call in inner] == [call.name.removeprefix("encoder.") for call in seen[:2]]


@pytest.mark.parametrize(
    ("name", "cache"),
    slow_except(
        {("llama", "dynamic"), ("gemma2", "static"), ("gpt_oss", "sliding_window")},
        product(("llama", "gemma2", "gpt_oss"), ("dynamic", "static", "sliding_window")),
        rows=True,
    ),
)
def test_generation_with_a_cache(name, cache):
    """Each step's weights are rows of those of one call with all tokens, though a static cache is written in place."""
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs("left")
    options = {"cache_implementation": cache, "max_new_tokens": 9, "min_new_tokens": 9}
    expected = generate(model, "regard", inputs, **options)
    with regard.record(model) as seen:
        tokens = generate(model, "regard", inputs, **options)
    assert torch.equal(tokens, expected)
    mask = torch.nn.functional.pad(inputs["attention_mask"], (0, 8), value=1)
    weights = eager_weights(model, {"input_ids": tokens[:, :-1], "attention_mask": mask})
    names = list(dict.fromkeys(call.name for call in seen))
    assert len(names) == 2
    for layer, whole in zip(names, weights, strict=True):
        calls = [call for call in seen if call.name == layer]
        assert [call.query.shape[2] for call in calls] == [13, *[1] * 8]
        for step, call in enumerate(calls[1:], start=13):
            found = call.weights()
            kept = found.shape[3]  # a sliding window has the last ones only
            assert_close(found[:, :, 0], whole[:, :, step, step + 1 - kept : step + 1], atol=1e-5, rtol=0)


def test_generation_stores_each_token_once():
    kind = BY_NAME["llama"]
    model, inputs = kind.build(), kind.inputs("left")
    model.set_attn_implementation("regard")
    with regard.record(model) as seen:
        generate(model, "regard", inputs, max_new_tokens=40, min_new_tokens=40)
    calls = [call for call in seen if call.name == seen[0].name]
    assert len(calls) == 40
    memories = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in (c.key for c in calls)}
    last = calls[-1].key
    assert sum(memories.values()) <= 6 * last.numel() * last.element_size()
    for earlier, later in pairwise(calls):
        assert torch.equal(later.key[:, :, : earlier.key.shape[2]], earlier.key)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_memory_is_linear_in_length(name):
    kind = BY_NAME[name]
    model = kind.build()
    model.set_attn_implementation("regard")

    def held(length: int) -> int:
        ids = torch.ones(1, length, dtype=torch.long)
        more = {"decoder_input_ids": ids} if kind.family == "seq2seq" else {}
        with torch.no_grad(), regard.record(model) as seen:
            model(input_ids=ids, use_cache=False, **more)
        tensors = [one for call in seen for one in (call.query, call.key, call.value)]
        tensors += [call.bias.numbers for call in seen if call.bias is not None]
        return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())

    assert held(60) <= 4.3 * held(15)


def test_texts_that_are_all_padded_on_the_left_keep_their_places():
    kind = BY_NAME["llama"]
    model = kind.build()
    inputs = {"input_ids": torch.randint(3, 97, (2, 11)), "attention_mask": torch.ones(2, 11, dtype=torch.long)}
    inputs["attention_mask"][:, :3] = 0
    inputs["attention_mask"][0, -2:] = 0
    expected = eager_weights(model, inputs)
    model.set_attn_implementation("regard")
    with torch.no_grad(), regard.record(model) as seen:
        model(**inputs)
    for call, weights in zip(seen, expected, strict=True):
        found = call.weights()
        assert found.shape == weights.shape
        assert_close(found[:, :, 3:], weights[:, :, 3:], atol=1e-5, rtol=0)
        assert not found[:, :, :3].any()


def test_hidden_tokens_have_no_influence():
    kind = BY_NAME["llama"]
    model, inputs = kind.build(), kind.inputs("left")
    model.set_attn_implementation("regard")
    found = []
    for garbage in (0.0, float("nan")):
        embedded = model.get_input_embeddings()(inputs["input_ids"]).detach()
        embedded[inputs["attention_mask"] == 0] = garbage
        with torch.no_grad(), regard.record(model) as seen:
            model(inputs_embeds=embedded, attention_mask=inputs["attention_mask"])
        found.append([call.weights()[inputs["attention_mask"][:, None].expand(-1, 4, -1).bool()] for call in seen])
    for clean, dirty in zip(*found, strict=True):
        assert torch.equal(clean, dirty)


def test_training_and_wrapped_models():
    kind = BY_NAME["llama"]
    model = kind.build()
    model.set_attn_implementation("regard")
    wrapped = nn.ModuleDict({"inner": model})
    with regard.record(wrapped) as seen, regard.record(model) as same:
        model(**kind.inputs()).logits.sum().backward()
    assert [call.name for call in seen] == [f"inner.{call.name}" for call in same]
    assert not any(one.requires_grad for call in seen for one in (call.query, call.key, call.value))
    model(**kind.inputs())
    assert len(seen) == len(same) == 2


@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_gradient_checkpointing_records_each_call_once(is_reentrant):
    kind = BY_NAME["llama"]
    model, inputs = kind.build(), kind.inputs()
    model.set_attn_implementation("regard")
    with regard.record(model) as expected:
        model(**inputs)
    model.train()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_reentrant})
    with regard.record(model) as seen:
        model(**inputs).logits.sum().backward()
    assert [call.name for call in seen] == [call.name for call in expected]
    assert all(torch.equal(one.query, other.query) for one, other in zip(seen, expected, strict=True))


def test_watched_training():
    """The statistics are the same, whatever computes the layers, and so are the bits of the gradients."""
    kind = BY_NAME["llama"]
    rows = {}
    for implementation in ("regard", "sdpa", "eager"):
        torch.manual_seed(5)
        model, inputs = kind.build().train(), kind.inputs("right")
        model.set_attn_implementation(implementation)
        model(**inputs).logits.sum().backward()
        expected = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        with regard.watch(model) as watcher:
            model(**inputs).logits.sum().backward()
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            assert torch.equal(parameter.grad, gradient)
        rows[implementation] = watcher.rows
        assert [row.layer for row in watcher.rows] == [f"model.layers.{layer}.self_attn" for layer in range(2)]
    for row, *others in zip(*rows.values(), strict=True):
        for other in others:
            assert_close(torch.tensor(other.head_scores), torch.tensor(row.head_scores), atol=1e-4, rtol=1e-4)
            assert abs(other.entropy - row.entropy) < 1e-4


def test_another_model_is_not_recorded():
    kind = BY_NAME["llama"]
    first, second = kind.build(), kind.build()
    for model in (first, second):
        model.set_attn_implementation("regard")
    with regard.record(first) as seen:
        second(**kind.inputs())
    assert len(seen) == 0


@pytest.mark.slow
@pytest.mark.parametrize("fullgraph", [False, True])
def test_compiled_models(fullgraph):
    """In a process of its own: see torch_compile_checks.py."""
    result = run_script(f"from unit.hf import torch_compile_checks\ntorch_compile_checks.check_record({fullgraph=})")
    assert result.returncode == 0, result.stderr


def test_replaced_sdpa_is_recorded():
    kind = BY_NAME["llama"]
    model = kind.build()
    with regard.hf.replace_sdpa():
        model.set_attn_implementation("sdpa")
        with torch.no_grad(), regard.record(model) as seen:
            model(**kind.inputs())
    assert len(seen) == 2
    with torch.no_grad(), regard.record(model) as again:
        model(**kind.inputs())
    for call, other in zip(seen, again, strict=True):
        assert call.name == other.name
        assert_close(call.weights(), other.weights(), atol=1e-6, rtol=0)


def test_layers_with_code_of_their_own():
    model = transformers.AutoModelForCausalLM.from_config(transformers.BloomConfig(**SIZES)).eval()
    ids = torch.randint(3, 97, (2, 9))
    with torch.no_grad(), regard.record(model) as seen:
        expected = model(ids, output_attentions=True).attentions
    assert [call.name for call in seen] == ["transformer.h.0.self_attention", "transformer.h.1.self_attention"]
    for call, weights in zip(seen, expected, strict=True):
        assert torch.equal(call.weights(), weights)


def test_a_model_without_attention_layers_is_refused():
    config = transformers.Mamba2Config(**SIZES | {"num_hidden_layers": 1, "num_heads": 8, "head_dim": 8, "n_groups": 1})
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="regard")
    with (
        pytest.raises(OptionError, match=r"Mamba2ForCausalLM has no attention layer that can be recorded"),
        regard.record(model),
    ):
        pass


def test_a_part_of_a_model():
    model = BY_NAME["llama"].build()
    layer, tokens = model.model.layers[0], torch.randn(1, 5, 32)
    positions = model.model.rotary_emb(tokens, torch.arange(5)[None])
    with torch.no_grad(), regard.record(layer) as seen:
        layer(tokens, position_embeddings=positions)
    (call,) = seen
    assert call.name == "self_attn"
    assert call.weights().shape == (1, 4, 5, 5)


def test_a_layer_beside_those_of_the_interface():
    kind = BY_NAME["siglip"]
    model = kind.build()
    model.set_attn_implementation("regard")
    with torch.no_grad(), regard.record(model) as seen:
        model(**kind.inputs())
    assert len(seen) == 5
    assert seen["vision_model.head.attention"].weights().shape == (3, 4, 1, 9)


@pytest.mark.slow
def test_without_the_import_of_regard_hf():
    code = """
import regard, torch, transformers
config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
model = transformers.AutoModel.from_config(config)
with regard.record(model) as seen:
    model(torch.ones(1, 5, dtype=torch.long))
print([call.name for call in seen])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == "['h.0.attn', 'h.1.attn']", result.stderr
