"""CLIP and its towers against transformers, their folders, other picture sizes, masks, the loss, and bad input."""

import copy
import json
import math

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from attention_parity import assert_same_weights, weights_of_peer
from causal_parity import assert_error_ratio, assert_near, assert_near_gradients, reload, save_and_read
from hypothesis_examples import examples
from regard import masks, record
from regard.errors import CheckpointError, DtypeError, OptionError, RegardError, ShapeError
from regard.models import (
    Clip,
    ClipConfig,
    ClipText,
    ClipTextConfig,
    ClipVision,
    ClipVisionConfig,
    Encoder,
    EncoderDecoder,
    ImageEncoder,
    TokenGrid,
    contrastive_loss,
    load,
)
from regard.vision import ImageProcessor
from script_process import run_script
from slow_parameters import slow_except

TEXT = {"width": 22, "layers": 2, "heads": 2, "inner": 17, "vocabulary": 31, "max_length": 11, "end_id": 29}
VISION = {"width": 26, "layers": 2, "heads": 2, "inner": 19, "picture_size": (21, 21), "patch_size": (7, 7)}
TEXT_KINDS = ("CLIPTextModel", "CLIPTextModelWithProjection")
VISION_KINDS = ("CLIPVisionModel", "CLIPVisionModelWithProjection")
KINDS = (*TEXT_KINDS, *VISION_KINDS, "CLIPModel")
WHOLE = slow_except({"CLIPModel"}, KINDS)
"""The classes of a tower alone marked slow: a CLIP has both, and their files are read and written in any case."""


def make_clip(projection=13, **text):
    torch.manual_seed(0)
    config = ClipConfig(
        ClipTextConfig(**(TEXT | text), projection=projection), ClipVisionConfig(**VISION, projection=projection)
    )
    return Clip(config).eval()


def make_peer(kind, seed=0, *, text=None, vision=None, projection=13):
    """A small model of transformers, with random weights: biases and norms included."""
    shared = {"num_hidden_layers": 2, "num_attention_heads": 2, "projection_dim": projection, "intermediate_size": 17}
    text = {"hidden_size": 22, "vocab_size": 31, "max_position_embeddings": 11, "eos_token_id": 29, "bos_token_id": 28,
            "pad_token_id": 1} | shared | (text or {})  # fmt: skip
    vision = {"hidden_size": 26, "image_size": 21, "patch_size": 7} | shared | (vision or {})
    torch.manual_seed(seed)
    if kind in TEXT_KINDS:
        config = transformers.CLIPTextConfig(**text)
    elif kind in VISION_KINDS:
        config = transformers.CLIPVisionConfig(**vision)
    else:
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=projection)
    peer = getattr(transformers, kind)._from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            if name != "logit_scale":
                weight += torch.randn_like(weight) * (0.3 if weight.dim() == 1 else 0.1)
    return peer


@st.composite
def peers(draw, kind):
    """A random small model of one class."""
    towers = []
    for _ in range(2):
        heads = draw(st.sampled_from([1, 2, 3]))
        towers.append(
            {
                "hidden_size": heads * draw(st.sampled_from([7, 11, 16])),
                "num_attention_heads": heads,
                "num_hidden_layers": draw(st.sampled_from([1, 2, 3])),
                "intermediate_size": draw(st.sampled_from([5, 17])),
                "hidden_act": draw(st.sampled_from(["quick_gelu", "gelu", "relu"])),
                "layer_norm_eps": draw(st.sampled_from([1e-5, 1e-3])),
            }
        )
    text, vision = towers
    text["eos_token_id"] = draw(st.sampled_from([2, 0, 17, 30]))
    vision |= {"num_channels": draw(st.sampled_from([1, 3])), "patch_size": draw(st.sampled_from([3, 7]))}
    # A vector of one number has the direction 1 or -1 whatever its weights are: their gradients are rounding errors.
    seed, size = draw(st.integers(0, 2**16)), draw(st.sampled_from([2, 13]))
    return make_peer(kind, seed, text=text, vision=vision, projection=size)


