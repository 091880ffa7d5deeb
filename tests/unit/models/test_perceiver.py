"""Perceivers: what a mask hides, parts of outputs, folders, recordings, cost, and inputs that are refused."""

import copy
import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import regard
from hypothesis_examples import examples
from regard import masks
from regard.errors import CheckpointError, DtypeError, OptionError, RefusedError, ShapeError
from regard.mechanisms import DotProduct
from regard.models import (
    AudioOutput,
    ClassOutput,
    FlowOutput,
    JoinedInput,
    JoinedOutput,
    Perceiver,
    PerceiverConfig,
    PixelInput,
    TextInput,
    TextOutput,
    TokenInput,
    VideoOutput,
)
from script_process import run_script
from small_perceivers import CONFIGS, JOINED, LABELS, SIZES, draw, make


def values(found):
    """The numbers of an output, by name."""
    logits = {} if found.logits is None else found.logits if isinstance(found.logits, dict) else {"": found.logits}
    return {**logits, "hidden": found.hidden}


def gradients(model, inputs, mask=None):
    """Return the gradients of weights and of floating-point inputs."""
    model.zero_grad()
    leaf = inputs.clone().requires_grad_() if inputs.is_floating_point() else inputs
    found = values(model(leaf, mask=mask))
    sum((one * torch.arange(one.numel()).view_as(one).cos()).sum() for one in found.values()).backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}, leaf.grad


class TestMaskedInputs:
    """A hidden token has no influence: the same bits whatever it holds, forward and backward, and no gradient."""

    def poison(self, name, inputs, hidden):
        """Fill hidden tokens with NaN, Inf and 1e30; ids with others."""
        model = make(name)
        poisoned = inputs.clone()
        if not inputs.is_floating_point():
            return torch.where(hidden, (inputs + 1) % 262, inputs)
        bad = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e30])
        cells = torch.full_like(inputs, 0.0)
        # Which numbers belong to hidden tokens: the features of a token, cut from numbered data.
        numbers = torch.arange(inputs[0].numel(), dtype=torch.float64).view(1, *inputs.shape[1:])
        cut, _ = model.input.cut(numbers)
        for row in range(len(inputs)):
            own = cut[0][hidden[row]].flatten().long()
            cells[row].view(-1)[own] = bad[torch.arange(len(own)) % 4]
        return torch.where(cells != 0, cells, poisoned)

    @pytest.mark.parametrize(
        "name", ["tokens", "text", "text class", "pixels", "trained pixels", "flow", "audio", "video"]
    )
    def test_no_influence(self, name):
        model, inputs = make(name), draw(name)
        count = model.input(inputs).tokens.shape[1]
        visible = torch.rand(2, count) < 0.6
        visible[0, 0], visible[1, 1] = True, False
        mask = masks.keep(visible[:, None, None, :])
        poisoned = self.poison(name, inputs, ~visible)
        if inputs.is_floating_point():
            assert poisoned.isnan().any()
        clean, found = values(model(inputs, mask=mask)), values(model(poisoned, mask=mask))
        assert all(torch.equal(found[key], clean[key]) for key in clean)
        assert all(one.isfinite().all() for one in found.values())
        (weights, data), (poisoned_weights, poisoned_data) = (gradients(model, one, mask) for one in (inputs, poisoned))
        assert all(torch.equal(poisoned_weights[key], weights[key]) for key in weights)
        if data is not None:
            assert torch.equal(data, poisoned_data)
            features, _ = model.input.cut(poisoned_data)
            assert not features[~visible].any()
            assert features[visible].any()

    def test_visible_nan_is_not_hidden(self):
        model, inputs = make("pixels"), draw("pixels")
        inputs[0, 0, 2, 2] = torch.nan
        assert model(inputs).logits[0].isnan().all()
        assert model(inputs).logits[1].isfinite().all()

    def test_a_mask_equals_a_shorter_text(self):
        model, ids = make("text class"), draw("text class")
        expected = torch.cat([model(ids[:1, :9]).logits, model(ids[1:, :4]).logits])
        torch.testing.assert_close(model(ids, mask=masks.padding([9, 4])).logits, expected, atol=1e-5, rtol=0)

    def test_an_input_that_is_hidden_whole_leaves_the_latents(self):
        model, ids = make("text class"), draw("text class")
        found = model(ids, mask=masks.padding([0, 13])).logits
        assert torch.equal(found[0], model(ids.flip(1), mask=masks.padding([0, 13])).logits[0])
        assert found.isfinite().all()

    def test_masks_of_parts(self):
        model, inputs = make("joined"), draw("joined")
        mask = {"sound": masks.padding([3, 7])}
        clean = values(model(inputs, mask=mask))
        inputs["sound"][0, 9:] = torch.nan
        found = values(model(inputs, mask=mask))
        assert all(torch.equal(found[key], clean[key]) for key in clean)
        assert not torch.equal(
            values(model(inputs | {"sound": inputs["sound"].nan_to_num()}))["hidden"], clean["hidden"]
        )

    def test_hidden_parts_have_no_influence(self):
        model, inputs = make("joined"), draw("joined")
        clean = values(model(inputs))
        found = values(model(inputs | {"label": torch.full((2, 3), torch.nan)}))
        assert all(torch.equal(found[key], clean[key]) for key in clean)

    @pytest.mark.parametrize("mask", [masks.causal(), masks.keep(torch.ones(1, 2, 1, 35, dtype=torch.bool))])
    def test_masks_that_differ_between_latents_or_heads_are_refused(self, mask):
        with pytest.raises(RefusedError, match="all latents"):
            make("pixels")(draw("pixels"), mask=mask)

    def test_a_convolution_refuses_masks(self):
        with pytest.raises(RefusedError, match="neighbours"):
            make("convolution")(draw("convolution"), mask=masks.padding([1, 1]))

    def test_masks_of_other_sizes_are_refused(self):
        for mask in (masks.padding([3, 3, 3]), masks.padding([36, 1])):
            with pytest.raises(ShapeError):
                make("pixels")(draw("pixels"), mask=mask)


