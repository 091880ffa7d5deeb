"""T5, mT5 and umT5 against transformers; their folders, their search, and their errors.

A random model may amplify rounding errors: in 8 of 250 models of ``peers``, gradients in float32 were wrong by more
than 1e-4 in transformers, and in as many here. So models are compared in float64, which shows that they compute the
same function, and errors in float32 are those against float64, beside what roundings of weights move in transformers.
"""

import copy
import json
from functools import partial

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, UMT5EncoderModel
from transformers import T5EncoderModel as PeerEncoder

import regard
from causal_parity import (
    ROUNDING_FACTOR,
    TOLERANCE,
    assert_error_ratio,
    assert_near,
    assert_same_parameters,
    assert_usual_error_ratio,
    moved_by_rounding,
    random_ids,
    reload,
    save_and_read,
)
from hypothesis_examples import examples
from regard import masks
from regard.errors import CheckpointError, OptionError, OutputExistsError, ShapeError
from regard.models import T5, T5Config, T5Encoder, load
from regard.models.t5_config import MODEL_TYPES
from regard.search import Beam, Greedy, Sampling
from slow_parameters import slow_except
from small_checkpoints import change_config

SOURCE, TARGET = 13, 11
EXACT_TOLERANCE = 1e-9
"""In float64, relative to the largest number of a tensor."""
SMALL = T5Config(
    vocabulary=31, width=22, layers=2, decoder_layers=3, heads=3, head_dim=5, inner=13, buckets=8, max_distance=11
)


def make_peer(kind="t5", seed=0, *, separate_output=False, encoder=False, **fields):
    """A small model of transformers of one type, with random weights far from their initial sizes."""
    options = {
        "vocab_size": 31,
        "d_model": 24,
        "d_kv": 5,
        "d_ff": 17,
        "num_layers": 2,
        "num_decoder_layers": 3,
        "num_heads": 3,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 11,
        "decoder_start_token_id": 0,
    } | fields
    torch.manual_seed(seed)
    prefix = MODEL_TYPES[kind]
    config = getattr(transformers, prefix + "Config")(**options)
    config._attn_implementation = "eager"
    peer = getattr(transformers, prefix + ("EncoderModel" if encoder else "ForConditionalGeneration"))(config).eval()
    if separate_output:
        peer.lm_head.weight = nn.Parameter(torch.empty_like(peer.lm_head.weight))
        peer.all_tied_weights_keys.pop("lm_head.weight")
    with torch.no_grad():
        for name, weight in peer.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + (1.0 if "norm" in name else 0.0))
    return peer


@st.composite
def peers(draw, kind):
    """A random small model of one type."""
    buckets = draw(st.sampled_from([4, 8, 9, 32]))
    options = {
        "vocab_size": draw(st.sampled_from([5, 31])),
        "d_model": draw(st.sampled_from([16, 24, 31])),  # norms of a few numbers would amplify rounding errors
        "d_kv": draw(st.sampled_from([1, 5, 8])),
        "d_ff": draw(st.sampled_from([1, 17])),
        "num_layers": draw(st.sampled_from([1, 2, 3])),
        "num_decoder_layers": draw(st.sampled_from([None, 1, 3])),
        "num_heads": draw(st.sampled_from([1, 3, 4])),
        "relative_attention_num_buckets": buckets,
        "relative_attention_max_distance": draw(st.sampled_from([5, 11])) + buckets // 2,
        "feed_forward_proj": draw(st.sampled_from(["relu", "gated-gelu", "gated-silu", "gelu_new"])),
        "tie_word_embeddings": draw(st.booleans()) if kind == "t5" else True,
        "eos_token_id": draw(st.sampled_from([1, 2, [2, 3]])),
    }
    return make_peer(kind, draw(st.integers(0, 2**16)), separate_output=draw(st.booleans()), **options)


