"""Keywords of a model's call that reach attention: those of losses, Trainer and generation have no effect on it."""

from __future__ import annotations

import inspect

import pytest
import torch
import transformers
from transformers.loss import loss_utils

import regard.hf
from regard.errors import RefusedError
from regard.hf.attention_function import attention_function
from regard.hf.other_arguments import HARMLESS, refuse_unknown_arguments
from unit.hf.mixer_types import MIXER_TYPES
from unit.hf.model_types import MODEL_TYPES, ModelType

TRAINED = [kind for kind in (*MODEL_TYPES, *MIXER_TYPES) if kind.family in ("decoder", "mixer")]
OTHER_TRAINED = [kind for kind in MODEL_TYPES if kind.family in ("encoder", "seq2seq")]


def cases(types):
    return [pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow) for one in types]


def keywords(function) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind is not one.VAR_KEYWORD} - {"self"}


def takes_any_keyword(function) -> bool:
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(function).parameters.values())


@pytest.mark.parametrize("name", sorted(loss_utils.LOSS_MAPPING))
def test_arguments_of_every_loss_are_harmless(name):
    """A loss that takes any keyword gets all those of the model's call, as attention does."""
    loss = loss_utils.LOSS_MAPPING[name]
    if takes_any_keyword(loss):
        assert keywords(loss) <= HARMLESS


def test_what_trainer_and_generation_pass_is_harmless():
    """What the collators make, what Trainer adds (its code names them), and what generation prepares."""
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collator([{"input_ids": [5, 6, 7]}, {"input_ids": [8, 9]}])
    assert {"position_ids", "seq_idx", "cu_seq_lens_q", "max_length_k"} <= set(batch)
    assert set(batch) <= HARMLESS | {"input_ids"}
    assert {"num_items_in_batch", "shift_labels", "ignore_index", "use_cache", "is_first_iteration"} <= HARMLESS
    assert set(transformers.utils.generic.TransformersKwargs.__annotations__) <= HARMLESS


def test_no_harmless_name_is_an_argument_of_attention():
    """What attention computes with has a parameter, so it never is among the others."""
    parameters = inspect.signature(attention_function).parameters
    computed = set(parameters) - {"module", "arguments", "query", "key", "value"}
    assert computed & HARMLESS <= {"attention_mask", "is_causal"}  # parameters of generation and of transformers' calls
    for name in ("temperature", "block_table", "head_mask", "alibi", "attention_bias", "label_smoothing"):
        with pytest.raises(RefusedError, match=name):
            refuse_unknown_arguments({name: torch.zeros(2)})


def loss_and_gradient(model, implementation, inputs, **arguments):
    """The loss, and its gradient for the input embeddings."""
    model.set_attn_implementation(implementation)
    loss = model(**inputs, **arguments).loss
    return loss, torch.autograd.grad(loss, model.get_input_embeddings().weight)[0]


@pytest.mark.parametrize("kind", cases(TRAINED))
def test_arguments_of_the_loss_reach_it(kind: ModelType):
    """Labels that are shifted already, an index of ignored labels, and the number of items, in one call each."""
    model, inputs = kind.build(), kind.inputs()
    labels = inputs["input_ids"].clone()
    labels[:, :4] = 0
    shifted = torch.nn.functional.pad(labels, (0, 1), value=0)[:, 1:].contiguous()
    own = {"use_cache": False}
    calls = [
        {"labels": labels, "shift_labels": shifted},
        {"labels": labels, "ignore_index": 0},
        {"labels": labels, "num_items_in_batch": torch.tensor(17)},
        {"labels": labels, "shift_labels": shifted, "ignore_index": 0, "num_items_in_batch": 17},
    ]
    losses = []
    for arguments in calls:
        expected = loss_and_gradient(model, "eager", inputs, **own, **arguments)
        found = loss_and_gradient(model, "regard", inputs, **own, **arguments)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        losses.append(float(found[0].detach()))
    logits = model(**inputs, **own).logits.detach()
    plain = torch.nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten())
    aux = losses[1] - float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), shifted.flatten(), ignore_index=0))
    assert losses[0] == pytest.approx(float(plain) + aux, abs=1e-4)
    assert len(set(losses)) == len(calls)


@pytest.mark.parametrize("kind", cases(OTHER_TRAINED))
def test_arguments_of_the_loss_reach_it_in_other_models(kind: ModelType):
    model, inputs = kind.build(), kind.inputs()
    labels = inputs.get("decoder_input_ids", inputs["input_ids"]).clone()
    arguments = {"labels": labels, "num_items_in_batch": torch.tensor(17)}
    if "kwargs" not in inspect.signature(model.forward).parameters:
        arguments.pop("num_items_in_batch")
    expected = loss_and_gradient(model, "eager", inputs, **arguments)
    found = loss_and_gradient(model, "regard", inputs, **arguments)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", cases(MIXER_TYPES))
def test_arguments_of_the_loss_reach_it_beside_scans(kind: ModelType):
    model, inputs = kind.build(), kind.inputs()
    labels = inputs["input_ids"]
    shifted = torch.nn.functional.pad(labels, (0, 1), value=5)[:, 1:].contiguous()
    arguments = {"labels": labels, "shift_labels": shifted, "ignore_index": 5, "use_cache": False}
    expected = loss_and_gradient(model, "eager", inputs, **arguments)
    with regard.hf.use_scans(model):
        found = loss_and_gradient(model, "regard", inputs, **arguments)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)
