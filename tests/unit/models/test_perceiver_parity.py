"""Perceivers against transformers: every output, forward and backward, and folders of either read by the other.

Sizes that are constants in the code of transformers: 64 bands for pictures and flow, 192 for sound, 32 for video; 256
channels of trained positions; 64 of the convolution; 8 heads of 32 for the queries of text; 3 colours. Pictures and
sounds may be small in spite of them, since positions always run from -1 to 1.
"""

import copy

import pytest
import torch
from transformers import (
    PerceiverConfig as PeerConfig,
)
from transformers import (
    PerceiverForImageClassificationConvProcessing,
    PerceiverForImageClassificationFourier,
    PerceiverForImageClassificationLearned,
    PerceiverForMaskedLM,
    PerceiverForMultimodalAutoencoding,
    PerceiverForOpticalFlow,
    PerceiverForSequenceClassification,
    PerceiverModel,
    PerceiverTokenizer,
)

import regard
from attention_parity import largest_weight_error
from causal_parity import assert_error_ratio, assert_near, assert_near_gradients, reload
from regard import masks
from regard.models import (
    Perceiver,
    load,
    perceiver_flow,
    perceiver_language,
    perceiver_multimodal,
    perceiver_pictures_convolution,
    perceiver_pictures_fourier,
    perceiver_pictures_trained,
)
from regard.models.checkpoint_reader import init_on_meta
from regard.text.byte_tokenizer import byte_tokenizer
from slow_parameters import slow_except

SMALL = {
    "num_latents": 7,
    "d_latents": 24,
    "num_blocks": 2,
    "num_self_attends_per_block": 2,
    "num_self_attention_heads": 3,
    "num_cross_attention_heads": 1,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.3,
}
MULTIMODAL = {
    "num_frames": 2,
    "image_size": 3,
    "audio_samples_per_frame": 10,
    "samples_per_patch": 5,
    "output_shape": [1, 2, 12, 8],
    "output_num_channels": 11,
    "_label_trainable_num_channels": 13,
    "id2label": {0: "a", 1: "b", 2: "c"},
}
LABELS = {"id2label": {0: "cat", 1: "dog", 2: "owl", 3: "cat"}, "label2id": {"cat": 3, "dog": 1, "owl": 2}}


def make_peer(kind, seed=5, **options):
    torch.manual_seed(seed)
    peer = kind(PeerConfig(**(SMALL | options))).eval()
    with torch.no_grad():  # norms, biases and batch statistics that tell, too
        for name, tensor in [*peer.named_parameters(), *peer.named_buffers()]:
            if tensor.is_floating_point() and tensor.dim() == 1:
                tensor.add_(0.2 * torch.randn_like(tensor).abs() if "running_var" in name else
                            0.2 * torch.randn_like(tensor))  # fmt: skip
    return peer


def ids_of(batch, length):
    return torch.randint(0, 262, (batch, length))


CASES = {
    "bare": (PerceiverModel, {"d_model": 11}, lambda: torch.randn(2, 13, 11)),
    "bare, wide queries": (
        PerceiverModel,
        {
            "d_model": 10,
            "qk_channels": 12,
            "v_channels": 24,
            "num_cross_attention_heads": 2,
            "use_query_residual": False,
        },
        lambda: torch.randn(2, 13, 10),
    ),
    "bare, widened": (
        PerceiverModel,
        {
            "d_model": 10,
            "cross_attention_shape_for_attention": "q",
            "num_cross_attention_heads": 3,
            "self_attention_widening_factor": 3,
            "cross_attention_widening_factor": 2,
            "hidden_act": "gelu_new",
        },
        lambda: torch.randn(2, 13, 10),
    ),
    "text": (PerceiverForMaskedLM, {"d_model": 16, "max_position_embeddings": 17}, lambda: ids_of(2, 17)),
    "text class": (
        PerceiverForSequenceClassification,
        {"d_model": 11, "max_position_embeddings": 17, **LABELS},
        lambda: ids_of(2, 13),
    ),
    "trained pixels": (
        PerceiverForImageClassificationLearned,
        {"image_size": 5, **LABELS},
        lambda: torch.randn(2, 3, 5, 5),
    ),
    "pixels": (PerceiverForImageClassificationFourier, LABELS, lambda: torch.randn(2, 3, 5, 7)),
    "convolution": (PerceiverForImageClassificationConvProcessing, LABELS, lambda: torch.randn(2, 3, 19, 13)),
    "flow": (PerceiverForOpticalFlow, {"train_size": [5, 7]}, lambda: torch.randn(2, 2, 27, 5, 7)),
    "flow, width of queries": (
        PerceiverForOpticalFlow,
        {"train_size": [5, 7], "cross_attention_shape_for_attention": "q"},
        lambda: torch.randn(2, 2, 27, 5, 7),
    ),
    "multimodal": (
        PerceiverForMultimodalAutoencoding,
        MULTIMODAL,
        lambda: {"audio": torch.randn(2, 20), "image": torch.randn(2, 2, 3, 12, 8), "label": torch.randn(2, 3)},
    ),
}
"""Name: the class of transformers, its options, and a function that draws inputs."""
POINTS = {"audio": torch.tensor([3, 0, 1]), "image": torch.tensor([191, 0, 7, 100, 95])}


