"""``regard.record`` for layers of transformers that compute bands or blocks: full rows of their weights."""

import pytest
import torch
import transformers
from torch.testing import assert_close

import regard
import regard.hf

SIZES = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TOKENS = 21  # the models pad to whole windows or blocks
WINDOW = 4  # on each side


def rows_of_band(band: torch.Tensor, of_global: torch.Tensor | None, flags: torch.Tensor) -> torch.Tensor:
    """The weights (batch, heads, tokens, tokens) in what Longformer returns: global columns, then the band."""
    batch, heads, tokens, columns = band.shape
    first = columns - 2 * WINDOW - 1
    rows = torch.zeros(batch, heads, tokens, tokens)
    for text in range(batch):
        places = flags[text].nonzero()[:, 0].tolist()
        for i in range(tokens):
            for column in range(2 * WINDOW + 1):
                if 0 <= i + column - WINDOW < tokens:
                    rows[text, :, i, i + column - WINDOW] += band[text, :, i, first + column]
            for column, j in enumerate(places):
                rows[text, :, i, j] += band[text, :, i, column]
        for column, i in enumerate(places):
            rows[text, :, i] = of_global[text, :, :tokens, column]
    return rows


def masks_of(texts: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens of texts, which are seen, and which are global: of different numbers."""
    seen, flags = torch.ones(texts, TOKENS, dtype=torch.long), torch.zeros(texts, TOKENS, dtype=torch.long)
    flags[:, 0] = 1
    flags[0, 9] = 1
    if texts > 1:
        seen[1, 15:] = 0
    return seen, flags


@torch.no_grad()
@pytest.mark.parametrize(("texts", "is_global"), [(1, False), (1, True), (2, True)])
def test_rows_of_longformer_are_its_bands_and_global_tokens(texts: int, is_global: bool) -> None:
    torch.manual_seed(0)
    config = transformers.LongformerConfig(**SIZES, intermediate_size=32, attention_window=2 * WINDOW)
    model = transformers.LongformerModel(config).eval()
    seen, flags = masks_of(texts)
    arguments = {"input_ids": torch.randint(5, 97, (texts, TOKENS)), "attention_mask": seen}
    arguments |= {"global_attention_mask": flags} if is_global else {}
    plain = model(**arguments)[0]
    with regard.record(model) as calls:
        assert torch.equal(model(**arguments)[0], plain)
    output = model(**arguments, output_attentions=True)
    shown = flags if is_global else torch.zeros_like(flags)
    of_global = output.global_attentions if is_global else [None, None]
    for call, band, own in zip(calls, output.attentions, of_global, strict=True):
        expected = rows_of_band(band, own, shown) * seen[:, None, :, None]
        assert_close(call.weights(), expected, atol=1e-6, rtol=0)
        observation = call.observe(top=3)
        assert_close(observation.received, expected.sum(2), atol=1e-5, rtol=0)
    assert [call.name for call in calls] == [f"encoder.layer.{layer}.attention.self" for layer in (0, 1)]


@torch.no_grad()
def test_output_of_a_recorded_layer_of_led_follows_from_its_call() -> None:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
    model = transformers.LEDModel(
        transformers.LEDConfig(vocab_size=97, **sizes, **heads, attention_window=2 * WINDOW)
    ).eval()
    seen, flags = masks_of(2)
    outputs: list[torch.Tensor] = []
    layer = model.encoder.layers[0].self_attn.longformer_self_attn
    handle = layer.register_forward_hook(lambda *call: outputs.append(call[2][0]))
    ids = {"input_ids": torch.randint(5, 97, (2, TOKENS)), "decoder_input_ids": torch.randint(5, 97, (2, 5))}
    with regard.record(model) as calls:
        model(**ids, attention_mask=seen, global_attention_mask=flags)
    handle.remove()
    call = calls["encoder.layers.0.self_attn.longformer_self_attn"]
    heads_of = call.mechanism(call.query, call.key, call.value, call.mask, **call.inputs)
    real = seen.bool()
    assert_close(heads_of.transpose(1, 2).flatten(2)[real], outputs[0][:, :TOKENS][real], atol=1e-6, rtol=0)
    assert len(calls) == 3  # and both of the decoder's layer, which are plain


@torch.no_grad()
def test_rows_of_bigbird_are_the_bits_that_it_multiplies_values_by() -> None:
    torch.manual_seed(0)
    config = transformers.BigBirdConfig(**SIZES, intermediate_size=32, block_size=4, num_random_blocks=1)
    model = transformers.BigBirdModel(config).eval()
    ids = torch.randint(5, 97, (2, 46))
    plain = model(ids)[0]
    with regard.record(model) as calls:
        assert torch.equal(model(ids)[0], plain)
    assert model.attention_type == "block_sparse"
    returned = model(ids, output_attentions=True).attentions
    assert len(calls) == len(returned) == 2
    for call, weights in zip(calls, returned, strict=True):
        found, shown = call.weights(), weights[:, :, :46, :46].clone()
        shown[:, :, 4:44, :4] *= 2  # its one random block is the first one, which it returns once
        assert torch.equal(found, shown)
        assert_close(found[:, :, :44].sum(-1), torch.ones(2, 4, 44))
