"""``regard.audit``: what leaks is found at its module, and what is sound is not accused."""

from __future__ import annotations

import functools
import itertools
import json
import types

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from transformers import masking_utils

import regard
import small_decoders
from regard import masks
from regard.auditing import property_names
from regard.errors import OptionError, OutputExistsError, RefusedError
from regard.layers import LatentAttention, LatentCache, MultiHeadAttention
from regard.layers.scan_mixer import MixerCache
from regard.mechanisms import KeyValueCache, LinearState, PagedCache, WindowCache
from regard.mechanisms.ragged_pages import RaggedPages
from regard.models import Bert, BertConfig, Gpt2, Mamba, MambaConfig
from tiny_transformers import build_tiny, shrink
from unit.hf.model_types import MODEL_TYPES

TYPES = {kind.name: kind for kind in MODEL_TYPES}


def test_a_sound_decoder_leaks_only_where_transformers_does():
    report = regard.audit(TYPES["llama"].build(), only=["causal", "padding", "packed", "cache"])
    assert [result.name for result in report.leaks] == ["packed by position_ids and ones"]
    leak = report.leaks[0].leak
    assert leak.module == "model.layers.0.self_attn"
    steps = {step.name: step for step in leak.modules}
    assert list(steps)[:2] == ["model.embed_tokens", "model.rotary_emb"], "modules are in the order of their calls"
    limit = report.noise.threshold(1.0)
    assert steps[leak.module].inputs <= limit < steps[leak.module].outputs
    assert steps["model.layers.0.self_attn.v_proj"].outputs <= limit < steps["lm_head"].inputs
    assert report["packed by position_ids"].verdict == "holds"
    assert report.noise.precision == "float64"
    assert report.noise.relative < 1e-13
    assert report.influence.unexpected == report.influence.missing == ()
    assert report.exit_code == 1


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("mask=mask, positions=positions", None),
        ("mask=None, positions=positions", "the mask has no effect in it"),
        ("mask=mask, positions=positions if mask is None else None", "places of the second text do not start again"),
    ],
)
@pytest.mark.parametrize("family", [Gpt2, Bert])
def test_packed_texts_of_regards_own_models(family, fault, cause, monkeypatch):
    call = eval(
        f"lambda model, ids, *, mask=None, positions=None: forward(model, ids, {fault})", {"forward": family.forward}
    )
    monkeypatch.setattr(family, "forward", call)
    model = family(family.config_class(vocabulary=41, width=16, layers=2, heads=2, inner=24, max_length=40)).eval()
    result = regard.audit(model, only=["packed by documents"])["packed by documents"]
    assert result.verdict == ("leaks" if cause else "holds")
    assert not cause or cause in result.leak.cause


def test_a_prefix_is_found_by_its_measured_mask_and_asked_in_other_properties():
    keep = masks.causal() | (masks.padding(torch.tensor([5])) & masks.keep(torch.arange(13)[:, None] < 5))
    inputs = tuple(torch.randn(3, 1, 2, 13, 5))
    report = regard.audit(lambda query, key, value: regard.attention(query, key, value, mask=keep), inputs)
    assert report.leaks == ()
    assert report["prefix"].verdict == report["causal"].verdict == report["gradient of later tokens"].verdict == "holds"
    assert "behind a prefix of 5 tokens" in report.notes[0]
    assert report.influence.missing == report.influence.unexpected == ()
    with pytest.raises(OptionError, match="the prefix is too long"):
        regard.audit(functional.scaled_dot_product_attention, inputs, prefix=12)


@pytest.mark.parametrize("name", ["gemma3", "paligemma", "hrm_text"])
def test_parts_that_token_types_name(name, monkeypatch):
    model = build_tiny(name) if name == "hrm_text" else build_part_model(name)
    report = regard.audit(model, only=["causal", "prefix", "padding", "cache"])
    assert report["prefix by token types"].verdict == "holds"
    assert report.leaks == (), str(report)
    forward = type(model).forward

    def forget(model, *args, token_type_ids=None, **others):
        return forward(model, *args, **others)

    monkeypatch.setattr(type(model), "forward", functools.wraps(forward)(forget))
    leak = regard.audit(model, only=["prefix by token"])["prefix by token types"].leak
    assert leak.input == 8 if name == "paligemma" else "the part is causal" in leak.cause  # all else is its prefix


