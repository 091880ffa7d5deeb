"""Models with linear mixers after ``use_scans`` equal what transformers computes in torch, type by type.

Each test of ``MIXER_TYPES`` proves one cell of the table of linear mixers in docs/transformers.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import transformers
from transformers.models.minimax.modeling_minimax import MiniMaxCache

import regard.hf
from regard.errors import OptionError, RefusedError
from regard.hf import scan_replacement
from regard.hf.scan_functions import delta_rule, mamba2_scan, mamba2_step
from script_process import run_script
from unit.hf.comparison import assert_runs_are_equal, generate, run_model
from unit.hf.mixer_types import CLAIMS, MIXER_TYPES
from unit.hf.model_types import ModelType

BY_NAME = {kind.name: kind for kind in MIXER_TYPES}
CALLS = list[str]


@contextmanager
def counted_scans(model: transformers.PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[CALLS]:
    """``use_scans``, which also lists the calls of regard's functions."""
    calls: CALLS = []

    def count(name, function):
        def compute(*arguments, **named):
            calls.append(name)
            return function(*arguments, **named)

        return compute

    with monkeypatch.context() as patch:
        counted = {name: count(name, function) for name, function in scan_replacement.FUNCTIONS.items()}
        patch.setattr(scan_replacement, "FUNCTIONS", counted)
        with regard.hf.use_scans(model):
            yield calls


def cases(claim: str) -> list[object]:
    """The model types for which a claim is made; all but a few are slow."""
    return [
        pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow)
        for one in MIXER_TYPES
        if CLAIMS[claim](one)
    ]


@pytest.mark.parametrize("kind", cases("training"))
def test_forward_and_backward_equal_torch(kind: ModelType, monkeypatch):
    model, inputs = kind.build(), kind.inputs()
    expected = run_model(model, "eager", inputs)
    with counted_scans(model, monkeypatch) as calls:
        result = run_model(model, "regard", inputs)
    assert calls
    assert_runs_are_equal(result, expected)


@pytest.mark.parametrize("kind", cases("padding"))
@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_texts_equal_torch(kind: ModelType, side: str):
    model, inputs = kind.build(), kind.inputs(side)
    expected = run_model(model, "eager", inputs)
    with regard.hf.use_scans(model):
        assert_runs_are_equal(run_model(model, "regard", inputs), expected)


@pytest.mark.parametrize("kind", cases("generation"))
def test_generation_with_left_padding_equals_torch(kind: ModelType, monkeypatch):
    model, inputs = kind.build(), kind.inputs("left")
    expected = generate(model, "eager", inputs)
    with counted_scans(model, monkeypatch) as calls:
        assert torch.equal(generate(model, "regard", inputs), expected)
    assert len(set(calls)) == (1 if kind.name == "minimax" else 2), "the prompt and single tokens"


@pytest.mark.parametrize("kind", cases("parts"))
def test_a_prompt_in_parts_equals_torch(kind: ModelType):
    """The second part has several tokens and starts from a state."""
    model, ids = kind.build(), kind.inputs()["input_ids"]
    expected = logits_in_parts(model, "eager", ids)
    with regard.hf.use_scans(model):
        torch.testing.assert_close(logits_in_parts(model, "regard", ids), expected, atol=1e-5, rtol=1e-5)


def logits_in_parts(model, implementation, ids):
    """The logits of a prompt that is read in parts of 7, 5 and 1 tokens."""
    model.set_attn_implementation(implementation)
    is_minimax = model.config.model_type == "minimax"
    cache = MiniMaxCache() if is_minimax else transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        parts = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.split([7, 5, 1], dim=1)]
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2"])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_gradient_checkpointing(name):
    kind = BY_NAME[name]
    model, inputs = kind.build().train(), kind.inputs()
    expected = run_model(model, "eager", inputs)
    model.gradient_checkpointing_enable()
    with regard.hf.use_scans(model):
        assert_runs_are_equal(run_model(model, "regard", inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kimi_linear", "mamba2"])
def test_compiled(name):
    """In a process of its own: see torch_compile_checks.py. torch 2.13 fails to compile training of Qwen's types."""
    result = run_script(f"from unit.hf import torch_compile_checks\ntorch_compile_checks.check_scans({name!r})")
    assert result.returncode == 0, result.stderr[-2000:]


def test_what_is_replaced_is_reported_and_restored():
    from transformers.models.qwen3_next import modeling_qwen3_next as file

    model = BY_NAME["qwen3_next"].build()
    earlier = file.torch_chunk_gated_delta_rule
    replacement = regard.hf.use_scans(model)
    assert replacement.layers == {"model.layers.0.linear_attn": "Qwen3NextGatedDeltaNet"}
    assert replacement.replaced == {
        f"{file.__name__}.torch_chunk_gated_delta_rule": earlier,
        f"{file.__name__}.torch_recurrent_gated_delta_rule": file.torch_recurrent_gated_delta_rule.replaces,
    }
    assert "1 layers compute their scan with regard" in str(replacement)
    assert file.torch_chunk_gated_delta_rule is not earlier
    again = regard.hf.use_scans(model)
    assert (again.replaced, again.layers) == ({}, replacement.layers)
    again.restore()
    assert file.torch_chunk_gated_delta_rule is not earlier, "it had not replaced anything"
    replacement.restore()
    replacement.restore()
    assert file.torch_chunk_gated_delta_rule is earlier


def test_restoring_leaves_what_others_have_put_there(monkeypatch):
    from transformers.models.qwen3_next import modeling_qwen3_next as file

    monkeypatch.setattr(file, "torch_chunk_gated_delta_rule", file.torch_chunk_gated_delta_rule)
    replacement = regard.hf.use_scans(BY_NAME["qwen3_next"].build())
    monkeypatch.setattr(file, "torch_chunk_gated_delta_rule", print)
    replacement.restore()
    assert file.torch_chunk_gated_delta_rule is print


def test_tensors_on_other_devices_go_to_what_was_replaced():
    from transformers.models.mamba2 import modeling_mamba2 as file

    model = BY_NAME["mamba2"].build()
    with regard.hf.use_scans(model), torch.device("meta"):
        output = file.mamba2_chunk_scan(
            torch.empty(2, 7, 4, 3), torch.empty(2, 7, 4), torch.empty(4), *torch.empty(2, 2, 7, 1, 5), chunk_size=4
        )
    assert output.shape == (2, 7, 4, 3)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            transformers.MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, state_size=4),
            "MambaMixer .* calls mamba_sel.*: the scan of Mamba-1 has a decay for each channel",
        ),
        (
            transformers.LlamaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=1, num_attention_heads=2),
            "LlamaForCausalLM, none of whose layers",
        ),
    ],
    ids=["mamba", "llama"],
)
def test_other_models_are_refused(config, reason):
    with pytest.raises(RefusedError, match=reason):
        regard.hf.use_scans(transformers.AutoModelForCausalLM.from_config(config))


