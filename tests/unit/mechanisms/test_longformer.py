"""Longformer: its window, its global tokens with projections of their own, and what it composes with."""

import copy

import numpy as np
import pytest
import torch

import regard
from regard import masks, positions
from regard.conformance.oracles import longformer as oracle
from regard.conformance.oracles.complex_step import check_gradients
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.kernels.token_projection import TokenProjection
from regard.masks import Mask
from regard.mechanisms import Longformer, longformer
from regard.mechanisms.weights import weights_by_gradient
from sampled_parameters import parametrize_sample

BATCH, HEADS, KEYS, HEAD_DIM, VALUE_DIM = 2, 4, 23, 5, 5
SIDES = {"global_query": "query", "global_key": "key", "global_value": "key"}


def make_inputs(queries=KEYS, keys=KEYS, key_heads=HEADS, dtype=torch.float64, names=tuple(SIDES)):
    made = torch.Generator().manual_seed(11)

    def draw(heads, length):
        return torch.randn(BATCH, heads, length, HEAD_DIM, generator=made, dtype=torch.float64).to(dtype)

    inputs = {"query": draw(HEADS, queries), "key": draw(key_heads, keys), "value": draw(key_heads, keys)}
    return inputs | {name: draw(HEADS, queries if SIDES[name] == "query" else keys) for name in names}


def flags_of(*texts, keys=KEYS):
    """is_global (batch, 1, keys, 1) from the positions of each text."""
    return torch.tensor([[at in text for at in range(keys)] for text in texts])[:, None, :, None]


def expected_output(mechanism, inputs, is_global, allowed=None):
    numbers = {name: one if isinstance(one, np.ndarray) else one.detach().numpy() for name, one in inputs.items()}
    return oracle.attention(
        **numbers, window=mechanism.window, is_global=is_global, allowed=allowed, dilation=mechanism.dilations
    )


def call(mechanism, inputs, mask=None, **others):
    return mechanism(
        inputs["query"],
        inputs["key"],
        inputs["value"],
        mask,
        **{name: one for name, one in inputs.items() if name in SIDES},
        **others,
    )


MASKS = {
    "none": lambda queries, keys: None,
    "causal": lambda queries, keys: masks.causal(),
    "padding": lambda queries, keys: masks.padding([keys, 9]),
    "causal & documents & left padding": lambda queries, keys: (
        masks.causal() & masks.documents(torch.arange(keys) // 8) & masks.padding([keys - 4, keys], side="left")
    ),
    "per head": lambda queries, keys: masks.keep(
        torch.rand(1, HEADS, queries, keys, generator=torch.Generator().manual_seed(3)) < 0.6
    ),
}


@parametrize_sample(
    "mask, sizes, which",
    MASKS,
    [
        *((queries, dilation, 320) for queries in (KEYS, 6) for dilation in (1, 3, (1, 1, 2, 4))),
        *((KEYS, dilation, 1) for dilation in (3, (1, 1, 2, 4))),  # with sorted tokens, as for large windows
    ],
    ["option", "per text", "both"],
    one_in=3,
)
def test_agrees_with_the_paper(mask, sizes, which, monkeypatch):
    queries, dilation, min_saved = sizes
    monkeypatch.setattr(longformer, "_MIN_SAVED", min_saved)
    static = () if which == "per text" else (0, 20)
    texts = ((3, 19, 21), ()) if which != "option" else ((), ())
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, dilation=dilation, global_tokens=static)
    inputs, upstream = make_inputs(queries), torch.randn(BATCH, HEADS, queries, VALUE_DIM, dtype=torch.float64)
    of_call, keys = MASKS[mask](queries, KEYS), KEYS
    allowed = None if of_call is None else of_call.dense(queries, keys).numpy()
    is_global = np.array([[at in static or at in text for at in range(keys)] for text in texts])
    others = {} if which == "option" else {"is_global": flags_of(*texts)}
    leaves = {name: one.clone().requires_grad_() for name, one in inputs.items()}
    output = call(mechanism, leaves, of_call, **others)
    expected = expected_output(mechanism, inputs, is_global, allowed)
    np.testing.assert_allclose(output.detach(), expected, atol=1e-12)

    found = torch.autograd.grad(output, list(leaves.values()), upstream)
    gradients = {name: one.numpy() for name, one in zip(leaves, found, strict=True)}
    point = {name: one.numpy() for name, one in inputs.items()}
    check_gradients(
        lambda moved: expected_output(mechanism, moved, is_global, allowed) * upstream.numpy(),
        point,
        gradients,
        atol=1e-10,
    )


