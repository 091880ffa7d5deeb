"""Projections of queries and keys of types of ``transformers``: fused, in several layouts, with norms and rotations."""

import numpy as np
import pytest
import torch
import transformers

import regard
import regard.hf
from regard.hf.recorded_layers import number_calls
from regard.recording.captured_inputs import capture_projections
from regard.view import LayerReading
from regard.view.captured_projections import add_projections
from regard.view.from_recording import layers_of

SIZES = {"vocab_size": 50, "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0, "eos_token_id": 1}
GROUPED = SIZES | {"num_key_value_heads": 2, "head_dim": 6}
MODELS = {
    "GPT2": {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 1},
    "GPTNeoX": SIZES,
    "Phi3": GROUPED,
    "Qwen3": GROUPED,
    "Gemma3Text": GROUPED | {"query_pre_attn_scalar": 6},
    "Olmo2": GROUPED,
    "Bert": SIZES,
    "OPT": SIZES | {"word_embed_proj_dim": 24, "ffn_dim": 32},  # it scales queries before the product
    "Falcon": SIZES | {"multi_query": True, "new_decoder_architecture": False},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_number_of_each_query_and_key_follows_from_what_the_layer_reads(name: str) -> None:
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**MODELS[name])
    model = getattr(transformers, f"{name}Model")(config).eval()
    model.set_attn_implementation("regard")
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))
    with torch.no_grad(), capture_projections(model) as captured, regard.record(model) as seen:
        model(input_ids=torch.randint(3, 50, (1, 9)))
    layers = add_projections(layers_of(number_calls(seen)), captured)
    assert len(layers) == 2
    for layer in layers:
        assert isinstance(layer, LayerReading)
        assert layer.projections is not None
        for side, heads in ((layer.projections.query, layer.query), (layer.projections.key, layer.key)):
            assert (side.normed is not None) == (name in ("Qwen3", "Gemma3Text", "Olmo2"))
            every = np.arange(len(heads))
            computed = side.rows.astype("f8") @ side.tokens.astype("f8").T + side.biases[:, None]
            factors = {"OPT": {-0.5, 0.0}, "Falcon": {-0.25}}.get(name, {0.0})  # torch scales both sides of Falcon's
            assert round(np.log(side.factor) / np.log(heads.shape[2]), 6) in factors
            computed = side.factor * computed
            computed = computed if side.normed is None else side.normed
            first = slice(0, 1) if side.is_rotated else slice(None)  # position 0 rotates by 0
            np.testing.assert_allclose(computed[:, first], heads[every, first, side.components], atol=1e-4)


def test_cross_attention_of_whisper_reads_the_text_for_queries_and_the_sound_for_keys() -> None:
    """Whisper scales its queries before the product, and its keys have no bias."""
    torch.manual_seed(1)
    sizes = {"d_model": 20, "encoder_layers": 1, "decoder_layers": 2, "num_mel_bins": 8, "max_source_positions": 13}
    sizes |= {f"{side}_attention_heads": 5 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 24 for side in ("encoder", "decoder")}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "vocab_size": 67}
    model = transformers.WhisperModel(transformers.WhisperConfig(**sizes, **ids)).eval()
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1 * torch.randn_like(part))
    with torch.no_grad(), regard.record(model, inputs=True) as seen:
        model(torch.randn(1, 8, 26), decoder_input_ids=torch.tensor([[1, 5, 7, 9]]), use_cache=False)
    calls = [call for call in seen if call.name.endswith("encoder_attn")]
    assert len(calls) == 2
    for call in calls:
        (layer,) = add_projections(layers_of([call]), seen.inputs)
        assert isinstance(layer, LayerReading)
        assert layer.projections is not None
        sides = layer.projections.query, layer.projections.key
        assert [len(side.tokens) for side in sides] == [4, 13]
        for side, heads in zip(sides, (layer.query, layer.key), strict=True):
            computed = side.factor * (side.rows.astype("f8") @ side.tokens.astype("f8").T + side.biases[:, None])
            np.testing.assert_allclose(computed, heads[np.arange(len(heads)), :, side.components], atol=1e-4)
