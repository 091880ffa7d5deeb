"""CvT against transformers in evaluation and training, its folders, picture sizes, promises and bad input."""

import copy
import json

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

import regard
from attention_parity import assert_same_weights
from causal_parity import assert_error_ratio, assert_near, assert_near_gradients, reload, save_and_read
from hypothesis_examples import examples
from regard.errors import CheckpointError, OptionError, ShapeError
from regard.layers import checkpoint_activations
from regard.models import Cvt, CvtConfig, ImageEncoder, TokenGrid, cvt_13, cvt_21, load
from small_checkpoints import change_config
from small_image_models import CVT

SMALL = CVT | {
    "picture_size": (23, 31),
    "channels": 2,
    "projection_kernels": (3, 5),
    "key_value_paddings": (1, 2),
}


def make_peer(seed=0, *, head=True, **fields):
    """A small model of transformers, with random weights and statistics of batch norms."""
    options = {
        "num_channels": 3,
        "patch_sizes": [5, 3],
        "patch_stride": [3, 2],
        "patch_padding": [2, 1],
        "embed_dim": [6, 10],
        "num_heads": [3, 5],
        "depth": [1, 2],
        "mlp_ratio": [2.0, 1.5],
        "attention_drop_rate": [0.0, 0.0],
        "drop_rate": [0.0, 0.0],
        "drop_path_rate": [0.0, 0.0],
        "qkv_bias": [True, False],
        "cls_token": [False, True],
        "qkv_projection_method": ["dw_bn", "dw_bn"],
        "kernel_qkv": [3, 3],
        "padding_kv": [1, 1],
        "stride_kv": [2, 2],
        "padding_q": [1, 1],
        "stride_q": [1, 1],
        "num_labels": 5,
        "initializer_range": 0.2,
    } | fields
    torch.manual_seed(seed)
    config = transformers.CvtConfig(**options)
    peer = (transformers.CvtForImageClassification if head else transformers.CvtModel)(config).eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if "norm" in name or name.endswith(("bias", "token")):
                weight += torch.randn_like(weight) * 0.3
        for name, buffer in peer.named_buffers():
            if name.endswith("mean"):
                buffer += torch.randn_like(buffer)
            elif name.endswith("var"):
                buffer += torch.rand_like(buffer)
            else:
                buffer += 7
    return peer