@pytest.mark.parametrize("key_heads", [1, 2])
def test_grouped_queries_with_and_without_their_own_projections(key_heads):
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=2, global_tokens=[7])
    is_global = np.tile(np.arange(KEYS) == 7, (BATCH, 1))
    for names in ((), ("global_query",), ("global_value",), tuple(SIDES)):
        inputs = make_inputs(key_heads=key_heads, names=names)
        np.testing.assert_allclose(call(mechanism, inputs), expected_output(mechanism, inputs, is_global), atol=1e-12)


def test_without_projections_equals_the_dot_product_with_its_mask():
    inputs = make_inputs(names=())
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=6, global_tokens=[0, 12])
    mask = masks.window(3, 3) | masks.global_tokens([0, 12])
    expected = regard.attention(*inputs.values(), mask=mask & masks.padding([KEYS, 15]), impl="reference")
    actual = mechanism(*inputs.values(), masks.padding([KEYS, 15]))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


def test_window_over_the_whole_text_equals_exact_attention():
    inputs = make_inputs(names=())
    whole = regard.mechanism(Longformer.traits.approximates, heads=HEADS, head_dim=HEAD_DIM)
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=2 * KEYS, global_tokens=[])
    torch.testing.assert_close(mechanism(*inputs.values()), whole(*inputs.values()), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (7, 7), (8, 8), (3, 7), (3, 8), (7, 5), (8, 5)])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mask", [None, masks.causal(), masks.padding([5, 2])])
def test_texts_around_half_the_window_agree_with_the_paper(queries, keys, dilation, mask):
    """Texts up to a length of 7 are computed as exact attention."""
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=12, dilation=dilation)
    inputs, is_global = make_inputs(queries, keys, names=()), np.tile(np.arange(keys) == 0, (BATCH, 1))
    allowed = None if mask is None else mask.dense(queries, keys).numpy()
    expected = expected_output(mechanism, inputs, is_global, allowed)
    np.testing.assert_allclose(mechanism(*inputs.values(), mask).numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("bias", ["tensor", "row", "alibi", "shaw"])
def test_a_bias_is_added_to_both_kinds_of_scores(bias):
    inputs, mask = make_inputs(names=()), masks.padding([KEYS, 15])
    made = {
        "tensor": lambda: torch.randn(1, HEADS, KEYS, KEYS, dtype=torch.float64),
        "row": lambda: torch.randn(1, 1, 1, KEYS, dtype=torch.float64),
        "alibi": lambda: positions.ALiBi(HEADS),
        "shaw": lambda: positions.ShawRelative(HEAD_DIM, 3).double(),
    }[bias]()
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[])
    is_global = flags_of((2, 9), (1,))
    actual = mechanism(*inputs.values(), mask, bias=made, is_global=is_global)
    pattern = masks.window(2, 2) | masks.global_tokens(is_global[:, 0, :, 0])
    expected = regard.attention(*inputs.values(), mask=mask & pattern, bias=made, impl="reference")
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("is_global", [None, flags_of((3, 19), (8,))], ids=["option", "per text"])
def test_weights_equal_gradients_of_the_output(is_global):
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[5], dilation=2)
    inputs, rows = make_inputs(), torch.tensor([3, 5, 8, 22])
    others = {name: inputs[name] for name in SIDES} | ({} if is_global is None else {"is_global": is_global})
    mask = masks.padding([KEYS, 15])
    actual = mechanism.weights(inputs["query"], inputs["key"], mask=mask, rows=rows, **others)
    del others["global_value"]  # the weights are the same for any values
    request = mechanism.make_request(inputs["query"], inputs["key"], inputs["value"], mask, None, others)
    torch.testing.assert_close(actual, weights_by_gradient(mechanism.attend, request, rows), rtol=0, atol=1e-13)
    torch.testing.assert_close(actual.sum(-1), torch.ones_like(actual[..., 0]), rtol=0, atol=1e-13)


