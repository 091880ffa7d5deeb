"""The Transformer against torch's own, steps against the whole sequence, and errors."""

import math

import pytest
import torch
from torch import nn

from regard import masks
from regard.errors import DtypeError, OptionError, ShapeError
from regard.models import Transformer, TransformerConfig, transformer_tiny
from regard.models.layer_mechanism import POSITIONS

VOCABULARY, WIDTH, HEADS, INNER, SOURCE, TARGET = 31, 20, 5, 37, 11, 7
NUMBERS = {"vocabulary": VOCABULARY, "width": WIDTH, "layers": 2, "heads": HEADS, "inner": INNER, "dropout": 0.0}


def build_model(**options):
    torch.manual_seed(5)
    return Transformer(TransformerConfig(**{**NUMBERS, **options})).double().eval()


def ids(batch, length, seed=3):
    return torch.randint(1, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def sinusoidal(length, width):
    """Vaswani et al. 2017, section 3.5, number by number."""
    angle = [[p / 10000 ** (2 * (i // 2) / width) for i in range(width)] for p in range(length)]
    numbers = [[math.cos(a) if i % 2 else math.sin(a) for i, a in enumerate(row)] for row in angle]
    return torch.tensor(numbers, dtype=torch.float64)


def build_torch_transformer(model, norm):
    """Build torch's Transformer with the model's weights."""
    theirs = nn.Transformer(
        WIDTH, HEADS, 2, 2, INNER, dropout=0.0, norm_first=norm == "pre", batch_first=True, layer_norm_eps=1e-5
    ).double()
    if norm == "post":  # torch adds a norm after each stack; the published model has none
        theirs.encoder.norm = theirs.decoder.norm = None
    else:
        theirs.encoder.norm.load_state_dict(model.encoder_norm.state_dict())
        theirs.decoder.norm.load_state_dict(model.decoder_norm.state_dict())
    for ours, other in [
        *zip(model.encoder, theirs.encoder.layers, strict=True),
        *zip(model.decoder, theirs.decoder.layers, strict=True),
    ]:
        attentions = [
            (ours.attention, other.self_attn),
            (getattr(ours, "cross_attention", None), getattr(other, "multihead_attn", None)),
        ]
        for mine, its in attentions:
            if mine is None:
                continue
            parts = (mine.query_projection, mine.key_projection, mine.value_projection)
            its.in_proj_weight.data = torch.cat([part.weight for part in parts])
            its.in_proj_bias.data = torch.cat([part.bias for part in parts])
            its.out_proj.load_state_dict(mine.output_projection.state_dict())
        other.linear1.load_state_dict(ours.feed_forward.up.state_dict())
        other.linear2.load_state_dict(ours.feed_forward.down.state_dict())
        norms = [ours.attention_residual, getattr(ours, "cross_attention_residual", None), ours.feed_forward_residual]
        for number, residual in enumerate([one for one in norms if one is not None], start=1):
            getattr(other, f"norm{number}").load_state_dict(residual.norm.state_dict())
    return theirs.eval()


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_agrees_with_torchs_transformer(norm):
    model = build_model(norm=norm)
    for parameter in model.parameters():  # norms and biases too, which start at 1 and 0
        nn.init.normal_(parameter, std=0.3)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    lengths = torch.tensor([SOURCE, 4, 9])
    hidden_keys = torch.arange(SOURCE) >= lengths[:, None]

    def embed(tokens):
        return model.source_words.weight[tokens] * WIDTH**0.5 + sinusoidal(tokens.shape[1], WIDTH)

    expected = build_torch_transformer(model, norm)(
        embed(source),
        embed(target),
        tgt_mask=torch.ones(TARGET, TARGET).triu(1).bool(),
        src_key_padding_mask=hidden_keys,
        memory_key_padding_mask=hidden_keys,
    )
    output = model(source, target, mask=masks.padding(lengths))
    torch.testing.assert_close(output.hidden, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(output.logits, expected @ model.source_words.weight.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("position", POSITIONS)
def test_steps_equal_the_whole_sequence(norm, position):
    model = build_model(norm=norm, position=position)
    source, target, lengths = ids(2, SOURCE), ids(2, TARGET, seed=4), torch.tensor([SOURCE, 6])
    whole = model(source, target, mask=masks.padding(lengths)).logits
    with torch.no_grad():
        state = model.start(source, lengths=lengths)
        for place in range(TARGET):
            logits, state = model.step(target[:, place], state)
            torch.testing.assert_close(logits, whole[:, place], rtol=0, atol=1e-10)


def test_rows_of_a_state_can_be_reordered():
    model = build_model()
    source, lengths, order = ids(3, SOURCE), torch.tensor([SOURCE, 6, 2]), torch.tensor([2, 0, 0, 1])
    target = ids(3, TARGET, seed=4)
    with torch.no_grad():
        state = model.start(source, lengths=lengths).reordered(torch.tensor([0, 1, 2]))
        for place in range(3):
            _, state = model.step(target[:, place], state)
        taken, _ = model.step(target[order, 3], state.reordered(order))
        kept, _ = model.step(target[:, 3], state)
    torch.testing.assert_close(taken, kept[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", POSITIONS)
def test_later_tokens_and_padding_have_no_influence(position):
    model = build_model(position=position)
    source, target, lengths = ids(2, SOURCE), ids(2, TARGET, seed=4), torch.tensor([SOURCE, 6])
    before = model(source, target, mask=masks.padding(lengths)).logits
    source[1, 6:], target[:, 4:] = 1, 2
    after = model(source, target, mask=masks.padding(lengths)).logits
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 4:], before[:, 4:])
    alone = model(source[1:, :6], target[1:]).logits
    torch.testing.assert_close(alone, after[1:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("shared", ["all", "target", "none"])
def test_shared_embeddings(shared):
    model = build_model(shared=shared, target_vocabulary=VOCABULARY if shared == "all" else 29)
    assert (model.source_words is model.target_words) == (shared == "all")
    assert (model.output.weight is model.target_words.weight) == (shared != "none")
    assert model(ids(2, 3), ids(2, 4) % 29).logits.shape == (2, 4, VOCABULARY if shared == "all" else 29)


def test_learns_to_copy_a_sequence():
    torch.manual_seed(1)
    options = {"vocabulary": 13, "norm": "pre", "layers": 1, "position": "learned"}
    model = Transformer(TransformerConfig(**{**NUMBERS, **options}))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(130):
        source = torch.randint(4, 13, (64, 4))
        target = torch.cat([torch.full((64, 1), model.start_id), source[:, :-1]], dim=1)
        loss = nn.functional.cross_entropy(model(source, target).logits.flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1


def test_tiny_model_has_four_layers():
    assert transformer_tiny(1009).config.layers == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"position": "absolute"}, "position of a Transformer"),
        ({"shared": "some"}, "way of sharing"),
        ({"target_vocabulary": 30}, "two vocabularies cannot share"),
        ({"norm": "middle"}, "norm"),
        ({"mechanism": "dot"}, "mechanism"),
        ({"heads": 3}, "heads"),
    ],
)
def test_invalid_hyperparameters_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        build_model(**options)


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        (torch.zeros(2, 3), ids(2, 3), DtypeError),
        (ids(2, 3), ids(1, 3)[0], ShapeError),
        (ids(2, 3), ids(2, 3) + VOCABULARY, OptionError),
        (ids(2, 3) - VOCABULARY, ids(2, 3), OptionError),
    ],
)
def test_invalid_ids_are_refused(source, target, error):
    with pytest.raises(error):
        build_model()(source, target)


def test_initial_embeddings_are_reproducible():
    """The order of initialization does not depend on the addresses of objects; many are compared."""
    models = [build_model(shared="target", target_vocabulary=VOCABULARY + 2) for _ in range(8)]
    assert len({model.source_words.weight.sum().item() for model in models}) == 1