def build_part_model(name):
    """A small model that reads pictures in a text, whose tokens see one another."""
    kind = transformers.CONFIG_MAPPING[name]
    text, vision = ({"gemma3": "gemma3_text", "paligemma": "gemma"}[name], "siglip_vision_model")
    sizes = {
        "text_config": shrink(transformers.CONFIG_MAPPING[text]),
        "vision_config": shrink(transformers.CONFIG_MAPPING[vision]),
    }
    return transformers.AutoModelForImageTextToText.from_config(kind(**sizes)).eval()


def make_layer(kind):
    """A layer of regard, and the inputs by which it is causal."""
    layer = {
        "latent": lambda: LatentAttention(16, heads=2, head_dim=8, latent_dim=12, rotary_dim=4),
        "linear": lambda: MultiHeadAttention(16, heads=2, mechanism="linear"),
        "dot product": lambda: MultiHeadAttention(16, heads=2),
    }[kind]()
    first = "tokens" if kind == "latent" else "query"
    return layer.eval(), {first: torch.randn(1, 13, 16), "mask": masks.causal()}


MAMBA = {"width": 24, "layers": 2, "heads": 4, "head_dim": 12, "state_size": 6, "groups": 2}
OWN_CACHES = {
    KeyValueCache: ("cache reordered", lambda: (small_decoders.make_gpt2(), None)),
    WindowCache: ("cache reordered", lambda: (small_decoders.MODELS["windows and softcaps"](), None)),
    MixerCache: ("cache reordered", lambda: (Mamba(MambaConfig(31, **MAMBA)), None)),
    LinearState: ("cache reordered", lambda: make_layer("linear")),
    LatentCache: ("cache reordered", lambda: make_layer("latent")),
    PagedCache: ("paged cache", lambda: make_layer("dot product")),
    RaggedPages: ("paged cache", lambda: (small_decoders.make_llama(), None)),
}


@pytest.mark.parametrize(
    "cache", [kind if kind is KeyValueCache else pytest.param(kind, marks=pytest.mark.slow) for kind in OWN_CACHES]
)
def test_caches_of_regards_own_models(cache, monkeypatch):
    """A fault of each: rows that are not reordered; keys that are written without their heads in order."""
    leaking, build = OWN_CACHES[cache]
    model, inputs = build()
    only = ["cache", "paged", "beams"]
    report = regard.audit(model, inputs, causal=True, only=only)
    assert report.leaks == (), str(report)
    assert report["cache"].verdict == report[leaking].verdict == "holds"
    if leaking == "cache reordered":
        monkeypatch.setattr(cache, "reordered", lambda state, entries: state)
    else:
        extended = cache.extended
        monkeypatch.setattr(cache, "extended", lambda state, key, value: extended(state, key.flip(1), value))
        monkeypatch.setattr("regard.models.causal_stack.paged_stack_step", lambda *given: None)
    assert regard.audit(model, inputs, causal=True, only=only)[leaking].verdict == "leaks"


@pytest.mark.parametrize("fault", [False, True])
def test_prefixes_by_a_mask(fault, monkeypatch):
    """A decoder of transformers and an encoder of regard, that read a text with a prefix."""
    if fault:
        monkeypatch.setattr(
            "regard.auditing.properties.prefix.declared_mask",
            lambda length, parts: torch.ones(length, length).tril().bool(),
        )
    model = Bert(BertConfig(vocabulary=41, width=16, layers=2, heads=2, inner=24, max_length=40)).eval()
    for audited in (model, TYPES["llama"].build()):
        assert regard.audit(audited, only=["prefix"])["prefix by mask"].verdict == ("leaks" if fault else "holds")