def test_steps_are_available_without_global_projections():
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[5])
    inputs, mask = make_inputs(), masks.causal()
    triple = [inputs[name] for name in ("query", "key", "value")]
    steps = mechanism.steps(mechanism.make_request(*triple, mask, None))
    torch.testing.assert_close(steps.weights(), mechanism.weights(*triple[:2], mask=mask), rtol=0, atol=1e-13)
    others = {name: inputs[name] for name in SIDES}
    assert mechanism.steps(mechanism.make_request(*triple, mask, None, others)) is None


def test_unused_projections_have_no_influence():
    """The ordinary query of a global token, and the global queries of ordinary ones, may hold NaN."""
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[])
    inputs, is_global = make_inputs(), flags_of((3, 19), (8,))
    before = call(mechanism, inputs, is_global=is_global)
    marked = is_global.expand(BATCH, HEADS, KEYS, HEAD_DIM)
    changed = inputs | {
        "query": inputs["query"].masked_fill(marked, torch.nan),
        "global_query": inputs["global_query"].masked_fill(~marked, torch.nan),
    }
    leaves = {name: one.clone().requires_grad_() for name, one in changed.items()}
    after = call(mechanism, leaves, is_global=is_global)
    assert torch.equal(after, before)
    after.sum().backward()
    assert not leaves["query"].grad[marked].any()
    assert not leaves["global_query"].grad[~marked].any()
    assert all(leaf.grad.isfinite().all() for leaf in leaves.values())


@pytest.mark.parametrize("mask", [name for name in MASKS if name != "none"])
def test_masked_tokens_have_no_influence_through_any_projection(mask):
    """Poisons keys that are hidden from every query, in all six tensors, and queries that see no keys."""
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[])
    mask = MASKS[mask](KEYS, KEYS) & masks.padding([KEYS, 11])
    inputs, is_global = make_inputs(), flags_of((3, 19), (8, 20))
    allowed = mask.dense(KEYS, KEYS).expand(BATCH, HEADS, KEYS, KEYS)
    unseen, blind = ~allowed.any(2)[..., None], ~allowed.any(3)[..., None]
    marks = {name: blind if "query" in name else unseen for name in inputs}
    results = []
    for poison in (1.0, torch.nan, torch.inf):
        leaves = {name: one.masked_fill(marks[name], poison).requires_grad_() for name, one in inputs.items()}
        output = call(mechanism, leaves, mask, is_global=is_global)
        results.append((output, *torch.autograd.grad(output.square().sum(), list(leaves.values()))))
        assert not output[blind.expand_as(output)].any()
        for mark, gradient in zip(marks.values(), results[-1][1:], strict=True):
            assert not gradient[mark.expand_as(gradient)].any()
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_errors_in_other_dtypes_are_within_rounding(dtype):
    mechanism = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[])
    inputs, is_global = make_inputs(dtype=dtype), flags_of((3, 19), (8,))
    actual = call(mechanism, inputs, is_global=is_global)
    expected = expected_output(
        mechanism, {name: one.double() for name, one in inputs.items()}, is_global[:, 0, :, 0].numpy()
    )
    assert actual.dtype == dtype
    assert np.abs(actual.double().numpy() - expected).max() <= 8 * torch.finfo(dtype).eps * np.abs(expected).max()


@pytest.mark.parametrize("mask", [None, masks.causal() & masks.padding([2000, 700])], ids=["none", "causal & padding"])
def test_no_dense_mask_is_built(mask, monkeypatch, without_shape_checks):
    dense = Mask.dense

    def checked(self, queries, keys, *, device=None, rows=None):
        assert (queries if rows is None else len(rows)) * keys < 2**16, self
        return dense(self, queries, keys, device=device, rows=rows)

    monkeypatch.setattr(Mask, "dense", checked)
    mechanism = regard.mechanism("longformer", heads=2, head_dim=4, window=64, global_tokens=[0, 900])
    query = torch.randn(2, 2, 2048, 4, requires_grad=True)
    mechanism(query, query, query, mask, global_query=-query).sum().backward()


