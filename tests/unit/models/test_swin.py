"""Swin against transformers, its folders, windows, other picture sizes, promises and bad input."""

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import regard
from attention_parity import weights_of_peer
from causal_parity import reload, save_and_read
from hypothesis_examples import examples
from image_parity import assert_bfloat16, assert_same_model, assert_same_outputs
from regard.conformance.oracles import windows as oracle
from regard.errors import CheckpointError, OptionError
from regard.layers.dropout import StochasticDepth
from regard.layers.patch_merging import PatchMerging
from regard.layers.window_partition import WindowPartition
from regard.models import ImageEncoder, Swin, SwinConfig, TokenGrid, load
from regard.models.config_file import MAX_LAYERS
from script_process import run_script
from slow_parameters import slow_except
from small_checkpoints import change_config

SMALL = {
    "picture_size": (33, 44),
    "patch_size": (3, 4),
    "channels": 2,
    "width": 14,
    "depths": (2, 3),
    "heads": (2, 7),
    "window": 5,
    "inner_ratio": 1.5,
}
COMPILED = f"""
import torch
from regard.models import Swin, SwinConfig

model, pixels = Swin(SwinConfig(**{SMALL})).eval(), torch.randn(2, 2, 33, 44)
with torch.no_grad():
    compiled = torch.compile(model, backend="eager", fullgraph=True)(pixels).hidden
    torch.testing.assert_close(compiled, model(pixels).hidden)  # while torch traces, another library multiplies
"""


def make_peer(seed=0, *, head=True, **fields):
    """A small model of transformers, with random weights: tables, biases and norms included."""
    options = {
        "image_size": 48,
        "patch_size": 4,
        "embed_dim": 12,
        "depths": [2, 2],
        "num_heads": [2, 3],
        "window_size": 3,
        "num_labels": 5,
        "drop_path_rate": 0.0,
        "initializer_range": 0.2,
    } | fields
    torch.manual_seed(seed)
    config = transformers.SwinConfig(**options)
    config._attn_implementation = "sdpa"  # "eager" computes softmax in float32, whatever the dtype
    peer = (transformers.SwinForImageClassification if head else transformers.SwinModel)(config).eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name or name.endswith(("bias", "table", "embeddings")):
                weight += torch.randn_like(weight) * 0.3
    return peer


@st.composite
def peers(draw):
    """A random small model, with the size of a picture whose maps are not smaller than a window, which fails there."""
    window, stages = draw(st.sampled_from([2, 3, 4])), draw(st.sampled_from([1, 2, 3]))
    heads = [draw(st.sampled_from([1, 2, 3])) for _ in range(stages)]
    side = patch = draw(st.sampled_from([1, 3, 4]))
    side *= window * 2 ** (stages - 1)
    has_positions = draw(st.booleans())
    peer = make_peer(
        draw(st.integers(0, 2**16)),
        head=draw(st.booleans()),
        window_size=window,
        depths=[draw(st.sampled_from([1, 2, 3])) for _ in range(stages)],
        num_heads=heads,
        embed_dim=6 * draw(st.sampled_from([1, 3])),
        num_channels=draw(st.sampled_from([1, 3])),
        patch_size=patch,
        image_size=side,
        hidden_act=draw(st.sampled_from(["gelu", "relu", "silu"])),
        mlp_ratio=draw(st.sampled_from([1.0, 2.5, 4.0])),
        qkv_bias=draw(st.booleans()),
        use_absolute_embeddings=has_positions,
    )
    extra = [0, 0] if has_positions else [draw(st.integers(0, 2 * side)) for _ in range(2)]
    return peer, (side + extra[0], side + extra[1])