def padded(length, *, side):
    """Three lengths, which tokens of a batch belong to texts, and the mask of the others."""
    lengths, columns = torch.tensor([length, 5, 1]), torch.arange(length)
    tokens = columns < lengths[:, None] if side == "right" else columns >= length - lengths[:, None]
    return tokens, masks.padding(lengths, side=side)


def in_float64(peer):
    """A copy of a model of transformers that computes in float64 throughout: its own norms round to float32."""
    exact = copy.deepcopy(peer).double()
    for module in exact.modules():
        if type(module).__name__.endswith("LayerNorm"):
            module.forward = lambda x, norm=module: (
                norm.weight * x * (x.square().mean(-1, keepdim=True) + norm.variance_epsilon).rsqrt()
            )
    return exact


def relative_error(tensor, exact, floor=1.0):
    return (tensor - exact).abs().max().item() / max(exact.abs().max().item(), floor)


def assert_errors(ours, exact, moved, tolerance=TOLERANCE, floor=1.0):
    """The errors of tensors in float32, by name: within ``tolerance``, or not much above what roundings move there.

    ``moved`` returns what ``moved_by_rounding`` does. The largest number that is moved bounds all of them.
    """
    if all(relative_error(mine, exact[name], floor) <= tolerance for name, mine in ours.items()):
        return
    sizes = {name: max(best.abs().max().item(), floor) for name, best in exact.items()}
    reached = max(change / sizes[name] for name, change in moved().items())
    for name, mine in ours.items():
        assert relative_error(mine, exact[name], floor) <= max(tolerance, ROUNDING_FACTOR * reached)


def gradients(model, peer, source, target, factors, tokens, mask):
    """Return the gradients of the sum of logits times ``factors``, by names in the file: ours, and the peer's."""
    model.zero_grad()
    (model(source, target, mask=mask).logits * factors).sum().backward()
    ours = model.weight_names.to_file({name: weight.grad for name, weight in model.named_parameters()})
    return ours, peer_gradients(peer, source, target, factors, tokens)


def peer_gradients(peer, source, target, factors, tokens):
    peer.zero_grad()
    logits = peer(input_ids=source, attention_mask=tokens.long(), decoder_input_ids=target).logits
    (logits * factors).sum().backward()
    return {name: weight.grad for name, weight in peer.named_parameters()}