def random_ids(config, lengths, seed=3):
    """Random ids of texts, each with an end token, padded on the right; and the config's vocabulary is used up."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, config.vocabulary, (len(lengths), max(lengths)), generator=generator)
    for row, length in enumerate(lengths):
        ids[row, length - 1] = config.vocabulary - 1 if config.end_id is None else config.end_id
    return ids


def random_pixels(config, batch, size=None, dtype=torch.float32):
    return torch.randn(batch, config.channels, *(size or config.picture_size), dtype=dtype)


def widen(one):
    return one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one


class Pair:
    """The outputs of a model and its peer for the same input, by our names."""

    def __init__(self, model, peer, *, size=None):
        self.model, self.peer = model, peer
        dtype = next(model.parameters()).dtype
        text = getattr(model, "text", model if isinstance(model, ClipText) else None)
        vision = getattr(model, "vision", model if isinstance(model, ClipVision) else None)
        self.ours, self.theirs, self.options = [], {}, {}
        lengths = [9, 4, 1]
        if text is not None:
            ids, seen = random_ids(text.config, lengths), torch.arange(9) < torch.tensor(lengths)[:, None]
            if text.config.end_id is None:  # transformers takes the largest id of the whole row, padding included
                ids = ids.masked_fill(~seen, 0)
            self.ours.append(ids)
            self.options["mask"] = masks.padding(lengths)
            self.theirs |= {"input_ids": ids, "attention_mask": seen.long()}
        if vision is not None:
            pixels = random_pixels(vision.config, 2, size, dtype)
            self.ours.append(pixels)
            self.theirs["pixel_values"] = pixels
            self.theirs["interpolate_pos_encoding"] = size is not None

    def outputs(self, *, layers=True):
        ours = self.model(*self.ours, keep_layers=layers, **self.options)
        theirs = self.peer(**self.theirs, output_hidden_states=layers)
        pairs = {}
        if isinstance(self.model, Clip):
            for name, other in (
                ("text_embeddings", "text_embeds"),
                ("image_embeddings", "image_embeds"),
                ("logits_per_image", "logits_per_image"),
                ("logits_per_text", "logits_per_text"),
            ):
                pairs[name] = getattr(ours, name), getattr(theirs, other)
            pairs["text"] = ours.text.hidden, theirs.text_model_output.last_hidden_state
            pairs["image"] = ours.image.hidden, theirs.vision_model_output.last_hidden_state
            pairs["text embedding"] = ours.text.embedding, theirs.text_model_output.pooler_output
            pairs["pooled image"] = ours.image.pooled, theirs.vision_model_output.pooler_output
            return pairs
        pairs["hidden"] = ours.hidden, theirs.last_hidden_state
        embeds = getattr(theirs, "text_embeds", None) if isinstance(self.model, ClipText) else None
        if embeds is not None:
            pairs["embedding"] = ours.embedding, embeds
        elif isinstance(self.model, ClipVision) and getattr(theirs, "image_embeds", None) is not None:
            pairs["pooled"] = ours.pooled, theirs.image_embeds
        else:
            pairs["pooled"] = ours.pooled, theirs.pooler_output
        if layers:
            assert len(ours.layers) == len(theirs.hidden_states)
            pairs |= {f"layer {n}": pair for n, pair in enumerate(zip(ours.layers, theirs.hidden_states, strict=True))}
        return pairs

    def check(self, tolerance):
        """Compare all outputs, the weights of attention, and the gradients of all weights."""
        with torch.no_grad(), record(self.model) as seen:
            self.model(*self.ours, **self.options)
        weights = weights_of_peer(self.peer, lambda one: one(**self.theirs))
        if isinstance(self.model, Clip):  # transformers calls the vision tower first
            pictures = len(self.model.vision.layers)
            weights = weights[pictures:] + weights[:pictures]
        assert_same_weights(seen, weights)
        with torch.no_grad():
            for name, (mine, other) in self.outputs().items():
                assert mine.shape == other.shape, name
                assert_near(mine, other, tolerance)
        pairs = self.outputs(layers=False)
        factors = {name: torch.randn_like(other) for name, (_, other) in pairs.items()}
        for which, model in enumerate((self.model, self.peer)):
            model.zero_grad()
            sum((pair[which] * factors[name]).sum() for name, pair in pairs.items()).backward()
        ours = self.model.weight_names.to_file(
            {name: weight.grad for name, weight in self.model.named_parameters() if weight.grad is not None}
        )
        theirs = {name: weight.grad for name, weight in self.peer.named_parameters() if weight.grad is not None}
        assert ours.keys() == theirs.keys()
        assert_near_gradients(ours, theirs, tolerance)


class TestParity:
    @pytest.mark.parametrize("kind", WHOLE)
    def test_random_small_models(self, tmp_path_factory, kind):
        @examples(10, without_slow=4)
        @given(peer=peers(kind))
        def check(peer):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            assert model.notes == ()
            Pair(model, peer).check(1e-4)
            Pair(load(folder, dtype=torch.float64), peer.double()).check(1e-9)

        check()

    @pytest.mark.parametrize("kind", WHOLE)
    def test_bfloat16(self, tmp_path, kind):
        """The errors of results and gradients, each against float32 in transformers, over five models."""
        results, slopes = [], []
        for seed in range(5):
            peer = make_peer(kind, seed)
            half = copy.deepcopy(peer).to(torch.bfloat16)
            pair = Pair(reload(peer, tmp_path / str(seed), torch.bfloat16), half)
            exact = Pair(load(tmp_path / str(seed)), peer)
            exact.ours = [widen(one) for one in pair.ours]  # rounding the pixels is no error of the models
            exact.theirs = {name: widen(one) for name, one in pair.theirs.items()}
            best, found = exact.outputs(layers=False), pair.outputs(layers=False)
            factors = {name: torch.randn_like(other) for name, (_, other) in best.items()}
            for pairs, side in ((best, 1), (found, 0), (found, 1)):
                sum((one[side].float() * factors[name]).sum() for name, one in pairs.items()).backward()
            results += [(*(one.detach() for one in found[name]), best[name][1].detach()) for name in found]
            ours = {name: weight.grad for name, weight in pair.model.named_parameters() if weight.grad is not None}
            ours = pair.model.weight_names.to_file(ours)
            theirs = {name: weight.grad for name, weight in half.named_parameters()}
            exact_slopes = {name: weight.grad for name, weight in peer.named_parameters() if weight.grad is not None}
            # The gradient of the bias of keys is 0 but for rounding, so it has no size that errors are relative to.
            floor = 1e-4 * max(one.norm() for one in exact_slopes.values())
            slopes += [(ours[name], theirs[name], one) for name, one in exact_slopes.items() if one.norm() > floor]
        assert_error_ratio(results)
        assert_error_ratio(slopes)

    @pytest.mark.parametrize("kind", KINDS)
    def test_folders_are_read_by_transformers_and_again(self, tmp_path_factory, kind):
        @examples(6, without_slow=2)
        @given(peer=peers(kind), shard=st.sampled_from([3000, 10**9]))
        def check(peer, shard):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            again = save_and_read(model, folder / "copy", type(peer), shard)
            assert again.config.architectures == [kind]
            Pair(model, again).check(1e-4)

        check()


@pytest.mark.parametrize("kind", slow_except({"CLIPModel"}, (*VISION_KINDS, "CLIPModel")))
@pytest.mark.parametrize("size", slow_except({(14, 35)}, [(28, 28), (14, 35), (7, 7)]))
def test_interpolated_positions(tmp_path, kind, size):
    peer = make_peer(kind)
    Pair(reload(peer, tmp_path / "peer"), peer, size=size).check(1e-4)
    Pair(load(tmp_path / "peer", dtype=torch.float64), peer.double(), size=size).check(1e-9)


class TestTheEndToken:
    def test_the_first_end_token_of_several(self):
        """CLIP's tokenizers pad with the end token."""
        model = make_clip().text
        ids = random_ids(model.config, [4, 6])
        ids[0, 4:] = model.config.end_id
        output = model(ids)
        assert torch.equal(output.pooled[0], output.hidden[0, 3])
        assert torch.equal(output.pooled[1], output.hidden[1, 5])

    def test_the_largest_id(self):
        model = make_clip(end_id=None).text
        output = model(torch.tensor([[3, 30, 5, 30], [4, 1, 2, 0]]))
        assert torch.equal(output.pooled, torch.stack([output.hidden[0, 1], output.hidden[1, 0]]))

    @pytest.mark.parametrize("end_id", [29, None])
    @pytest.mark.parametrize("mask", [masks.padding([4, 2]), masks.causal() & masks.padding([4, 2])])
    def test_a_hidden_token_is_no_end_token(self, end_id, mask):
        model = make_clip(end_id=end_id).text
        ids = torch.tensor([[3, 4, 5, 29], [6, 29, 30, 29]])
        others = torch.tensor([[3, 4, 5, 29], [6, 29, 7, 8]])
        assert torch.equal(model(ids, mask=mask).embedding, model(others, mask=mask).embedding)
        hidden_first = masks.keep(torch.tensor([[True] * 4, [False, False, True, True]])[:, None, None])
        shown = model(torch.tensor([[3, 4, 5, 29], [29, 30, 4, 29]]), mask=hidden_first)
        assert torch.equal(shown.pooled[1], shown.hidden[1, 3])

    @pytest.mark.parametrize("end_id", [29, None])
    def test_poisoned_hidden_tokens(self, end_id):
        """The embedding of a hidden token is NaN or infinite, and its position too."""
        model = make_clip(end_id=end_id).text
        ids, mask = torch.tensor([[3, 4, 5, 29], [6, 29, 1, 1]]), masks.padding([4, 2])
        clean = model(ids, mask=mask)
        clean.embedding.sum().backward()
        gradient = model.token_embedding.weight.grad[3].clone()
        for poison in (torch.nan, torch.inf, 1e30):
            model.zero_grad()
            with torch.no_grad():
                model.token_embedding.weight[1] = poison
            spoiled = model(ids, mask=mask)
            assert torch.equal(spoiled.embedding, clean.embedding)
            assert torch.equal(spoiled.hidden[1, :2], clean.hidden[1, :2])
            spoiled.embedding[0].sum().backward()
            assert gradient.shape == model.token_embedding.weight.grad[3].shape
            assert torch.isfinite(model.token_embedding.weight.grad[3]).all()

    def test_later_tokens_have_no_influence(self):
        model = make_clip().text
        ids = random_ids(model.config, [4, 4])
        longer = torch.cat([ids, torch.tensor([[5, 6], [7, 8]])], dim=1)
        assert_near(model(longer).embedding, model(ids).embedding)