def test_layers_project_global_tokens_and_share_their_masks():
    options = {"window": 4, "global_tokens": [0]}
    layer = regard.MultiHeadAttention(
        16, 4, mechanism="longformer", mechanism_options=options, position=positions.Rotary(4)
    )
    assert list(layer.input_projections) == ["global_query", "global_key", "global_value"]
    tokens, mask = torch.randn(2, 9, 16), masks.padding([9, 5])
    first = layer(tokens, mask=mask)
    assert torch.equal(layer(tokens, mask=mask), first)
    assert torch.equal(copy.deepcopy(layer)(tokens, mask=mask), first)
    with torch.no_grad():
        layer.input_projections["global_value"].weight.zero_()
        layer.input_projections["global_value"].bias.zero_()
    changed = layer(tokens, mask=mask)
    assert torch.equal(changed[:, 1:], first[:, 1:])
    assert torch.equal(changed[:, :1], layer.output_projection(torch.zeros(2, 1, 16)))
    plain = regard.MultiHeadAttention(
        16, 4, mechanism="longformer", mechanism_options={"window": 4, "global_tokens": [], "global_projections": False}
    )
    assert not plain.input_projections
    marked = plain(tokens, is_global=flags_of((0,), (2,), keys=9))
    assert not torch.equal(marked, plain(tokens))


@pytest.mark.parametrize(
    ("is_global", "positions_of_global_tokens"),
    [(None, [2]), (flags_of((3, 8), (8,), keys=9), [2, 3, 8]), ("none", [])],
    ids=str,
)
def test_layers_project_only_global_tokens(is_global, positions_of_global_tokens):
    options = {"window": 4, "global_tokens": [2] if is_global != "none" else []}
    layer = regard.MultiHeadAttention(16, 4, mechanism="longformer", mechanism_options=options)
    lengths = {}
    for name, projection in layer.input_projections.items():
        projection.register_forward_pre_hook(lambda _, given, name=name: lengths.update({name: given[0].shape[1]}))
    tokens, inputs = torch.randn(2, 9, 16), {"is_global": is_global} if isinstance(is_global, torch.Tensor) else {}
    actual = layer(tokens, **inputs)
    assert lengths == (
        {"global_query": len(positions_of_global_tokens), "global_key": 9, "global_value": 9}
        if positions_of_global_tokens
        else {}
    )
    every = {name: layer._project_heads(tokens, one, "query") for name, one in layer.input_projections.items()}
    triple = (layer.query_projection, layer.key_projection, layer.value_projection)
    expected = layer.mechanism(*(layer._project_heads(tokens, one, "query") for one in triple), **every, **inputs)
    torch.testing.assert_close(actual, layer._merge_heads(expected, layer.mechanism, tokens))
    state, parts = layer.empty_cache(), []
    for at in range(9):
        part, state = layer(tokens[:, at : at + 1], mask=masks.causal(), cache=state)
        parts.append(part)
    whole = layer(tokens, mask=masks.causal())
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


def refuse_to_compute(self):
    raise AssertionError("the projection was computed")