class TestParity:
    # mT5 is a T5 that is never tied.
    @pytest.mark.parametrize("kind", slow_except({"t5", "umt5"}, MODEL_TYPES))
    def test_random_small_models(self, tmp_path_factory, kind):
        @examples(8, without_slow=2)
        @given(peer=peers(kind), side=st.sampled_from(["right", "left"]))
        def check(peer, side):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            assert model.config.tied == (peer.lm_head.weight is peer.shared.weight)
            exact = load(folder, dtype=torch.float64), in_float64(peer)
            self.check_outputs(model, peer, exact, side)
            self.check_gradients(model, peer, exact, side)
            self.check_steps(model, peer, exact)

        check()

    def check_outputs(self, model, peer, exact, side):
        source, target = random_ids(peer, 3, SOURCE), random_ids(peer, 3, TARGET)
        ours, ours_exact = (self.outputs(one, source, target, side) for one in (model, exact[0]))
        best = self.peer_outputs(exact[1], source, target, side)
        assert ours.keys() == ours_exact.keys() == best.keys()
        for name, mine in ours_exact.items():
            assert relative_error(mine, best[name]) <= EXACT_TOLERANCE
        compute = partial(self.peer_outputs, source=source, target=target, side=side)
        assert_errors(ours, best, partial(moved_by_rounding, peer, compute))

    @torch.no_grad()
    def outputs(self, model, source, target, side):
        """All hidden states of the encoder, the last of the decoder, and logits."""
        tokens, mask = padded(SOURCE, side=side)
        encoded = model.encoder(source, mask=mask, keep_layers=True)
        output = model(source, target, mask=mask)
        assert encoded.layers[-1] is encoded.hidden
        return self.name_outputs(encoded.layers, output.hidden, output.logits, tokens)

    @torch.no_grad()
    def peer_outputs(self, peer, source, target, side):
        tokens, _ = padded(SOURCE, side=side)
        found = peer(
            input_ids=source,
            attention_mask=tokens.long(),
            decoder_input_ids=target,
            output_hidden_states=True,
            use_cache=False,
        )
        return self.name_outputs(found.encoder_hidden_states, found.decoder_hidden_states[-1], found.logits, tokens)

    def name_outputs(self, layers, hidden, logits, tokens):
        of_layers = {f"layer {number}": layer[tokens] for number, layer in enumerate(layers)}
        return of_layers | {"hidden": hidden, "logits": logits}

    def check_gradients(self, model, peer, exact, side):
        source, target = random_ids(peer, 3, SOURCE), random_ids(peer, 3, TARGET)
        factors = torch.randn(3, TARGET, peer.config.vocab_size)
        tokens, mask = padded(SOURCE, side=side)
        (ours, theirs), (ours_exact, best) = (
            gradients(*pair, source, target, factors, tokens, mask) for pair in ((model, peer), exact)
        )
        assert ours.keys() == theirs.keys() == ours_exact.keys() == best.keys()
        for name, mine in ours_exact.items():
            assert relative_error(mine, best[name], floor=1e-3) <= EXACT_TOLERANCE
        compute = partial(peer_gradients, source=source, target=target, factors=factors, tokens=tokens)
        assert_errors(ours, best, partial(moved_by_rounding, peer, compute), tolerance=1e-4, floor=1e-3)

    def check_steps(self, model, peer, exact):
        """Each step against the whole sequence in float64, also after rows were reordered and left out."""
        source, target = random_ids(peer, 3, SOURCE), random_ids(peer, 3, TARGET)
        tokens, _ = padded(SOURCE, side="right")
        call = {"input_ids": source, "attention_mask": tokens.long(), "decoder_input_ids": target, "use_cache": False}
        with torch.no_grad():
            best = exact[1](**call).logits
            steps = [self.steps(one, source, target, tokens.sum(1)) for one in (model, exact[0])]
        for (mine, rows, place), (mine_exact, _, _) in zip(*steps, strict=True):
            assert relative_error(mine_exact, best[rows, place]) <= EXACT_TOLERANCE
            error = relative_error(mine, best[rows, place])
            if error > TOLERANCE:
                moved = moved_by_rounding(peer, lambda one: {"logits": one(**call).logits.detach()})["logits"]
                assert error <= ROUNDING_FACTOR * moved / max(best.abs().max().item(), 1.0)

    def steps(self, model, source, target, lengths):
        """The logits of each step, the rows of ``target`` that they belong to, and the place."""
        state, rows, found = model.start(source, lengths=lengths), torch.arange(3), []
        for place in range(TARGET):
            logits, state = model.step(target[rows, place], state)
            found.append((logits, rows, place))
            if place in (3, 7):
                order = torch.tensor([2, 0, 0, 1, 2] if place == 3 else [0, 4])
                state, rows = state.reordered(order), rows[order]
        assert state.length == TARGET
        return found

    @pytest.mark.parametrize("kind", slow_except({"umt5"}, MODEL_TYPES))
    def test_bfloat16(self, tmp_path, kind):
        """With a smooth activation: the gradient of ReLU jumps where rounding changes a sign."""
        logits, gradient = [], []
        for seed in range(9):
            peer = make_peer(kind, seed, feed_forward_proj="gated-gelu")
            model = reload(peer, tmp_path / str(seed), torch.bfloat16)
            source, target = random_ids(peer, 3, SOURCE), random_ids(peer, 3, TARGET)
            factors, (tokens, mask) = torch.randn(3, TARGET, 31), padded(SOURCE, side="right")
            call = {"input_ids": source, "attention_mask": tokens.long(), "decoder_input_ids": target}
            exact_logits = peer(**call).logits.detach()
            _, exact = gradients(model, peer, source, target, factors, tokens, mask)
            exact = {name: one.clone() for name, one in exact.items()}
            peer.to(torch.bfloat16)
            with torch.no_grad():
                logits.append((model(source, target, mask=mask).logits, peer(**call).logits, exact_logits))
            ours, theirs = gradients(model, peer, source, target, factors, tokens, mask)
            gradient += [(ours[name], theirs[name], best) for name, best in exact.items()]
        assert_usual_error_ratio(logits)
        assert_error_ratio(gradient)

    @pytest.mark.parametrize("kind", slow_except({"t5"}, MODEL_TYPES))
    def test_generation(self, tmp_path, kind):
        """transformers writes the same tokens, greedily and with beams, if it may not write padding either."""
        # With another depth of the decoder, transformers makes a cache for the depth of the encoder, and fails.
        peer = make_peer(kind, 3, separate_output=True, tie_word_embeddings=False, num_decoder_layers=2)
        model = reload(peer, tmp_path)
        source, (tokens, _) = random_ids(peer, 3, SOURCE), padded(SOURCE, side="right")
        lengths = tokens.sum(1)
        options = {"suppress_tokens": [0], "max_new_tokens": 9, "do_sample": False}
        for search, choices in (
            (Greedy(), {"num_beams": 1}),
            (
                Beam(width=3, length_penalty=0.0, patience=float("inf")),
                {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
            ),
        ):
            theirs = peer.generate(
                input_ids=source.masked_fill(~tokens, 0), attention_mask=tokens.long(), **options, **choices
            )
            for row, (found, *_) in zip(
                theirs.tolist(), search.search(model, source, lengths, max_tokens=9), strict=True
            ):
                ended = row[1:].index(1) if 1 in row[1:] else 9
                assert list(found.ids) == row[1 : ended + 1]

    @pytest.mark.parametrize(
        ("fields", "activation"),
        [
            ({"feed_forward_proj": "relu", "dense_act_fn": "gelu"}, "gelu"),
            ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "silu"}, "swiglu"),
            ({"feed_forward_proj": "relu", "is_gated_act": True}, "reglu"),
        ],
    )
    def test_fields_that_say_more_than_feed_forward_proj(self, tmp_path, fields, activation):
        peer = make_peer("t5", 3, **fields)
        model = reload(peer, tmp_path)
        assert model.config.activation == activation
        source, target = random_ids(peer, 2, SOURCE), random_ids(peer, 2, TARGET)
        with torch.no_grad():
            theirs = peer(input_ids=source, decoder_input_ids=target).logits
        assert_near(model(source, target).logits, theirs)

    @pytest.mark.parametrize("kind", slow_except({"umt5"}, MODEL_TYPES))
    def test_targets_begin_and_end_by_generation_config(self, tmp_path, kind, caplog):
        """Three tokens that the peer writes are declared to be ends; a source still ends with that of config.json."""
        peer = make_peer(kind, 3, separate_output=True, tie_word_embeddings=False, num_decoder_layers=2)
        source, (tokens, _) = random_ids(peer, 3, SOURCE), padded(SOURCE, side="right")
        call = {"input_ids": source.masked_fill(~tokens, 0), "attention_mask": tokens.long()}
        peer.generation_config.decoder_start_token_id = 4
        options = {"suppress_tokens": [0, 4], "max_new_tokens": 9, "do_sample": False}
        written = peer.generate(**call, **options)[:, 1:]
        ends = [1, *dict.fromkeys(row[place] for row, place in zip(written.tolist(), (3, 5, 0), strict=True))]
        peer.generation_config.eos_token_id = ends
        model = reload(peer, tmp_path)
        assert (model.start_id, model.end_ids, model.end_id) == (4, tuple(ends), 1)
        assert not model.notes
        for search, choices in (
            (Greedy(), {"num_beams": 1}),
            (
                Beam(width=3, length_penalty=0.0, patience=float("inf")),
                {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
            ),
        ):
            theirs = peer.generate(**call, **options, **choices)
            for row, (found, *_) in zip(
                theirs.tolist(), search.search(model, source, tokens.sum(1), max_tokens=9), strict=True
            ):
                ended = next((place for place, one in enumerate(row[1:]) if one in ends), 9)
                assert list(found.ids) == row[1 : ended + 1]
                assert found.finished == (ended < 9)
        model.save(tmp_path / "copy")
        copy = load(tmp_path / "copy")
        assert (copy.start_id, copy.end_ids) == (4, tuple(ends))
        generation = GenerationConfig.from_pretrained(tmp_path / "copy")
        assert (generation.decoder_start_token_id, generation.eos_token_id) == (4, ends)

        path = tmp_path / "generation_config.json"
        path.write_text(json.dumps({"forced_bos_token_id": 7, "suppress_tokens": []}))
        assert load(tmp_path).notes == (f"{path}: searches do not apply forced_bos_token_id",)
        assert "forced_bos_token_id" in caplog.text
        path.write_text(json.dumps({"decoder_start_token_id": "first"}))
        with pytest.raises(CheckpointError, match=r"generation_config\.json has an unusable 'decoder_start_token_id'"):
            load(tmp_path)

    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    def test_a_start_token_outside_the_vocabulary_is_refused_where_it_is_needed(self, tmp_path, file):
        peer = make_peer("t5", 3)
        peer.save_pretrained(tmp_path)
        path = tmp_path / file
        (tmp_path / "generation_config.json").unlink()
        fields = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(fields | {"decoder_start_token_id": 50256}))
        model = load(tmp_path)
        (note,) = model.notes
        assert f"{path}: the model has no such token, so it is not used: decoder_start_token_id 50256" in note
        source, target = random_ids(peer, 2, SOURCE), random_ids(peer, 2, TARGET)
        with torch.no_grad():
            theirs = peer(input_ids=source, decoder_input_ids=target).logits
        assert_near(model(source, target).logits, theirs)
        with pytest.raises(OptionError, match="no token that begins a target"):
            Greedy().search(model, source, torch.tensor([SOURCE, SOURCE]), max_tokens=9)
        model.save(tmp_path / "copy")
        assert load(tmp_path / "copy").start_id is None

    @pytest.mark.parametrize("kind", MODEL_TYPES)
    def test_folders_are_read_by_transformers_and_again(self, tmp_path_factory, kind):
        @examples(4, without_slow=1)
        @given(peer=peers(kind), shard=st.sampled_from([100, 3000, 10**9]))
        def check(peer, shard):
            folder = tmp_path_factory.mktemp("peer")
            model = reload(peer, folder)
            again = save_and_read(model, folder / "copy", AutoModelForSeq2SeqLM, shard, attn_implementation="eager")
            assert_same_parameters(peer, again)
            ids = random_ids(peer, 2, 5)
            assert_near(
                again(input_ids=ids, decoder_input_ids=ids).logits, peer(input_ids=ids, decoder_input_ids=ids).logits
            )

        check()

    @pytest.mark.parametrize("kind", MODEL_TYPES)
    def test_encoders_alone(self, tmp_path, kind):
        peer = make_peer(kind, encoder=True)
        model = reload(peer, tmp_path / "peer")
        assert isinstance(model, T5Encoder)
        assert model.max_tokens is None
        assert (model.width, model.pad_id) == (24, 0)
        ids, (tokens, mask) = random_ids(peer, 3, SOURCE), padded(SOURCE, side="left")
        with torch.no_grad():
            ours, theirs = model(ids, mask=mask), peer(input_ids=ids, attention_mask=tokens.long())
        assert_near(ours.hidden[tokens], theirs.last_hidden_state[tokens])
        model.save(tmp_path / "copy")
        class_ = {"t5": PeerEncoder, "mt5": transformers.MT5EncoderModel, "umt5": UMT5EncoderModel}[kind]
        again = class_.from_pretrained(tmp_path / "copy").state_dict()
        assert all(torch.equal(again[name], weight) for name, weight in peer.state_dict().items())
        assert load(tmp_path / "copy").config == model.config


