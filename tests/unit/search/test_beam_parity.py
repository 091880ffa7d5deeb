"""Beam search against that of `transformers`, on the same weights: a random Marian model.

Marian is the Transformer of 2017 with another order of position features: all sines, then all cosines. So the features
are reordered in every weight that has a model-width dimension.
"""

import pytest
import torch

from regard.models import Transformer, TransformerConfig
from regard.search import Beam, Greedy

VOCABULARY, WIDTH, HEADS, INNER, LAYERS = 17, 20, 5, 29, 2
SOURCES = torch.tensor(
    [[7, 14, 5, 8, 12, 3], [9, 3, 0, 0, 0, 0], [7, 7, 10, 3, 0, 0], [4, 13, 12, 6, 3, 0], [16, 15, 3, 0, 0, 0]]
)
LENGTHS = torch.tensor([6, 2, 4, 5, 3])
MAX_TOKENS = 9
FEATURES = torch.arange(WIDTH).view(2, -1).T.flatten()
"""Marian's features in regard's order: sine, cosine, sine, cosine."""


@pytest.fixture(scope="module")
def theirs():
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(1)
    sides = {f"{side}_{name}": number for side in ("encoder", "decoder") for name, number in
             (("layers", LAYERS), ("attention_heads", HEADS), ("ffn_dim", INNER))}  # fmt: skip
    config = MarianConfig(
        vocab_size=VOCABULARY, d_model=WIDTH, **sides, max_position_embeddings=32, activation_function="relu",
        scale_embedding=True, pad_token_id=0, bos_token_id=2, decoder_start_token_id=2, eos_token_id=3,
        forced_eos_token_id=None, init_std=0.2, dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    model = MarianMTModel(config).double().eval()
    with torch.no_grad():  # so that targets end, some early and some late
        end = model.model.shared.weight[3]
        model.model.decoder.layers[-1].final_layer_norm.bias += 1.5 * end / end.square().sum()
    return model


@pytest.fixture(scope="module")
def ours(theirs):
    numbers = {"vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS, "heads": HEADS, "inner": INNER}
    model = Transformer(TransformerConfig(**numbers, dropout=0.0)).double().eval()
    with torch.no_grad():
        model.source_words.weight.copy_(theirs.model.shared.weight[:, FEATURES])
        sides = ((model.encoder, theirs.model.encoder.layers), (model.decoder, theirs.model.decoder.layers))
        for mine, its in (pair for side in sides for pair in zip(*side, strict=True)):
            _copy_attention(mine.attention, its.self_attn)
            _copy_norm(mine.attention_residual.norm, its.self_attn_layer_norm)
            if hasattr(its, "encoder_attn"):
                _copy_attention(mine.cross_attention, its.encoder_attn)
                _copy_norm(mine.cross_attention_residual.norm, its.encoder_attn_layer_norm)
            _copy_in(mine.feed_forward.up, its.fc1)
            _copy_out(mine.feed_forward.down, its.fc2)
            _copy_norm(mine.feed_forward_residual.norm, its.final_layer_norm)
    return model


def _copy_attention(mine, its):
    _copy_in(mine.query_projection, its.q_proj)
    _copy_in(mine.key_projection, its.k_proj)
    _copy_in(mine.value_projection, its.v_proj)
    _copy_out(mine.output_projection, its.out_proj)


def _copy_in(mine, its):
    mine.weight.copy_(its.weight[:, FEATURES])
    mine.bias.copy_(its.bias)


def _copy_out(mine, its):
    mine.weight.copy_(its.weight[FEATURES])
    mine.bias.copy_(its.bias[FEATURES])


def _copy_norm(mine, its):
    mine.weight.copy_(its.weight[FEATURES])
    mine.bias.copy_(its.bias[FEATURES])


def generate_with_transformers(theirs, width, best):
    """Return ids and log-probabilities of the finished hypotheses of `transformers`, a list per source.

    `transformers` ranks cut hypotheses among finished ones, so there may be fewer than ``best``.
    """
    output = theirs.generate(
        input_ids=SOURCES,
        attention_mask=(SOURCES != 0).long(),
        num_beams=width,
        num_return_sequences=best,
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        length_penalty=0.0,
        early_stopping="never",
        suppress_tokens=[0, 1, 2],
        return_dict_in_generate=True,
        output_scores=True,
    )
    rows = list(zip(output.sequences.tolist(), output.sequences_scores.tolist(), strict=True))
    return [
        [(_without_specials(ids), score) for ids, score in rows[at : at + best] if 3 in ids]
        for at in range(0, len(rows), best)
    ]


def _without_specials(ids):
    return tuple(token for token in ids if token not in (0, 2, 3))


def test_models_have_equal_logits(ours, theirs):
    target = torch.tensor([[2, 9, 13, 6]])
    expected = theirs(input_ids=SOURCES[:1], decoder_input_ids=target).logits
    torch.testing.assert_close(ours(SOURCES[:1], target).logits, expected, rtol=0, atol=1e-6)  # float32 positions


@pytest.mark.parametrize("width", [2, 3, 5])
def test_beam_search_finds_the_same(ours, theirs, width):
    hypotheses = Beam(width, length_penalty=0.0, best=width).search(ours, SOURCES, LENGTHS, max_tokens=MAX_TOKENS)
    expected = generate_with_transformers(theirs, width, width)
    for mine, its in zip(hypotheses, expected, strict=True):
        assert [one.ids for one in mine[: len(its)]] == [ids for ids, _ in its]
        assert [one.score for one in mine[: len(its)]] == pytest.approx([score for _, score in its], abs=1e-4)
    compared = [len(ids) for its in expected for ids, _ in its]
    assert len(compared) > 2 * len(SOURCES) - 2
    assert len(set(compared)) > 2


def test_greedy_search_finds_the_same(ours, theirs):
    output = theirs.generate(
        input_ids=SOURCES,
        attention_mask=(SOURCES != 0).long(),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        num_beams=1,
        suppress_tokens=[0, 1, 2],
    )
    expected = [_without_specials(ids) for ids in output.tolist()]
    assert [one.ids for [one] in Greedy().search(ours, SOURCES, LENGTHS, max_tokens=MAX_TOKENS)] == expected