@pytest.mark.parametrize("name", ["llama", "bart"])
def test_beams_whose_cache_is_not_reordered(name, monkeypatch):
    assert regard.audit(TYPES[name].build(), only=["beams", "quantized"]).leaks == ()
    monkeypatch.setattr(transformers.Cache, "reorder_cache", lambda cache, beams: None)
    monkeypatch.setattr(transformers.EncoderDecoderCache, "reorder_cache", lambda cache, beams: None)
    report = regard.audit(TYPES[name].build(), only=["beams"])
    assert "the rows of the cache do not follow the beams" in report["beams"].leak.cause


def test_a_quantized_cache_that_loses_its_past(monkeypatch):
    layer = transformers.cache_utils.Fp8QuantizedLayer
    dequantize = layer._dequantize
    monkeypatch.setattr(layer, "_dequantize", lambda cache, stored: dequantize(cache, stored).roll(1, -2))
    report = regard.audit(TYPES["llama"].build(), only=["quantized", "dynamic"])
    assert [result.name for result in report.leaks] == ["quantized cache"]


@pytest.mark.parametrize(("norm", "fault"), [("group", False), ("layer", False), ("layer", True)])
def test_padded_sounds(norm, fault, monkeypatch):
    """A norm over time is declared unsafe by its processors; a fault forgets the mask."""
    model = TYPES["wav2vec2"].build()
    model.config.feat_extract_norm = norm
    model = type(model)(model.config).eval()
    if fault:
        forward = type(model).forward

        def forget(model, input_values, attention_mask=None):
            return forward(model, input_values)

        monkeypatch.setattr(type(model), "forward", forget)
    result = regard.audit(model, {"input_values": torch.randn(1, 200)}, only=["padded"])["padded sounds"]
    assert result.verdict == ("holds" if norm == "layer" and not fault else "leaks")
    assert ("were made to be called without attention_mask" in str(result.leak)) == (norm == "group")


class ChoosesKeys(nn.Module):
    """Each token reads the 3 tokens of the largest scores, of which many are 0, as sparse attention does."""

    causal = False

    def forward(self, hidden, attention_mask=None):
        scores = (hidden @ hidden.mT).relu()
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[:, None], float("-inf"))
        chosen = scores.topk(3).indices
        return (
            hidden.gather(1, chosen.flatten(1)[..., None].expand(-1, -1, hidden.shape[-1])).unflatten(1, (-1, 3)).sum(2)
        )


class Decays(nn.Module):
    """A sum with decays, from a table of float32 for a whole text, and by products with a state; ``lost`` leaks."""

    causal, lost = True, 0.0

    def __init__(self):
        super().__init__()
        self.table = nn.Buffer(torch.exp(-0.3 * torch.arange(64.0)))

    def forward(self, hidden, past_key_values=None, use_cache=False):
        if past_key_values is None:
            places = torch.arange(hidden.shape[1])
            distance = places[:, None] - places
            output = (self.table[distance.clamp(min=0)] * (distance >= 0)).to(hidden) @ hidden
        else:
            sums = [past_key_values * (1 - self.lost)]
            for token in hidden.unbind(1):
                sums.append(sums[-1] * self.table[1].double() + token)
            output = torch.stack(sums[1:], 1)
        return types.SimpleNamespace(logits=output, past_key_values=output[:, -1])


