"""ViT and DeiT against transformers, their folders, other picture sizes, masks, mechanisms and bad input."""

import copy
import json
import math

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import regard
from causal_parity import assert_near, reload, save_and_read
from hypothesis_examples import examples
from image_parity import (
    assert_bfloat16,
    assert_returned_weights,
    assert_same_gradients,
    assert_same_model,
    assert_same_outputs,
    random_pixels,
)
from regard import masks, positions
from regard.classification import MediaClassifier
from regard.errors import CheckpointError, DtypeError, OptionError, RefusedError, RegardError, ShapeError
from regard.models import (
    Deit,
    DeitConfig,
    Encoder,
    ImageEncoder,
    TokenGrid,
    Vit,
    VitConfig,
    load,
)
from regard.vision import ImageProcessor
from script_process import run_script
from slow_parameters import slow_except
from small_checkpoints import change_config

KINDS = ("ViTModel", "ViTForImageClassification", "DeiTModel", "DeiTForImageClassification")
TEACHER = "DeiTForImageClassificationWithTeacher"
EVERY_KIND = (*KINDS, TEACHER)
SMALL = {
    "picture_size": (21, 35),
    "patch_size": (7, 5),
    "channels": 2,
    "width": 22,
    "layers": 2,
    "heads": 2,
    "inner": 17,
}
LABELS = ("cat", "dog", "cow")
ALWAYS = {"additive", "dot_product", "linear", "linformer", "longformer", "luong_general", "nystromformer", "performer"}
"""Mechanisms that mix patches without a mask."""


def make_peer(kind, seed=0, **fields):
    """A small model of transformers, with random weights: tokens, positions, biases and norms included."""
    options = {
        "hidden_size": 22,
        "intermediate_size": 17,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "image_size": 21,
        "patch_size": 7,
        "num_channels": 3,
        "num_labels": 5,
        "initializer_range": 0.2,
    } | fields
    torch.manual_seed(seed)
    config = getattr(transformers, kind[: kind.index("T") + 1] + "Config")(**options)
    config._attn_implementation = "sdpa"  # "eager" computes softmax in float32, whatever the dtype
    peer = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name or name.endswith(("bias", "token", "embeddings")):
                weight += torch.randn_like(weight) * 0.3
    return peer


@st.composite
def peers(draw, kind):
    """A random small model of one class."""
    heads = draw(st.sampled_from([1, 2, 3]))
    patch = draw(st.sampled_from([1, 3, [3, 2]]))
    return make_peer(
        kind,
        draw(st.integers(0, 2**16)),
        hidden_size=heads * draw(st.sampled_from([11, 14])),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.sampled_from([1, 2, 4])),
        num_channels=draw(st.sampled_from([1, 3, 5])),
        patch_size=patch,
        image_size=draw(st.sampled_from([6, [6, 12], [12, 6]])),
        hidden_act=draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])),
        qkv_bias=draw(st.booleans()),
        num_labels=draw(st.sampled_from([1, 2, 7])),
    )


class TestParity:
    @pytest.mark.parametrize("kind", slow_except({"ViTModel", TEACHER}, EVERY_KIND))
    def test_random_small_models(self, tmp_path_factory, kind):
        @examples(12, without_slow=4)
        @given(peer=peers(kind))
        def check(peer):
            assert_same_model(peer, tmp_path_factory.mktemp("peer"))

        check()

    @pytest.mark.parametrize("kind", EVERY_KIND)
    def test_weights_of_parity_are_those_of_output_attentions(self, kind):
        assert_returned_weights(make_peer(kind), torch.randn(2, 3, 21, 21))

    @pytest.mark.parametrize("kind", slow_except({"ViTModel", "DeiTForImageClassification"}, EVERY_KIND))
    def test_bfloat16(self, tmp_path, kind):
        assert_bfloat16([make_peer(kind, seed) for seed in range(5)], tmp_path)

    @pytest.mark.parametrize("size", slow_except({(14, 35)}, [(28, 28), (14, 35), (7, 7), (49, 21)]))
    @pytest.mark.parametrize("kind", slow_except({"ViTModel", TEACHER}, EVERY_KIND))
    def test_interpolated_positions(self, tmp_path, kind, size):
        peer = make_peer(kind)
        model = reload(peer, tmp_path / "peer")
        pixels = random_pixels(model, 2, size)
        assert_same_outputs(model, peer, pixels, interpolate_pos_encoding=True)
        assert_same_gradients(model, peer, pixels, tolerance=1e-4, interpolate_pos_encoding=True)

    @pytest.mark.parametrize("kind", EVERY_KIND)
    def test_folders_are_read_by_transformers_and_again(self, tmp_path_factory, kind):
        @examples(6, without_slow=2)
        @given(peer=peers(kind), shard=st.sampled_from([100, 3000, 10**9]))
        def check(peer, shard):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            again = save_and_read(model, folder / "copy", type(peer), shard)
            assert again.config.architectures == [kind]
            if model.labels:
                assert again.config.id2label == peer.config.id2label
            assert_same_outputs(model, again, random_pixels(model, 2))

        check()