def to_dtype(inputs, dtype):
    if isinstance(inputs, dict):
        return {name: one.to(dtype) for name, one in inputs.items()}
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def call_peer(peer, inputs, **options):
    if not isinstance(inputs, dict):
        return peer(inputs, output_hidden_states=True, output_attentions=True, **options)
    theirs = {**inputs, "audio": inputs["audio"][..., None]}
    points = {**POINTS, "label": None}
    return peer(theirs, subsampled_output_points=points, output_hidden_states=True, output_attentions=True, **options)


def call_ours(model, inputs, **options):
    return model(inputs, at=POINTS if isinstance(inputs, dict) else None, keep_layers=True, **options)


def as_dict(logits):
    return logits if isinstance(logits, dict) else {"": logits}


def logits_of(found):
    """Logits by part; of a model without logits the last hidden states."""
    if getattr(found, "logits", None) is None:
        return {"": found.hidden if hasattr(found, "hidden") else found.last_hidden_state}
    return as_dict(found.logits)


def assert_same_outputs(model, peer, inputs, *, tolerance=1e-5, mask=None, tokens=None):
    options = {} if tokens is None else {"attention_mask": tokens.long()}
    with torch.no_grad(), regard.record(model) as seen:
        ours = call_ours(model, inputs, mask=mask)
        theirs = call_peer(peer, inputs, **options)
    # transformers lists the states before each layer of a repeat, and those after its last: the latter twice.
    repeats, layers = model.config.repeats, model.config.layers
    starts = [repeat * (layers + 1) for repeat in range(repeats)]
    before = [theirs.hidden_states[start + layer] for start in starts for layer in range(layers)]
    for mine, other in zip(ours.layers, [*before, theirs.hidden_states[-1]], strict=True):
        assert_near(mine, other, tolerance)
    assert ours.layers[-1] is ours.hidden
    for name, other in logits_of(theirs).items():
        mine = logits_of(ours)[name]
        if tokens is not None and other.dim() == 4:
            # The queries of flow are the tokens: in transformers a masked pixel still decides its own output.
            mine, other = mine.flatten(1, 2)[tokens], other.flatten(1, 2)[tokens]
        assert_near(mine, other, tolerance)
    cross = theirs.cross_attentions
    weights = [cross[0], *theirs.attentions, *cross[1:]]
    for call, other in zip(seen, weights, strict=True):
        mine = call.weights()
        if tokens is not None and mine.shape[2] == tokens.shape[1]:  # the same queries of flow
            mine, other = (one.transpose(1, 2)[tokens] for one in (mine, other))
        assert_near(mine, other, tolerance, floor=largest_weight_error(other))


