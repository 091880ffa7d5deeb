"""torch.compile of models with attn_implementation="regard": one graph without breaks, and equal results.

``test_training`` runs this in a process of its own, since torch cannot trace through the suite's shape checks.
"""

from __future__ import annotations

import torch

import regard
import regard.hf
from unit.hf.comparison import assert_runs_are_equal, run_model
from unit.hf.mixer_types import MIXER_TYPES
from unit.hf.model_types import MODEL_TYPES, TEXT, WIDE, ModelType
from unit.hf.training_step import query_gradient

_LONG = TEXT | WIDE | {"max_position_embeddings": 700}
PACKED = {
    "llama": ModelType("llama", "decoder", "AutoModelForCausalLM", _LONG),
    "opt": ModelType("opt", "decoder", "AutoModelForCausalLM", _LONG | {"ffn_dim": 40, "word_embed_proj_dim": 32}),
    "biogpt": ModelType("biogpt", "decoder", "AutoModelForCausalLM", _LONG),
    "bert": ModelType("bert", "decoder", "AutoModelForCausalLM", _LONG | {"is_decoder": True}),
}
"""Llama makes its masks by positions; the layers of OPT, of BioGPT and of BERT as a decoder have them alone."""
NAMES = ("llama", "gemma2", "gpt_oss", "bert", "t5", "vit", "swin")


def check_forward(name: str) -> None:
    """Results of a compiled model equal those of the model."""
    kind = next(kind for kind in MODEL_TYPES if kind.name == name)
    model, inputs = kind.build(), kind.inputs("right" if kind.takes_padding else None)
    model.set_attn_implementation(regard.hf.NAME)
    with torch.no_grad():
        expected = model(**inputs)
        output = torch.compile(model, fullgraph=True, backend="aot_eager")(**inputs)
    result = "logits" if "logits" in expected else "last_hidden_state"
    torch.testing.assert_close(output[result], expected[result], atol=1e-5, rtol=1e-5)


def check_training() -> None:
    """Gradients of a compiled model equal those of the model."""
    kind = next(kind for kind in MODEL_TYPES if kind.name == "llama")
    model, inputs = kind.build(), kind.inputs("right")
    model.set_attn_implementation(regard.hf.NAME)
    expected = query_gradient(model, inputs)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(query_gradient(model, inputs, run=compiled), expected, atol=1e-5, rtol=1e-5)


