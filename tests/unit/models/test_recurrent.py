"""Recurrent models against loops in NumPy, steps against the whole sequence, and errors."""

import numpy as np
import pytest
import torch
from torch import nn

import regard
from oracles import differences
from oracles import recurrent as oracle
from regard import masks
from regard.errors import DataError, DtypeError, OptionError, RefusedError, ShapeError
from regard.layers.precision import has_lstm
from regard.models.model_folder import ModelFolder
from regard.models.recurrent import ATTENTIONS, Recurrent, RecurrentConfig, bahdanau, luong, recurrent_small
from regard.models.recurrent_cells import CELLS, BidirectionalLayers, RecurrentLayers

VOCABULARY, WIDTH, HIDDEN, SOURCE, TARGET = 31, 10, 14, 11, 7
NUMBERS = {"vocabulary": VOCABULARY, "width": WIDTH, "hidden": HIDDEN, "window": 2}
LENGTHS = torch.tensor([SOURCE, 1, 5])
LUONGS = tuple(name for name in ATTENTIONS if name not in ("additive", "none"))
WITH_ATTENTION = tuple(name for name in ATTENTIONS if name != "none")
FORMS = [(name, True) for name in ATTENTIONS] + [(name, False) for name in LUONGS]
"""Attention, and whether there is input feeding."""
ONE_PER_DECODER = ("additive", "luong_general", "none")


def with_cells(forms):
    """GRUs and LSTMs for all forms; LSTMs, and no input feeding, are slow except for a mechanism of each decoder."""
    more = [form for form in forms if form[0] not in ONE_PER_DECODER]
    unfed = [form for form in more if form[1:] == (False,)]
    return [
        *((*form, "gru") for form in forms if form not in unfed),
        *(pytest.param(*form, "gru", marks=pytest.mark.slow) for form in unfed),
        *((*form, "lstm") for form in forms if form not in more),
        *(pytest.param(*form, "lstm", marks=pytest.mark.slow) for form in more),
    ]


def build_model(**options):
    """Build a model with larger weights than the initial ones, with which all attention weights would be similar."""
    torch.manual_seed(5)
    model = Recurrent(RecurrentConfig(**{**NUMBERS, **options})).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.6)
    return model