class TestParity:
    def test_random_small_models_and_pictures(self, tmp_path_factory):
        @examples(30, without_slow=4)
        @given(drawn=peers())
        def check(drawn):
            assert_same_model(drawn[0], tmp_path_factory.mktemp("peer"), drawn[1], tolerance=1e-4)

        check()

    @pytest.mark.parametrize("size", slow_except({(50, 61)}, [(48, 48), (50, 61), (49, 97), (72, 24)]))
    def test_padding_of_patches_windows_and_maps(self, tmp_path, size):
        assert_same_model(make_peer(), tmp_path / "peer", size, tolerance=1e-4)

    def test_weights_of_parity_are_those_of_output_attentions(self):
        """Which returns those of the last layer of each stage only."""
        returned = []
        run = lambda one: returned.extend(one(torch.randn(2, 3, 50, 61), output_attentions=True).attentions)  # noqa: E731
        collected = weights_of_peer(make_peer(depths=[1, 3]), run)
        assert len(collected) == 4
        assert all(torch.equal(collected[layer], other) for layer, other in zip((0, 3), returned, strict=True))

    def test_interpolated_absolute_positions(self, tmp_path):
        peer = make_peer(use_absolute_embeddings=True)
        assert_same_model(peer, tmp_path / "peer", (72, 56), tolerance=1e-4, interpolate_pos_encoding=True)

    @pytest.mark.slow  # no code of the model depends on the dtype; that of its layers is tested in bfloat16 for others
    def test_bfloat16(self, tmp_path):
        assert_bfloat16([make_peer(seed) for seed in range(5)], tmp_path, (52, 40))

    @pytest.mark.parametrize("head", [True, False])
    def test_folders_are_read_by_transformers_and_again(self, tmp_path, head):
        peer = make_peer(head=head, use_absolute_embeddings=True, id2label={0: "cat", 1: "dog"}, num_labels=2)
        model = reload(peer, tmp_path / "peer")
        assert model.labels == (("cat", "dog") if head else ())
        again = save_and_read(model, tmp_path / "copy", type(peer), 10_000)
        assert again.config.architectures == [type(peer).__name__]
        assert_same_outputs(model, again, torch.randn(2, 3, 48, 48), 1e-5)

    def test_masked_image_modelling_leaves_a_note(self, tmp_path):
        peer = transformers.SwinForMaskedImageModeling(make_peer().config).eval()
        model = reload(peer, tmp_path / "peer")
        assert "decoder.0.weight" in model.notes[0]
        assert "mask_token" in model.notes[0]
        assert_same_outputs(model, peer.swin, torch.randn(2, 3, 48, 48), 1e-5)

    def test_our_config_is_that_of_transformers(self, tmp_path):
        model = Swin(SwinConfig(**SMALL, labels=("a", "b", "c")))
        model.save(tmp_path / "model")
        assert ImageEncoder.load(tmp_path / "model").config == model.config
        theirs = transformers.AutoConfig.from_pretrained(tmp_path / "model")
        assert (theirs.image_size, theirs.patch_size, theirs.mlp_ratio) == ([33, 44], [3, 4], 1.5)


