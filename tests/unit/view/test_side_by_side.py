"""A text under several mechanisms: same inputs, measures of each head, cost, refusals and limits."""

import io
import json
import re
import sys

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard.comparison import MechanismChoice, compare, parse_choices
from regard.errors import DataError, RefusedError
from regard.models import Bert, BertConfig
from regard.text import Tokenizer
from regard.view import print_reading, read, read_side_by_side
from regard.view.page import render_page
from regard.view.terminal_side_by_side import print_side_by_side

TEXT = "a small dog a small dog dog a dog small a"


@pytest.fixture(scope="module")
def bert() -> Bert:
    import tokenizers
    from tokenizers import models, pre_tokenizers

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "small", "dog"])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(0)
    model = Bert(BertConfig(vocabulary=5, width=12, layers=2, heads=3, inner=7, max_length=17, deviation=0.7)).eval()
    model.tokenizer = Tokenizer(backend, pad_id=0, limit=17)
    return model


def test_every_mechanism_gets_the_inputs_of_the_models_layers(bert: Bert) -> None:
    side = read_side_by_side(bert, TEXT, parse_choices("longformer:window=2,performer:seed=5"))
    with regard.record(bert) as seen, torch.no_grad():
        bert(torch.tensor([[2, 3, 4, 2, 3, 4, 4, 2, 4, 3, 2]]))
    for number, options in enumerate(({"window": 2}, {"seed": 5})):
        name, computed = side.panels[number].choice.name, side.panels[number].computed
        alone = regard.mechanism(name, heads=3, head_dim=4, **options)
        for layer, call in enumerate(seen):
            expected = alone.weights(call.query, call.key)[0].detach()
            np.testing.assert_allclose(computed.layers[layer].weights(), expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(side.exact.layers[layer].weights(), call.weights()[0], rtol=1e-4, atol=1e-6)
            found = compare(call.mechanism, alone, call.query, call.key, call.value, top=side.top)
            for head in range(3):
                measured = found.summary(head=head)
                np.testing.assert_allclose(computed.measures.mass_kept[layer, head], measured.mass_kept, rtol=1e-4)
                np.testing.assert_allclose(
                    computed.measures.output_error[layer, head], measured.output_error, rtol=1e-3
                )
        np.testing.assert_allclose(computed.summary.mass_kept, computed.measures.mass_kept.mean(), rtol=1e-5)
        assert computed.seconds > 0
    assert side.exact_operations == 2 * 3 * 11 * 11 * 4
    assert side.panels[0].computed.operations == 2 * 3 * 11 * 2 * 4


def test_random_mechanisms_are_the_same_each_time(bert: Bert) -> None:
    before = torch.random.get_rng_state()
    first, second = (read_side_by_side(bert, TEXT, parse_choices("linformer,performer")) for _ in range(2))
    for one, other in zip(first.panels, second.panels, strict=True):
        np.testing.assert_array_equal(one.computed.layers[1].weights(), other.computed.layers[1].weights())
    assert torch.equal(torch.random.get_rng_state(), before), "the generator of the caller is unchanged"


def test_refusals_and_notes(bert: Bert) -> None:
    side = read_side_by_side(bert, TEXT, parse_choices("additive,forgetting,longformer,linformer:length=5"))
    additive, forgetting, longformer, linformer = side.panels
    assert additive.refusal == "additive has parameters of its own, for which the model has no trained weights"
    assert additive.computed is None
    assert forgetting.notes == ("forget has no trained projection in this model, and is left out",)
    (note,) = longformer.notes
    assert note.startswith("global_query, global_key, global_value: projected as the ordinary query, key or value is")
    assert longformer.fitted == {"window": "about a quarter of 11 tokens; its default is 512"}
    assert linformer.refusal == "its projections were made for at most 5 keys, and there are 11"


def test_the_terminal_tells_refusals_and_what_was_not_trained(bert: Bert) -> None:
    choices = parse_choices("linformer:projected=2,linformer:length=5,dsa:keys=2")
    console = Console(file=io.StringIO(), width=300)
    print_side_by_side([read_side_by_side(bert, TEXT, choices) for _ in "12"], console)
    said = console.file.getvalue()
    assert "linformer:length=5 refuses: its projections were made for at most 5 keys, and there are 11." in said
    assert said.count("linformer: key_projection has random weights, which were not trained; value_projection has") == 1
    assert "dsa: index_query has no trained projection in this model, and is left out; index_key" in said


def test_choices_of_one_mechanism_are_named_with_their_options(bert: Bert) -> None:
    choices = parse_choices("longformer,performer:features=3,performer,longformer:window=4:global_tokens=[0,1],linear")
    side = read_side_by_side(bert, TEXT, choices)
    names = ["longformer", "performer:features=3", "performer", "longformer:window=4:global_tokens=[0,1]", "linear"]
    assert list(side.panel_names) == names
    data = json.loads(re.search(r'id="data">(.*?)</script>', render_page([side], model="m"), re.DOTALL)[1])
    assert [panel["unique_name"] for panel in data["texts"][0]["panels"]] == ["dot_product", *names]
    console = Console(file=io.StringIO(), width=80)
    print_side_by_side([side], console)
    said = console.file.getvalue()
    assert re.search(r"performer:features=3 +\S+ +[\d.]+ % +\d+ % +\d+ % +[\d.]+ x +[\d.]+ ms", said)


def test_a_model_without_exact_attention_is_refused(bert: Bert) -> None:
    from regard.comparison import replace_mechanism

    with pytest.raises(RefusedError, match="does not use softmax over all visible tokens"):
        read_side_by_side(replace_mechanism(bert, "longformer", window=2).model, TEXT, [MechanismChoice("linear")])


def test_too_many_weights_are_refused(bert: Bert, monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["regard.view.read_side_by_side"]  # the package has the function of that name
    monkeypatch.setattr(module, "MAX_WEIGHTS", 2 * 3 * 11 * 11 * 2)
    read_side_by_side(bert, TEXT, [MechanismChoice("linear")])
    with pytest.raises(DataError, match="too long to be shown side by side"):
        read_side_by_side(bert, TEXT, parse_choices("linear,performer"))


def test_page_data_has_a_panel_for_each_mechanism(bert: Bert) -> None:
    page = render_page([read_side_by_side(bert, TEXT, parse_choices("additive,linear"))], model="m")
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (text,) = data["texts"]
    assert [panel["at"] for panel in text["panels"]] == [0, None, 1]
    assert len(text["attentions"]) == 2
    assert "tokens" not in text["attentions"][1], "tokens are stored once"
    assert text["panels"][0]["summary"]["mass_kept"] == 1


def test_the_terminal_has_the_number_of_the_view_for_each_pair_of_words() -> None:
    """Also of words of several tokens: cardiologist is three, phoned two."""
    model, text = regard.load("minilm"), "The cardiologist phoned his mother because he was unhappy."
    view, beside = (Console(file=io.StringIO(), width=200) for _ in range(2))
    print_reading(read(model, text), view)
    print_side_by_side([read_side_by_side(model, text, parse_choices("linear"))], beside)
    lines = view.file.getvalue().partition("Notable word pairs")[2].splitlines()
    headlines = dict(re.findall(r"^(\w+ → \w+) +(\d+\.\d) %", "\n".join(lines), re.MULTILINE))
    compared = dict(re.findall(r"^(\w+ → \w+) +\d+·\d+ +(\d+\.\d) %", beside.file.getvalue(), re.MULTILINE))
    assert {"he → cardiologist", "phoned → mother"} < set(headlines)
    assert compared == headlines