class TestPictures:
    @pytest.mark.parametrize("poison", [1e30, torch.nan, torch.inf])
    def test_a_hidden_patch_has_no_influence(self, poison):
        model = make_clip().vision
        keep, hidden = torch.ones(10, dtype=torch.bool), torch.zeros(3, 3, dtype=torch.bool)
        for patch in (2, 7):
            keep[1 + patch] = False
            hidden[divmod(patch, 3)] = True
        hidden = hidden.repeat_interleave(7, 0).repeat_interleave(7, 1)
        pixels, mask = random_pixels(model.config, 2), masks.keep(keep[None, None, None])
        clean_pixels = pixels.clone().requires_grad_()
        clean = model(clean_pixels, mask=mask)
        clean.pooled.sum().backward()
        spoiled = pixels.masked_fill(hidden, poison).requires_grad_()
        output = model(spoiled, mask=mask)
        output.pooled.sum().backward()
        assert torch.equal(output.pooled, clean.pooled)
        assert torch.equal(output.hidden[:, keep], clean.hidden[:, keep])
        assert torch.equal(spoiled.grad[..., ~hidden], clean_pixels.grad[..., ~hidden])
        assert not clean_pixels.grad[..., hidden].any()

    def test_token_grids(self):
        assert make_clip().vision.token_grids(21, 35) == (TokenGrid(3, 5, ("class",)),) * 2

    def test_a_head_is_saved_as_a_type_of_our_own(self, tmp_path):
        model = ClipVision(ClipVisionConfig(**VISION, projection=5, labels=("cat", "dog"))).eval()
        model.processor = ImageProcessor((21, 21))
        model.save(tmp_path / "model")
        again, pixels = ImageEncoder.load(tmp_path / "model"), random_pixels(model.config, 2)
        assert again.labels == ("cat", "dog")
        assert again.config == model.config
        assert again.processor == model.processor
        assert torch.equal(again(pixels).logits, model(pixels).logits)
        assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "regard-clip_vision_model"


