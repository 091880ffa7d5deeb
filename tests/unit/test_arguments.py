"""Unknown arguments: torch's names raise an error that gives regard's names, and signatures are unchanged."""

import enum
import importlib
import inspect
import pickle
import pkgutil
from fractions import Fraction

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.errors import ArgumentError, DtypeError, OptionError, RegardError
from regard.layers import FeedForward, MultiHeadAttention, encoder_block
from regard.models import Bert, BertConfig
from regard.search import Beam

pytestmark = pytest.mark.usefixtures("without_shape_checks")

QUERY = torch.zeros(1, 2, 3, 5)
TOKENS = torch.zeros(1, 3, 6)
FOREIGN = {
    "attention": (lambda **other: regard.attention(QUERY, QUERY, QUERY, **other), "attention"),
    "why": (lambda **other: regard.why(QUERY, QUERY, QUERY, **other), "why"),
    "observe": (lambda **other: regard.observe(QUERY, QUERY, QUERY, **other), "observe"),
    "mechanism": (
        lambda **other: regard.mechanism("additive", heads=2, head_dim=5)(QUERY, QUERY, QUERY, **other),
        "Additive",
    ),
    "layer": (lambda **other: MultiHeadAttention(6, 2)(TOKENS, **other), "MultiHeadAttention"),
    "block": (lambda **other: encoder_block(6, 2, 7)(TOKENS, **other), "EncoderBlock"),
}
MASKS = {
    "attn_mask": "masks.from_sdpa(attn_mask)",
    "key_padding_mask": "masks.from_multihead_attention(key_padding_mask=...)",
    "attention_mask": "masks.from_transformers(attention_mask)",
    "is_causal": "masks.causal()",
    "need_weights": "regard.observe",
    "output_attentions": "regard.record",
    "head_mask": "output_projection.weight",
    "enable_gqa": "leave it out",
}


@pytest.mark.parametrize("function", FOREIGN)
@pytest.mark.parametrize("name", MASKS)
def test_arguments_of_torch_get_regards_names(function, name):
    call, own_name = FOREIGN[function]
    with pytest.raises(ArgumentError) as caught:
        call(**{name: torch.zeros(3, 7, dtype=torch.bool)})
    assert isinstance(caught.value, RegardError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.what == f"{own_name} has no argument {name!r}"
    assert "mask" in caught.value.expected.split(", ")
    assert caught.value.got == f"{name}=Tensor torch.bool (3, 7)"
    assert MASKS[name] in caught.value.do
    assert caught.value.__cause__ is caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: regard.attention(QUERY, QUERY, QUERY, dropout_p=0.1), "dropout="),
        (lambda: regard.attention(QUERY, QUERY, QUERY, msk=None), "did you mean 'mask'"),
        (lambda: MultiHeadAttention(embed_dim=6, num_heads=2), "width="),
        (lambda: MultiHeadAttention(6, num_heads=2), "heads="),
        (lambda: MultiHeadAttention(6, 2, batch_first=True), "leave it out"),
        (lambda: MultiHeadAttention(6, 2, kdim=5), "key_width="),
        (lambda: FeedForward(6, dim_feedforward=5), "inner="),
        (lambda: encoder_block(6, 2, 7, norm_first=True), 'norm="pre"'),
        (lambda: regard.mechanism("additive", num_heads=2, head_dim=5), "heads="),
        (lambda: BertConfig(hidden_size=6), "width="),
        (lambda: Bert(BertConfig(11, 6, 1, 2, 7, 5))(input_ids=QUERY), "ids="),
        (lambda: Beam(num_beams=3), "width="),
        (lambda: regard.load("minilm", map_location="cpu"), "choose one from the list"),
        (lambda: regard.record(TOKENS, names=3), "choose one from the list"),
    ],
)
def test_unknown_arguments_of_constructors_and_misspellings(call, message):
    with pytest.raises(ArgumentError, match=r"has no argument") as caught:
        call()
    assert message in caught.value.do


@pytest.mark.parametrize(
    ("call", "what", "got"),
    [
        (lambda: regard.attention(QUERY, QUERY, QUERY, None), "too many positional arguments", "4 positional"),
        (lambda: regard.attention(QUERY), "missing a required argument: 'key'", "1 positional, by name: none"),
        (lambda: MultiHeadAttention(6), "missing a required argument: 'heads'", "1 positional"),
        (
            lambda: MultiHeadAttention(6, 2)(TOKENS, TOKENS, TOKENS, None),
            "too many positional arguments",
            "4 positional",
        ),
        (lambda: MultiHeadAttention.forward(), "missing a required argument: 'self'", "0 positional"),
        (lambda: regard.observe(QUERY, value=QUERY), "missing a required argument: 'key'", "by name: value"),
    ],
)
def test_too_many_and_too_few_arguments(call, what, got):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert what in caught.value.what
    assert "(" in caught.value.expected
    assert got in caught.value.got


def test_signatures_are_preserved():
    assert list(inspect.signature(regard.attention).parameters) == [
        *("query", "key", "value", "mask", "bias", "scale", "softcap", "sinks", "dropout", "impl")
    ]
    assert list(inspect.signature(MultiHeadAttention).parameters)[:2] == ["width", "heads"]
    assert list(inspect.signature(MultiHeadAttention.forward).parameters)[1:] == [
        *("query", "key", "value", "mask", "bias", "cache", "inputs")
    ]
    assert pickle.loads(pickle.dumps(regard.attention)) is regard.attention