class TestFolders:
    def test_the_labels_are_those_of_the_file(self, tmp_path):
        peer = make_peer("ViTForImageClassification", id2label={0: "cat", 1: "dog"}, num_labels=2)
        model = reload(peer, tmp_path / "peer")
        assert model.labels == ("cat", "dog")
        assert ImageEncoder.load(tmp_path / "peer").labels == ("cat", "dog")

    def test_a_model_without_a_pooler(self, tmp_path):
        peer = transformers.ViTModel(make_peer("ViTModel").config, add_pooling_layer=False).eval()
        model = reload(peer, tmp_path / "peer")
        assert model.pooler is None
        output = model(random_pixels(model, 2))
        assert torch.equal(output.pooled, output.hidden[:, 0])
        assert_same_outputs(model, peer, random_pixels(model, 2))

    def test_masked_image_modelling_leaves_a_note(self, tmp_path):
        config = make_peer("ViTModel", patch_size=7, encoder_stride=7).config
        peer = transformers.ViTForMaskedImageModeling(config).eval()
        model = reload(peer, tmp_path / "peer")
        assert "decoder.0.weight" in model.notes[0]
        assert "mask_token" in model.notes[0]
        assert_same_outputs(model, peer.vit, random_pixels(model, 2))

    def test_labels_that_are_not_those_of_the_head(self, tmp_path):
        model = Vit(VitConfig(**SMALL, labels=LABELS))
        model.save(tmp_path / "model")
        path = tmp_path / "model" / "config.json"
        fields = json.loads(path.read_text())
        del fields["id2label"]["2"]
        path.write_text(json.dumps(fields))
        with pytest.raises(CheckpointError, match="id2label") as error:
            load(tmp_path / "model")
        assert "3 labels" in error.value.expected
        del fields["id2label"]
        path.write_text(json.dumps(fields))
        assert load(tmp_path / "model").labels == ("LABEL_0", "LABEL_1", "LABEL_2")

    def test_a_file_without_positions_is_refused(self, tmp_path):
        Vit(VitConfig(**SMALL)).save(tmp_path / "model")
        path = tmp_path / "model" / "model.safetensors"
        weights = load_file(path)
        del weights["embeddings.position_embeddings"]
        save_file(weights, path)
        with pytest.raises(CheckpointError, match="lacks tensors") as error:
            load(tmp_path / "model")
        assert "positions.weight" in error.value.got

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("image_size", [21]),
            ("image_size", "21"),
            ("patch_size", 6),
            ("pooler_act", "relu"),
            ("pooler_output_size", 3),
            ("head_dim", 7),
            ("hidden_act", "sine"),
            ("num_attention_heads", 5),
            ("num_hidden_layers", 4000),
        ],
    )
    def test_fields_that_cannot_be_computed_are_refused(self, tmp_path, field, value):
        Vit(VitConfig(**SMALL)).save(tmp_path / "model")
        change_config(tmp_path / "model", **{field: value})
        with pytest.raises(CheckpointError):
            load(tmp_path / "model")

    def test_the_processor_and_metadata_travel_with_the_model(self, tmp_path):
        model = Vit(VitConfig(**SMALL, labels=LABELS))
        model.processor = ImageProcessor(size=(24, 40), crop=(21, 35), mean=(0.1, 0.2, 0.3), resample="bicubic")
        model.metadata = {"steps": 7}
        model.save(tmp_path / "model")
        model.save(tmp_path / "model", overwrite=True)
        again = ImageEncoder.load(tmp_path / "model")
        assert again.processor == model.processor
        assert again.metadata == {"steps": 7}
        theirs = json.loads((tmp_path / "model" / "preprocessor_config.json").read_text())
        assert theirs["size"] == {"height": 24, "width": 40}
        assert theirs["crop_size"] == {"height": 21, "width": 35}

    def test_the_right_loader(self, tmp_path):
        Vit(VitConfig(**SMALL)).save(tmp_path / "vit")
        with pytest.raises(CheckpointError, match="no head"):
            MediaClassifier.load(tmp_path / "vit")
        with pytest.raises(CheckpointError, match="another kind of model"):
            Encoder.load(tmp_path / "vit")
        regard.models.TransformerEncoder(
            regard.models.TransformerEncoderConfig(31, width=6, layers=1, heads=2, inner=5)
        ).save(tmp_path / "text")
        with pytest.raises(CheckpointError, match="another kind of model"):
            ImageEncoder.load(tmp_path / "text")

    def test_copies_compute_the_same(self):
        model = Deit(DeitConfig(**SMALL, labels=LABELS, distillation_head=True)).eval()
        pixels = random_pixels(model, 2)
        assert torch.equal(copy.deepcopy(model)(pixels).logits, model(pixels).logits)


