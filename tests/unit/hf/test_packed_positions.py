"""Texts in one row do not see one another, whatever says where they begin, and whatever mask or cache a call has."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import regard.hf
from regard.errors import RefusedError
from regard.hf.packed_positions import find_starts
from tiny_transformers import build_tiny
from unit.hf.mixer_types import MIXER_TYPES
from unit.hf.model_types import MODEL_TYPES, TEXT, WIDE, ModelType

LENGTHS = (7, 1, 5)
IDS = torch.randint(3, 97, (1, sum(LENGTHS)), generator=torch.Generator().manual_seed(5))
POSITIONS = torch.cat([torch.arange(length) for length in LENGTHS])[None]
ONES = torch.ones_like(IDS)
CALLS = {
    "ones": {"attention_mask": ONES, "use_cache": False},
    "ones and cache": {"attention_mask": ONES},
    "cache": {},
    "neither": {"use_cache": False},
}
DECODERS = [
    *(kind for kind in MODEL_TYPES if kind.family == "decoder"),
    *(
        ModelType(name, "decoder", "AutoModelForCausalLM", TEXT | WIDE | {"is_decoder": True})
        for name in ("biogpt", "bert")
    ),
]
BY_NAME = {kind.name: kind for kind in DECODERS}
MIXED = {"minimax_m3_vl_text", "inkling2_text", "deepseek_v4", "lfm3"}
"""Decoders whose layers read tokens that a mask hides: by blocks counted in the whole row, and by convolutions."""
CHOOSES = {"deepseek_v32", "glm_moe_dsa", "hy_v4"}
"""Decoders that choose keys; among equal scores of a random model torch may choose others in a longer row."""


def build(kind: ModelType, implementation: str = "regard"):
    model = kind.build()
    model.set_attn_implementation(implementation)
    return model


@torch.no_grad()
def compute(model, ids: Tensor = IDS, positions: Tensor | None = POSITIONS, **arguments) -> Tensor:
    return model(input_ids=ids, position_ids=positions, **arguments).logits


def compute_alone(model) -> Tensor:
    """The logits of each text in a call of its own."""
    return torch.cat([compute(model, text, None) for text in IDS.split(LENGTHS, dim=1)], dim=1)


def cases(types):
    return [pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow) for one in types]


@pytest.mark.parametrize("kind", cases(one for one in DECODERS if one.name not in MIXED))
def test_packed_texts_are_computed_as_each_alone(kind):
    model = build(kind)
    expected = compute_alone(model)
    changed = IDS.clone()
    changed[:, : LENGTHS[0]] = changed[:, : LENGTHS[0]].flip(1)
    for arguments in CALLS.values():
        packed = compute(model, **arguments)
        later = slice(LENGTHS[0], None)
        torch.testing.assert_close(compute(model, changed, **arguments)[:, later], packed[:, later], atol=1e-5, rtol=0)
        if kind.name not in CHOOSES:
            torch.testing.assert_close(packed, expected, atol=1e-5, rtol=0)


ENDS = torch.tensor([0, *LENGTHS], dtype=torch.int32).cumsum(0).int()
NUMBERS = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))[None]
ARGUMENTS = ({"cu_seq_lens_q": ENDS, "cu_seq_lens_k": ENDS}, {"seq_idx": NUMBERS.int()})
"""What says where texts begin, without positions."""
BLOCKS = (NUMBERS[:, :, None] == NUMBERS[:, None])[:, None] & torch.ones(13, 13, dtype=torch.bool).tril()


def assert_texts_are_separate(model, **arguments):
    """Assert that no logits of a text depend on the tokens of another one."""
    whole = compute(model, **arguments)
    for changed in (slice(0, 7), slice(8, 13)):
        ids = IDS.clone()
        ids[:, changed] = ids[:, changed].flip(1)
        others = torch.ones(13, dtype=torch.bool)
        others[changed] = False
        torch.testing.assert_close(compute(model, ids, **arguments)[:, others], whole[:, others], atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", cases(one for one in DECODERS if one.name not in MIXED))
def test_arguments_without_positions_separate_texts(kind):
    """Some types drop these arguments before their layers (StableLM, Nemotron); indexers choose keys by the mask."""
    model = build(kind)
    for arguments in ARGUMENTS:
        assert_texts_are_separate(model, positions=None, **arguments)


@pytest.mark.parametrize("kind", cases(one for one in MODEL_TYPES if one.family == "encoder"))
def test_encoders_separate_texts(kind):
    model = build(kind)
    for arguments in ({"attention_mask": ONES}, {}, *ARGUMENTS):
        assert_texts_are_separate(model, **arguments)


def test_own_code_separates_texts():
    """The layers of CodeGen add the mask to their scores, also where the caller passed one of bools."""
    model = build_tiny("codegen", implementation="regard")
    for arguments in ({"attention_mask": ONES}, ARGUMENTS[0], {"attention_mask": BLOCKS}):
        assert_texts_are_separate(model, **arguments)


@pytest.mark.parametrize("kind", cases([*(BY_NAME[name] for name in sorted(MIXED)), *MIXER_TYPES]))
def test_models_that_mix_tokens_elsewhere_refuse_packed_texts(kind):
    model = build(kind)
    arguments = [] if kind.name == "mamba2" else [{"position_ids": POSITIONS, **call} for call in CALLS.values()]
    for call in (*arguments, *ARGUMENTS):
        with pytest.raises(RefusedError, match="pad the texts"):
            model(input_ids=IDS, **call)
    with pytest.raises(RefusedError, match="hides tokens from later ones"):
        model(input_ids=IDS, attention_mask=BLOCKS)
    compute(model, positions=None)
    compute(model, positions=None, attention_mask=torch.ones(13, 13, dtype=torch.bool).tril()[None, None])


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("name", ["rwkv", "openai-gpt", "mobilebert", "t5"])
def test_models_that_separate_no_texts_refuse_them(name):
    """RWKV has states, the first GPT a mask of its own, MobileBERT embeddings of neighbours, T5 two sides."""
    model = build_tiny(name, implementation="regard")
    target = {"decoder_input_ids": IDS} if name == "t5" else {}
    with pytest.raises(RefusedError, match="pad the texts"):
        model(input_ids=IDS, **ARGUMENTS[0], **target)


def test_gradients_of_packed_texts():
    model = build(BY_NAME["llama"])
    logits = model(input_ids=IDS, position_ids=POSITIONS, attention_mask=ONES, labels=IDS, use_cache=False).logits
    embedding = model.get_input_embeddings().weight
    (gradient,) = torch.autograd.grad(logits[:, LENGTHS[0] :].square().sum(), embedding)
    only_first = [one for one in IDS[0, :7].tolist() if one not in IDS[0, 7:].tolist()]
    assert only_first
    assert not gradient[only_first].any()
    assert gradient[IDS[0, 7:]].any(1).all()


@pytest.mark.parametrize("use_cache", [False, True])
def test_rows_of_packed_and_padded_texts(use_cache):
    """Row 0: two texts with padding on both sides and between them. Row 1: one text."""
    tokens = torch.tensor([[0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0], [1] * 11])
    positions = torch.tensor([[1, 0, 1, 2, 1, 1, 0, 1, 2, 3, 1], list(range(11))])
    ids = torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(7))
    model = build(BY_NAME["llama"])
    packed = compute(model, ids, positions, attention_mask=tokens, use_cache=use_cache)
    for row, text in ((0, slice(1, 4)), (0, slice(6, 10)), (1, slice(0, 11))):
        alone = compute(model, ids[row : row + 1, text], None)
        torch.testing.assert_close(packed[row : row + 1, text], alone, atol=1e-5, rtol=0)


ONE_TEXT = {
    "left padding, filled with 1": ([1, 1, 1, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 1]),
    "left padding, filled with 0": ([0, 0, 0, 0, 1, 2, 3], [0, 0, 0, 1, 1, 1, 1]),
    "left padding, not filled": ([0, 1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1, 1]),
    "right padding, filled with 1": ([0, 1, 2, 3, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]),
    "right padding, filled with 0": ([0, 1, 2, 3, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0]),
    "padding inside": ([0, 1, 0, 0, 2, 3, 4], [1, 1, 0, 0, 1, 1, 1]),
    "skipped positions": ([0, 1, 2, 9, 10, 31, 32], [1] * 7),
    "a largest position": ([0, 1, 2, 3, 3, 3, 3], [1] * 7),
    "shared positions": ([0, 1, 1, 1, 2, 3, 4], [1] * 7),
    "an offset": ([5, 6, 7, 8, 9, 10, 11], [1] * 7),
    "one token": ([0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 1]),
}


@pytest.mark.parametrize("name", ONE_TEXT)
def test_one_text_is_not_split(name):
    """As with "eager", which splits no text beside a matrix of padding."""
    positions, tokens = (torch.tensor([numbers]) for numbers in ONE_TEXT[name])
    assert not find_starts(positions, tokens.bool()).any()
    ids = IDS[:, :7]
    results = [
        compute(build(BY_NAME["gemma2"], one), ids, positions, attention_mask=tokens)[tokens.bool()]
        for one in ("regard", "eager")
    ]
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def starts_by_loop(positions: list[int], visible: list[bool]) -> list[bool]:
    """The definition, token by token: a text begins where the position falls, or after a text of one token."""
    starts, seen = [], []
    for position, is_visible in zip(positions, visible, strict=True):
        single = bool(seen) and position == seen[-1] == seen[0] and position in (0, 1)
        starts.append(is_visible and bool(seen) and (position < seen[-1] or single))
        if is_visible:
            seen.append(position)
    return starts


@given(st.lists(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=7, max_size=7), min_size=1, max_size=3))
def test_starts_of_texts(rows):
    positions = [[position for position, _ in row] for row in rows]
    visible = [[is_visible for _, is_visible in row] for row in rows]
    expected = [starts_by_loop(*row) for row in zip(positions, visible, strict=True)]
    assert find_starts(torch.tensor(positions), torch.tensor(visible)).tolist() == expected


@pytest.mark.parametrize("name", ["llama", "opt"])
def test_a_mask_of_the_caller_is_not_changed(name):
    """A mask of 4 dimensions may show tokens of other texts, whatever the positions, as block diffusion does."""
    positions = torch.cat([torch.arange(6), torch.arange(6)])[None]
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    additive = torch.zeros(1, 1, 12, 12).masked_fill(~allowed, torch.finfo(torch.float32).min)
    ids = IDS[:, :12]
    results = [
        compute(build(BY_NAME[name], one), ids, positions, attention_mask=additive) for one in ("regard", "eager")
    ]
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def test_a_cache_of_packed_texts_is_not_continued():
    model = build(BY_NAME["llama"])
    with torch.no_grad():
        cache = model(input_ids=IDS, position_ids=POSITIONS).past_key_values
        with pytest.raises(RefusedError, match="cannot be continued from a cache"):
            model(input_ids=IDS[:, :1], position_ids=torch.tensor([[5]]), past_key_values=cache)
    with pytest.raises(RefusedError, match="cannot be continued from a cache"):
        model.generate(IDS, attention_mask=ONES, position_ids=POSITIONS, max_new_tokens=2, do_sample=False)


def test_texts_that_begin_behind_a_cache_are_refused():
    for name in ("llama", "opt"):
        model = build(BY_NAME[name])
        with torch.no_grad():
            cache = model(input_ids=IDS[:, :5]).past_key_values
            with pytest.raises(RefusedError, match="5 tokens in the cache"):
                model(input_ids=IDS[:, 5:9], position_ids=torch.tensor([[5, 6, 0, 1]]), past_key_values=cache)


def test_a_static_cache_that_was_emptied_is_used_again():
    model = build(BY_NAME["llama"])
    cache = transformers.StaticCache(config=model.config, max_cache_len=17)
    torch.testing.assert_close(compute(model, past_key_values=cache), compute_alone(model), atol=1e-5, rtol=0)
    cache.reset()
    with torch.no_grad():
        model(input_ids=IDS[:, :5], past_key_values=cache)
        continued = model(input_ids=IDS[:, 5:7], past_key_values=cache).logits
        torch.testing.assert_close(continued, model(input_ids=IDS[:, :7]).logits[:, 5:], atol=1e-5, rtol=0)


def test_in_place_of_sdpa():
    model = build(BY_NAME["llama"], "sdpa")
    expected = compute_alone(model)
    assert not torch.allclose(compute(model, attention_mask=ONES), expected, atol=1e-2)
    with regard.hf.replace_sdpa():
        torch.testing.assert_close(compute(model, attention_mask=ONES), expected, atol=1e-5, rtol=0)


def test_other_implementations_are_as_they_were():
    model = build(BY_NAME["llama"], "eager")
    packed = compute(model, attention_mask=ONES)
    torch.testing.assert_close(packed[:, :7], compute_alone(model)[:, :7], atol=1e-5, rtol=0)
    assert not torch.allclose(packed[:, 8:], compute_alone(model)[:, 8:], atol=1e-2)


@pytest.mark.slow
def test_layers_that_attend_in_chunks():
    """Llama 4 counts its chunks from the first token of a row; transformers counts them in each text if it can."""
    sizes = TEXT | WIDE | {"num_key_value_heads": 2, "head_dim": 8, "intermediate_size_mlp": 40}
    sizes |= {"num_local_experts": 2, "num_experts_per_tok": 1, "attention_chunk_size": 3}
    kind = replace(BY_NAME["llama"], name="llama4_text", sizes=sizes)
    model = build(kind)
    torch.testing.assert_close(compute(model, use_cache=False), compute_alone(model), atol=1e-5, rtol=0)
    for first in (0, LENGTHS[0]):  # three texts, and two
        ids, positions = IDS[:, first:], POSITIONS[:, first:]
        for arguments in ({"attention_mask": torch.ones_like(ids), "use_cache": False}, {}):
            with pytest.raises(RefusedError, match="attends in chunks"):
                compute(model, ids, positions, **arguments)