class TestFolders:
    def test_towers_of_a_folder(self, tmp_path):
        model = make_clip()
        model.vision.processor = ImageProcessor((21, 21), mean=(0.1, 0.2, 0.3))
        model.metadata = {"steps": 7}
        model.save(tmp_path / "clip")
        again = Clip.load(tmp_path / "clip")
        assert again.processor == model.processor
        assert again.metadata == {"steps": 7}
        text, vision = Encoder.load(tmp_path / "clip"), ImageEncoder.load(tmp_path / "clip")
        ids, pixels = random_ids(text.config, [4, 2]), random_pixels(vision.config, 3)
        output = model(ids, pixels)
        assert torch.equal(text.embed(ids), output.text_embeddings)
        assert torch.equal(vision.embed(pixels), output.image_embeddings)
        text.save(tmp_path / "text")
        vision.save(tmp_path / "vision")
        assert torch.equal(load(tmp_path / "text").embed(ids), output.text_embeddings)
        assert torch.equal(load(tmp_path / "vision").embed(pixels), output.image_embeddings)
        with pytest.raises(CheckpointError, match="another kind of model"):
            EncoderDecoder.load(tmp_path / "clip")
        with pytest.raises(CheckpointError, match="another kind of model"):
            Clip.load(tmp_path / "text")

    def test_old_files(self, tmp_path):
        """They describe a tower twice, hold position ids, and name a wrong end token."""
        peer = make_peer("CLIPModel", text={"eos_token_id": 2})
        peer.save_pretrained(tmp_path)
        path = tmp_path / "config.json"
        fields = json.loads(path.read_text())
        fields["text_config_dict"], fields["text_config"] = fields["text_config"], {"hidden_size": 3}
        fields["vision_config_dict"] = None
        path.write_text(json.dumps(fields))
        weights = load_file(tmp_path / "model.safetensors")
        weights["text_model.embeddings.position_ids"] = torch.arange(11)[None]
        weights["vision_model.embeddings.position_ids"] = torch.arange(10)[None]
        save_file(weights, tmp_path / "model.safetensors")
        model = load(tmp_path)
        assert model.config.text.end_id is None
        Pair(model, peer).check(1e-4)

    def test_the_start_token_is_kept(self, tmp_path):
        """Only a tokenizer uses it; a file that names one beyond the vocabulary, as published ones do, names none."""
        peer = make_peer("CLIPModel")
        peer.save_pretrained(tmp_path / "peer")
        model = load(tmp_path / "peer")
        assert model.config.text.start_id == peer.config.text_config.bos_token_id == 28
        model.save(tmp_path / "clip")
        assert json.loads((tmp_path / "clip" / "config.json").read_text())["text_config"]["bos_token_id"] == 28
        path = tmp_path / "peer" / "config.json"
        fields = json.loads(path.read_text())
        fields["text_config"]["bos_token_id"] = 49406
        path.write_text(json.dumps(fields))
        assert load(tmp_path / "peer").config.text.start_id is None

    def test_half_a_clip(self, tmp_path):
        make_clip().save(tmp_path / "clip")
        path = tmp_path / "clip" / "model.safetensors"
        weights = load_file(path)
        save_file({name: one for name, one in weights.items() if name.startswith("vision")}, path)
        with pytest.raises(CheckpointError, match="both towers"):
            load(tmp_path / "clip")
        del weights["vision_model.pre_layrnorm.bias"]
        save_file(weights, path)
        with pytest.raises(CheckpointError, match="lacks tensors"):
            load(tmp_path / "clip")

    @pytest.mark.parametrize(
        ("section", "field", "value"),
        [
            ("text_config", "num_attention_heads", 5),
            ("text_config", "hidden_act", "sine"),
            ("text_config", "num_hidden_layers", 4000),
            ("text_config", "eos_token_id", [1]),
            ("vision_config", "image_size", [21, 14]),
            ("vision_config", "patch_size", 6),
            ("vision_config", "num_hidden_layers", 1),
            (None, "projection_dim", 7),
            (None, "text_config", 3),
        ],
    )
    def test_fields_that_cannot_be_computed_are_refused(self, tmp_path, section, field, value):
        make_clip().save(tmp_path / "clip")
        path = tmp_path / "clip" / "config.json"
        fields = json.loads(path.read_text())
        (fields if section is None else fields[section])[field] = value
        path.write_text(json.dumps(fields))
        with pytest.raises(CheckpointError):
            load(tmp_path / "clip")