def test_rounding_and_choices_among_equal_scores_are_no_leaks(monkeypatch):
    """A leak of the size of rounding in a buffer is one all the same."""
    assert regard.audit(ChoosesKeys(), torch.randn(1, 13, 4), only=["padding"]).leaks == ()
    report = regard.audit(Decays(), torch.randn(1, 13, 4), only=["cache"])
    assert report["cache"].verdict == "holds"
    assert report["cache"].difference > report.noise.threshold(10.0), "the table has the rounding of float32"
    monkeypatch.setattr(Decays, "lost", 1e-6)
    assert regard.audit(Decays(), torch.randn(1, 13, 4), only=["cache"])["cache"].verdict == "leaks"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "leaking", "cause"),
    [
        ("gemma3n_text", "prefix by mask", None),  # layers with the keys of another one do not read their own
        ("glm_moe_dsa", "padding left", None),
        ("minimax", "cache", None),
        ("switch_transformers", "causal in training mode", None),  # dropout in experts draws as many numbers as tokens
        ("encoder-decoder", "causal", None),
        ("roberta", "padding left", "unless their id is that of padding"),
        ("minimax", "cache reordered", "the rows of linear_cache are not reordered"),
        ("gpt_neo", "static cache", "empty places of the static cache are read"),
        ("recurrent_gemma", "padding left", "attention_mask is not read in it"),
        ("recurrent_gemma", "beams", "conv1d_state of model.layers.0.temporal_block"),
        ("nemotron_h", "cache", "time steps are at least 0.001 in parts of several tokens"),
    ],
)
def test_leaks_of_transformers_and_their_causes(name, leaking, cause):
    """Found in the code of transformers as well, and the rare ones but for the recurrent types in calls of it alone."""
    result = regard.audit(build_tiny(name), only=[leaking])[leaking]
    assert result.verdict == ("leaks" if cause else "holds")
    assert not cause or cause in result.leak.cause


class CompiledOtherwise(nn.Module):
    """Attention whose mask is forgotten where torch compiles it."""

    causal = True

    def forward(self, hidden):
        hidden_keys = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(1)
        if torch.compiler.is_compiling():
            hidden_keys = torch.zeros_like(hidden_keys)
        return (hidden @ hidden.mT).masked_fill(hidden_keys, float("-inf")).softmax(-1) @ self.value(hidden)

    def __init__(self):
        super().__init__()
        self.value = nn.Linear(4, 4)


@pytest.mark.parametrize("fault", [False, True])
def test_a_compiled_model_is_compared_with_eager(fault, monkeypatch):
    """By the backend that traces and compiles nothing, since compilers take long."""
    monkeypatch.setattr("regard.auditing.properties.modes.BACKEND", "eager")
    report = regard.audit(
        CompiledOtherwise() if fault else nn.Sequential(nn.Linear(4, 4), nn.GELU()),
        torch.randn(1, 9, 4),
        only=["compiled"],
    )
    assert report["compiled"].verdict == ("leaks" if fault else "holds")
    monkeypatch.setattr("regard.auditing.properties.modes.BACKEND", "no_such_compiler")
    result = regard.audit(CompiledOtherwise(), torch.randn(1, 9, 4), only=["compiled"])["compiled"]
    assert result.verdict == "cannot be asked"
    assert "torch.compile failed" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mistral", "gpt_oss", "deepseek_v3", "t5", "bert", "bart"])
def test_types_of_transformers_leak_only_where_they_do(name):
    """bart counts places from its first token, padding or not; masks of "eager", which gpt_oss has, know no texts."""
    report = regard.audit(TYPES[name].build())
    leaks = {result.name for result in report.leaks}
    packed = "packed by position_ids and ones"
    expected = {
        "bart": {"padding left", "source padding left"},
        "t5": set(),
        "bert": set(),
        "gpt_oss": {packed, "packed by position_ids", "packed by cu_seq_lens", "packed by seq_idx"},
    }
    assert leaks == expected.get(name, {packed})


def test_a_window_in_a_mask_that_was_made_with_the_layer_is_not_asked():
    sizes = {"vocab_size": 31, "hidden_size": 16, "num_heads": 2, "max_position_embeddings": 40, "window_size": 16}
    config = transformers.GPTNeoConfig(**sizes, num_layers=2, attention_types=[[["global", "local"], 1]])
    report = regard.audit(transformers.GPTNeoForCausalLM(config), only=["window"])
    assert report["window"].verdict == "cannot be asked"


