"""Llama-type decoders against transformers, one model type after another; their folders, and their errors."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from causal_parity import (
    assert_bfloat16,
    assert_same_model,
    assert_same_outputs,
    assert_same_parameters,
    assert_same_prompts,
    assert_search_of_each_alone,
    random_ids,
    reload,
    save_and_read,
)
from hypothesis_examples import examples
from regard.errors import CheckpointError, OptionError, RefusedError
from regard.models import Llama, LlamaConfig, RotaryConfig, load
from regard.models.llama_types import MODEL_TYPES, OWN_TYPE
from regard.positions import DynamicScaling, LinearScaling, LongRopeScaling
from regard.search import Beam, Greedy
from slow_parameters import slow_except
from small_checkpoints import change_config

LENGTH = 13
CLASSES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "phi3": "Phi3",
    "gemma2": "Gemma2",
    "gemma3_text": "Gemma3Text",
    "gpt_oss": "GptOss",
}
SUPPORTED = sorted(CLASSES)
SMALL = LlamaConfig(
    vocabulary=31, width=22, layers=3, heads=3, key_value_heads=1, head_dim=10, inner=13, max_length=19, end_ids=(2,)
)
PLAIN_SCALINGS = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 3.0},
    {"rope_type": "dynamic", "factor": 3.0},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 7},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 7, "beta_fast": 5, "beta_slow": 2,
     "attention_factor": 1.3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 7, "beta_fast": 2.0, "beta_slow": 0.2,
     "truncate": False, "mscale": 0.7, "mscale_all_dim": 0.4},
)  # fmt: skip


def long_rope(pairs, trained):
    return {
        "rope_type": "longrope",
        "short_factor": [1.0 + 0.1 * pair for pair in range(pairs)],
        "long_factor": [2.0 + 0.7 * pair for pair in range(pairs)],
        "original_max_position_embeddings": trained,
    }


def make_peer(kind, seed=0, deviation=0.2, **fields):
    """A small model of transformers of one type, with random weights, biases and norms included."""
    options = {
        "vocab_size": 31,
        "hidden_size": 24,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": LENGTH,
        "initializer_range": deviation,
        "pad_token_id": None,  # transformers has no gradient for the embedding of padding
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
    }
    if kind == "gpt_oss":
        options |= {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 6}
    options |= fields
    torch.manual_seed(seed)
    config = getattr(transformers, CLASSES[kind] + "Config")(**options)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"  # the grouped products of torch need widths that 4 divides
    peer = AutoModelForCausalLM.from_config(config).eval()
    assert peer.config.model_type == kind
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name or name.endswith(("bias", "sinks")):
                weight += torch.randn_like(weight) * 0.3
    return peer


@st.composite
def peers(draw, kind, **fields):
    """A random small model of one type."""
    key_value_heads, groups = draw(st.sampled_from([1, 2, 3])), draw(st.sampled_from([1, 2, 3]))
    heads = key_value_heads * groups
    # A norm over few numbers amplifies rounding: ours and theirs are then 3e-5 from float64.
    least_head_width = -(-24 // heads)
    free_head_dim = kind not in ("qwen2", "phi3")
    head_dim = draw(st.sampled_from([6, 10] if kind in ("qwen3", "gemma3_text") else [2, 6, 10]))
    if not free_head_dim:
        head_dim = max(head_dim, least_head_width + least_head_width % 2)
    head_width = max(draw(st.sampled_from([3, 8])), least_head_width)
    options = {
        "vocab_size": draw(st.sampled_from([5, 31])),
        "hidden_size": heads * (head_width if free_head_dim else head_dim),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "num_hidden_layers": draw(st.sampled_from([1, 2, 3, 7])),
        "tie_word_embeddings": draw(st.booleans()),
        "eos_token_id": draw(st.sampled_from([None, 2, [2, 3]])),
        "rope_parameters": {"rope_type": "default", "rope_theta": draw(st.sampled_from([100.0, 1e6]))},
    }
    if free_head_dim:
        options["head_dim"] = head_dim
    gate = "hidden_activation" if kind.startswith("gemma") else "hidden_act"
    options[gate] = draw(st.sampled_from(["silu", "gelu_pytorch_tanh"] if kind != "gpt_oss" else ["silu"]))
    if kind == "gpt_oss":
        options |= {
            "num_local_experts": draw(st.sampled_from([3, 5])),
            "num_experts_per_tok": draw(st.sampled_from([1, 2, 3])),
        }
    if kind in ("llama", "qwen3", "gemma2", "gemma3_text", "gpt_oss"):
        options["attention_bias"] = draw(st.booleans())
    if kind == "llama":
        options["mlp_bias"] = draw(st.booleans())
    if kind != "llama":
        options["sliding_window"] = draw(st.sampled_from([2, 5]))  # the cache of transformers keeps too much for 1
    if kind in ("mistral", "phi3") and draw(st.booleans()):
        options["sliding_window"] = None
    if kind.startswith("qwen"):
        options |= {"use_sliding_window": draw(st.booleans()), "max_window_layers": draw(st.sampled_from([0, 1, 2]))}
    if kind.startswith("gemma"):
        options["query_pre_attn_scalar"] = draw(st.sampled_from([3, 16]))
        options["final_logit_softcapping"] = draw(st.sampled_from([None, 1.7]))
        options["attn_logit_softcapping"] = draw(st.sampled_from([None, 0.9, 50.0])) if kind == "gemma2" else None
    if kind == "gemma3_text":
        options["rope_parameters"] = {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
        options["sliding_window_pattern"] = draw(st.sampled_from([2, 3, 6]))
    if kind == "phi3":
        part = draw(st.sampled_from([1.0, 0.5] if head_dim % 4 == 0 else [1.0]))
        options["rope_parameters"]["partial_rotary_factor"] = part
    return make_peer(kind, draw(st.integers(0, 2**16)), **(options | fields))


class TestParity:
    @pytest.mark.parametrize("kind", SUPPORTED)
    def test_random_small_models(self, tmp_path_factory, kind):
        @examples(9, without_slow=2)
        @given(peer=peers(kind))
        def check(peer):
            model = assert_same_model(peer, tmp_path_factory.mktemp("peer"), length=LENGTH)
            assert_same_prompts(model, peer, length=LENGTH)
            end = peer.config.eos_token_id
            assert model.end_ids == (() if end is None else tuple(end) if isinstance(end, list) else (end,))

        check()

    # What may round elsewhere than in a Llama: softcaps and scaled embeddings; sinks, experts and biases.
    @pytest.mark.parametrize("kind", slow_except({"gemma2", "gpt_oss"}, SUPPORTED))
    def test_bfloat16(self, tmp_path, kind):
        fields = {} if kind in ("qwen2", "phi3") else {"head_dim": 10}
        if kind != "llama":
            fields["sliding_window"] = 5
        if kind == "gemma2":
            fields["attn_logit_softcapping"] = 1.3
        assert_bfloat16([make_peer(kind, seed, **fields) for seed in range(5)], tmp_path, length=LENGTH)

    # Norms of queries and keys, two bases; joined projections; experts; windows of some layers.
    @pytest.mark.parametrize("kind", slow_except({"gemma3_text", "gpt_oss", "phi3", "qwen2"}, SUPPORTED))
    def test_folders_are_read_by_transformers_and_again(self, tmp_path_factory, kind):
        @examples(5, without_slow=2)
        @given(peer=peers(kind), shard=st.sampled_from([100, 3000, 10**9]))
        def check(peer, shard):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            again = save_and_read(model, folder / "copy", AutoModelForCausalLM, shard, experts_implementation="eager")
            assert type(again) is type(peer)
            assert_same_parameters(peer, again)
            assert_same_outputs(model, again, random_ids(peer, 2, LENGTH))

        check()


class TestScalings:
    @pytest.mark.parametrize("scaling", [*PLAIN_SCALINGS, long_rope(3, 5), long_rope(3, LENGTH) | {"factor": 4.0}])
    def test_every_scaling(self, tmp_path, scaling):
        """For texts as long as those of training, twice as long, and step by step."""
        fields = {"num_hidden_layers": 1, "rope_parameters": {"rope_theta": 100.0} | scaling}
        peer = make_peer("llama", **fields)
        model = assert_same_model(peer, tmp_path, length=LENGTH)
        assert_same_outputs(model, make_peer("llama", **fields), random_ids(peer, 2, 29))
        model.save(tmp_path / "copy")
        assert load(tmp_path / "copy").config == model.config

    @pytest.mark.parametrize("part", [0.5, 1.0])
    def test_long_rope_of_a_part_of_each_head(self, tmp_path, part):
        rope = long_rope(int(12 * part) // 2, 5) | {"partial_rotary_factor": part, "rope_theta": 100.0}
        fields = {"num_attention_heads": 2, "num_hidden_layers": 1, "original_max_position_embeddings": 5}
        peer = make_peer("phi3", **fields, rope_parameters=rope)
        model = assert_same_model(peer, tmp_path, length=LENGTH)
        assert_same_outputs(model, peer, random_ids(peer, 2, 4))
        assert model.config.rotary.rotated == (None if part == 1.0 else 6)
        model.save(tmp_path / "copy")
        assert load(tmp_path / "copy").config == model.config
        again = AutoModelForCausalLM.from_pretrained(tmp_path / "copy").eval()
        assert_same_outputs(model, again, random_ids(peer, 2, LENGTH))

    @pytest.mark.parametrize("prompt", [1, 3, 4, 5, 6, 9])
    def test_texts_that_become_longer_than_the_short_factors(self, tmp_path, prompt):
        """As by ``generate`` of transformers, which empties its cache; and the rows of a beam, reordered on the way."""
        fields = {"num_attention_heads": 2, "num_hidden_layers": 2, "original_max_position_embeddings": 5}
        rope = long_rope(6, 5) | {"rope_theta": 100.0}
        peer = make_peer("phi3", **fields, rope_parameters=rope, max_position_embeddings=31).double()
        model = reload(peer, tmp_path, torch.float64)
        ids, lengths, new = random_ids(peer, 3, prompt), torch.full((3,), prompt), 11
        options = {"suppress_tokens": [1], "pad_token_id": 2}  # no search writes the start token
        options |= {"attention_mask": torch.ones_like(ids), "max_new_tokens": new, "do_sample": False}
        theirs = peer.generate(ids, **options)[:, prompt:]
        for found, row in zip(Greedy().search(model, ids, lengths, max_tokens=new), theirs.tolist(), strict=True):
            assert found[0].ids == tuple(itertools.takewhile(lambda one: one not in (2, 3), row))
        for found, row in zip(Beam(3).search(model, ids, lengths, max_tokens=new), ids, strict=True):
            text, expected = row, 0.0
            for one in found[0].ids:
                with torch.no_grad():
                    expected += float(peer(text[None]).logits[0, -1].log_softmax(-1)[one])
                text = torch.cat([text, torch.tensor([one])])
            if found[0].finished:
                with torch.no_grad():
                    ends = peer(text[None]).logits[0, -1].log_softmax(-1)[[2, 3]]
                assert any(found[0].log_probability == pytest.approx(expected + float(end)) for end in ends)
            else:
                assert found[0].log_probability == pytest.approx(expected)

    def test_fields_of_older_files(self, tmp_path):
        """The base outside of "rope_scaling", which calls its type "type"."""
        peer = make_peer("llama", rope_parameters={"rope_type": "linear", "factor": 3.0, "rope_theta": 100.0})
        peer.save_pretrained(tmp_path)
        change_config(tmp_path, rope_parameters=..., rope_theta=100.0, rope_scaling={"type": "linear", "factor": 3.0})
        model = load(tmp_path)
        assert model.config.rotary == RotaryConfig(base=100.0, scaling=LinearScaling(3.0))
        assert_same_outputs(model, peer, random_ids(peer, 2, LENGTH))

    def test_fields_of_older_files_of_gemma_3(self, tmp_path):
        rope = {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        }
        peer = make_peer("gemma3_text", head_dim=6, sliding_window=4, sliding_window_pattern=3, rope_parameters=rope)
        peer.save_pretrained(tmp_path)
        change_config(
            tmp_path,
            rope_parameters=...,
            layer_types=...,
            sliding_window_pattern=3,
            rope_theta=1000.0,
            rope_local_base_freq=100.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        )
        assert_same_outputs(load(tmp_path), peer, random_ids(peer, 2, LENGTH))


@pytest.fixture
def model():
    torch.manual_seed(5)
    return Llama(SMALL).eval()


def test_files_hold_frequencies_in_old_checkpoints(model, tmp_path):
    model.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    tensors |= {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(5) for layer in range(3)}
    save_file(tensors, tmp_path / "model" / "model.safetensors")
    ids = torch.randint(0, 31, (2, 7))
    assert torch.equal(load(tmp_path / "model")(ids).logits, model(ids).logits)


def test_a_window_hides_what_is_before_it():
    torch.manual_seed(3)
    config = LlamaConfig(
        vocabulary=31, width=20, layers=1, heads=2, inner=13, windows=(3,), model_type="mistral", max_length=19
    )
    model = Llama(config).eval()
    ids = torch.randint(0, 31, (1, 9))
    other = ids.clone()
    other[0, 4] = (ids[0, 4] + 3) % 31
    changed = (model(ids).logits != model(other).logits).any(-1)[0]
    assert changed.nonzero()[:, 0].tolist() == [4, 5, 6]


def test_the_published_config_of_gemma_2(tmp_path):
    """The fields of the file as published with Gemma 2 2B, but for its sizes: the softcaps are those of the paper."""
    peer = make_peer("gemma2", head_dim=6, sliding_window=5)
    peer.save_pretrained(tmp_path)
    change_config(
        tmp_path,
        attn_logit_softcapping=50.0,
        final_logit_softcapping=30.0,
        hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh",
        cache_implementation="hybrid",
        query_pre_attn_scalar=256,
        rope_theta=10000.0,
        rope_parameters=...,
        layer_types=...,
        tie_word_embeddings=...,
        use_cache=True,
    )
    model = load(tmp_path)
    assert (model.config.softcap, model.config.logit_softcap, model.config.windows) == (50.0, 30.0, (5, None, 5))
    again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    assert_same_outputs(model, again, random_ids(peer, 2, LENGTH))


LONG_TEXTS = {
    "dynamic": {"max_length": 5, "rotary": RotaryConfig(scaling=DynamicScaling(3.0, 5))},
    "longrope": {
        "model_type": "phi3",
        "rotary": RotaryConfig(
            scaling=LongRopeScaling((1.0,) * 5, (1.0, 2.0, 2.0, 3.0, 3.0), factor=4.0, trained_length=5)
        ),
    },
}
"""Options of models that rotate a token otherwise in a longer text."""


def model_of_long_texts(name):
    torch.manual_seed(5)
    return Llama(replace(SMALL, **LONG_TEXTS[name])).eval()


@pytest.mark.parametrize("name", LONG_TEXTS)
class TestLengthDependence:
    def test_the_last_token_of_a_prompt_sees_the_text_of_forward(self, name):
        model, ids = model_of_long_texts(name), torch.randint(0, 31, (2, 9))
        tokens, state = model.prefill(ids)
        torch.testing.assert_close(model.step(tokens, state)[0], model(ids).logits[:, -1], atol=1e-5, rtol=1e-5)

    @pytest.mark.parametrize("search", [Greedy(), Beam(3)])
    def test_prompts_of_different_lengths_do_not_depend_on_one_another(self, name, search):
        assert_search_of_each_alone(model_of_long_texts(name), search)

    def test_prompts_of_different_lengths_are_not_read_together(self, name):
        model = model_of_long_texts(name)
        with pytest.raises(RefusedError, match="prompts of different lengths"):
            model.prefill(torch.randint(0, 31, (2, 9)), lengths=torch.tensor([9, 4]))


class TestErrors:
    def test_unsupported_types_are_told_those_that_are_not(self, model, tmp_path):
        model.save(tmp_path / "model")
        change_config(tmp_path / "model", model_type="qwen3_moe")
        with pytest.raises(
            CheckpointError, match=r"one of[\s\S]*gemma2, gemma3, gemma3_text, gpt2, gpt_oss, llama[\s\S]*mistral"
        ):
            load(tmp_path / "model")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"model_type": "qwen4"}, "model_type"),
            ({"query_key_norm": True}, "qwen3, gemma3_text"),
            ({"windows": (3, 3, 3)}, "choose model_type: mistral"),
            ({"model_type": "mistral", "windows": (3,)}, r"\(\) or 3 numbers"),
            ({"model_type": "mistral", "windows": (3, None, 3)}, "a window in every layer"),
            ({"model_type": "qwen2", "attention_bias": True, "windows": (3, None, 5)}, "one size"),
            ({"attention_bias": True}, "equal ones"),
            ({"rotary": RotaryConfig(rotated=4)}, "a rotation of the whole head"),
            ({"rotary": RotaryConfig(scaling=DynamicScaling(2.0, 7))}, "trained_length=19"),
            ({"activation": "silu"}, "swiglu"),
            ({"sinks": True}, "choose model_type: gpt_oss"),
            ({"model_type": "gpt_oss", "sinks": True}, "experts and chosen_experts"),
            ({"softcap": 50.0}, "choose model_type: gemma2"),
            ({"model_type": "gemma2", "softcap": 0.0}, "softcap"),
            ({"key_value_heads": 2}, None),
        ],
    )
    def test_hyperparameters(self, fields, message):
        values = {one: getattr(SMALL, one) for one in SMALL.__dataclass_fields__}
        if message is None:
            with pytest.raises(OptionError, match="divisible by key_value_heads"):
                Llama(LlamaConfig(**(values | fields)))
            return
        with pytest.raises(OptionError, match=message):
            LlamaConfig(**(values | fields))

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"rope_parameters": {"rope_type": "proportional"}}, "default, linear, dynamic, yarn, llama3, longrope"),
            ({"rope_parameters": {"rope_type": "linear", "factor": 0.5}}, "1 or more"),
            ({"rope_parameters": {"rope_type": "longrope", "short_factor": "a", "long_factor": []}}, "list of numbers"),
            (
                {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.4}},
                "rotates all 10 comp.*rotate 4 of",
            ),
            ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "do not have"),
            ({"partial_rotary_factor": 0.4}, "partial_rotary_factor.*type .llama. do not have"),
            ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "another 'rope_type' in rope_scaling: 'yarn'"),
            ({"rope_scaling": {"type": "default", "rope_theta": 7.0}}, "another 'rope_theta' in rope_scaling: 7.0"),
            ({"rope_parameters": [1]}, "an object, or null"),
            ({"hidden_act": "tanh"}, "gelu_pytorch_tanh"),
            ({"attn_logit_softcapping": 50.0}, "null, the only supported value"),
            ({"num_key_value_heads": 2}, "divisor of num_attention_heads"),
            ({"mlp_bias": "yes"}, "true or false"),
            ({"num_hidden_layers": 2}, "different numbers of layers"),
            ({"vocab_size": 37}, "another shape"),
            ({"eos_token_id": "</s>"}, "eos_token_id"),
        ],
    )
    def test_fields(self, model, tmp_path, fields, message):
        model.save(tmp_path / "model")
        change_config(tmp_path / "model", **fields)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "model")

    def test_layer_types(self, tmp_path):
        peer = make_peer("qwen3", head_dim=6, use_sliding_window=True, sliding_window=4)
        peer.save_pretrained(tmp_path)
        for wrong in (["full_attention"], ["full_attention", "chunked_attention", "full_attention"], "full_attention"):
            change_config(tmp_path, layer_types=wrong)
            with pytest.raises(CheckpointError, match="3 strings, each one of full_attention, sliding_attention"):
                load(tmp_path)


class TestFolders:
    """Fields that a folder may have beside those that transformers writes today."""

    @pytest.mark.parametrize("kind", ["llama", "gemma2"])
    def test_an_output_layer_of_its_own_is_kept(self, tmp_path, kind):
        """config.json says that it is shared, and the file holds both: as in transformers the file is right."""
        peer = make_peer(kind, tie_word_embeddings=False, head_dim=6)
        peer.save_pretrained(tmp_path)
        change_config(tmp_path, tie_word_embeddings=True)
        model = load(tmp_path)
        assert_same_outputs(model, peer, random_ids(peer, 2, LENGTH))
        assert not model.config.tied
        assert model.notes == (
            f"{tmp_path}: the embedding and the output layer are not shared, since the weights hold both with other "
            "numbers",
        )
        copied = load_file(tmp_path / "model.safetensors")
        copied["lm_head.weight"] = copied["model.embed_tokens.weight"].clone()
        save_file(copied, tmp_path / "model.safetensors")
        assert load(tmp_path).config.tied

    def test_windows_have_no_switch_but_in_qwen(self, tmp_path):
        peer = make_peer("mistral", sliding_window=3)
        peer.save_pretrained(tmp_path)
        change_config(tmp_path, use_sliding_window=False)
        assert_same_outputs(load(tmp_path), peer, random_ids(peer, 2, LENGTH))

    @pytest.mark.parametrize("kind", ["phi3", "gpt_oss", "llama"])
    def test_defaults_of_a_type(self, tmp_path, kind):
        """The epsilon of norms, and YaRN in gpt_oss."""
        make_peer(kind).save_pretrained(tmp_path)
        change_config(tmp_path, rms_norm_eps=..., rope_parameters=...)
        peer = AutoModelForCausalLM.from_pretrained(
            tmp_path, attn_implementation="eager", experts_implementation="eager"
        )
        model = load(tmp_path)
        assert model.config.epsilon == peer.config.rms_norm_eps
        assert_same_outputs(model, peer.eval(), random_ids(peer, 2, LENGTH))

    def test_a_rope_scaling_that_repeats_rope_parameters(self, tmp_path):
        rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 7, "rope_theta": 100.0}
        peer = make_peer("qwen3", head_dim=6, rope_parameters=rope)
        peer.save_pretrained(tmp_path)
        change_config(tmp_path, rope_scaling={name: value for name, value in rope.items() if name != "rope_theta"})
        assert_same_outputs(load(tmp_path), peer, random_ids(peer, 2, LENGTH))

    @pytest.mark.parametrize("full", [..., {"full_attention": {"rope_type": "linear", "factor": 2.0}}])
    def test_older_fields_of_gemma_3(self, tmp_path, full):
        make_peer("gemma3_text", head_dim=6, sliding_window=3).save_pretrained(tmp_path)
        old = {"rope_scaling": {"rope_type": "linear", "factor": 4.0}} if full is ... else {}
        change_config(tmp_path, rope_parameters=full, rope_theta=5000.0, rope_local_base_freq=77.0, **old)
        peer = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
        assert peer.config.rope_parameters["sliding_attention"]["rope_theta"] == 77.0
        assert_same_outputs(load(tmp_path), peer, random_ids(peer, 2, LENGTH))

    def test_generation_fields_that_change_what_is_written_are_named(self, tmp_path):
        make_peer("llama").save_pretrained(tmp_path)
        path = tmp_path / "generation_config.json"
        plain = {"repetition_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0, "bad_words_ids": []}
        path.write_text(json.dumps(plain | {"temperature": 0.7}))
        assert load(tmp_path).notes == ()
        path.write_text(json.dumps(plain | {"repetition_penalty": 1.1, "min_new_tokens": 3}))
        assert load(tmp_path).notes == (f"{path}: searches do not apply min_new_tokens, repetition_penalty",)


def test_every_type_is_tested():
    assert set(MODEL_TYPES) - {OWN_TYPE} == set(CLASSES)
