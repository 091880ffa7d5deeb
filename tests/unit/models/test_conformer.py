"""The Conformer: padding, folders, heads, and what is refused."""

import itertools
import json
import math

import pytest
import torch

import regard
from regard import masks
from regard.errors import CheckpointError, DataError, DtypeError, OptionError, RefusedError, ShapeError
from regard.models import AudioEncoder, Conformer, ConformerConfig, ImageEncoder, ctc_loss, decode_ctc, load
from regard.models.audio_encoder import AudioEncoderOutput
from small_audio_models import PROCESSOR, audio_model
from small_image_models import image_classifier
from sound_files import sound_bytes, tone

FRAMES = [37, 5, 1]


def random_features(dtype=torch.float32):
    torch.manual_seed(1)
    return torch.randn(len(FRAMES), max(FRAMES), 7, dtype=dtype)


@pytest.mark.parametrize("head", ["classification", "ctc"])
@pytest.mark.parametrize("position", ["relative", "rotary", "none"])
def test_a_sound_is_computed_alike_alone_and_in_a_batch(head, position):
    model, features = audio_model(head=head, position=position).double(), random_features(torch.float64)
    together = model(features, mask=masks.padding(FRAMES), keep_layers=True)
    assert len(together.layers) == 3
    for number, frames in enumerate(FRAMES):
        alone = model(features[number : number + 1, :frames])
        tokens = model.count_tokens(frames)
        assert together.visible[number].sum() == tokens == alone.hidden.shape[1]
        for name in ("hidden", "pooled", "logits"):
            mine, other = getattr(together, name)[number], getattr(alone, name)[0]
            mine = mine[:tokens] if mine.dim() == 2 else mine
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("poison", [1e8, math.nan, math.inf])
def test_hidden_frames_have_no_influence(training, poison):
    features, mask = random_features(), masks.padding(FRAMES)
    shown = torch.arange(max(FRAMES)) < torch.tensor(FRAMES)[:, None]
    results = []
    for filled in (0.5, poison):
        model = audio_model(dropout=0.0).train(training)
        leaf = torch.where(shown[..., None], features, filled).requires_grad_()
        output = model(leaf, mask=mask)
        assert (output.hidden[~output.visible] == 0).all()
        (output.logits.square().sum() + output.hidden.sum()).backward()
        assert (leaf.grad[~shown] == 0).all()
        gradients = [weight.grad for weight in model.parameters()]
        results.append([output.logits, output.hidden, *gradients, *model.buffers()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
        assert one.isfinite().all()


def test_a_sound_without_visible_frames_is_pooled_to_zero():
    output = audio_model()(random_features(), mask=masks.padding([37, 0, 3]))
    assert (output.pooled[1] == 0).all()
    assert output.logits.isfinite().all()


@pytest.mark.parametrize(
    "options", [{}, {"head": "ctc"}, {"labels": ()}, {"position": "rotary", "mechanism": "linear"}], ids=str
)
def test_folders_hold_the_whole_model(options, tmp_path):
    model = audio_model(**options)
    model.save(tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, Conformer)
    assert loaded.config == model.config
    assert loaded.labels == model.labels
    assert loaded.processor == PROCESSOR
    features, mask = loaded.processor([sound_bytes(tone(0.31)), sound_bytes(tone(0.1, hertz=1500))])
    ours, theirs = model(features, mask=mask), loaded(features, mask=mask)
    assert torch.equal(ours.hidden, theirs.hidden)
    assert ours.logits is theirs.logits is None or torch.equal(ours.logits, theirs.logits)


def test_folders_that_do_not_belong_together_are_refused(tmp_path):
    audio_model().save(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    fields = json.loads(path.read_text())
    for change, message in (
        ({"layers": 3}, "lacks|layers"),
        ({"head": "ctc"}, "id2label"),
        ({"width": 21}, "width"),
        ({"position": "alibi"}, "position"),
    ):
        path.write_text(json.dumps(fields | change))
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "model")
    path.write_text(json.dumps(fields))
    processor = tmp_path / "model" / "preprocessor_config.json"
    read = json.loads(processor.read_text())
    for change in ({"rate": 1}, {"feature_extractor_type": "Other"}, {"dither": 1.0}, {"mels": "7"}, {"mels": 10**6}):
        processor.write_text(json.dumps(read | change))
        with pytest.raises(CheckpointError, match="audio processor"):
            load(tmp_path / "model")


@pytest.mark.parametrize("training", [False, True])
def test_recorded_attention_has_a_layer_for_each_block(training):
    model = audio_model().train(training)
    with torch.no_grad(), regard.record(model) as seen:
        model(random_features(), mask=masks.padding(FRAMES))
    assert len(list(seen)) == 2


@pytest.mark.usefixtures("without_shape_checks")
def test_wrong_input_is_refused_in_words():
    model, features = audio_model(), random_features()
    for wrong, error, message in (
        (features[0], ShapeError, "features\\[None\\]"),
        (features[..., :6], ShapeError, "processor"),
        (features[:, :0], ShapeError, "at least one frame"),
        (features.double(), DtypeError, "different dtypes"),
        (features.long(), DtypeError, "unsupported dtype"),
        (None, Exception, "features"),
    ):
        with pytest.raises(error, match=message):
            model(wrong)
    with pytest.raises(RefusedError, match="hides it from all"):
        model(features, mask=masks.causal())
    with pytest.raises(ShapeError):
        model(features, mask=masks.padding([38, 1, 1]))
    for options in ({"kernel": 4}, {"heads": 3}, {"head": "other"}, {"labels": "ab"}, {"dropout": 2.0}):
        with pytest.raises(OptionError):
            Conformer(ConformerConfig(**({"layers": 1, "width": 20, "heads": 5, "inner": 13} | options)))


def collapse(path):
    return [one - 1 for one, _ in itertools.groupby(path) if one]


def random_output(lengths, labels):
    torch.manual_seed(4)
    logits = torch.randn(len(lengths), max(lengths), 1 + labels, dtype=torch.float64)
    visible = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    return AudioEncoderOutput(torch.zeros(*visible.shape, 1), torch.zeros(len(lengths), 1), visible, logits)


def test_ctc_loss_is_the_sum_over_all_paths():
    lengths, labels = [5, 3, 4], 2
    output = random_output(lengths, labels)
    targets = [[0, 0, 1], [1], []]
    losses = ctc_loss(output, targets)
    for number, (length, target) in enumerate(zip(lengths, targets, strict=True)):
        steps = output.logits[number, :length].softmax(dim=-1)
        total = sum(
            math.prod(float(steps[t, one]) for t, one in enumerate(path))
            for path in itertools.product(range(1 + labels), repeat=length)
            if collapse(path) == target
        )
        assert math.isclose(float(losses[number]), -math.log(total), rel_tol=1e-9)
    paths = [output.logits[number, :length].argmax(dim=-1).tolist() for number, length in enumerate(lengths)]
    assert decode_ctc(output) == [collapse(path) for path in paths]


def test_ctc_refuses_what_no_path_can_write():
    output = random_output([5, 3], 2)
    for targets in ([[0], [0, 0, 1]], [[2], [0]], [[-1], [0]]):
        with pytest.raises(DataError, match="cannot be written"):
            ctc_loss(output, targets)
    with pytest.raises(OptionError, match="targets"):
        ctc_loss(output, [[0]])
    with pytest.raises(OptionError, match="no logits of tokens"):
        decode_ctc(audio_model()(random_features()))


def test_hidden_tokens_have_no_influence_on_the_ctc_loss():
    model = audio_model(head="ctc", dropout=0.0)
    leaf = random_features().requires_grad_()
    losses = ctc_loss(model(leaf, mask=masks.padding(FRAMES)), [[0, 1, 1], [2], []])
    losses.sum().backward()
    assert losses.isfinite().all()
    for number, frames in enumerate(FRAMES):
        assert (leaf.grad[number, frames:] == 0).all()
        assert leaf.grad[number, :frames].abs().sum() > 0


def test_other_kinds_of_models_are_refused(tmp_path):
    audio_model().save(tmp_path / "sounds")
    image_classifier().save(tmp_path / "pictures")
    assert isinstance(AudioEncoder.load(tmp_path / "sounds"), Conformer)
    with pytest.raises(CheckpointError, match="reads sounds"):
        AudioEncoder.load(tmp_path / "pictures")
    with pytest.raises(CheckpointError, match="used with: regard classify, regard transcribe"):
        ImageEncoder.load(tmp_path / "sounds")