@pytest.mark.parametrize("fault", ["", "ignored", "off by one"])
def test_chunks_of_llama4(fault, monkeypatch):
    model = build_tiny("llama4_text", layer_types=["chunked_attention", "full_attention"])
    if fault == "ignored":
        masks_of_llama4 = "transformers.models.llama4.modeling_llama4.create_chunked_causal_mask"
        monkeypatch.setattr(masks_of_llama4, masking_utils.create_causal_mask)
    if fault == "off by one":
        overlay = masking_utils.chunked_overlay
        monkeypatch.setattr(masking_utils, "chunked_overlay", lambda size, padding: overlay(size + 1, padding))
    report = regard.audit(model, only=["chunks", "causal"], length=12)
    assert report["causal"].verdict == "holds"
    assert report["chunks"].verdict == ("leaks" if fault else "holds"), str(report)
    assert report.influence.missing == ()
    assert not fault or "other chunks than its own" in report["chunks"].leak.cause


def test_the_model_stays_as_it_is():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    report = regard.audit(model, torch.randn(2, 9, 16), causal=False)
    assert report.exit_code == 0
    assert "training mode" in report.notes[0]
    assert model.training
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_an_off_by_one_of_a_function_is_found_by_its_pairs():
    def attention(query, key, value):
        scores = query @ key.transpose(-1, -2)
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value

    report = regard.audit(attention, tuple(torch.randn(3, 2, 4, 11, 8)), causal=True)
    assert report["causal"].verdict == "leaks"
    assert (report["causal"].leak.output, report["causal"].leak.input) in report.influence.unexpected
    assert report.influence.unexpected == tuple((row, row + 1) for row in range(10))


@pytest.mark.parametrize(("diagonal", "verdict"), [(0, "holds"), (1, "leaks")])
def test_a_function_that_says_nothing_is_taken_as_causal_by_its_measured_mask(diagonal, verdict):
    def attention(query, key, value):
        allowed = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(diagonal)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    report = regard.audit(attention, tuple(torch.randn(3, 1, 2, 13, 5)), only=["causal"])
    assert report["causal"].verdict == verdict
    assert report.notes[0].startswith("taken as causal")


def test_a_bidirectional_window_is_not_taken_as_causal():
    def attention(query, key, value):
        near = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(2).triu(-2)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=near)

    report = regard.audit(attention, tuple(torch.randn(3, 1, 2, 13, 5)), only=["causal"])
    assert report["causal"].verdict == "cannot be asked"
    assert not report.notes


def test_random_numbers_are_no_answer():
    calls = itertools.count()
    report = regard.audit(lambda tokens: tokens * next(calls), torch.randn(1, 9, 4))
    assert report.exit_code == 2
    assert all(result.verdict == "cannot be asked" for result in report.results)


def test_a_report_is_the_same_each_time_and_is_json():
    query, key, value = torch.randn(3, 1, 2, 9, 4)
    reports = [regard.audit(functional.scaled_dot_product_attention, (query, key, value), causal=False) for _ in "ab"]
    assert reports[0].to_json() == reports[1].to_json()
    assert json.loads(reports[0].to_json())["exit_code"] == 0


def test_a_report_is_saved_as_a_page_or_as_json(tmp_path):
    report = regard.audit(torch.nn.Linear(5, 5), torch.randn(1, 7, 5), only=["batch"])
    page = report.save(tmp_path / "audit.html", language="zh")
    assert '<html lang="zh-CN">' in page.read_text(encoding="utf-8")
    assert report.save(tmp_path / "audit.json").read_text(encoding="utf-8") == report.to_json() + "\n"
    with pytest.raises(OutputExistsError):
        report.save(page)
    with pytest.raises(OptionError, match=r"\.html or \.json"):
        report.save(tmp_path / "audit.pdf")


def test_an_assertion_fails_with_the_report():
    with pytest.raises(AssertionError, match=r"tokens leak\n(?s:.*)causal +LEAKS"):
        regard.assert_no_leaks(functional.scaled_dot_product_attention, tuple(torch.randn(3, 1, 2, 9, 4)), causal=True)