def assert_same_gradients(model, peer, inputs, *, tolerance):
    for one in (model, peer):
        one.zero_grad()
    ours, theirs = logits_of(call_ours(model, inputs)), logits_of(call_peer(peer, inputs))
    factors = {name: torch.randn_like(other) for name, other in theirs.items()}
    for found in (ours, theirs):
        sum((found[name] * factor).sum() for name, factor in factors.items()).backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    mine = model.weight_names.to_file(gradients)
    expected = {name: one.grad for name, one in peer.named_parameters() if one.grad is not None}
    unused = {name for name in expected if name not in mine}
    assert all(not expected[name].any() for name in unused), unused
    assert_near_gradients(mine, expected, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients(case, tmp_path):
    kind, options, draw = CASES[case]
    peer = make_peer(kind, **options)
    model = reload(peer, tmp_path / "theirs")
    assert model.config.architecture == kind.__name__
    inputs = draw()
    assert_same_outputs(model, peer, inputs)
    assert_same_gradients(model, peer, inputs, tolerance=1e-4)
    wide = load(tmp_path / "theirs", dtype=torch.float64)
    peer.double()
    assert_same_outputs(wide, peer, to_dtype(inputs, torch.float64), tolerance=1e-9)
    assert_same_gradients(wide, peer, to_dtype(inputs, torch.float64), tolerance=1e-9)


@pytest.mark.parametrize(
    "case", slow_except({"bare, wide queries", "flow"}, [case for case in CASES if case != "multimodal"])
)
def test_bfloat16(case, tmp_path):
    """The errors of logits and gradients, each against float32 in transformers, over five models.

    The multimodal class of transformers does not compute in bfloat16: it joins positions in float32.
    """
    results, slopes = [], []
    kind, options, draw = CASES[case]
    for seed in range(5):
        peer = make_peer(kind, seed=seed, **options)
        model = reload(peer, tmp_path / str(seed), torch.bfloat16)
        inputs = to_dtype(draw(), torch.bfloat16)  # rounding the inputs is no error of the models
        half = copy.deepcopy(peer).to(torch.bfloat16)
        exact = logits_of(call_peer(peer, to_dtype(inputs, torch.float32)))
        ours, theirs = logits_of(call_ours(model, inputs)), logits_of(call_peer(half, inputs))
        factors = {name: torch.randn_like(one) for name, one in exact.items()}
        for found in (exact, ours, theirs):
            sum((found[name].float() * factor).sum() for name, factor in factors.items()).backward()
        results += [(ours[name].detach(), theirs[name].detach(), one.detach()) for name, one in exact.items()]
        mine = model.weight_names.to_file({name: one.grad for name, one in model.named_parameters()})
        others = {name: one.grad for name, one in half.named_parameters()}
        best = {name: one.grad for name, one in peer.named_parameters() if name in mine and one.grad is not None}
        # The gradient of the bias of keys is 0 but for rounding, so it has no size that errors are relative to.
        floor = 1e-4 * max(one.norm() for one in best.values())
        slopes += [(mine[name], others[name], one) for name, one in best.items() if one.norm() > floor]
    assert_error_ratio(results)
    assert_error_ratio(slopes)


@pytest.mark.parametrize("case", slow_except(set(CASES) - {"bare, widened", "flow, width of queries"}, CASES))
def test_transformers_reads_what_regard_saves(case, tmp_path):
    kind, options, draw = CASES[case]
    model = reload(make_peer(kind, **options), tmp_path / "theirs")
    model.save(tmp_path / "ours")
    peer, report = kind.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert_same_outputs(model, peer.eval(), draw())
    again = load(tmp_path / "ours")
    assert again.config == model.config
    assert all(torch.equal(one, again.state_dict()[name]) for name, one in model.state_dict().items())


@pytest.mark.parametrize("case", ["bare", "text", "text class", "pixels", "trained pixels", "flow"])
def test_masked_inputs(case, tmp_path):
    kind, options, draw = CASES[case]
    peer = make_peer(kind, **options)
    model, inputs = reload(peer, tmp_path / "theirs"), draw()
    count = model.input(inputs).tokens.shape[1]
    lengths = torch.tensor([count - 4, 3])
    for side in ("right", "left"):
        columns = torch.arange(count)
        tokens = columns < lengths[:, None] if side == "right" else columns >= count - lengths[:, None]
        assert_same_outputs(model, peer, inputs, mask=masks.padding(lengths, side=side), tokens=tokens)


def test_masked_parts_of_a_joined_input(tmp_path):
    kind, options, draw = CASES["multimodal"]
    peer, inputs = make_peer(kind, **options), draw()
    model = reload(peer, tmp_path / "theirs")
    sound, film = torch.tensor([3, 1]), torch.tensor([12, 5])  # of 4 patches of sound, and 12 of pictures; one label
    tokens = torch.cat(
        [torch.arange(4) < sound[:, None], torch.arange(12) < film[:, None], torch.ones(2, 1) > 0], dim=1
    )
    mask = {"audio": masks.padding(sound), "image": masks.padding(film)}
    assert_same_outputs(model, peer, inputs, mask=mask, tokens=tokens)


SIZES = {"num_latents": 512, "d_latents": 1024, "num_blocks": 8, "num_self_attends_per_block": 6, "num_labels": 1000}
PUBLISHED = {
    "language": (perceiver_language(), {"qk_channels": 256, "v_channels": 1280}),
    "pixels": (perceiver_pictures_fourier(("x",) * 1000), SIZES),
    "trained pixels": (perceiver_pictures_trained(("x",) * 1000), SIZES | {"image_size": 224}),
    "convolution": (perceiver_pictures_convolution(("x",) * 1000), SIZES),
    "flow": (perceiver_flow(), {"num_latents": 2048, "d_latents": 512, "num_self_attends_per_block": 24}),
    "multimodal": (
        perceiver_multimodal(("x",) * 700),
        {"num_latents": 784, "d_latents": 512, "num_self_attends_per_block": 8, "num_labels": 700},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes_have_the_weights_of_transformers(name):
    config, options = PUBLISHED[name]
    kind = next(one for one, _, _ in CASES.values() if one.__name__ == config.architecture)
    with torch.device("meta"):
        peer = kind(PeerConfig(**({"num_cross_attention_heads": config.cross_heads} | options)))
    with init_on_meta():
        model = Perceiver(config)
    shapes = {name: tuple(one.shape) for name, one in peer.named_parameters()}
    ours = model.weight_names.to_file(dict(model.named_parameters()))
    assert {name: tuple(one.shape) for name, one in ours.items()} == shapes


def test_training_mode_of_the_convolution_updates_the_same_statistics(tmp_path):
    kind, options, draw = CASES["convolution"]
    peer = make_peer(kind, **options)
    model, inputs = reload(peer, tmp_path / "theirs").train(), draw()
    assert_near(model(inputs).logits, peer.train()(inputs).logits)
    norm = peer.perceiver.input_preprocessor.convnet.batchnorm
    assert_near(model.input.norm.running_mean, norm.running_mean)
    assert_near(model.input.norm.running_var, norm.running_var)


def test_pictures_of_another_size_have_interpolated_positions(tmp_path):
    kind, options, _ = CASES["trained pixels"]
    peer, inputs = make_peer(kind, **options), torch.randn(2, 3, 7, 11)
    model = reload(peer, tmp_path / "theirs")
    assert_near(model(inputs).logits, peer(inputs, interpolate_pos_encoding=True).logits)


def test_short_texts_have_the_first_of_the_logits(tmp_path):
    """Transformers always answers at all positions, regard at those of the text, or at those asked for."""
    kind, options, _ = CASES["text"]
    peer, ids = make_peer(kind, **options), ids_of(2, 5)
    model, expected = reload(peer, tmp_path / "theirs"), peer(ids).logits
    assert expected.shape == (2, 17, 262)
    assert_near(model(ids).logits, expected[:, :5])
    assert_near(model(ids, at=torch.tensor([16, 3])).logits, expected[:, [16, 3]])


@pytest.mark.parametrize("text", ["This is [MASK] text.", "", " é😀\n\t\x00\x7f", "[CLS]a[SEP]", "汉字 ÿ Āā"])
def test_bytes_have_the_ids_of_transformers(text):
    peer, ours = PerceiverTokenizer(), byte_tokenizer()
    ids = ours.encode(text).ids[0].tolist()
    assert ids == peer(text).input_ids
    assert ours.decode(ids) == peer.decode(ids, skip_special_tokens=True)
    assert ours.vocabulary == len(peer)


def test_the_tokenizer_of_a_saved_model_is_that_of_bytes(tmp_path):
    kind, options, _ = CASES["text"]
    reload(make_peer(kind, **options), tmp_path / "theirs").save(tmp_path / "ours")
    peer = PerceiverTokenizer.from_pretrained(tmp_path / "ours")
    model = load(tmp_path / "ours")
    assert peer.model_max_length == model.tokenizer.limit == 17
    assert peer("hé").input_ids == model.tokenizer.encode("hé").ids[0].tolist()