@parametrize_sample("mask, which, bias", MASKS, ["option", "per text"], [True, False], one_in=2)
def test_few_global_queries_attend_to_tokens_instead_of_projections(mask, which, bias, monkeypatch):
    """The projections of keys and values for global queries are never computed; outputs and gradients are the same."""
    width = HEADS * HEAD_DIM
    options = {"window": 4, "global_tokens": [0, 20] if which == "option" else []}
    layer = regard.MultiHeadAttention(width, HEADS, mechanism="longformer", mechanism_options=options, bias=bias)
    layer = layer.double()
    monkeypatch.setattr(TokenProjection, "compute", refuse_to_compute)
    made = torch.Generator().manual_seed(8)
    numbers = {"tokens": torch.randn(BATCH, KEYS, width, generator=made, dtype=torch.float64)}
    for name, one in layer.named_parameters():
        numbers[name] = torch.randn(one.shape, generator=made, dtype=torch.float64) / 3
    of_call = MASKS[mask](KEYS, KEYS)
    if mask == "padding":
        of_call = masks.padding([KEYS, 0])  # a text without any token
    allowed = None if of_call is None else of_call.dense(KEYS, KEYS).numpy()
    texts = ((0, 20), (0, 20)) if which == "option" else ((19,), (3,))
    is_global = np.array([[at in text for at in range(KEYS)] for text in texts])
    others = {} if which == "option" else {"is_global": flags_of(*texts)}

    def expected(given):
        def project(projection, tokens):
            return tokens @ given[f"{projection}.weight"].T + given.get(f"{projection}.bias", 0)

        def heads(projection):
            return project(projection, given["tokens"]).reshape(BATCH, KEYS, HEADS, -1).swapaxes(1, 2)

        sides = {side: heads(f"{side}_projection") for side in ("query", "key", "value")}
        sides |= {side: heads(f"input_projections.{side}") for side in SIDES}
        mixed = oracle.attention(**sides, window=4, is_global=is_global, allowed=allowed, dilation=(1,))
        return project("output_projection", mixed.swapaxes(1, 2).reshape(BATCH, KEYS, width))

    leaves = {name: one.clone().requires_grad_() for name, one in numbers.items()}
    parameters = {name: one for name, one in leaves.items() if name != "tokens"}
    output = torch.func.functional_call(layer, parameters, (leaves["tokens"],), {"mask": of_call, **others})
    arrays = {name: one.numpy() for name, one in numbers.items()}
    np.testing.assert_allclose(output.detach(), expected(arrays), atol=1e-12)
    upstream = torch.randn(output.shape, generator=made, dtype=torch.float64)
    found = torch.autograd.grad(output, list(leaves.values()), upstream)
    gradients = {name: one.numpy() for name, one in zip(leaves, found, strict=True)}
    check_gradients(lambda moved: expected(moved) * upstream.numpy(), arrays, gradients, atol=1e-9)


@pytest.mark.parametrize("case", ["rotation", "bias", "dropout", "many global tokens", "another module"])
def test_projections_of_global_tokens_are_computed_where_they_are_needed(case):
    width, options = HEADS * 6, {"window": 4, "global_tokens": [0, 1, 2, 3] if "many" in case else [0]}
    position = {"rotation": positions.Rotary(6), "bias": positions.ALiBi(HEADS)}.get(case)
    layer = regard.MultiHeadAttention(
        width, HEADS, mechanism="longformer", mechanism_options=options, position=position, dropout=0.5
    ).train(case == "dropout")
    if case == "another module":
        for name, one in layer.input_projections.items():
            layer.input_projections[name] = torch.nn.utils.parametrizations.weight_norm(one)
    tokens = torch.randn(2, KEYS, width)
    every = {name: layer._project_heads(tokens, one, "query") for name, one in layer.input_projections.items()}
    triple = (layer.query_projection, layer.key_projection, layer.value_projection)
    sides = [layer._project_heads(tokens, one, "query") for one in triple]
    if case == "rotation":
        sides[:2] = (layer._rotate(one, (0,)) for one in sides[:2])
        every |= {name: layer._rotate(every[name], (0,)) for name in ("global_query", "global_key")}
    torch.manual_seed(3)
    expected = layer.mechanism(*sides, **every, bias=layer._bias)
    torch.manual_seed(3)
    torch.testing.assert_close(layer(tokens), layer._merge_heads(expected, layer.mechanism, tokens))