def test_other_kinds_of_models_are_refused():
    with pytest.raises(OptionError, match="model"):
        regard.hf.use_scans(torch.nn.Linear(3, 3))


def delta_tokens(dtype=torch.float32):
    """Query, key, value, g, beta: batch 2, 7 tokens, 2 key heads of 5, 4 heads of 3."""
    generator = torch.Generator().manual_seed(3)
    query, key = torch.randn(2, 2, 7, 2, 5, dtype=dtype, generator=generator)
    value = torch.randn(2, 7, 4, 3, dtype=dtype, generator=generator)
    decay, beta = torch.rand(2, 2, 7, 4, dtype=dtype, generator=generator)
    return query, key, value, -decay, beta


@pytest.mark.parametrize("name", ["cu_seqlens", "seq_idx"])
def test_packed_texts_are_refused(name):
    with pytest.raises(RefusedError, match=f"packed into one row[\\s\\S]*{name}"):
        delta_rule(*delta_tokens(), **{name: torch.tensor([0, 3, 7])})


def test_unknown_arguments_are_refused():
    with pytest.raises(RefusedError, match="'z'"):
        mamba2_scan(*mamba2_tokens(), z=torch.ones(1))


def mamba2_tokens():
    """x, dt, A, B, C: batch 2, 7 tokens, 4 heads of 3, 2 groups of 5."""
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randn(2, 7, 4, 3, generator=generator), torch.rand(2, 7, 4, generator=generator)
    return *tokens, -torch.rand(4, generator=generator), *torch.randn(2, 2, 7, 2, 5, generator=generator)


def test_a_step_whose_terms_differ_within_a_head_is_refused():
    x, dt, decay, key, query = (part[:, 0] if part.dim() > 1 else part for part in mamba2_tokens())
    state, of_channels = torch.zeros(2, 4, 3, 5), dt[..., None].expand(-1, -1, 3)
    by_head = decay[:, None, None].expand(-1, 3, 5)
    mamba2_step(state, x, of_channels, by_head, key, query)
    with pytest.raises(RefusedError, match="differ within a head"):
        mamba2_step(state, x, of_channels, by_head.contiguous(), key, query)


def test_float64_is_computed_in_float64():
    tokens = delta_tokens(torch.float64)
    output, state = delta_rule(*tokens, output_final_state=True)
    assert output.dtype == state.dtype == torch.float64
    query, key, value, decay, beta = (part.repeat_interleave(2, 2) if part.shape[2] == 2 else part for part in tokens)
    expected = torch.zeros(2, 4, 5, 3, dtype=torch.float64)
    for token in range(7):
        expected = expected * decay[:, token, :, None, None].exp()
        error = value[:, token] - torch.einsum("bhkv,bhk->bhv", expected, key[:, token])
        expected = expected + torch.einsum("bhk,bhv->bhkv", key[:, token], error * beta[:, token, :, None])
        row = torch.einsum("bhkv,bhk->bhv", expected, query[:, token]) * 5**-0.5
        torch.testing.assert_close(output[:, token], row, atol=1e-12, rtol=0)
    torch.testing.assert_close(state, expected, atol=1e-12, rtol=0)


def test_bfloat16_is_computed_in_float32():
    """Tokens are rounded, and the output; nothing between."""
    tokens = [part.bfloat16() for part in delta_tokens()]
    output, state = delta_rule(*tokens, output_final_state=True, use_qk_l2norm_in_kernel=True)
    expected, expected_state = delta_rule(
        *(part.float() for part in tokens), output_final_state=True, use_qk_l2norm_in_kernel=True
    )
    assert torch.equal(output, expected.bfloat16())
    assert torch.equal(state, expected_state)


def test_autocast_does_not_change_a_scan():
    tokens, others = delta_tokens(), mamba2_tokens()
    expected = delta_rule(*tokens)[0], mamba2_scan(*others)
    with torch.autocast("cpu", torch.bfloat16):
        found = delta_rule(*tokens)[0], mamba2_scan(*others)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
