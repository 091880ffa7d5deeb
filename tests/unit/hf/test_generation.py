"""Generation with every kind of cache and search equals that of eager."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
import transformers
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import regard.hf
from regard.errors import ShapeError
from regard.hf.attention_function import attention_function
from slow_parameters import slow_except
from unit.hf.comparison import generate
from unit.hf.model_types import MODEL_TYPES, ModelType

BY_NAME = {kind.name: kind for kind in MODEL_TYPES}
LONG = {"max_new_tokens": 17, "min_new_tokens": 17}  # past the window of 5 tokens


@pytest.fixture(params=["llama", "gemma2", "gpt_oss"])
def decoder(request) -> ModelType:
    """Grouped queries; a softcap, and windows in half of the layers; sinks too."""
    return BY_NAME[request.param]


@pytest.mark.parametrize(
    ("name", "cache"),
    slow_except(
        {("llama", "dynamic"), ("gemma2", "static"), ("gpt_oss", "static"), ("gpt_oss", "sliding_window")},
        product(("llama", "gemma2", "gpt_oss"), ("dynamic", "static", "sliding_window")),
        rows=True,
    ),
)
def test_caches(name, cache):
    decoder = BY_NAME[name]
    model, inputs = decoder.build(), decoder.inputs("left")
    expected = generate(model, "eager", inputs, **LONG)
    assert torch.equal(generate(model, "regard", inputs, **LONG, cache_implementation=cache), expected)


def test_a_quantized_cache(decoder, monkeypatch):
    """The backend "fp8" of transformers needs no other package. It takes no windows; the text is that of eager."""
    quantized = []
    layer = transformers.cache_utils.Fp8QuantizedLayer
    quantize = layer._quantize

    def count(*args, **options):
        quantized.append(args)
        return quantize(*args, **options)

    monkeypatch.setattr(layer, "_quantize", count)
    sizes = (
        {**decoder.sizes, "layer_types": ["full_attention"] * 2} if "layer_types" in decoder.sizes else decoder.sizes
    )
    model, inputs = replace(decoder, sizes=sizes).build(), decoder.inputs("left")
    options = LONG | {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}
    expected = generate(model, "eager", inputs, **options)
    assert quantized
    quantized.clear()
    assert torch.equal(generate(model, "regard", inputs, **options), expected)
    assert quantized


@pytest.mark.slow
def test_inkling2_with_a_static_cache():
    """With a window that is longer than the text: with another, transformers makes masks for other layers' lengths."""
    kind = BY_NAME["inkling2_text"]
    inputs, sizes = kind.inputs("left"), dict(kind.sizes)
    model = replace(kind, sizes=sizes | {"sliding_window_size": 64}).build()
    expected = generate(model, "eager", inputs, cache_implementation="static")
    assert torch.equal(generate(model, "regard", inputs, cache_implementation="static"), expected)
    model = kind.build()
    with pytest.raises(RuntimeError, match="must match the size"):
        generate(model, "eager", inputs, cache_implementation="static")
    with pytest.raises(ShapeError, match="does not fit queries and keys"):
        generate(model, "regard", inputs, cache_implementation="static")


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_beam_search(name):
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs("left")
    results = [
        generate(model, implementation, inputs, num_beams=3, length_penalty=0.7, num_return_sequences=2)
        for implementation in ("eager", "regard")
    ]
    assert torch.equal(*results)


def test_sampling_draws_the_same_tokens():
    kind = BY_NAME["llama"]
    model, inputs = kind.build(), kind.inputs("left")
    results = []
    for implementation in ("eager", "regard"):
        torch.manual_seed(5)
        results.append(generate(model, implementation, inputs, do_sample=True, top_k=11))
    assert torch.equal(*results)


@pytest.mark.parametrize("assistant", ["model", "prompt lookup"])
def test_assisted_generation(assistant):
    kind = BY_NAME["llama"]
    model, prompt = kind.build(), {"input_ids": kind.inputs()["input_ids"][:1]}
    expected = generate(model, "eager", prompt, **LONG)
    options = {"prompt_lookup_num_tokens": 3}
    if assistant == "model":
        small = kind.build()
        small.model.layers = small.model.layers[:1]
        small.set_attn_implementation("regard")
        options = {"assistant_model": small}
    assert torch.equal(generate(model, "regard", prompt, max_new_tokens=17, **options), expected)


def test_a_prompt_in_parts():
    """Each part is new queries with earlier keys in the cache."""
    kind = BY_NAME["gemma2"]
    model, inputs = kind.build(), kind.inputs("left")
    expected = generate(model, "eager", inputs, **LONG)
    assert torch.equal(generate(model, "regard", inputs, **LONG, prefill_chunk_size=4), expected)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_weights_of_each_step(name):
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs()
    options = {"output_attentions": True, "return_dict_in_generate": True}
    expected = generate(model, "eager", inputs, **options).attentions
    steps = generate(model, "regard", inputs, **options).attentions
    assert len(steps) == len(expected) == 7
    for step, expected_step in zip(steps, expected, strict=True):
        for weights, expected_weights in zip(step, expected_step, strict=True):
            torch.testing.assert_close(weights, expected_weights, atol=1e-5, rtol=0)


def generate_batch(model):
    """Generate by continuous batching: prompts of several lengths, a paged cache."""
    outputs = model.generate_batch(
        inputs=[[5, 6, 7, 8], [9, 10, 11], [12] * 7],
        generation_config=transformers.GenerationConfig(
            max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=8, page_size=32, max_batch_tokens=32),
        progress_bar=False,
    )
    assert [output.error for output in outputs.values()] == [None] * 3
    return [output.generated_tokens for output in outputs.values()]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss"])  # the last two have no "sdpa" of transformers
def test_continuous_batching_in_place_of_sdpa(name, monkeypatch):
    model = BY_NAME[name].build()
    expected = generate_batch(model)
    calls = []

    def count(*args, **kwargs):
        calls.append(kwargs["cache"])
        return attention_function(*args, **kwargs)

    monkeypatch.setattr("regard.hf.sdpa_replacement.attention_function", count)
    with regard.hf.replace_sdpa():
        model.set_attn_implementation("sdpa")
        assert generate_batch(model) == expected
    assert len(calls) == 10
    assert None not in calls


def test_continuous_batching_refuses_the_name():
    model = BY_NAME["llama"].build()
    model.set_attn_implementation("regard")
    with pytest.raises(ValueError, match="regard is not supported for continuous batching"):
        generate_batch(model)


def test_sdpa_is_restored():
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def fail() -> None:
        with regard.hf.replace_sdpa():
            assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attention_function
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pytest.raises(ValueError, match="does not support"):
        BY_NAME["gpt_oss"].build().set_attn_implementation("sdpa")
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert ALL_MASK_ATTENTION_FUNCTIONS["sdpa"] is sdpa_mask