@pytest.fixture
def model():
    torch.manual_seed(5)
    return T5(SMALL).eval()


def test_positions_beyond_the_first_table(model):
    """A table of biases grows with the target; each step equals the whole sequence."""
    source, target = torch.randint(0, 31, (2, 3)), torch.randint(0, 31, (2, 139))
    with torch.no_grad():
        whole, state = model(source, target).logits, model.start(source)
        sizes_seen = set()
        for place in range(139):
            logits, state = model.step(target[:, place], state)
            assert_near(logits, whole[:, place])
            sizes_seen.add(1 - state.tables[0].lowest)
    assert sizes_seen == {64, 128, 256}


def test_the_bias_is_computed_once_for_all_layers_and_steps(model, monkeypatch):
    calls = []
    original = regard.positions.T5Buckets.table
    monkeypatch.setattr(
        regard.positions.T5Buckets, "table", lambda self, *sides: calls.append(sides) or original(self, *sides)
    )
    source = torch.randint(0, 31, (2, 7))
    with torch.no_grad():
        model(source, source)
        assert calls == [(-6, 6), (-6, 6)]
        calls.clear()
        state = model.start(source)
        for place in range(7):
            _, state = model.step(source[:, place], state)
    assert calls == [(-6, 6), (-63, 0)]