class TestOutputs:
    def test_some_outputs_are_those_of_all(self):
        model, inputs = make("joined"), draw("joined")
        at = {"sound": torch.tensor([6, 0]), "film": torch.tensor([29, 3, 3])}
        whole, some = model(inputs).logits, model(inputs, at=at).logits
        patches = whole["sound"].view(2, 7, 3)[:, at["sound"]].flatten(1)
        for found, expected in (
            (some["sound"], patches),
            (some["film"], whole["film"][:, at["film"]]),
            (some["label"], whole["label"]),
        ):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
        assert {name: tuple(one.shape) for name, one in whole.items()} == {
            "film": (2, 30, 3),
            "label": (2, 3),
            "sound": (2, 21),
        }

    @pytest.mark.parametrize("name", ["text", "flow"])
    def test_some_positions(self, name):
        model, inputs, at = make(name), draw(name), torch.tensor([12, 0, 5])
        whole = model(inputs).logits
        whole = whole.flatten(1, 2) if name == "flow" else whole
        torch.testing.assert_close(model(inputs, at=at).logits, whole[:, at], atol=1e-5, rtol=0)

    def test_what_names_no_outputs_is_refused(self):
        cases = [
            ("text", torch.tensor([17]), OptionError),
            ("text", torch.tensor([-1]), OptionError),
            ("text", torch.tensor([0.5]), DtypeError),
            ("text", torch.tensor([[1]]), ShapeError),
            ("pixels", torch.tensor([0]), RefusedError),
            ("tokens", torch.tensor([0]), RefusedError),
            ("joined", {"smell": torch.tensor([0])}, OptionError),
            ("joined", {"label": torch.tensor([0])}, RefusedError),
            ("joined", torch.tensor([0]), OptionError),
        ]
        for name, at, error in cases:
            with pytest.raises(error):
                make(name)(draw(name), at=at)

    def test_flow_needs_its_input(self):
        with pytest.raises(OptionError, match="FlowOutput does not go"):
            Perceiver(PerceiverConfig(TokenInput(7), FlowOutput(), **SIZES))
        with pytest.raises(OptionError, match="TextOutput does not go"):
            Perceiver(PerceiverConfig(PixelInput((5, 7), bands=3), TextOutput(), **SIZES))

    def test_pooled_is_what_the_last_layer_reads(self):
        model = make("pixels")
        found = model(draw("pixels"))
        torch.testing.assert_close(model.output.last(found.pooled), found.logits)
        torch.testing.assert_close(model.probabilities(found.logits).sum(-1), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", CONFIGS)
def test_training_in_bfloat16_autocast(name):
    model, inputs = Perceiver(dataclasses.replace(CONFIGS[name], dropout=0.1)).train(), draw(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = values(model(inputs))
    sum(one.float().square().sum() for one in found.values()).backward()
    trained = [name for name, one in model.named_parameters() if one.grad is not None and one.grad.isfinite().all()]
    unused = {"input.hidden_token.film", "input.hidden_token.sound", "input.padding.label"}
    assert set(dict(model.named_parameters())) - set(trained) <= unused


class TestRecording:
    def test_cross_and_self_attention_in_order(self):
        model, inputs = make("pixels"), draw("pixels")
        with regard.record(model) as seen:
            model(inputs)
        names = ["cross", *(["layers.0", "layers.1"] * 2), "output.block"]
        assert [call.name for call in seen] == [f"{name}.attention" for name in names]
        assert tuple(seen[0].weights().shape) == (2, 1, 5, 35)
        assert tuple(seen[1].weights().shape) == (2, 3, 5, 5)
        assert tuple(seen[-1].weights().shape) == (2, 1, 1, 5)


class TestCost:
    """With M inputs a pass takes a + b M operations and c + d M bytes, and no matrix of M x M."""

    @staticmethod
    def count_operations(model, inputs):
        with FlopCounterMode(display=False) as counter:
            values(model(inputs))["hidden"].sum().backward()
        return counter.get_total_flops()

    @staticmethod
    def count_stored(model, inputs):
        """Count the numbers stored for the backward pass, and the most of one tensor."""
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda one: sizes.append(one.numel()) or one, lambda one: one):
            model(inputs)
        return sum(sizes), max(sizes)

    @pytest.mark.parametrize("name", ["tokens", "audio"])
    def test_linear_in_the_input(self, name):
        model = make(name)
        for module in model.modules():
            if isinstance(module, DotProduct):
                module.impl = "reference"  # plain torch, whose operations torch counts
        sizes = [3 * 64, 6 * 64, 9 * 64, 12 * 64]
        shapes = [(1, size, 7) if name == "tokens" else (1, 5 * size) for size in sizes]
        operations = [self.count_operations(model, torch.randn(shape)) for shape in shapes]
        assert len(set(np.diff(operations))) == 1
        assert operations[0] < operations[1]

    @pytest.mark.parametrize("name", ["tokens", "audio"])
    def test_stored_numbers_are_linear_in_the_input(self, name):
        model = make(name)
        sizes = [3 * 64, 6 * 64, 9 * 64, 12 * 64]
        shapes = [(1, size, 7) if name == "tokens" else (1, 5 * size) for size in sizes]
        stored = [self.count_stored(model, torch.randn(shape)) for shape in shapes]
        assert len(set(np.diff([total for total, _ in stored]))) == 1
        assert all(largest < size**2 / 4 for (_, largest), size in zip(stored, sizes, strict=True))

    def test_repeats_have_no_weights_of_their_own(self):
        counts = {
            repeats: sum(one.numel() for one in Perceiver(dataclasses.replace(JOINED, repeats=repeats)).parameters())
            for repeats in (1, 5)
        }
        assert counts[1] == counts[5]


class TestFolders:
    @pytest.mark.parametrize("name", CONFIGS)
    def test_saved_and_loaded(self, name, tmp_path):
        model, inputs = make(name), draw(name)
        model.metadata = {"steps": 3}
        model.save(tmp_path / "model")
        again = regard.load(tmp_path / "model")
        assert again.config == model.config
        assert again.metadata == {"steps": 3}
        assert hash(again.config) == hash(model.config)
        assert not again.training
        clean, found = values(model(inputs)), values(again(inputs))
        assert all(torch.equal(found[key], clean[key]) for key in clean)
        fields = json.loads((tmp_path / "model" / "config.json").read_text())
        assert fields["model_type"] == ("perceiver" if model.config.architecture else "regard-perceiver")

    def test_copies(self):
        for name in CONFIGS:
            model, inputs = make(name), draw(name)
            clean, found = values(model(inputs)), values(copy.deepcopy(model)(inputs))
            assert all(torch.equal(found[key], clean[key]) for key in clean)

    @pytest.mark.usefixtures("without_shape_checks")
    def test_damaged_configs_are_refused(self, tmp_path):
        make("joined").save(tmp_path / "model")
        path = tmp_path / "model" / "config.json"
        whole = json.loads(path.read_text())
        for change in (
            {"input": None},
            {"input": {"kind": "smell"}},
            {"input": {"kind": "pixels", "size": 5}},
            {"input": {"kind": "pixels", "sizes": [5, 7]}},
            {"input": {"kind": "tokens"}},
            {"input": {"kind": "joined", "parts": [1]}},
            {"output": {"kind": "class", "labels": []}},
            {"output": {"kind": "class", "labels": "cat"}},
            {"latents": 0},
            {"latents": 7},
            {"layers": 10**9},
            {"layers": "two"},
            {"heads": 5},
            {"model_type": "perceiver"},
            {"model_type": "perceiver", "architectures": ["PerceiverModel"], "d_model": "wide"},
            {
                "model_type": "perceiver",
                "architectures": ["PerceiverForSequenceClassification"],
                "id2label": {"1": "a"},
            },
            {"model_type": "perceiver", "architectures": ["PerceiverForOpticalFlow"], "train_size": [5]},
        ):
            path.write_text(json.dumps(whole | change))
            with pytest.raises(CheckpointError):
                regard.load(tmp_path / "model")


@pytest.mark.usefixtures("without_shape_checks")
class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "inputs", "error"),
        [
            ("pixels", torch.zeros(2, 3, 5, 7), ShapeError),
            ("pixels", torch.zeros(2, 1, 5), ShapeError),
            ("pixels", torch.zeros(2, 1, 0, 7), ShapeError),
            ("pixels", torch.zeros(2, 1, 5, 7, dtype=torch.uint8), DtypeError),
            ("pixels", [[1.0]], DtypeError),
            ("tokens", torch.zeros(2, 5, 6), ShapeError),
            ("text", torch.zeros(2, 18, dtype=torch.long), ShapeError),
            ("text", torch.zeros(2, 0, dtype=torch.long), ShapeError),
            ("text", torch.full((2, 3), 262), OptionError),
            ("text", torch.zeros(2, 3), DtypeError),
            ("audio", torch.zeros(2, 34), ShapeError),
            ("video", torch.zeros(2, 2, 3, 5, 10), ShapeError),
            ("flow", torch.zeros(2, 2, 3, 7, 5), ShapeError),
            ("convolution", torch.zeros(2, 1, 4, 9), ShapeError),
            ("joined", torch.zeros(2, 5), OptionError),
            ("joined", {"sound": torch.zeros(2, 21)}, OptionError),
        ],
    )
    def test_inputs(self, name, inputs, error):
        with pytest.raises(error):
            make(name)(inputs)

    def test_parts_of_different_batch_sizes(self):
        inputs = draw("joined")
        with pytest.raises(ShapeError, match="batch sizes"):
            make("joined")(inputs | {"sound": inputs["sound"][:1]})

    @pytest.mark.parametrize(
        "make_config",
        [
            lambda: PerceiverConfig("text"),
            lambda: PerceiverConfig(TokenInput(7), "class"),
            lambda: PerceiverConfig(TokenInput(7), latents=0),
            lambda: PerceiverConfig(TokenInput(7), cross_width="kv"),
            lambda: PerceiverConfig(TokenInput(7), activation="tanh"),
            lambda: PerceiverConfig(TokenInput(7), dropout=1.5),
            lambda: PerceiverConfig(TokenInput(0)),
            lambda: PixelInput(5),
            lambda: PixelInput((5, 0)),
            lambda: PixelInput((5, 7), bands=0),
            lambda: TextInput(pad_id=262),
            lambda: AudioOutput(samples=3, patch=5),
            lambda: VideoOutput(shape=(5, 7)),
            lambda: ClassOutput(()),
            lambda: ClassOutput("cat"),
            lambda: FlowOutput(divisor=0.0),
            lambda: JoinedInput({}),
            lambda: JoinedInput({"a b": TokenInput(7)}),
            lambda: JoinedInput({"a": TokenInput(7)}, hidden=("b",)),
            lambda: JoinedInput({"a": JoinedInput({"b": TokenInput(7)})}),
            lambda: JoinedOutput({"a": ClassOutput(LABELS)}),
        ],
    )
    def test_configs(self, make_config):
        with pytest.raises(OptionError):
            make_config()

    def test_heads_that_do_not_divide(self):
        for options in ({"heads": 5}, {"cross_heads": 2}, {"query_key_width": 7}, {"value_width": 13}):
            with pytest.raises(OptionError, match="divide"):
                Perceiver(PerceiverConfig(TokenInput(7), **(SIZES | options)))

    def test_self_attention_has_outputs_of_the_width_of_latents(self):
        model = Perceiver(PerceiverConfig(TokenInput(7), **(SIZES | {"query_key_width": 6, "value_width": 9})))
        assert model(torch.randn(2, 5, 7)).hidden.shape == (2, 5, 12)


@examples(13)
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 3))
def test_pictures_of_all_sizes(height, width, channels):
    inputs = PixelInput((5, 7), channels=channels, bands=2)
    model = Perceiver.classifier(inputs, LABELS, latents=3, width=8, layers=1, heads=2)
    found = model(torch.randn(2, channels, height, width))
    assert found.logits.shape == (2, 3)
    assert found.logits.isfinite().all()


def test_classifiers_learn_where_a_bright_pixel_is():
    """Positions are in the tokens: without them the nine pictures would be one set of nine pixels."""
    torch.manual_seed(1)
    pictures = torch.eye(9).view(9, 1, 3, 3)
    labels = tuple("abcdefghi")
    model = Perceiver.classifier(PixelInput((3, 3), 1, 3), labels, latents=5, width=16, layers=1, heads=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(80):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(pictures).logits, torch.arange(9))
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1 * math.log(9)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_compiled_in_one_graph(name):
    """In a process of its own, since torch cannot trace through the suite's shape checks."""
    result = run_script(f"from unit.models.perceiver_compile_checks import check_compiled\ncheck_compiled({name!r})")
    assert result.returncode == 0, result.stderr[-2000:]