class TestWindows:
    @pytest.mark.parametrize(("rows", "columns", "size", "shift"), [(7, 7, 7, 0), (11, 5, 3, 1), (4, 13, 4, 3)])
    def test_cells_equal_the_oracle(self, rows, columns, size, shift):
        cells = WindowPartition(rows, columns, size, shift).cells
        for window, expected in enumerate(oracle.window_cells(rows, columns, size, shift)):
            assert cells[window].tolist() == [-1 if at is None else at[0] * columns + at[1] for at in expected]

    @pytest.mark.parametrize("shift", [0, 2])
    @pytest.mark.parametrize(("rows", "columns"), [(5, 10), (7, 11), (3, 2)])
    def test_split_follows_the_cells_and_join_inverts_it(self, rows, columns, shift):
        windows, tokens = WindowPartition(rows, columns, 5, shift), torch.randn(2, rows * columns, 3).requires_grad_()
        padded = torch.cat([tokens, torch.zeros(2, 1, 3)], dim=1)
        parts = windows.split(tokens)
        assert torch.equal(parts, padded[:, windows.cells].flatten(0, 1))
        assert torch.equal(windows.join(parts), tokens)
        (gradient,) = torch.autograd.grad(parts, tokens, torch.ones_like(parts))
        assert torch.equal(gradient, torch.ones_like(gradient))

    def test_a_window_is_no_larger_than_the_map(self):
        assert WindowPartition.of(3, 9, window=7, shift=3) == WindowPartition(3, 9, 3, 0)
        assert WindowPartition.of(7, 9, window=7, shift=3) == WindowPartition(7, 9, 7, 0)
        assert WindowPartition.of(8, 9, window=7, shift=3) == WindowPartition(8, 9, 7, 3)
        assert WindowPartition(8, 9, 7, 0).mask(2) is None
        with pytest.raises(OptionError, match="less than their size"):
            WindowPartition(8, 9, 3, 3)

    def test_maps_smaller_than_the_window(self):
        """The smaller window equals a model whose window is as small, with the middle of each table."""
        torch.manual_seed(0)
        model = Swin(SwinConfig(**SMALL)).double().eval()
        small = Swin(SwinConfig(**(SMALL | {"window": 2}))).double().eval()
        state = model.state_dict()
        for name in [name for name in state if "position" in name]:
            state[name] = state[name].view(9, 9, -1)[3:6, 3:6].flatten(0, 1)
        small.load_state_dict(state)
        pixels = torch.randn(2, 2, 6, 8, dtype=torch.float64)
        assert_close(model(pixels).hidden, small(pixels).hidden)

    def test_recorded_rows_lie_in_the_windows(self):
        model = Swin(SwinConfig(**SMALL)).eval()
        with regard.record(model) as seen:
            model(torch.randn(3, 2, 33, 44))
        layers = model.windows(33, 44)
        assert len(seen) == len(layers) == 5
        assert [windows.shift for windows in layers] == [0, 2, 0, 2, 0]
        assert model.token_grids(33, 44) == (TokenGrid(11, 11),) * 2 + (TokenGrid(6, 6),) * 3
        for call, windows in zip(seen, layers, strict=True):
            assert call.query.shape[0] == 3 * len(windows.cells)
            weights = call.weights()
            assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
            if call.mask is not None:
                allowed = oracle.shifted_mask(windows.window_rows, windows.window_columns, 5, 2)
                np.testing.assert_array_equal(weights[: len(allowed), 0] > 0, allowed)

    def test_masks_are_kept_between_calls(self):
        stage = Swin(SwinConfig(**SMALL)).stages[0]
        windows = stage.windows(11, 11)[1]
        assert stage._find_mask(windows, 2) is stage._find_mask(windows, 2)
        assert stage._find_mask(windows, 3) == windows.mask(3)


class TestPromises:
    def test_a_nan_stays_in_its_window_and_region(self):
        """Of a map of 10 x 10 in windows of 5 x 5, the token in the first row and column changes its own window."""
        config = SwinConfig(**(SMALL | {"picture_size": (30, 40), "depths": (2,), "heads": (2,)}))
        model = Swin(config).eval()
        pixels = torch.randn(1, 2, 30, 40)
        clean = model(pixels).hidden[0].view(10, 10, -1)
        pixels[..., :3, :4] = torch.nan
        hidden = model(pixels).hidden[0].view(10, 10, -1)
        # Windows 0 to 4; then, shifted by 2, the windows from 2 to 6 reach to row 6, and rows 0 and 1 are a region.
        assert hidden[:7, :7].isnan().all()
        assert torch.equal(hidden[7:], clean[7:])
        assert torch.equal(hidden[:, 7:], clean[:, 7:])

    def test_bits_do_not_depend_on_the_number_of_threads(self):
        model, pixels, before = Swin(SwinConfig(**SMALL)).eval(), torch.randn(3, 2, 33, 44), torch.get_num_threads()
        tokens = torch.randn(3, 121, 14)
        stage, runs = model.stages[0].blocks[1].attention, []
        windows = model.windows(33, 44)[1]
        try:
            for threads in (1, 3):
                torch.set_num_threads(threads)
                query, key = (stage.query_projection(windows.split(tokens)).unflatten(2, (2, 7)).transpose(1, 2),) * 2
                runs.append(stage.mechanism(query, key, key, windows.mask(3), bias=stage.position))
        finally:
            torch.set_num_threads(before)
        assert torch.equal(*runs)
        assert model(pixels).hidden.isfinite().all()

    @pytest.mark.slow
    def test_compiles_to_the_same_numbers(self):
        """In a process of its own: torch.compile cannot trace the checks of shapes in tests."""
        finished = run_script(COMPILED)
        assert finished.returncode == 0, finished.stderr