def test_other_type_errors_are_unchanged():
    with pytest.raises(DtypeError, match="query is not a tensor"):
        regard.attention([1.0], QUERY, QUERY)

    class Broken(masks.Mask):
        def mask_mod(self, queries, keys, *, device=None):
            raise TypeError("a defect of a mask of one's own")

    with pytest.raises(TypeError, match="a defect") as caught:
        regard.attention(QUERY, QUERY, QUERY, mask=Broken())
    assert not isinstance(caught.value, RegardError)


def test_values_are_shown_in_one_short_line():
    huge = "x\n" * 5000
    for value in (huge, [huge], {"a": huge}, np.zeros((100, 100)), torch.zeros(100, 100), 10**10000, object()):
        with pytest.raises(OptionError) as caught:
            regard.attention(QUERY, QUERY, QUERY, impl=value)
        assert max(map(len, str(caught.value).splitlines())) < 160
        assert len(str(caught.value).splitlines()) == 4


def test_the_mask_of_weights_is_passed_by_name():
    """They do not depend on values, so a place after the key would mean another thing than in a call."""
    mechanism = regard.mechanism("additive", heads=2, head_dim=5)
    for by_place in ((masks.causal(),), (QUERY, masks.causal())):
        with pytest.raises(ArgumentError, match=r"Additive.weights: too many positional arguments") as caught:
            mechanism.weights(QUERY, QUERY, *by_place)
        assert caught.value.expected.startswith("Additive.weights(query, key, *, mask=None")
        assert "mask=..." in caught.value.do
    weights = mechanism.weights(QUERY, QUERY, mask=masks.causal())
    assert not weights.triu(1).any()


@pytest.mark.parametrize(
    ("call", "what", "do"),
    [
        (lambda: masks.window(4), "window: missing a required argument: 'right'", "for example masks.window(4, 0)"),
        (
            lambda: masks.padding(),
            "padding: missing a required argument: 'lengths'",
            "for example masks.padding([7, 3])",
        ),
        (
            lambda: MultiHeadAttention(6, bias=False),
            "'heads'",
            "for example MultiHeadAttention(6, bias=False, heads=...)",
        ),
        (lambda: FeedForward(inner=7), "'width'", "for example FeedForward(inner=7, width=...)"),
    ],
)
def test_a_missing_argument_is_named_in_a_call(call, what, do):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert what in caught.value.what
    assert do in caught.value.do


@pytest.mark.parametrize(
    "call",
    [
        lambda: MultiHeadAttention(32, 4, mechanism="longformer", window=3),
        lambda: encoder_block(32, 4, 64, mechanism="longformer", window=3),
        lambda: regard.models.TransformerEncoderConfig(11, 32, 1, 4, mechanism="longformer", window=3),
    ],
)
def test_an_option_of_a_mechanism_is_shown_in_mechanism_options(call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert 'mechanism_options={"window": 3}' in caught.value.do


@pytest.mark.parametrize(
    "call",
    [
        lambda number: regard.attention(QUERY, QUERY, QUERY, dropout=number),
        lambda number: regard.attention(QUERY, QUERY, QUERY, scale=number),
        lambda number: regard.attention(QUERY, QUERY, QUERY, softcap=number),
        lambda number: regard.mechanism("additive", heads=2, head_dim=5, dropout=number),
        lambda number: MultiHeadAttention(6, 2, dropout=number),
        lambda number: regard.layers.Dropout(number),
        lambda number: regard.layers.RMSNorm(5, epsilon=number),
        lambda number: BertConfig(11, 6, 1, 2, 7, 5, dropout=number),
    ],
)
def test_a_number_of_another_type_is_refused_with_its_conversion(call):
    """Kernels and files of settings take floats: a fraction ended in an error of torch, or of json."""
    with pytest.raises(OptionError) as caught:
        call(Fraction(1, 2))
    assert caught.value.do == "convert it to a float: float(Fraction(1, 2))"


def public_callables():
    """Functions and classes that packages list, but for abstract classes, protocols, errors, and tuples of results."""
    names = [module.name for module in pkgutil.iter_modules(regard.__path__) if module.ispkg]
    packages = [regard, *(importlib.import_module(f"regard.{name}") for name in names if name not in ("cli",))]
    found = {}
    for package in packages:
        for name in getattr(package, "__all__", ()):
            one = getattr(package, name)
            if inspect.isfunction(one) or (inspect.isclass(one) and not inspect.isabstract(one)):
                found[f"{package.__name__}.{name}"] = one
    kinds = (BaseException, tuple, enum.Enum)
    return {
        name: one
        for name, one in found.items()
        if not (inspect.isclass(one) and (issubclass(one, kinds) or getattr(one, "_is_protocol", False)))
    }


def test_every_public_call_explains_missing_and_unknown_arguments():
    wrong = []
    for name, one in public_callables().items():
        parameters = inspect.signature(one).parameters.values()
        needed = [each.name for each in parameters if each.default is each.empty and "VAR" not in each.kind.name]
        calls = [({}, f"missing a required argument: {needed[0]!r}")] if needed else []
        if not any(each.kind is each.VAR_KEYWORD for each in parameters):
            calls.append((dict.fromkeys(needed) | {"unheard_of": 1}, "has no argument 'unheard_of'"))
        for arguments, what in calls:
            try:
                one(**arguments)
            except ArgumentError as error:
                if what in error.what:
                    continue
            except TypeError:
                pass
            wrong.append((name, what))
    assert not wrong
    assert len(public_callables()) > 200
