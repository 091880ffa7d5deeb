"""Small GPT-2 and Llama types with drawn weights, whose layers a decoding step computes in one native call."""

from functools import partial

import torch

from regard.mechanisms import DotProduct
from regard.models import Gpt2, Gpt2Config, Llama, LlamaConfig
from regard.models.rotary_config import RotaryConfig

VOCABULARY, LAYERS = 53, 3
SIZES = {"vocabulary": VOCABULARY, "width": 36, "layers": LAYERS, "heads": 6, "inner": 41, "max_length": 97}
LLAMA = {**SIZES, "key_value_heads": 3, "head_dim": 10}
GEMMA = {"sandwich_norms": True, "norm_offset": 1.0, "scale_embedding": True, "windows": (5, None, 5), "tied": True}


def make_gpt2(**options):
    return draw_weights(Gpt2(Gpt2Config(**{**SIZES, **options})))


def make_llama(**options):
    return draw_weights(Llama(LlamaConfig(**{**LLAMA, **options})))


def make_model_with_sinks():
    model = make_llama()  # files of gpt-oss have experts as well
    for layer in model.layers:
        layer.attention.mechanism = DotProduct(heads=6, head_dim=10, sinks=True)
    return draw_weights(model)


def draw_weights(model):
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            center = 1.0 if parameter.dim() == 1 else 0.0
            parameter.copy_(center + 0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


MODELS = {
    "gpt2": make_gpt2,
    "gpt2, scale by depth": partial(make_gpt2, scale_by_depth=True, activation="relu"),
    "llama": make_llama,
    "norms of heads": partial(
        make_llama, query_key_norm=True, attention_bias=True, output_bias=True, model_type="qwen3"
    ),
    "windows and softcaps": partial(make_llama, **GEMMA, softcap=3.0, logit_softcap=9.0, model_type="gemma2"),
    "two rotations": partial(
        make_llama, **GEMMA, window_rotary=RotaryConfig(base=500.0), query_key_norm=True, model_type="gemma3_text"
    ),
    "sinks": make_model_with_sinks,
}


def draw_ids(rows, length, seed=0):
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