class TestSizes:
    def test_token_grids(self):
        model = Deit(DeitConfig(**SMALL))
        assert model.token_grids(21, 35) == (TokenGrid(3, 7, ("class", "distillation")),) * 2
        assert model.token_grids(7, 50)[0].tokens == 2 + 10
        assert model(random_pixels(model, 1, (7, 50))).hidden.shape == (1, 12, 22)

    def test_patches_are_a_convolution(self):
        model = Vit(VitConfig(**SMALL)).double()
        pixels = random_pixels(model, 3, (14, 20), torch.float64)
        theirs = torch.nn.functional.conv2d(pixels, model.patches.weight, model.patches.bias, stride=(7, 5))
        assert_near(model.patches(pixels), theirs.flatten(2).transpose(1, 2), tolerance=1e-12)
        strided = pixels.to(memory_format=torch.channels_last)
        assert torch.equal(model.patches(strided), model.patches(pixels))

    def test_an_empty_batch(self):
        model = Vit(VitConfig(**SMALL, labels=LABELS)).eval()
        assert model(random_pixels(model, 0)).logits.shape == (0, 3)

    def test_interpolation_is_a_cubic_convolution(self):
        """Keys 1981, equation 4, with a = -0.75 in place of -0.5, written out in NumPy."""
        grid = positions.LearnedGrid(5, 3, 2, prefix=1, deviation=1.0).double()
        trained = grid.weight[0, 1:].detach().unflatten(0, (5, 3)).numpy()
        finer = grid(7, 11)
        assert torch.equal(finer[:, :1], grid.weight[:, :1])
        expected = np.einsum("ri,cj,ijw->rcw", cubic_weights(5, 7), cubic_weights(3, 11), trained)
        np.testing.assert_allclose(finer[0, 1:].unflatten(0, (7, 11)).detach().numpy(), expected, rtol=0, atol=1e-12)
        assert torch.equal(grid(5, 3), grid.weight)


def cubic_weights(trained, places):
    """The weights (places, trained) of cubic convolution along one side; beyond the border lies the border's vector."""
    weights = np.zeros((places, trained))
    for place in range(places):
        at = (place + 0.5) * trained / places - 0.5
        for near in range(math.floor(at) - 1, math.floor(at) + 3):
            x, a = abs(at - near), -0.75
            inner, outer = (a + 2) * x**3 - (a + 3) * x**2 + 1, a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a
            weights[place, min(max(near, 0), trained - 1)] += inner if x <= 1 else outer
    return weights


class TestMasks:
    """The class token and the patches that a mask hides from all others."""

    def hidden_patches(self):
        """A mask over 1 + 3 * 7 tokens that hides patches 2, 8 and 20, and the pixels of these patches."""
        keep = torch.ones(1, 1, 1, 22, dtype=torch.bool)
        pixels = torch.zeros(3, 7, dtype=torch.bool)
        for patch in (2, 8, 20):
            keep[..., 1 + patch] = False
            pixels[divmod(patch, 7)] = True
        return masks.keep(keep), pixels.repeat_interleave(7, 0).repeat_interleave(5, 1)

    @pytest.mark.parametrize("poison", [1e30, torch.nan, torch.inf])
    def test_a_hidden_patch_has_no_influence(self, poison):
        torch.manual_seed(0)
        model = Vit(VitConfig(**SMALL, labels=LABELS)).eval()
        mask, hidden = self.hidden_patches()
        pixels = random_pixels(model, 3)
        clean = model(pixels, mask=mask)
        spoiled = pixels.masked_fill(hidden, poison).requires_grad_()
        output = model(spoiled, mask=mask)
        assert torch.equal(output.logits, clean.logits)
        visible = torch.tensor([token - 1 not in (2, 8, 20) for token in range(22)])
        assert torch.equal(output.hidden[:, visible], clean.hidden[:, visible])
        output.logits.sum().backward()
        others = pixels.clone().requires_grad_()
        model(others, mask=mask).logits.sum().backward()
        assert torch.equal(spoiled.grad[..., ~hidden], others.grad[..., ~hidden])
        assert torch.equal(others.grad[..., hidden], torch.zeros_like(others.grad[..., hidden]))

    def test_hiding_all_other_patches_leaves_the_class_token(self):
        torch.manual_seed(0)
        model = Vit(VitConfig(**SMALL, labels=LABELS)).eval()
        only = masks.padding([1, 1])
        first, second = (model(random_pixels(model, 2), mask=only).logits for _ in range(2))
        assert torch.equal(first, second)

    def test_a_tensor_is_no_mask(self, without_shape_checks):
        model = Vit(VitConfig(**SMALL))
        with pytest.raises(OptionError, match="mask is not a regard mask"):
            model(random_pixels(model, 1), mask=torch.ones(22, 22))
        with pytest.raises(ShapeError):
            model(random_pixels(model, 1), mask=masks.keep(torch.ones(1, 1, 5, 5, dtype=torch.bool)))