def test_recorded_layers(model):
    source, target = torch.randint(0, 31, (2, 7)), torch.randint(0, 31, (2, 5))
    with regard.record(model) as seen, torch.no_grad():
        output = model(source, target)
    assert [call.name for call in seen] == [
        *(f"encoder.layers.{layer}.attention" for layer in range(2)),
        *(f"decoder.{layer}.{kind}attention" for layer in range(3) for kind in ("", "cross_")),
    ]
    crossing = seen["decoder.1.cross_attention"].weights()
    assert crossing.shape == (2, 3, 5, 7)
    torch.testing.assert_close(model.cross_attention_weights(source, target), crossing.mean(1))
    own = seen["decoder.0.attention"].weights()
    assert own.triu(1).abs().max() == 0
    bucket = model.decoder_biases[0].weight
    scores = seen["decoder.0.attention"].query @ seen["decoder.0.attention"].key.transpose(2, 3)
    near = torch.tensor([[0, 0], [1, 0]])  # the first two tokens, at distances 0 and 1
    expected = (scores[:, :, :2, :2] + bucket[near].permute(2, 0, 1)).masked_fill(near.new_ones(2, 2).triu(1) > 0, -1e9)
    torch.testing.assert_close(own[:, :, :2, :2], expected.softmax(-1), atol=1e-5, rtol=0)
    state = model.start(source)
    for place in range(5):
        logits, state, weights = model.step_with_weights(target[:, place], state)
        torch.testing.assert_close(weights, crossing.mean(1)[:, place], atol=1e-5, rtol=0)
        assert_near(logits, output.logits[:, place])