def check_packed_texts() -> None:
    """Texts that are packed into a row are separated in a graph too, whatever says where they begin."""
    model = next(kind for kind in MODEL_TYPES if kind.name == "llama").build()
    model.set_attn_implementation(regard.hf.NAME)
    texts = torch.randint(3, 97, (1, 5)), torch.randint(3, 97, (1, 600))
    ends = torch.tensor([0, 5, 605], dtype=torch.int32)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for packed in ({"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}, {"seq_idx": (torch.arange(605) >= 5).int()[None]}):
        with torch.no_grad():
            expected = torch.cat([model(text).logits for text in texts], dim=1)
            output = compiled(torch.cat(texts, dim=1), use_cache=False, **packed)
        torch.testing.assert_close(output.logits, expected, atol=1e-5, rtol=1e-5)


def check_packed_texts_of_other_models() -> None:
    """StableLM drops the arguments before its layers; masks of encoders have no positions."""
    ends = torch.tensor([0, 5, 12], dtype=torch.int32)
    positions = torch.tensor([[*range(5), *range(7)]])
    for name, packed in (
        ("stablelm", {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}),
        ("bert", {"position_ids": positions}),
        ("bert", {"position_ids": positions, "attention_mask": torch.ones_like(positions)}),
    ):
        model = next(kind for kind in MODEL_TYPES if kind.name == name).build()
        model.set_attn_implementation(regard.hf.NAME)
        ids = torch.randint(3, 97, (1, 12))
        with torch.no_grad():
            expected = torch.cat([model(text).logits for text in ids.split([5, 7], dim=1)], dim=1)
            output = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, **packed)
        torch.testing.assert_close(output.logits, expected, atol=1e-5, rtol=1e-5)


def check_packed_positions(name: str) -> None:
    """Positions that start again separate texts in a graph, beside a padding matrix and with a cache; a graph that was
    made for one text, and for padding on the left, is right for several.
    """
    model = PACKED[name].build()
    model.set_attn_implementation(regard.hf.NAME)
    for length in (15, 605):
        texts = torch.randint(3, 97, (1, 5)), torch.randint(3, 97, (1, length - 5))
        ids, ones = torch.cat(texts, dim=1), torch.ones(1, length, dtype=torch.long)
        one_text, two_texts = torch.arange(length)[None], torch.cat([torch.arange(5), torch.arange(length - 5)])[None]
        with torch.no_grad():
            whole = model(ids).logits
            expected = torch.cat([model(text).logits for text in texts], dim=1)
            for arguments in ({"attention_mask": ones, "use_cache": False}, {"attention_mask": ones}, {}):
                compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
                for positions, result in ((one_text, whole), (two_texts, expected)):
                    output = compiled(ids, position_ids=positions, **arguments).logits
                    torch.testing.assert_close(output, result, atol=1e-5, rtol=1e-5)
        torch._dynamo.reset()


def check_packed_positions_beside_a_mask(name: str) -> None:
    """In a graph the caller's mask of 4 dimensions is not changed, and padding on the right stays hidden."""
    model = PACKED[name].build()
    model.set_attn_implementation(regard.hf.NAME)
    ids = torch.randint(3, 97, (2, 12))
    positions = torch.tensor([[*range(6), *range(6)], [*range(5), *range(4), 0, 0, 0]])
    padding = torch.ones_like(ids)
    padding[1, 9:] = 0
    allowed = torch.ones(12, 12, dtype=torch.bool).tril()
    additive = torch.zeros(1, 1, 12, 12).masked_fill(~allowed, torch.finfo(torch.float32).min)
    tokens = padding.bool()
    for mask in (additive, padding):
        arguments = {"position_ids": positions, "attention_mask": mask, "use_cache": False}
        with torch.no_grad():
            expected = model(ids, **arguments).logits[tokens]
            output = torch.compile(model, fullgraph=True, backend="aot_eager")(ids, **arguments).logits[tokens]
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch._dynamo.reset()


def check_packed_positions_with_checkpointing(name: str) -> None:
    """Gradients of a graph with checkpointed layers are those of the model, whose layers separate the texts."""
    model = PACKED[name].build().train()
    model.set_attn_implementation(regard.hf.NAME)
    model.gradient_checkpointing_enable()
    ids = torch.randint(3, 97, (1, 12))
    positions = torch.tensor([[*range(7), *range(5)]])
    arguments = {"position_ids": positions, "attention_mask": torch.ones_like(ids), "use_cache": False}

    def gradients(run: torch.nn.Module) -> list[torch.Tensor]:
        model.zero_grad()
        torch.manual_seed(0)
        run(ids, labels=ids, **arguments).loss.backward()
        return [one.grad for one in model.parameters() if one.grad is not None]

    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    expected = gradients(model)
    torch.testing.assert_close(gradients(torch.compile(model, backend="aot_eager")), expected, atol=1e-5, rtol=1e-5)
    torch._dynamo.reset()


def check_scans(name: str) -> None:
    """Results and gradients of a compiled model with linear mixers equal those of transformers."""
    kind = next(kind for kind in MIXER_TYPES if kind.name == name)
    model, inputs = kind.build(), kind.inputs()
    expected = run_model(model, "eager", inputs)
    with regard.hf.use_scans(model):
        model.set_attn_implementation(regard.hf.NAME)
        compiled = torch.compile(model, backend="aot_eager")
        assert_runs_are_equal(run_model(model, regard.hf.NAME, inputs, run=compiled), expected)


def check_record(*, fullgraph: bool) -> None:
    """A model that was compiled before runs without its graph while it is recorded."""
    kind = next(kind for kind in MODEL_TYPES if kind.name == "llama")
    model, inputs = kind.build(), kind.inputs("left")
    model.set_attn_implementation(regard.hf.NAME)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=fullgraph)
    with torch.no_grad():
        expected = compiled(**inputs).logits
        for calls in (2, 4):
            with regard.record(compiled) as seen:
                for _ in range(calls // 2):
                    torch.testing.assert_close(compiled(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
            assert len(seen) == calls
            assert seen[-1].weights().shape == (3, 4, 13, 13)
        with regard.record(model) as plain:
            model(**inputs)
    for one, other in zip(plain, seen[2:], strict=True):
        assert other.name.endswith(one.name)
        torch.testing.assert_close(one.weights(), other.weights(), atol=1e-5, rtol=0)