class TestMechanisms:
    @pytest.mark.parametrize("name", sorted(row.name for row in regard.catalogue()))
    def test_every_mechanism_computes_or_refuses(self, tmp_path, name):
        """A model with another mechanism computes and is saved as a type of our own, or says why it cannot."""
        torch.manual_seed(0)
        options = {"linformer": {"length": 22}}.get(name, {})
        fields = SMALL | {"width": 32}
        try:
            model = Vit(VitConfig(**fields, mechanism=name, mechanism_options=options, labels=LABELS)).eval()
            logits = model(random_pixels(model, 2)).logits
        except RegardError:  # every such error says why: tests/unit/test_error_messages.py
            assert name not in ALWAYS
            return
        assert logits.shape == (2, 3)
        model.save(tmp_path / "model")
        fields = json.loads((tmp_path / "model" / "config.json").read_text())
        assert fields["model_type"] == ("vit" if name == "dot_product" else "regard-vit")
        again = load(tmp_path / "model")
        assert again.config == model.config
        pixels = random_pixels(model, 2)
        torch.manual_seed(1)
        ours = model(pixels).logits
        torch.manual_seed(1)
        assert torch.equal(again(pixels).logits, ours)

    def test_transformers_refuses_another_mechanism(self, tmp_path):
        Deit(DeitConfig(**SMALL, mechanism="linear")).save(tmp_path / "model")
        with pytest.raises(ValueError, match="regard-deit"):
            transformers.AutoModel.from_pretrained(tmp_path / "model")

    def test_a_gated_activation_is_saved(self, tmp_path):
        model = Vit(VitConfig(**SMALL, activation="swiglu")).eval()
        model.save(tmp_path / "model")
        pixels = random_pixels(model, 2)
        assert torch.equal(load(tmp_path / "model")(pixels).hidden, model(pixels).hidden)

    def test_a_replaced_mechanism_is_not_saved(self, tmp_path):
        model = Vit(VitConfig(**SMALL))
        model.layers[1].attention.mechanism = regard.mechanism("linear", heads=2, head_dim=11)
        with pytest.raises(RefusedError, match="replaced mechanism"):
            model.save(tmp_path / "model")


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("shape", "words"),
        [
            ((2, 3, 21, 35), "as many channels"),
            ((2, 21, 35), "pixels[None]"),
            ((1, 21, 35, 2), "permute"),
            ((21, 35), "(batch, 2, height, width)"),
            ((1, 2, 6, 35), "from 6 to 7"),
            ((1, 2, 21, 36), "from 36 to 35"),
            ((1, 2, 0, 35), "from 0 to 7"),
            ((1, 2, 21, 3), "from 3 to 5"),
        ],
    )
    def test_shapes(self, shape, words):
        model = Vit(VitConfig(**SMALL))
        with pytest.raises(ShapeError) as error:
            model(torch.randn(shape))
        assert words in str(error.value)

    @pytest.mark.parametrize(
        ("pixels", "words"),
        [
            (torch.zeros(1, 2, 21, 35, dtype=torch.uint8), "/ 255"),
            (torch.zeros(1, 2, 21, 35, dtype=torch.long), "/ 255"),
            (torch.zeros(1, 2, 21, 35, dtype=torch.float64), ".to(dtype)"),
            ("picture.png", "processor"),
            (None, "processor"),
        ],
    )
    def test_dtypes(self, pixels, words):
        model = Vit(VitConfig(**SMALL))
        with pytest.raises(DtypeError) as error:
            model(pixels)
        assert words in str(error.value)

    @pytest.mark.parametrize(
        "fields",
        [
            {"picture_size": (20, 35)},
            {"picture_size": 21},
            {"patch_size": (7, 0)},
            {"patch_size": [7, 5]},
            {"channels": 0},
            {"heads": 3},
            {"labels": ["cat"]},
            {"labels": (1, 2)},
            {"labels": LABELS, "pooler": True},
            {"mechanism": "nothing"},
            {"mechanism_options": {"window": 3}},
            {"activation": "sine"},
            {"dropout": 1.0},
        ],
    )
    def test_configs(self, fields):
        with pytest.raises(RegardError):
            Vit(VitConfig(**(SMALL | fields)))

    def test_a_distillation_head_needs_labels(self):
        with pytest.raises(OptionError, match="needs labels"):
            DeitConfig(**SMALL, distillation_head=True)
        with pytest.raises(OptionError, match="wrong config"):
            Deit(VitConfig(**SMALL))