def ids(batch, length, seed=3):
    return torch.randint(4, VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def read_cells(weights, prefix, layers, suffix=""):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [oracle.Cell(*(weights[f"{prefix}.{name}_l{layer}{suffix}"] for name in names)) for layer in range(layers)]


def read_linears(weights, prefix, layers):
    return [
        oracle.Linear(weights[f"{prefix}.{layer}.weight"], weights[f"{prefix}.{layer}.bias"]) for layer in range(layers)
    ]


def make_weigh(weights, config):
    """Return the oracle's attention with a model's weights."""
    parameters = {
        name.removeprefix("decoder.attention."): one[0]
        for name, one in weights.items()
        if name.startswith("decoder.attention.")
    }
    return {
        "additive": lambda: oracle.additive(
            parameters["query_weight"], parameters["key_weight"], parameters["score_vector"]
        ),
        "luong_dot": lambda: oracle.dot,
        "luong_general": lambda: oracle.general(parameters["weight"]),
        "luong_concat": lambda: oracle.concat(parameters["weight"], parameters["score_vector"]),
        "local_p": lambda: oracle.local_p(
            parameters["align.weight"], parameters["position_weight"], parameters["position_vector"], config.window
        ),
    }[config.attention]()


def expected(model, source, target):
    """Compute logits (target length, vocabulary) of a pair and, if any, the weights (target length, source length)."""
    config, weights = model.config, {name: one.numpy() for name, one in model.state_dict().items()}
    kind, layers = config.cell, config.layers
    both = zip(
        read_cells(weights, "encoder.cells", layers),
        read_cells(weights, "encoder.cells", layers, "_reverse"),
        strict=True,
    )
    annotations, last = oracle.encode(kind, list(both), weights["source_words.weight"][source.numpy()])
    words, cells = weights["target_words.weight"][target.numpy()], read_cells(weights, "decoder.layers.cells", layers)
    weights_of_steps = None
    if config.attention in LUONGS:
        readouts, weights_of_steps = oracle.luong(
            kind,
            cells,
            weights["decoder.mix.weight"],
            make_weigh(weights, config),
            words,
            annotations,
            last,
            input_feeding=config.input_feeding,
        )
    else:
        beginning = read_linears(weights, "decoder.beginning", layers)
        readout = oracle.Linear(weights["decoder.readout.weight"], weights["decoder.readout.bias"])
        if config.attention == "none":
            readouts = oracle.cho(kind, cells, beginning, readout, words, last)
        else:
            weigh = make_weigh(weights, config)
            readouts, weights_of_steps = oracle.bahdanau(
                kind, cells, beginning, readout, weigh, words, annotations, last
            )
    if "fit.weight" in weights:
        readouts = readouts @ weights["fit.weight"].T
    return torch.from_numpy(readouts @ weights["output.weight"].T), weights_of_steps


@pytest.mark.parametrize("layers", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize(("attention", "input_feeding", "cell"), with_cells(FORMS))
def test_agrees_with_the_papers(cell, layers, attention, input_feeding):
    model = build_model(cell=cell, layers=layers, attention=attention, input_feeding=input_feeding)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    with torch.no_grad():
        logits = model(source, target, mask=masks.padding(LENGTHS)).logits
    for entry, length in enumerate(LENGTHS):
        expected_logits, expected_weights = expected(model, source[entry, :length], target[entry])
        torch.testing.assert_close(logits[entry], expected_logits, rtol=0, atol=1e-10)
        if expected_weights is not None:
            weights = model.cross_attention_weights(source, target, mask=masks.padding(LENGTHS))[entry]
            np.testing.assert_allclose(weights[:, :length], expected_weights, rtol=0, atol=1e-12)
            assert not weights[:, length:].any()


@pytest.mark.parametrize(("shared", "size"), [("all", WIDTH), ("target", WIDTH), ("none", HIDDEN // 2)])
def test_shared_output_weights(shared, size):
    model = build_model(shared=shared, target_vocabulary=29 if shared != "all" else None)
    source, target = ids(2, SOURCE), ids(2, TARGET, seed=4) % 29
    with torch.no_grad():
        output = model(source, target)
    assert (model.source_words is model.target_words) == (shared == "all")
    assert (model.output.weight is model.target_words.weight) == (shared != "none")
    assert output.hidden.shape == (2, TARGET, size)
    torch.testing.assert_close(output.logits[0], expected(model, source[0], target[0])[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(("attention", "input_feeding", "cell"), with_cells(FORMS))
def test_steps_equal_the_whole_sequence(cell, attention, input_feeding):
    model = build_model(cell=cell, layers=2, attention=attention, input_feeding=input_feeding)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    with torch.no_grad():
        whole = model(source, target, mask=masks.padding(LENGTHS)).logits
        state = model.start(source, lengths=LENGTHS)
        for place in range(TARGET):
            logits, state = model.step(target[:, place], state)
            torch.testing.assert_close(logits, whole[:, place], rtol=0, atol=1e-11)


@pytest.mark.parametrize("attention", WITH_ATTENTION)
def test_attention_weights_of_steps(attention):
    model = build_model(attention=attention)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    whole = model.cross_attention_weights(source, target, mask=masks.padding(LENGTHS))
    with torch.no_grad():
        state = model.start(source, lengths=LENGTHS)
        for place in range(TARGET):
            plain, _ = model.step(target[:, place], state)
            logits, state, weights = model.step_with_weights(target[:, place], state)
            assert torch.equal(logits, plain)
            torch.testing.assert_close(weights, whole[:, place], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attention", "cell"), with_cells([(name,) for name in ATTENTIONS]))
def test_rows_of_a_state_can_be_reordered(cell, attention):
    """Done twice, so that rows of one source are not adjacent and one source has no rows."""
    model = build_model(cell=cell, attention=attention)
    source, target, orders = ids(3, SOURCE), ids(3, TARGET, seed=4), [torch.tensor([2, 0, 0, 1, 2]), [4, 1, 0, 2]]
    with torch.no_grad():
        state = model.start(source, lengths=LENGTHS)
        _, state = model.step(target[:, 0], state)
        rows = torch.arange(3)
        for place, order in enumerate(orders, start=1):
            state, rows = state.reordered(torch.as_tensor(order)), rows[order]
            logits, state = model.step(target[rows, place], state)
        alone = model.start(source[rows], lengths=LENGTHS[rows])
        for place in range(3):
            expected, alone = model.step(target[rows, place], alone)
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-12)
    assert set(rows.tolist()) == {0, 2}
    if attention != "none":
        weights = model.step_with_weights(target[rows, 3], state)[2]
        torch.testing.assert_close(weights, model.step_with_weights(target[rows, 3], alone)[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attention", "cell"), with_cells([(name,) for name in ATTENTIONS]))
def test_later_tokens_and_padding_have_no_influence(cell, attention):
    model = build_model(cell=cell, attention=attention)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    with torch.no_grad():
        before = model(source, target, mask=masks.padding(LENGTHS)).logits
        source[1, 1:], source[2, 5:], target[:, 4:] = 1, 2, 3
        after = model(source, target, mask=masks.padding(LENGTHS)).logits
        alone = model(source[2:, :5], target[2:]).logits
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.equal(after[:, 4:], before[:, 4:])
    torch.testing.assert_close(alone, after[2:], rtol=0, atol=1e-11)


def test_forms_of_the_padding_mask():
    model = build_model()
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    source[1, 1:] = source[2, 5:] = 0
    expected = model(source, target, mask=masks.padding(LENGTHS)).logits
    assert torch.equal(model(source, target, mask=masks.padding_of(source, 0)).logits, expected)
    one = model(source, target, mask=masks.padding([5])).logits
    torch.testing.assert_close(one, model(source[:, :5], target).logits, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("attention", "input_feeding", "cell"), with_cells(FORMS))
def test_every_weight_gets_a_gradient_in_float32_and_under_autocast(cell, attention, input_feeding):
    model = (
        build_model(cell=cell, layers=2, attention=attention, input_feeding=input_feeding, shared="all").float().train()
    )
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    gradients = []
    for half in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            logits = model(source, target, mask=masks.padding(LENGTHS)).logits
        assert logits.dtype == (torch.bfloat16 if half else torch.float32)
        nn.functional.cross_entropy(logits.float().flatten(0, 1), target.flatten()).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, exact in gradients[0].items():
        assert exact.any(), name
        assert gradients[1][name].dtype == torch.float32
        # 8 bits per number: after 7 steps through 2 layers the direction is correct.
        assert nn.functional.cosine_similarity(gradients[1][name].flatten(), exact.flatten(), dim=0) > 0.95, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("weights", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengths", [LENGTHS, None])
def test_lstm_without_half_precision_support_ignores_autocast(lengths, weights, dtype, monkeypatch):
    encoder = BidirectionalLayers("lstm", 3, 10, layers=2, dropout=0.0).to(weights)
    decoder = RecurrentLayers("lstm", 10, 7, layers=2, dropout=0.0).to(weights)
    states = ((torch.randn(3, 7, dtype=weights), torch.randn(3, 7, dtype=weights)),) * 2
    inputs = torch.randn(3, SOURCE, 3, dtype=weights)
    forward = nn.LSTM.forward

    def unsupported_forward(cells, *given):
        """Behaves as oneDNN on a processor without half-precision products."""
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("could not create a primitive descriptor for the LSTM forward propagation primitive")
        return forward(cells, *given)

    def compute():
        return decoder.forward_sequence(encoder(inputs, lengths)[0], states)

    exact = compute()
    monkeypatch.setattr(nn.LSTM, "forward", unsupported_forward)
    has_lstm.cache_clear()
    with torch.autocast("cpu", dtype=dtype):
        actual = compute()
    has_lstm.cache_clear()
    assert torch.equal(actual, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_half_precision_logits(attention, dtype):
    model = build_model(attention=attention, shared="all")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    with torch.no_grad():
        exact = model(source, target, mask=masks.padding(LENGTHS)).logits
        logits = model.to(dtype)(source, target, mask=masks.padding(LENGTHS)).logits
    assert logits.dtype == dtype
    torch.testing.assert_close(logits.double(), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("attention", ["additive", "luong_general", "none"])
def test_gradients_agree_with_finite_differences(attention):
    """Along one direction in the space of all weights."""
    model = build_model(attention=attention, layers=2, cell="lstm")
    source, target = ids(2, 5), ids(2, 3, seed=4)
    lengths = torch.tensor([5, 2])

    weights = [parameter.detach().clone() for parameter in model.parameters()]
    ways = [torch.randn_like(weight) for weight in weights]

    def loss(far):
        with torch.no_grad():
            for parameter, weight, way in zip(model.parameters(), weights, ways, strict=True):
                parameter.copy_(weight + float(far) * way)
        logits = model(source, target, mask=masks.padding(lengths)).logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    loss(0).backward()
    slope = sum((parameter.grad * way).sum() for parameter, way in zip(model.parameters(), ways, strict=True))
    measured = differences.gradient(lambda far: loss(far).item(), np.zeros(()), step=1e-4)
    torch.testing.assert_close(slope, torch.from_numpy(measured), rtol=1e-7, atol=1e-9)


def test_recording_lists_every_attention_call_of_the_decoder():
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    for options, calls, queries in (
        ({}, TARGET, 1),
        ({"attention": "local_p"}, TARGET, 1),
        ({"attention": "luong_general", "input_feeding": False}, 1, TARGET),
    ):
        with regard.record(model := build_model(**options)) as recording:
            model(source, target, mask=masks.padding(LENGTHS))
        assert [call.name for call in recording] == ["decoder.attention"] * calls
        assert {call.query.shape for call in recording} == {(3, 1, queries, HIDDEN)}
        assert {call.key.shape for call in recording} == {(3, 1, SOURCE, HIDDEN)}
        weights = torch.cat([call.weights() for call in recording], dim=2)[:, 0]
        expected = model.cross_attention_weights(source, target, mask=masks.padding(LENGTHS))
        torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("attention", ["additive", "luong_dot", "none"])
def test_dropout_applies_in_training_only(attention, cell):
    model = build_model(attention=attention, cell=cell, layers=2, dropout=0.5)
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    assert torch.equal(model(source, target).logits, model(source, target).logits)
    model.train()
    torch.manual_seed(7)
    first, second = model(source, target).logits, model(source, target).logits
    assert not torch.equal(first, second)
    torch.manual_seed(7)
    assert torch.equal(model(source, target).logits, first)


def test_dropout_applies_to_embeddings_and_before_the_output():
    model, shapes = build_model(dropout=0.5).train(), []
    model.dropout.register_forward_hook(
        lambda _, given, dropped: shapes.append((dropped.shape, bool((dropped == 0).any())))
    )
    model(ids(3, SOURCE), ids(3, TARGET, seed=4))
    assert shapes == [((3, SOURCE, WIDTH), True), ((3, TARGET, WIDTH), True), ((3, TARGET, HIDDEN // 2), True)]


def test_dropout_applies_between_decoder_layers():
    """With only this dropout, the logits of 2 layers differ between calls; those of 1 layer do not."""
    for layers in (1, 2):
        model = build_model(layers=layers, dropout=0.5).eval()
        model.decoder.layers.train()
        source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
        assert torch.equal(model(source, target).logits, model(source, target).logits) == (layers == 1)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_same_seed_same_bits(attention):
    gradients = []
    for _ in range(2):
        model = build_model(attention=attention, dropout=0.2).float().train()
        torch.manual_seed(11)
        model(ids(3, SOURCE), ids(3, TARGET, seed=4), mask=masks.padding(LENGTHS)).logits.square().mean().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("shared", ["all", "target", "none"])
@pytest.mark.parametrize(("attention", "cell"), [("local_p", "lstm"), ("additive", "gru")])
def test_saved_model_gives_the_same_logits(tmp_path, attention, cell, shared):
    model = build_model(attention=attention, cell=cell, layers=2, shared=shared).float()
    model.save(tmp_path / "model")
    loaded = Recurrent.from_folder(ModelFolder.open(tmp_path / "model"), dtype=torch.float32)
    assert loaded.config == model.config
    source, target = ids(3, SOURCE), ids(3, TARGET, seed=4)
    mask = masks.padding(LENGTHS)
    assert torch.equal(loaded(source, target, mask=mask).logits, model(source, target, mask=mask).logits)
    state = loaded.start(source, lengths=LENGTHS)
    assert torch.equal(
        loaded.step(target[:, 0], state)[0], model.step(target[:, 0], model.start(source, lengths=LENGTHS))[0]
    )


@pytest.mark.parametrize("attention", ["luong_general", pytest.param("additive", marks=pytest.mark.slow)])
def test_learns_to_reverse_a_sequence_with_the_right_alignment(attention):
    torch.manual_seed(1)
    model = Recurrent(RecurrentConfig(vocabulary=11, width=16, hidden=32, attention=attention))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(70):
        source = torch.randint(4, 11, (64, 4))
        reverse = source.flip(1)
        target = torch.cat([torch.full((64, 1), model.start_id), reverse[:, :-1]], dim=1)
        loss = nn.functional.cross_entropy(model(source, target).logits.flatten(0, 1), reverse.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert loss.item() < 0.1
    alignment = model.eval().cross_attention_weights(source, target).mean(0)
    assert alignment.argmax(-1).tolist() == [3, 2, 1, 0]


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_rnnsearch_size():
    """Bahdanau et al. 2015, appendix A.2.3: 1,000 cells, embeddings of 620, maxout of 500, alignment of 1,000."""
    with torch.device("meta"):
        model = bahdanau()
    m, n, maxout, words = 620, 1000, 500, 30000
    encoder = 2 * 3 * (n // 2) * (m + n // 2 + 2)
    decoder = 3 * n * (m + n + n + 2) + n * (n + 1) + 2 * maxout * (m + 2 * n + 1)
    assert count(model) == 2 * words * m + encoder + decoder + (2 * n * n + n) + maxout * words


def test_luong_model_size():
    """Luong et al. 2015, section 4.1: 4 layers of 1,000 cells, embeddings of 1,000, 50,000 words each."""
    with torch.device("meta"):
        model = luong()
    n, words = 1000, 50000
    encoder = 4 * 2 * 4 * (n // 2) * (n + n // 2 + 2)
    decoder = 4 * 4 * n * (n + n + 2) + 4 * n * n  # the first layer reads m, too
    assert count(model) == 3 * words * n + encoder + decoder + (2 * n * n + n) + 2 * n * n


def test_small_model_shares_its_embeddings():
    model = recurrent_small(1009)
    assert model.source_words.weight is model.target_words.weight is model.output.weight


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attention": "luong"}, "attention of a recurrent model"),
        ({"attention": "dot_product"}, "attention of a recurrent model"),
        ({"cell": "rnn"}, "cell"),
        ({"shared": "some"}, "way of sharing"),
        ({"shared": "all", "target_vocabulary": 30}, "two vocabularies cannot share"),
        ({"hidden": 13}, "must be even"),
        ({"hidden": 0}, "hidden"),
        ({"width": -1}, "width"),
        ({"layers": 0}, "layers"),
        ({"window": 0}, "window"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"target_vocabulary": 0}, "vocabulary"),
        ({"dropout": 1.0}, "dropout"),
    ],
)
def test_invalid_hyperparameters_are_refused(options, words):
    with pytest.raises(OptionError, match=words):
        RecurrentConfig(**{**NUMBERS, **options})


@pytest.mark.parametrize(
    ("source", "target", "error"),
    [
        (torch.zeros(2, 3), ids(2, 3), DtypeError),
        (ids(2, 3), ids(1, 3)[0], ShapeError),
        (ids(2, 3), ids(2, 3) + VOCABULARY, OptionError),
        (ids(2, 3) - VOCABULARY, ids(2, 3), OptionError),
        (ids(2, 3), ids(1, 3), ShapeError),
        (ids(2, 0), ids(2, 3), ShapeError),
        (ids(2, 3), ids(2, 0), ShapeError),
    ],
)
def test_invalid_ids_are_refused(source, target, error):
    with pytest.raises(error):
        build_model()(source, target)


@pytest.mark.parametrize(
    "mask",
    [
        masks.causal(),
        masks.padding([2, 3], side="left"),
        masks.keep(torch.tensor([[[[True, False, True]]], [[[True, True, True]]]])),
        masks.keep(torch.tensor([[[[True, True, True]], [[True, True, False]]]])),
    ],
)
def test_masks_other_than_padding_are_refused(mask):
    with pytest.raises(RefusedError, match="cannot skip tokens"):
        build_model()(ids(2, 3), ids(2, 3), mask=mask)


@pytest.mark.parametrize(
    ("lengths", "error"),
    [([3, 0], DataError), ([3, 4], ShapeError), ([3, -1], OptionError), ([3], ShapeError), ([1.0, 2.0], DtypeError)],
)
def test_invalid_lengths_are_refused(lengths, error, without_shape_checks):
    with pytest.raises(error):
        build_model().start(ids(2, 3), lengths=torch.tensor(lengths))


def test_a_mask_of_another_batch_is_refused():
    with pytest.raises(ShapeError):
        build_model()(ids(2, 3), ids(2, 3), mask=masks.padding([3, 2, 1]))


def test_attention_weights_without_attention_are_refused():
    model, source = build_model(attention="none"), ids(2, 3)
    with pytest.raises(RefusedError, match="without attention"):
        model.cross_attention_weights(source, ids(2, 3))
    with pytest.raises(RefusedError, match="without attention"):
        model.step_with_weights(source[:, 0], model.start(source))