def test_dropout_is_applied_in_training_only(model):
    ids = torch.randint(0, 31, (2, 7))
    assert torch.equal(model(ids, ids).logits, model(ids, ids).logits)
    model.train()
    assert not torch.equal(model(ids, ids).logits, model(ids, ids).logits)


def test_initial_weights_have_the_published_sizes():
    torch.manual_seed(0)
    model = T5(
        T5Config(vocabulary=997, width=256, layers=1, heads=16, head_dim=16, inner=512, tied=False, scale_output=False)
    )
    attention = model.decoder[0].attention
    for weight, expected in (
        (model.encoder.token_embedding.weight, 1.0),
        (attention.query_projection.weight, (256 * 16) ** -0.5),
        (attention.key_projection.weight, 256**-0.5),
        (attention.output_projection.weight, (16 * 16) ** -0.5),
        (model.decoder[0].feed_forward.down.weight, 512**-0.5),
        (model.decoder_biases[0].weight, 256**-0.5),
    ):
        assert weight.std().item() == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("search", [Greedy(), Beam(width=4), Sampling(seed=3)], ids=repr)
def test_a_text_does_not_depend_on_the_others_of_its_batch(model, search):
    sources, lengths = torch.randint(2, 31, (3, 7)), torch.tensor([7, 4, 1])
    together = search.search(model, sources, lengths, max_tokens=8)
    if isinstance(search, Sampling):
        assert all(0 not in one.ids for (one, *_) in together)
        return
    for row in range(3):
        ((alone, *_),) = search.search(
            model, sources[row : row + 1, : lengths[row]], lengths[row : row + 1], max_tokens=8
        )
        assert together[row][0].ids == alone.ids
        assert together[row][0].score == pytest.approx(alone.score, abs=1e-4)