class TestLoss:
    def test_equation(self):
        """Radford et al. 2021, figure 3, with logarithms and sums written out."""
        logits = torch.randn(5, 5, dtype=torch.float64)
        expected = 0.0
        for i in range(5):
            row = math.log(sum(math.exp(one) for one in logits[i].tolist()))
            column = math.log(sum(math.exp(one) for one in logits[:, i].tolist()))
            expected += (row + column - 2 * logits[i, i].item()) / 10
        assert contrastive_loss(logits).item() == pytest.approx(expected, abs=1e-12)

    def test_against_transformers(self, tmp_path):
        peer = make_peer("CLIPModel")
        model = reload(peer, tmp_path / "peer")
        ids, pixels = random_ids(model.config.text, [4, 3]), random_pixels(model.config.vision, 2)
        theirs = peer(input_ids=ids, pixel_values=pixels, return_loss=True).loss
        assert_near(contrastive_loss(model(ids, pixels).logits_per_image), theirs)

    def test_training_brings_pairs_together(self):
        model = make_clip().train()
        ids, pixels = random_ids(model.config.text, [5, 4, 3]), random_pixels(model.config.vision, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        first = contrastive_loss(model(ids, pixels).logits_per_image).item()
        for _ in range(30):
            optimizer.zero_grad()
            loss = contrastive_loss(model(ids, pixels).logits_per_image)
            loss.backward()
            optimizer.step()
        assert loss.item() < 0.1 * first

    @pytest.mark.usefixtures("without_shape_checks")
    @pytest.mark.parametrize("shape", [(2, 3), (0, 0), (4,), (2, 2, 2)])
    def test_no_pairs(self, shape):
        with pytest.raises(ShapeError, match="no pairs"):
            contrastive_loss(torch.zeros(shape))


@pytest.mark.usefixtures("without_shape_checks")
class TestBadInput:
    @pytest.mark.parametrize(
        ("ids", "kind", "words"),
        [
            ([[3, 4]], OptionError, "none in row 0"),
            ([[3, 29], [29, 31]], OptionError, "0 to 30"),
            ([3, 29], ShapeError, "ids[None]"),
            ([[]], ShapeError, "(1, 0)"),
            ([[29] * 12], ShapeError, "1 to 11 tokens"),
            ([[3.0, 29.0]], DtypeError, "integers"),
        ],
    )
    def test_ids(self, ids, kind, words):
        ids = torch.tensor(ids, dtype=torch.long) if ids == [[]] else torch.tensor(ids)
        with pytest.raises(kind) as error:
            make_clip().text(ids)
        assert words in str(error.value)

    def test_a_text_without_visible_tokens(self):
        for end_id in (29, None):
            with pytest.raises(OptionError, match="no end token"):
                make_clip(end_id=end_id).text(torch.tensor([[29, 1], [29, 2]]), mask=masks.padding([1, 0]))

    @pytest.mark.parametrize("size", [(20, 21), (0, 21), (21, 6)])
    def test_pictures(self, size):
        with pytest.raises(ShapeError, match="patches do not fill"):
            make_clip().vision(torch.zeros(1, 3, *size))

    def test_masks(self):
        model = make_clip()
        ids, pixels = random_ids(model.config.text, [4]), random_pixels(model.config.vision, 1)
        with pytest.raises(OptionError, match="mask is not a regard mask"):
            model(ids, pixels, mask=torch.ones(4, 4))
        with pytest.raises(ShapeError):
            model(ids, pixels, mask=masks.padding([4, 4]))
        with pytest.raises(ShapeError):
            model.vision(pixels, mask=masks.keep(torch.ones(1, 1, 5, 5, dtype=torch.bool)))

    @pytest.mark.parametrize(
        ("kind", "fields"),
        [
            (ClipTextConfig, {"end_id": 2}),
            (ClipTextConfig, {"end_id": -1}),
            (ClipTextConfig, {"pad_id": 31}),
            (ClipTextConfig, {"heads": 3}),
            (ClipTextConfig, {"projection": 0}),
            (ClipTextConfig, {"max_length": 0}),
            (ClipTextConfig, {"activation": "swiglu"}),
            (ClipVisionConfig, {"picture_size": (21, 14)}),
            (ClipVisionConfig, {"patch_size": (6, 6)}),
            (ClipVisionConfig, {"patch_size": 7}),
            (ClipVisionConfig, {"labels": ["cat"]}),
            (ClipVisionConfig, {"channels": 0}),
            (ClipVisionConfig, {"attention_dropout": 1.0}),
        ],
    )
    def test_tower_configs(self, kind, fields):
        with pytest.raises(RegardError):
            kind(**((TEXT if kind is ClipTextConfig else VISION) | fields))

    def test_configs(self):
        text, vision = ClipTextConfig(**TEXT, projection=5), ClipVisionConfig(**VISION, projection=7)
        with pytest.raises(OptionError, match="different sizes"):
            ClipConfig(text, vision)
        with pytest.raises(OptionError, match="wrong text"):
            ClipConfig(vision, vision)
        with pytest.raises(OptionError, match="no head"):
            ClipConfig(text, ClipVisionConfig(**VISION, projection=5, labels=("cat",)))
        with pytest.raises(OptionError, match="wrong config"):
            Clip(text)


def check_compiled():
    """Results and gradients of a compiled CLIP are those of the model: one graph, forward and backward."""
    model = make_clip()
    ids, pixels = random_ids(model.text.config, [9, 4]), random_pixels(model.vision.config, 3)

    def run(ids, pixels):
        output = model(ids, pixels, mask=masks.padding([9, 4]))
        return output.logits_per_text, output.text_embeddings, output.image_embeddings

    found = []
    for one in (run, torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=False)):
        model.zero_grad()
        results = one(ids, pixels)
        sum(result.square().sum() for result in results).backward()
        found.append([*results, *(weight.grad for weight in model.parameters() if weight.grad is not None)])
    for plain, compiled in zip(*found, strict=True):
        torch.testing.assert_close(compiled, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_compiled_in_one_graph():
    """In a process of its own, since torch cannot trace through the suite's shape checks."""
    result = run_script("from unit.models.test_clip import check_compiled\ncheck_compiled()")
    assert result.returncode == 0, result.stderr[-2000:]