class TestDistillation:
    def test_both_logits_are_trained(self):
        torch.manual_seed(0)
        model = Deit(DeitConfig(**SMALL, labels=LABELS, distillation_head=True))
        output = model(random_pixels(model, 2))
        torch.testing.assert_close(output.logits, (output.class_logits + output.distillation_logits) / 2)
        output.distillation_logits.sum().backward()
        assert model.head.weight.grad is None
        assert model.distillation_head.weight.grad.abs().sum() > 0
        assert model.distillation_token.grad.abs().sum() > 0

    def test_one_head_has_no_distillation_logits(self):
        model = Deit(DeitConfig(**SMALL, labels=LABELS))
        output = model(random_pixels(model, 2))
        assert output.distillation_logits is None
        assert output.class_logits is None


TRACED = """
import torch
from regard.layers import checkpoint_activations
from regard.models import Deit, DeitConfig

torch.manual_seed(0)
config = DeitConfig((21, 35), (7, 5), 2, 22, LAYERS, 2, 17, labels=("a", "b", "c"), distillation_head=True)
model = Deit(config).eval()

class Logits(torch.nn.Module):
    def forward(self, pixels):
        return model(pixels).logits

def gradients(function, pixels):
    model.zero_grad()
    output = function(pixels)
    output.square().sum().backward()
    return [output.detach(), *(weight.grad.clone() for weight in model.parameters())]

def assert_near(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)

"""


class TestTransforms:
    """In processes of their own, since torch cannot trace through the suite's shape checks."""

    def run(self, script, *, layers=1):
        result = run_script(f"LAYERS = {layers}\n{TRACED}{script}")
        assert result.returncode == 0, result.stderr

    @pytest.mark.parametrize("checkpointed", [False, pytest.param(True, marks=pytest.mark.slow)])
    @pytest.mark.parametrize(
        ("layers", "sizes"), [(1, [(14, 40)]), pytest.param(2, [(21, 35), (14, 40)], marks=pytest.mark.slow)]
    )
    def test_compile(self, checkpointed, layers, sizes):
        """One graph for each picture size, forward and backward; positions are interpolated for 14 x 40."""
        self.run(
            f"""
compiled = torch.compile(Logits(), fullgraph=True, backend="aot_eager", dynamic=False)
for size in {sizes}:
    pixels = torch.randn(3, 2, *size)
    checkpoint_activations(model, enabled=False)
    plain = gradients(Logits(), pixels)
    checkpoint_activations(model, enabled={checkpointed})
    assert_near(gradients(compiled, pixels), plain)
""",
            layers=layers,
        )

    @pytest.mark.slow  # test_compile traces the same model, without a dynamic batch
    def test_export(self):
        self.run("""
pixels = torch.randn(3, 2, 21, 35)
batch = torch.export.Dim("batch", min=2, max=64)
program = torch.export.export(Logits(), (pixels,), dynamic_shapes=({0: batch},)).module()
for pixels in (pixels, torch.randn(5, 2, 21, 35)):
    assert_near([program(pixels)], [Logits()(pixels)])
""")

    def test_autocast(self):
        torch.manual_seed(0)
        model = Vit(VitConfig(**SMALL, labels=LABELS)).eval()
        pixels = random_pixels(model, 2)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(pixels).logits
        assert_near(half.float(), model(pixels).logits, tolerance=0.02)
