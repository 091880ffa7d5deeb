"""Models of ``transformers`` with attn_implementation="regard" equal those with "eager", type by type.

Each test proves one cell of the table in docs/transformers.md.
"""

from __future__ import annotations

import pytest
import torch

import regard.hf
from unit.hf import model_table
from unit.hf.comparison import assert_equal_runs, generate
from unit.hf.model_types import CLAIMS, MODEL_TYPES, ModelType


def cases(claim: str) -> list[object]:
    """The model types for which a claim is made; all but a few are slow."""
    return [
        pytest.param(one, id=one.name, marks=() if one.is_fast else pytest.mark.slow)
        for one in MODEL_TYPES
        if CLAIMS[claim](one)
    ]


@pytest.mark.parametrize("kind", cases("training"))
def test_forward_and_backward_equal_eager(kind: ModelType):
    assert_equal_runs(kind.build(), kind.inputs())


@pytest.mark.parametrize("kind", cases("padding"))
def test_padded_texts_equal_eager(kind: ModelType):
    model = kind.build()
    for side in ("left", "right") if kind.pads_left else ("right",):
        assert_equal_runs(model, kind.inputs(side))


@pytest.mark.parametrize("kind", cases("generation"))
def test_generation_with_left_padding_equals_eager(kind: ModelType):
    model = kind.build()
    inputs = kind.inputs("left")
    assert torch.equal(generate(model, "regard", inputs), generate(model, "eager", inputs))


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in MODEL_TYPES if kind.chooses_blocks], ids=lambda kind: kind.name)
def test_generation_without_padding_equals_eager(kind: ModelType):
    model = kind.build()
    inputs = kind.inputs()
    assert torch.equal(generate(model, "regard", inputs), generate(model, "eager", inputs))


@pytest.mark.parametrize("kind", cases("static cache"))
def test_generation_with_a_static_cache_equals_eager(kind: ModelType):
    model = kind.build()
    inputs = kind.inputs("left")
    tokens = generate(model, "regard", inputs, cache_implementation="static")
    assert torch.equal(tokens, generate(model, "eager", inputs))


@pytest.mark.parametrize("kind", cases("weights"))
def test_weights_equal_eager(kind: ModelType):
    model = kind.build()
    inputs = kind.inputs()
    found = {}
    for implementation in ("eager", "regard"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            output = model(**inputs, output_attentions=True)
        found[implementation] = [
            weights
            for name in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
            for weights in output.get(name) or ()
        ]
    assert len(found["regard"]) == len(found["eager"]) >= 2
    for weights, expected in zip(found["regard"], found["eager"], strict=True):
        torch.testing.assert_close(weights, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", cases("training"))
def test_check_finds_every_layer(kind: ModelType):
    model = kind.build()
    model.set_attn_implementation("regard")
    report = regard.hf.check(model)
    assert set(report.own_code) == set(kind.own_code)
    assert report.uses_regard == (not kind.own_code)
    assert len(report.through_interface) == kind.layers


@pytest.mark.parametrize("table", model_table.TABLES, ids=lambda table: table.title)
def test_the_tables_on_the_page_are_up_to_date(table: model_table.ModelTable):
    """To write them: PYTHONPATH=tests python -m unit.hf.model_table."""
    assert table.read_page()[1] == table.render()
