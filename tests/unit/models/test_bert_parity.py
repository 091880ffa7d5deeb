"""The real model against transformers, and findings read from its weights by another implementation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers import BertConfig as PeerConfig
from transformers import BertModel as Peer

import regard
from hypothesis_examples import examples
from regard import masks
from regard.models import Bert, BertConfig, load
from regard.models.model_folder import resolve_folder

TOLERANCE = 1e-5
LAST_ROUNDINGS = 5 * 2**-24
"""Relative error in float32: y = ((x + f(x)) - mean) / sigma * gain + shift rounds five times by up to 2^-24, after f.

Hidden states have single features near 10, where the spacing of float32 alone is 9.5e-7 and this 2.9e-6.
"""
TIRED = "The animal didn't cross the street because it was too tired."
TEXTS = (
    TIRED,
    "猫 吃 鱼。我爱北京天安门，今天天气很好。",
    "",
    "naïve 😀 café — 𠀀 e\u0301",
    "word " * 37,
    "שלום עולם, مرحبا بالعالم",
)


@pytest.fixture(scope="module")
def model():
    return load("minilm")


@pytest.fixture(scope="module")
def peer():
    return Peer.from_pretrained(resolve_folder("minilm"), attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def exact():
    """Return the transformers model in float64."""
    return Peer.from_pretrained(resolve_folder("minilm"), attn_implementation="eager").double().eval()


def assert_parity(model, peer, ids, tokens, *, segments=None, tolerance=TOLERANCE, exact=None):
    """Compare hidden states of every layer, and all attention weights of tokens. ``tokens`` is False at padding.

    With ``exact``, the peer in float64, regard is compared with that, and its error may be twice the peer's own error,
    which depends on the processor and its order of sums. Added to this is the rounding error of a float32 of that size,
    and at least 1e-6: with few tokens the peer's error may be close to 0 by chance.
    """
    mask = None if tokens.all() else masks.keep(tokens[:, None, None, :])
    with torch.no_grad(), regard.record(model) as recording:
        ours = model(ids, mask=mask, segments=segments, keep_layers=True)
    theirs, true = (_run_peer(one, ids, tokens, segments) for one in (peer, exact or peer))
    assert len(ours.layers) == len(theirs.hidden_states) == len(recording) + 1
    assert ours.layers[-1] is ours.hidden
    weights = [layer.weights().transpose(1, 2) for layer in recording]
    attentions, true_attentions = ([one.transpose(1, 2) for one in found.attentions] for found in (theirs, true))
    for mine, other, best in zip(
        (*ours.layers, *weights),
        (*theirs.hidden_states, *attentions),
        (*true.hidden_states, *true_attentions),
        strict=True,
    ):
        if exact is None:
            torch.testing.assert_close(mine[tokens], best[tokens], atol=tolerance, rtol=0)
            continue
        own = (mine - best)[tokens].abs()
        rounded = (LAST_ROUNDINGS * best[tokens].abs()).clamp(min=1e-6)
        assert (own <= 2 * (other - best)[tokens].abs().max() + rounded).all(), (own - rounded).max()
    return ours, theirs


def _run_peer(peer, ids, tokens, segments):
    given = {"attention_mask": tokens.long(), "token_type_ids": segments}
    with torch.no_grad():
        return peer(ids, **given, output_hidden_states=True, output_attentions=True)


class TestRealWeights:
    def test_texts_padded_on_the_right(self, model, peer, exact):
        read = model.tokenizer.encode(TEXTS)
        tokens = torch.arange(read.ids.shape[1]) < torch.tensor(read.lengths)[:, None]
        ours, theirs = assert_parity(model, peer, read.ids, tokens, exact=exact)
        torch.testing.assert_close(ours.pooled, theirs.pooler_output, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(model(read.ids, mask=read.mask).hidden[tokens], ours.hidden[tokens])

    def test_texts_padded_on_the_left(self, model, peer, exact):
        read = model.tokenizer.encode(TEXTS[:3])
        length = read.ids.shape[1]
        tokens = torch.arange(length) >= length - torch.tensor(read.lengths)[:, None]
        ids = torch.zeros_like(read.ids)
        ids[tokens] = torch.cat([torch.tensor(text.ids) for text in read.texts])
        assert_parity(model, peer, ids, tokens, exact=exact)

    def test_one_token(self, model, peer, exact):
        assert_parity(model, peer, torch.tensor([[7592]]), torch.ones(1, 1, dtype=torch.bool), exact=exact)

    @pytest.mark.slow  # the random models below are tested at all their positions
    def test_as_many_tokens_as_positions(self, model, peer, exact):
        read = model.tokenizer.encode("the cat sat " * 170)
        assert read.ids.shape == (1, 512)
        assert_parity(model, peer, read.ids, torch.ones(1, 512, dtype=torch.bool), exact=exact)

    def test_two_segments(self, model, peer, exact):
        ids = torch.tensor([[101, 7592, 102, 2088, 102]])
        segments = torch.tensor([[0, 0, 0, 1, 1]])
        assert_parity(model, peer, ids, torch.ones(1, 5, dtype=torch.bool), segments=segments, exact=exact)


class TestKnownFindings:
    @pytest.mark.parametrize(
        ("word", "weights"), [("tired", {(3, 1): 0.677, (5, 11): 0.673}), ("wide", {(3, 1): 0.281, (5, 11): 0.558})]
    )
    def test_weight_of_it_on_animal(self, model, word, weights):
        tokens = model.tokenizer.encode(TIRED.replace("tired", word))
        query, key = (tokens.tokens[0].index(token) for token in ("it", "animal"))
        with torch.no_grad(), regard.record(model) as recording:
            model(tokens.ids, mask=tokens.mask)
        for (layer, head), weight in weights.items():
            assert round(recording[layer].weights([query])[0, head, 0, key].item(), 3) == weight

    def test_cosines_of_apple_the_fruit_and_the_company(self, model):
        got = self.cosines(model, "I ate an apple.", "Apple released a new phone.")
        assert [round(cosine, 2) for cosine in got] == [0.95, 0.81, 0.76, 0.73, 0.77, 0.79, 0.70]

    def test_cosines_of_apple_in_two_sentences_about_fruit(self, model):
        assert min(self.cosines(model, "I ate an apple.", "She ate a red apple.")) >= 0.87

    @staticmethod
    def cosines(model, first, second):
        layers = []
        for text in (first, second):
            tokens = model.tokenizer.encode(text)
            with torch.no_grad():
                hidden_states = model(tokens.ids, keep_layers=True).layers
            layers.append(torch.stack(hidden_states)[:, 0, tokens.tokens[0].index("apple")])
        return functional.cosine_similarity(*layers, dim=-1).tolist()


@st.composite
def peers(draw, head_dims, deviation):
    """A random small transformers model; ``deviation`` is the standard deviation of its weights (BERT's is 0.02)."""
    heads = draw(st.sampled_from([1, 2, 3, 5]))
    config = PeerConfig(
        num_hidden_layers=draw(st.sampled_from([1, 2, 3])),
        num_attention_heads=heads,
        hidden_size=heads * draw(st.sampled_from(head_dims)),
        intermediate_size=draw(st.sampled_from([1, 11, 13])),
        vocab_size=draw(st.sampled_from([5, 17])),
        max_position_embeddings=13,
        type_vocab_size=draw(st.sampled_from([1, 2, 3])),
        hidden_act=draw(st.sampled_from(["gelu", "relu", "gelu_new", "silu"])),
        initializer_range=deviation,
        pad_token_id=0,
        attn_implementation="eager",
    )
    torch.manual_seed(draw(st.integers(0, 2**16)))
    return Peer(config).eval()


def assert_random_parity(peer, folder, dtype, tolerance):
    """Load a model that transformers saved: checks the file layout and the results, at every position."""
    peer.save_pretrained(folder)
    length = peer.config.max_position_embeddings
    ids = torch.randint(0, peer.config.vocab_size, (3, length))
    tokens = torch.arange(length) < torch.tensor([[length], [5], [1]])
    segments = torch.randint(0, peer.config.type_vocab_size, (3, length))
    assert_parity(load(folder, dtype=dtype), peer.to(dtype), ids, tokens, segments=segments, tolerance=tolerance)


@examples(15, without_slow=5)
@given(peer=peers(head_dims=[11, 13], deviation=0.1))
def test_random_small_models(tmp_path_factory, peer):
    assert_random_parity(peer, tmp_path_factory.mktemp("peer"), torch.float32, TOLERANCE)


@examples(15, without_slow=5)
@given(peer=peers(head_dims=[1, 2, 7, 13], deviation=0.5))
def test_random_badly_conditioned_models(tmp_path_factory, peer):
    """In float64, since large weights, and norms over one or two numbers with deviations near 0, amplify rounding."""
    assert_random_parity(peer, tmp_path_factory.mktemp("peer"), torch.float64, 1e-10)


def test_saved_models_are_read_by_transformers(tmp_path):
    torch.manual_seed(3)
    config = BertConfig(
        vocabulary=17, width=22, layers=3, heads=2, inner=13, max_length=7, segments=3, activation="gelu_tanh"
    )
    model = Bert(config).eval()
    model.save(tmp_path / "saved")
    peer, info = Peer.from_pretrained(tmp_path / "saved", attn_implementation="eager", output_loading_info=True)
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    ids = torch.randint(0, 17, (2, 7))
    assert_parity(model, peer.eval(), ids, torch.ones(2, 7, dtype=torch.bool))