def test_a_recorded_call_has_the_projections_that_were_not_computed():
    width = HEADS * HEAD_DIM
    layer = regard.MultiHeadAttention(width, HEADS, mechanism="longformer", mechanism_options={"window": 4})
    tokens = torch.randn(2, KEYS, width)
    plain = layer(tokens)
    with regard.record(layer) as seen:
        assert torch.equal(layer(tokens), plain)
    (one,) = seen
    for name in ("global_key", "global_value"):
        projected = layer._project_heads(tokens, layer.input_projections[name], "key")
        torch.testing.assert_close(one.inputs[name], projected)
        assert not one.inputs[name].requires_grad
    mixed = one.weights([0]) @ one.inputs["global_value"]
    torch.testing.assert_close(mixed, layer.mechanism(one.query, one.key, one.value, **one.inputs)[:, :, :1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_few_global_queries_in_half_precision_and_autocast(dtype):
    width = HEADS * HEAD_DIM
    layer = regard.MultiHeadAttention(width, HEADS, mechanism="longformer", mechanism_options={"window": 4})
    tokens = torch.randn(2, KEYS, width)
    exact = layer(tokens)
    with torch.autocast("cpu", dtype):
        for one in (layer(tokens), layer(tokens, tokens.clone())):
            torch.testing.assert_close(one.float(), exact, atol=0.03, rtol=0.03)
    torch.testing.assert_close(layer.to(dtype)(tokens.to(dtype)).float(), exact, atol=0.03, rtol=0.03)


def test_a_hidden_nan_has_no_influence_on_few_global_queries():
    width = HEADS * HEAD_DIM
    layer = regard.MultiHeadAttention(width, HEADS, mechanism="longformer", mechanism_options={"window": 4})
    tokens, mask = torch.randn(2, KEYS, width), masks.padding([KEYS, 9])
    clean = layer(tokens, mask=mask)
    tokens[1, 9:] = torch.nan
    tokens.requires_grad_()
    output = layer(tokens, mask=mask)
    assert torch.equal(output[1, :9], clean[1, :9])
    (gradient,) = torch.autograd.grad(output[0].sum() + output[1, :9].sum(), tokens)
    assert torch.equal(gradient[1, 9:], torch.zeros_like(gradient[1, 9:]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 5}, "wrong window.*even number.*got: +5.*window=6"),
        ({"window": 0}, "wrong window.*got: +0"),
        ({"dilation": [1, 2]}, "wrong dilation.*each of 4 heads"),
        ({"dilation": 0}, "wrong dilation"),
        ({"global_tokens": 0}, "wrong global_tokens.*a list of positions"),
        ({"global_tokens": [-1]}, "wrong position in global_tokens.*got: +-1.*for example 8$"),
        ({"global_projections": "yes"}, "wrong global_projections"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(OptionError, match=f"(?s){message}"):
        Longformer(heads=HEADS, head_dim=HEAD_DIM, **options)


def test_invalid_inputs_are_refused():
    mechanism, inputs = Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[]), make_inputs(names=())
    with pytest.raises(ShapeError, match=r"(?s)is_global does not fit.*\(2, 1, 23, 1\)"):
        call(mechanism, inputs, is_global=flags_of((1,), (2,), keys=5))
    with pytest.raises(DtypeError, match="global_query"):
        call(mechanism, inputs, global_query=inputs["query"].float())
    wide = inputs | {"value": torch.randn(BATCH, HEADS, KEYS, 7, dtype=torch.float64)}
    with pytest.raises(RefusedError, match=r"(?s)refuses: a global value has 5 numbers.*other values have 7"):
        call(mechanism, wide, global_value=inputs["value"])
    meta = {name: one.to("meta") for name, one in inputs.items()}
    with pytest.raises(RefusedError, match=r"(?s)refuses: is_global decides how many"):
        call(mechanism, meta, is_global=flags_of((1,), (2,)).to("meta"))


def test_recorded_steps_have_the_weights_of_the_whole_sequence():
    """Only the second of the tokens is global, and each step is one call."""
    layer = regard.MultiHeadAttention(
        16, 4, mechanism="longformer", mechanism_options={"window": 4, "global_tokens": [1]}
    )
    tokens, state = torch.randn(1, 7, 16), layer.empty_cache()
    with torch.no_grad(), regard.record(layer) as whole:
        layer(tokens, mask=masks.causal())
    with torch.no_grad(), regard.record(layer) as steps:
        for token in tokens.split(1, dim=1):
            _, state = layer(token, mask=masks.causal(), cache=state)
    actual = torch.cat([torch.nn.functional.pad(step.weights(), (0, 6 - at)) for at, step in enumerate(steps)], dim=2)
    torch.testing.assert_close(actual, whole[0].weights())
    assert all(set(step.inputs) == set(SIDES) for step in steps)


@pytest.mark.parametrize("name", SIDES)
def test_global_inputs_are_mapped_by_torch_func(name):
    inputs, mechanism = make_inputs(), Longformer(heads=HEADS, head_dim=HEAD_DIM, window=4)
    many = torch.randn(3, *inputs[name].shape, dtype=torch.float64)

    def compute(one):
        return call(mechanism, {**inputs, name: one})

    torch.testing.assert_close(torch.func.vmap(compute)(many), torch.stack([compute(one) for one in many]))
