"""Training: gradient checkpointing, torch.compile, export, autocast, packed texts. With ``Trainer``: test_trainer."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor

import regard.hf
from script_process import run_script
from unit.hf.model_types import MODEL_TYPES
from unit.hf.torch_compile_checks import NAMES
from unit.hf.training_step import query_gradient

BY_NAME = {kind.name: kind for kind in MODEL_TYPES}


def both(model, compute) -> tuple[Tensor, Tensor]:
    """Compute with regard, and with eager."""
    results = []
    for implementation in ("regard", "eager"):
        model.set_attn_implementation(implementation)
        results.append(compute(model))
    return results[0], results[1]


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.parametrize("is_reentrant", [False, True])
@pytest.mark.filterwarnings("ignore:.*gradient_checkpointing:FutureWarning")
def test_gradient_checkpointing(name, is_reentrant):
    kind = BY_NAME[name]
    model, inputs = kind.build(), kind.inputs("right")
    model.set_attn_implementation("eager")
    expected = query_gradient(model, inputs)
    model.set_attn_implementation("regard")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": is_reentrant})
    torch.testing.assert_close(query_gradient(model, inputs), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "check",
    [
        *(f"check_forward({name!r})" for name in NAMES),
        "check_training()",
        "check_packed_texts()",
        "check_packed_texts_of_other_models()",
        *(
            f"check_packed_positions{rest}({name!r})"
            for name in ("llama", "opt", "biogpt", "bert")
            for rest in ("", "_beside_a_mask", "_with_checkpointing")
        ),
    ],
)
def test_compiled_in_one_graph(check):
    """In a process of its own: see torch_compile_checks.py."""
    result = run_script(f"from unit.hf import torch_compile_checks\ntorch_compile_checks.{check}")
    assert result.returncode == 0, result.stderr[-2000:]


@pytest.mark.slow
def test_export():
    kind = BY_NAME["llama"]
    model, inputs = kind.build(), kind.inputs("left")
    model.set_attn_implementation("regard")
    program = torch.export.export(model, (), {**inputs, "use_cache": False})
    visible = inputs["attention_mask"].bool()
    output = program.module()(**inputs, use_cache=False).logits[visible]
    torch.testing.assert_close(output, model(**inputs).logits[visible], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_autocast(name):
    kind = BY_NAME[name]
    inputs = kind.inputs("left")

    def compute(model):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return model(**inputs).logits[:, -1].float()

    output, expected = both(kind.build(), compute)
    exact = kind.build()(**inputs).logits[:, -1]
    assert (output - exact).abs().max() < 2 * (expected - exact).abs().max()


def test_packed_texts_do_not_see_one_another():
    kind = BY_NAME["llama"]
    ids = kind.inputs()["input_ids"].reshape(1, -1)[:, :20]
    positions = torch.cat([torch.arange(7), torch.arange(13)])[None]
    model = kind.build()
    model.set_attn_implementation("regard")
    with torch.no_grad():
        packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        for text in (slice(0, 7), slice(7, 20)):
            torch.testing.assert_close(packed[:, text], model(input_ids=ids[:, text]).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["bool", "additive"])
def test_a_mask_of_the_caller(form):
    """A mask of 4 dimensions is passed on as it is."""
    kind = BY_NAME["llama"]
    allowed = torch.ones(13, 13, dtype=torch.bool).tril()
    allowed[5:, 2] = False
    allowed = allowed.expand(3, 1, 13, 13)
    additive = torch.zeros(3, 1, 13, 13).masked_fill(~allowed, torch.finfo(torch.float32).min)

    def compute(model):
        is_bool = form == "bool" and model.config._attn_implementation == "regard"
        return model(**kind.inputs() | {"attention_mask": allowed if is_bool else additive}).logits

    torch.testing.assert_close(*both(kind.build(), compute), atol=1e-5, rtol=1e-5)


def test_inference_mode():
    kind = BY_NAME["gemma2"]

    def compute(model):
        with torch.inference_mode():
            return model(**kind.inputs("left")).logits[:, -1].clone()

    torch.testing.assert_close(*both(kind.build(), compute), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft
def test_lora(name):
    """The losses of adapters by peft, and their gradients, equal those of eager; other weights have no gradient."""
    import peft

    kind = BY_NAME[name]
    inputs = kind.inputs("right")
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    results = {}
    for implementation in ("eager", "regard"):
        model = kind.build()
        model.set_attn_implementation(implementation)
        torch.manual_seed(5)
        targets = ["c_attn"] if name == "gpt2" else ["q_proj", "v_proj"]
        config = peft.LoraConfig(r=3, target_modules=targets, init_lora_weights=False, fan_in_fan_out=name == "gpt2")
        adapted = peft.get_peft_model(model, config).eval()  # without dropout
        optimizer = torch.optim.SGD([weight for weight in adapted.parameters() if weight.requires_grad], lr=0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = adapted(**inputs, labels=labels, use_cache=False).loss
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        gradients = {one: weight.grad for one, weight in adapted.named_parameters() if weight.grad is not None}
        results[implementation] = torch.stack(losses), gradients
    (losses, gradients), (expected, expected_gradients) = results["regard"], results["eager"]
    torch.testing.assert_close(losses, expected, atol=1e-5, rtol=0)
    assert gradients
    assert all("lora_" in one for one in gradients)
    torch.testing.assert_close(gradients, expected_gradients, atol=1e-5, rtol=1e-4)


def test_saved_and_loaded_with_the_name(tmp_path):
    model = BY_NAME["llama"].build()
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=regard.hf.NAME)
    assert loaded.config._attn_implementation == "regard"
    inputs = BY_NAME["llama"].inputs()
    torch.testing.assert_close(loaded(**inputs).logits, model(**inputs).logits, atol=1e-5, rtol=1e-5)