class TestParts:
    def test_stochastic_depth(self):
        torch.manual_seed(0)
        layer, tokens = StochasticDepth(0.25), torch.full((4001, 3, 2), 3.0, requires_grad=True)
        assert layer.eval()(tokens) is tokens
        output = layer.train()(tokens)
        entries = output[:, 0, 0]
        assert torch.equal(output, entries[:, None, None].expand_as(output))
        assert set(entries.unique().tolist()) == {0.0, 4.0}
        assert entries.mean().item() == pytest.approx(3.0, rel=0.05)
        (gradient,) = torch.autograd.grad(output.sum(), tokens)
        assert_close(gradient, output.detach() / 3)
        with pytest.raises(OptionError, match="dropout is a probability"):
            StochasticDepth(1.0)

    def test_stochastic_depth_drops_values_that_are_not_finite(self):
        torch.manual_seed(0)
        output = StochasticDepth(0.5).train()(torch.full((64, 2), torch.nan))
        assert (output[:, 0] == 0).any()
        assert output[:, 0].isnan().any()

    def test_stochastic_depth_rises_with_the_layer(self):
        config = SwinConfig(**SMALL, stochastic_depth=0.4)
        found = config.skip_probabilities(0) + config.skip_probabilities(1)
        assert found == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
        model = Swin(config).train()
        assert [block.stochastic_depth.p for stage in model.stages for block in stage.blocks] == found
        model(torch.randn(2, 2, 33, 44)).hidden.sum().backward()

    @pytest.mark.parametrize(("rows", "columns"), [(4, 6), (5, 3), (1, 1)])
    def test_patch_merging(self, rows, columns):
        layer, tokens = PatchMerging(3).double(), torch.randn(2, rows * columns, 3, dtype=torch.float64)
        plane = torch.zeros(2, rows + rows % 2, columns + columns % 2, 3, dtype=torch.float64)
        plane[:, :rows, :columns] = tokens.view(2, rows, columns, 3)
        expected = [
            layer.reduction(layer.norm(torch.cat([plane[:, y, x], plane[:, y + 1, x], plane[:, y, x + 1], last], -1)))
            for y in range(0, plane.shape[1], 2)
            for x in range(0, plane.shape[2], 2)
            for last in [plane[:, y + 1, x + 1]]
        ]
        assert_close(layer(tokens, rows, columns), torch.stack(expected, dim=1))


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("changed", "facts"),
        [
            ({"depths": (2,)}, "wrong number of sizes in heads.*1.*got: +2"),
            ({"depths": ()}, "wrong number of sizes in depths"),
            ({"depths": (MAX_LAYERS, 1)}, "wrong layers"),
            ({"depths": [2, 3]}, "depths"),
            ({"heads": (3, 7)}, "width of stage 0 is not divisible.*width=14, heads=3"),
            ({"patch_size": (3,)}, "wrong patch_size.*(height, width)"),
            ({"window": 0}, "wrong window"),
            ({"inner_ratio": 0.0}, "wrong inner_ratio"),
            ({"inner_ratio": 0.001}, "inner"),
            ({"activation": "sine"}, "activation of a Swin"),
            ({"stochastic_depth": 1.0}, "probability"),
            ({"labels": ["a"]}, "wrong labels"),
        ],
    )
    def test_config(self, changed, facts):
        with pytest.raises(OptionError, match=f"(?s){facts}"):
            SwinConfig(**(SMALL | changed))

    @pytest.mark.parametrize(
        ("field", "value"),
        [("depths", [2, 0]), ("depths", 2), ("num_heads", [2, 5]), ("window_size", "7"), ("depths", [2000, 2])],
    )
    def test_files(self, tmp_path, field, value):
        Swin(SwinConfig(**SMALL)).save(tmp_path / "model")
        change_config(tmp_path / "model", **{field: value})
        with pytest.raises(CheckpointError):
            load(tmp_path / "model")