@st.composite
def peers(draw):
    """A random small model, with the size of a picture."""
    stages = draw(st.integers(1, 3))
    each = lambda options: [draw(st.sampled_from(options)) for _ in range(stages)]  # noqa: E731
    head = draw(st.booleans())  # transformers fails with a head and without a class token
    heads, kernels, patches = each([1, 2, 3]), each([1, 3, 5]), each([1, 2, 3, 5])
    # The gradient of a kernel of 1 with a stride writes past its memory in oneDNN if there are few channels, and the
    # process may then crash: github.com/uxlfoundation/oneDNN/issues/6035.
    strides = lambda sides: [1 if side == 1 else draw(st.sampled_from([1, 2, 3])) for side in sides]  # noqa: E731
    peer = make_peer(
        draw(st.integers(0, 2**16)),
        head=head,
        num_channels=draw(st.sampled_from([1, 3])),
        patch_sizes=patches,
        patch_stride=strides(patches),
        patch_padding=[side // 2 for side in patches],
        # A norm of two numbers leaves their signs alone, so that in float32 gradients before it are rounding.
        embed_dim=[one * draw(st.sampled_from([2, 3, 5] if one > 1 else [3, 5])) for one in heads],
        num_heads=heads,
        depth=[number + draw(st.integers(1, 2)) for number in range(stages)],  # a stage with fewer fails there
        mlp_ratio=each([1.0, 2.5]),
        attention_drop_rate=[0.0] * stages,
        drop_rate=[0.0] * stages,
        drop_path_rate=[0.0] * stages,
        qkv_bias=each([True, False]),
        cls_token=[False] * (stages - 1) + [head or draw(st.booleans())],
        qkv_projection_method=["dw_bn"] * stages,
        kernel_qkv=kernels,
        padding_kv=[side // 2 for side in kernels],
        stride_kv=strides(kernels),
        padding_q=[side // 2 for side in kernels],
        stride_q=[1] * stages,
    )
    return peer, (draw(st.integers(11, 17)), draw(st.integers(11, 17)))


def peer_outputs(peer, pixels):
    """The outputs of a model of transformers: maps of all stages, all tokens of the last one, and the logits."""
    base = getattr(peer, "cvt", peer)
    output = base(pixels, output_hidden_states=True)
    stages = [plane.flatten(2).transpose(1, 2) for plane in output.hidden_states]
    token = output.cls_token_value
    last = stages[-1] if token is None else torch.cat([token, stages[-1]], dim=1)
    if base is peer:
        return stages, last, None
    hidden = peer.layernorm(last)
    pooled = hidden.mean(dim=1) if token is None else hidden[:, 0]
    return stages, hidden, peer.classifier(pooled)


def result_of(model, pixels):
    """What gradients are compared of: the logits, or else the mean of the hidden states."""
    if isinstance(model, Cvt):
        output = model(pixels)
        return output.hidden.mean(dim=1) if output.logits is None else output.logits
    if hasattr(model, "classifier"):
        return model(pixels).logits
    return peer_outputs(model, pixels)[1].mean(dim=1)


def collect_weights(peer):
    """A list that gets the weights of each layer of a peer, which does not return them, as they enter their dropout."""
    found = []
    for module in peer.modules():
        if hasattr(module, "convolution_projection_key"):
            module.dropout.register_forward_pre_hook(lambda _module, inputs: found.append(inputs[0]))
    return found


def assert_same_outputs(model, peer, pixels, tolerance):
    """Compare the output of each stage, all other outputs, and the weights of attention."""
    peer = copy.deepcopy(peer)
    weights = collect_weights(peer)
    with torch.no_grad(), regard.record(model) as seen:
        ours, (stages, hidden, logits) = model(pixels, keep_layers=True), peer_outputs(peer, pixels)
    assert_same_weights(seen, weights)
    for mine, other in zip(ours.layers, stages, strict=True):
        assert_near(mine[:, mine.shape[1] - other.shape[1] :], other, tolerance=tolerance)
    assert_near(ours.hidden, hidden, tolerance=tolerance)
    if logits is None:
        assert ours.logits is None
    else:
        with torch.no_grad():
            assert_near(ours.logits, peer(pixels).logits, tolerance=tolerance)
            assert_near(ours.logits, logits, tolerance=tolerance)


def gradients(model, peer, pixels, factors):
    """Gradients of the sum of results times ``factors``, by names in the file, and of the pixels: ours, the peer's."""
    collected = []
    for one in (model, peer):
        one.zero_grad()
        leaf = pixels.clone().requires_grad_()
        (result_of(one, leaf).to(factors) * factors).sum().backward()
        collected.append(leaf.grad)
    weights = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    theirs = {name: weight.grad for name, weight in peer.named_parameters() if weight.grad is not None}
    ours = model.weight_names.to_file(weights)
    assert ours.keys() == theirs.keys()
    return ours | {"pixels": collected[0]}, theirs | {"pixels": collected[1]}


def assert_same_gradients(model, peer, pixels, tolerance):
    with torch.no_grad():
        factors = torch.randn_like(result_of(copy.deepcopy(peer), pixels))
    ours, theirs = gradients(model, peer, pixels, factors)
    assert_near_gradients(ours, theirs, tolerance)


def assert_same_statistics(model, peer, tolerance):
    """Compare what batch norms have averaged."""
    theirs = dict(peer.named_buffers())
    ours = model.weight_names.to_file({name: one for name, one in model.state_dict().items() if "norm.r" in name})
    assert ours
    for name, found in ours.items():
        assert_near(found, theirs[name], tolerance=tolerance)


def assert_same_model(peer, folder, size):
    """Compare in float32 and in float64, in evaluation and in training."""
    model = reload(peer, folder)
    assert model.notes == ()
    pixels = torch.randn(3, model.channels, *size)
    assert_same_outputs(model, peer, pixels, 1e-4)
    assert_same_gradients(model, peer, pixels, 1e-4)
    wide, wide_peer = load(folder, dtype=torch.float64), copy.deepcopy(peer).double()
    for training in (False, True):
        wide.train(training)
        wide_peer.train(training)
        assert_same_gradients(wide, wide_peer, pixels.double(), 1e-9)
        assert_same_statistics(wide, wide_peer, 1e-9)
        assert_same_outputs(wide, copy.deepcopy(wide_peer), pixels.double(), 1e-9)
    return model


class TestParity:
    def test_random_small_models_and_pictures(self, tmp_path_factory):
        @examples(30, without_slow=2)
        @given(drawn=peers())
        def check(drawn):
            peer, size = drawn
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            try:
                grids = model.key_grids(*size)
            except ShapeError:  # strides leave no token of a small picture
                return
            assert all(grid.tokens >= 1 for grid in grids)
            assert_same_model(peer, folder, size)

        check()

    @pytest.mark.parametrize("size", [(23, 31), (12, 40)])
    def test_training_mode_in_float32(self, tmp_path, size):
        peer = make_peer().train()
        model = reload(peer, tmp_path / "peer").train()
        pixels = torch.randn(5, 3, *size)
        assert_same_gradients(model, peer, pixels, 1e-4)
        assert_same_statistics(model, peer, 1e-5)

    @pytest.mark.slow  # no code of the model depends on the dtype; that of its layers is tested in bfloat16 for others
    def test_bfloat16(self, tmp_path):
        results, slopes = [], []
        for seed in range(5):
            peer = make_peer(seed)
            model = reload(peer, tmp_path / str(seed), torch.bfloat16)
            pixels = torch.randn(3, 3, 23, 31).bfloat16()  # rounding the pixels is no error of the models
            exact_result = result_of(peer, pixels.float()).detach()
            factors = torch.randn_like(exact_result)
            _, exact = gradients(load(tmp_path / str(seed)), peer, pixels.float(), factors)
            exact = {name: gradient.clone() for name, gradient in exact.items()}
            half = copy.deepcopy(peer).to(torch.bfloat16)
            with torch.no_grad():
                results.append((result_of(model, pixels), result_of(half, pixels), exact_result))
            ours, theirs = gradients(model, half, pixels, factors)
            # The gradient of the bias of keys is 0 but for rounding, so it has no size that errors are relative to.
            floor = 1e-4 * max(best.norm() for best in exact.values())
            slopes += [(ours[name], theirs[name], best) for name, best in exact.items() if best.norm() > floor]
        assert_error_ratio(results)
        assert_error_ratio(slopes)

    @pytest.mark.parametrize("head", [True, False])
    def test_folders_are_read_by_transformers_and_again(self, tmp_path, head):
        peer = make_peer(head=head, id2label={0: "cat", 1: "dog"}, num_labels=2)
        model = reload(peer, tmp_path / "peer")
        assert model.labels == (("cat", "dog") if head else ())
        assert model.stages[0].layers[0].query.norm.num_batches_tracked.item() == 7
        again = save_and_read(model, tmp_path / "copy", type(peer), 3000)
        assert again.config.architectures == [type(peer).__name__]
        assert_same_outputs(model, again, torch.randn(2, 3, 23, 31), 1e-5)

    def test_defaults_are_those_of_transformers(self, tmp_path):
        transformers.CvtConfig().save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        stated = regard.models.config_file.ConfigFile(json.loads(path.read_text()), path)
        absent = regard.models.config_file.ConfigFile({"model_type": "cvt"}, path)
        assert CvtConfig.from_hugging_face(stated) == CvtConfig.from_hugging_face(absent) == CvtConfig()

    def test_our_config_is_that_of_transformers(self, tmp_path):
        model = Cvt(CvtConfig(**SMALL, labels=("a", "b", "c")))
        model.save(tmp_path / "model")
        assert ImageEncoder.load(tmp_path / "model").config == model.config
        theirs = transformers.AutoConfig.from_pretrained(tmp_path / "model")
        assert (list(theirs.kernel_qkv), list(theirs.padding_q), list(theirs.padding_kv)) == ([3, 5], [1, 2], [1, 2])


class TestPictureSizes:
    @pytest.mark.parametrize("size", [(23, 31), (24, 7), (5, 50)])
    def test_grids_and_records(self, size):
        model = Cvt(CvtConfig(**SMALL)).eval()
        with regard.record(model) as seen, torch.no_grad():
            hidden = model(torch.randn(3, 2, *size)).hidden
        queries, keys = model.token_grids(*size), model.key_grids(*size)
        assert [call.query.shape[2] for call in seen] == [grid.tokens for grid in queries]
        assert [call.key.shape[2] for call in seen] == [grid.tokens for grid in keys]
        assert hidden.shape[1] == queries[-1].tokens
        assert [grid.prefix for grid in queries] == [(), ("class",), ("class",)]

    def test_grids_of_a_published_model(self):
        with torch.device("meta"):
            model = cvt_13()
        stages = [TokenGrid(56, 56), *[TokenGrid(28, 28)] * 2, *[TokenGrid(14, 14, ("class",))] * 10]
        assert list(model.token_grids(224, 224)) == stages
        assert model.key_grids(224, 224)[0] == TokenGrid(28, 28)
        assert model.key_grids(224, 224)[-1] == TokenGrid(7, 7, ("class",))

    def test_too_small_pictures(self):
        config = CvtConfig(**(SMALL | {"embedding_paddings": (0, 1)}))
        with pytest.raises(ShapeError, match=r"(?s)too small.*3 x 31: none in stage 0.*resize it"):
            Cvt(config)(torch.zeros(1, 2, 3, 31))


class TestTraining:
    def test_stochastic_depth_rises_in_each_stage(self):
        options = SMALL | {"depths": (2, 3), "stochastic_depths": (0.5, 0.2)}
        model = Cvt(CvtConfig(**options))
        found = [[layer.stochastic_depth.p for layer in stage.layers] for stage in model.stages]
        assert found == [[0.0, 0.5], [0.0, 0.1, 0.2]]

    def test_activation_checkpointing_changes_no_gradient(self):
        torch.manual_seed(0)
        model = Cvt(CvtConfig(**(SMALL | {"labels": ("a", "b"), "dropouts": (0.3, 0.3)}))).train()
        pixels, found = torch.randn(3, 2, 23, 31), []
        for enabled in (False, True):
            assert checkpoint_activations(model, enabled=enabled) == 3
            model.zero_grad()
            torch.manual_seed(5)
            model(pixels).logits.sum().backward()
            found.append([weight.grad.clone() for weight in model.parameters()])
        assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))

    @pytest.mark.parametrize("build", [cvt_13, cvt_21])
    def test_as_many_weights_as_in_transformers(self, build):
        with torch.device("meta"):
            model = build(tuple(map(str, range(1000))))
            config = transformers.CvtConfig(depth=list(model.config.depths), num_labels=1000)
            peer = transformers.CvtForImageClassification(config)
        ours, theirs = (sum(weight.numel() for weight in one.parameters()) for one in (model, peer))
        assert ours == theirs


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("changed", "facts"),
        [
            ({"depths": (2,)}, "wrong number of members in widths"),
            ({"depths": [1, 2]}, "depths"),
            ({"heads": (3, 7)}, "width of stage 1 is not divisible.*width=10, heads=7"),
            ({"projection_kernels": (3, 4)}, "queries in stage 1 would change the size"),
            ({"key_value_paddings": (1, 3)}, "more than half of its kernel.*at most 2"),
            ({"embedding_strides": (0, 1)}, "embedding_strides"),
            ({"inner_ratios": (1.0, 0.0)}, "inner_ratios"),
            ({"stochastic_depths": (0.0, 1.0)}, "probability"),
            ({"projection_biases": (True, None)}, "projection_biases"),
        ],
    )
    def test_config(self, changed, facts):
        with pytest.raises(OptionError, match=f"(?s){facts}"):
            CvtConfig(**(SMALL | changed))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("depth", [2, 0]),
            ("depth", 2),
            ("qkv_projection_method", ["avg", "avg"]),
            ("stride_q", [2, 2]),
            ("padding_q", [0, 0]),
            ("cls_token", [True, True]),
            ("cls_token", True),
            ("drop_rate", [0.0, "a"]),
            ("mlp_ratio", 4),
            ("qkv_bias", [1, 2]),
        ],
    )
    def test_files(self, tmp_path, field, value):
        Cvt(CvtConfig(**SMALL)).save(tmp_path / "model")
        change_config(tmp_path / "model", **{field: value})
        with pytest.raises(CheckpointError):
            load(tmp_path / "model")