@pytest.mark.parametrize(
    ("inputs", "error"), [(None, OptionError), ("text", OptionError), (torch.randn(2, 9, 5), RefusedError)]
)
def test_what_cannot_be_called_is_said_in_words(inputs, error):
    with pytest.raises(error) as caught:
        regard.audit(nn.Linear(4, 4), inputs)
    assert caught.value.expected
    assert caught.value.do


def test_properties_are_chosen_by_beginnings_of_their_names():
    report = regard.audit(nn.Linear(4, 4), torch.randn(2, 9, 4), only=["padding", "batch"], skip=["padding left"])
    assert [result.name for result in report.results] == ["padding right", "batch"]
    with pytest.raises(OptionError, match="unknown property"):
        regard.audit(nn.Linear(4, 4), torch.randn(2, 9, 4), only=["paddings"])
    assert len(set(property_names())) == len(property_names())


SOUND = {
    "recurrence": (nn.LSTM(8, 8, batch_first=True), torch.randn(2, 9, 8)),
    "attention": (nn.MultiheadAttention(16, 2, batch_first=True), (torch.randn(2, 9, 16),) * 3),
    "length first": (nn.TransformerEncoderLayer(16, 2, 32), torch.randn(9, 2, 16)),
    "source and target": (
        nn.Transformer(16, 2, 1, 1, 32, batch_first=True),
        {
            "src": torch.randn(2, 7, 16),
            "tgt": torch.randn(2, 9, 16),
            "tgt_mask": nn.Transformer.generate_square_subsequent_mask(9),
        },
    ),
    "pictures": (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2)), torch.randn(2, 3, 8, 8)),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_modules_of_torch_hold(name):
    module, inputs = SOUND[name]
    report = regard.audit(module.eval(), inputs)
    assert report.leaks == (), str(report)
    assert report.exit_code == 0


def test_a_row_of_padding_is_nan_in_torch_and_spreads():
    """torch issue 41508: with a causal mask, hidden tokens on the left see nothing, and their rows are NaN."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    report = regard.audit(encoder, {"src": torch.randn(1, 9, 16), "mask": mask}, only=["padding left"])
    assert report["padding left"].verdict == "leaks"
    assert "softmax of such a row is NaN" in report["padding left"].leak.cause


def test_windows_of_the_config_are_in_the_declared_mask():
    """Two layers with a causal window of 5 keys reach 8 tokens back; two of Longformer with 4 on both sides, 4."""
    report = regard.audit(TYPES["mistral"].build(), only=["batch"])
    influence = report.influence
    assert influence.declared == tuple(tuple(0 <= row - column <= 8 for column in range(13)) for row in range(13))
    assert influence.unexpected == influence.missing == ()
    assert [module.name for module in report.modules][-2:] == ["lm_head", ""]
    assert all(0 < module.allowed <= 2 for module in report.modules if "rotary" not in module.name)
    assert all(module.forbidden < influence.threshold for module in report.modules)
    config = transformers.LongformerConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        attention_window=4, max_position_embeddings=64,
    )  # fmt: skip
    influence = regard.audit(transformers.LongformerModel(config), only=["batch"], length=12).influence
    assert influence.declared == tuple(tuple(abs(row - column) <= 4 for column in range(12)) for row in range(12))
    assert influence.unexpected == influence.missing == ()


def test_a_printed_report_names_a_reason_once():
    model = nn.Sequential(nn.Embedding(19, 8), nn.Linear(8, 8)).eval()
    lines = str(regard.audit(model, torch.arange(11)[None], causal=True, quick=True)).splitlines()
    (line,) = [line for line in lines if "the model has no argument that hides tokens" in line]
    assert line.strip().startswith("not asked: padding right, padding left, gradient of padding, ")
    assert lines[-1].strip().startswith("0 of 6 properties leak; ")