def test_old_files_hold_the_embedding_several_times(model, tmp_path):
    model.save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    copies = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    tensors |= {name: tensors["shared.weight"].clone() for name in copies}
    save_file(tensors, path)
    again = load(tmp_path / "model")
    assert again.config.tied
    assert again.output.weight is again.encoder.token_embedding.weight
    assert torch.equal(again.output.weight, model.output.weight)


def test_overwriting(model, tmp_path):
    model.save(tmp_path / "model", max_shard_bytes=1000)
    with pytest.raises(OutputExistsError):
        model.save(tmp_path / "model")
    model.save(tmp_path / "model", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"model_type": "bart"}, "model_type of a T5"),
            ({"model_type": "umt5"}, "fixed layer_biases"),
            ({"model_type": "mt5"}, "fixed scale_output"),
            ({"layer_biases": True}, "umt5 has layer_biases"),
            ({"activation": "geglu"}, "activation of a T5"),
            ({"buckets": 3}, "at least 4 buckets"),
            ({"buckets": 32, "max_distance": 16}, "sizes of T5 buckets"),
            ({"layers": 0}, "layers"),
            ({"decoder_layers": 0}, "decoder_layers"),
            ({"pad_id": 32128}, "pad_id"),
            ({"start_id": 32128}, "start_id"),
            ({"end_ids": (32128,)}, "end_ids"),
            ({"dropout": 1.5}, "dropout"),
        ],
    )
    def test_options(self, options, message):
        with pytest.raises(OptionError, match=message):
            T5Config(**options)

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"d_model": 21}, "another shape"),
            ({"num_layers": 3}, "different numbers of layers"),
            ({"num_decoder_layers": 2}, "different numbers of layers"),
            ({"feed_forward_proj": "gated-gelu"}, "not in the model"),
            ({"feed_forward_proj": "gated-tanh"}, "unusable 'feed_forward_proj'"),
            ({"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu"}, "not supported: gelu, gated"),
            ({"model_type": "umt5"}, "lacks tensors"),
            ({"model_type": "longt5"}, "unsupported architecture"),
            ({"decoder_start_token_id": "31"}, "unusable 'decoder_start_token_id'"),
        ],
    )
    def test_files_that_do_not_belong_together(self, model, tmp_path, fields, message):
        model.save(tmp_path / "model")
        change_config(tmp_path / "model", **fields)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path / "model")

    def test_calls(self, model):
        ids = torch.randint(0, 31, (2, 7))
        with pytest.raises(ShapeError, match="no tokens"):
            model(ids, ids[:, :0])
        with pytest.raises(ShapeError, match="no tokens"):
            model.encoder(ids[:, :0])
        with pytest.raises(OptionError, match="out of range"):
            model(ids + 31, ids)
        with pytest.raises(ShapeError, match="one token for each row"):
            model.step(ids[0], model.start(ids))
