"""Every message says what was wrong, what was expected, what was got, and what to do."""

import pickle
import re

import pytest
import torch

import regard
from regard import masks, positions
from regard.errors import (
    CheckpointError,
    DataError,
    DeviceError,
    DtypeError,
    MissingPackageError,
    OptionError,
    OutputExistsError,
    RefusedError,
    RegardError,
    ShapeError,
)
from regard.layers import FeedForward, KeyValueCache, MultiHeadAttention, decoder_block, encoder_block

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def attend(query=(2, 3, 5, 7), key=(2, 3, 11, 7), value=(2, 3, 11, 13), **options):
    return regard.attention(
        *(zeros(*side) if isinstance(side, tuple) else side for side in (query, key, value)), **options
    )


def observe(**options):
    return regard.observe(zeros(2, 3, 5, 7), zeros(2, 3, 11, 7), zeros(2, 3, 11, 13), **options)


def layer(*args, **options):
    return lambda: MultiHeadAttention(*args, **options)


def layer_call(tokens, **options):
    return lambda: MultiHeadAttention(15, 3)(tokens, **options)


class Doubled(torch.nn.Module):
    def forward(self, tokens):
        return 2 * tokens


def _record_without_attention():
    model = Doubled()
    with regard.record(model):
        model(zeros(2, 3))


def make_cache(key: torch.Tensor, value: torch.Tensor):
    return KeyValueCache.empty().extended(zeros(1, 2, 3, 5), zeros(1, 2, 3, 5)).extended(key, value)


bools = torch.ones(5, 11, dtype=torch.bool)
MESSAGES = {
    # public functions
    "not a tensor": (lambda: attend(query=[[1.0]]), DtypeError, "query is not a tensor", "Tensor", "list", "as_tensor"),
    "dtypes differ": (
        lambda: attend(key=zeros(2, 3, 11, 7, dtype=torch.float64)),
        DtypeError,
        "different dtypes",
        "one dtype",
        "query torch.float32, key torch.float64, value torch.float32",
        ".to(",
    ),
    "integers": (
        lambda: attend(*(zeros(2, 3, 5, 7, dtype=torch.long) for _ in range(3))),
        DtypeError,
        "floating-point",
        "bfloat16",
        "torch.int64",
        ".float()",
    ),
    "devices differ": (
        lambda: attend(key=zeros(2, 3, 11, 7, device="meta")),
        DeviceError,
        "different devices",
        "one device",
        "key meta",
        ".to(query.device)",
    ),
    "three dimensions": (
        lambda: attend((2, 5, 7), (2, 5, 7), (2, 5, 7)),
        ShapeError,
        "four dimensions",
        "(batch, heads, queries, head_dim)",
        "query (2, 5, 7)",
        "unflatten",
    ),
    "batch": (lambda: attend(key=(1, 3, 11, 7)), ShapeError, "batch sizes", "batch", "key (1, 3, 11, 7)", "."),
    "key heads": (lambda: attend(value=(2, 1, 11, 7)), ShapeError, "numbers of heads", "key_heads", "value (2, 1", "."),
    "groups": (
        lambda: attend(key=(2, 2, 11, 7), value=(2, 2, 11, 7)),
        ShapeError,
        "not a multiple",
        "heads a multiple of key_heads",
        "key (2, 2, 11, 7)",
        ".",
    ),
    "lengths": (lambda: attend(value=(2, 3, 10, 7)), ShapeError, "different lengths", "keys", "value (2, 3, 10", "."),
    "head_dim": (lambda: attend(key=(2, 3, 11, 6)), ShapeError, "head_dim", "head_dim", "key (2, 3, 11, 6)", "."),
    "head_dim of 0": (
        lambda: attend((2, 3, 5, 0), (2, 3, 5, 0), (2, 3, 5, 7)),
        ShapeError,
        "head_dim is 0",
        "",
        "",
        "",
    ),
    "bare mask": (lambda: attend(mask=bools), OptionError, "not a regard mask", "regard.masks", "bool (5, 11)", "keep"),
    "mask of text": (
        lambda: attend(mask="causal"),
        OptionError,
        "not a regard mask",
        "",
        "'causal', a str",
        "causal()",
    ),
    "mask not called": (
        lambda: attend(mask=masks.causal),
        OptionError,
        "not a regard mask",
        "regard.masks",
        "the function causal",
        "call it: masks.causal()",
    ),
    "padding not called": (
        lambda: attend(mask=masks.padding),
        OptionError,
        "not a regard mask",
        "regard.masks",
        "the function padding",
        "call it: masks.padding([7, 3])",
    ),
    "mask of True": (lambda: attend(mask=True), OptionError, "not a regard mask", "", "True, a bool", "masks.causal()"),
    "mask of a list": (lambda: attend(mask=[[True]]), OptionError, "not a regard mask", "", "a list", "masks.keep"),
    "mask of NumPy": (
        lambda: attend(mask=bools.numpy()),
        OptionError,
        "not a regard mask",
        "regard.masks",
        "ndarray bool (5, 11)",
        "masks.keep",
    ),
    "mask of a batch": (
        lambda: attend(mask=masks.padding([1] * 5)),
        ShapeError,
        "batch size",
        "2",
        "batch of 5",
        "batch",
    ),
    "mask of heads": (
        lambda: attend(mask=masks.keep(bools[None, None].expand(1, 5, 5, 11))),
        ShapeError,
        "number of heads",
        "3 heads",
        "for 5 heads",
        "query head",
    ),
    "mask of keys": (lambda: attend(mask=masks.keep(bools[:, :7])), ShapeError, "keys", "11 keys", "7 keys", "axes"),
    "mask of queries": (
        lambda: attend(mask=masks.keep(bools[:3])),
        ShapeError,
        "queries",
        "5 queries",
        "3 queries",
        "axes",
    ),
    "padding too long": (
        lambda: attend(mask=masks.padding([12, 3])),
        ShapeError,
        "larger",
        "at most 11",
        "[12, 3]",
        "cache",
    ),
    "documents": (
        lambda: attend(mask=masks.documents([[0] * 7] * 2)),
        ShapeError,
        "document ids",
        "11 keys",
        "7",
        "query_ids",
    ),
    "bias of text": (lambda: attend(bias="alibi"), OptionError, "neither", "ALiBi", "str", "Rotary"),
    "rotary as bias": (lambda: attend(bias=positions.Rotary(6)), OptionError, "neither", "ALiBi", "Rotary", "before"),
    "bool bias": (
        lambda: attend(bias=bools[None, None]),
        DtypeError,
        "bias",
        "floating-point",
        "torch.bool",
        "masks.keep",
    ),
    "bias elsewhere": (
        lambda: attend(bias=zeros(1, 1, 5, 11, device="meta")),
        DeviceError,
        "bias",
        "cpu",
        "meta",
        ".to(",
    ),
    "bias shape": (
        lambda: attend(bias=zeros(5, 11)),
        ShapeError,
        "bias",
        "(2, 3, 5, 11)",
        "(5, 11)",
        "bias[None, None]",
    ),
    "bias size": (
        lambda: attend(bias=zeros(1, 2, 5, 11)),
        ShapeError,
        "bias",
        "(2, 3, 5, 11)",
        "(1, 2, 5, 11)",
        "size 1",
    ),
    "bias heads": (
        lambda: attend(bias=positions.ALiBi(4)),
        ShapeError,
        "ALiBi",
        "3 heads",
        "4 heads",
        "number of heads",
    ),
    "shaw": (
        lambda: attend(bias=positions.ShawRelative(5)),
        ShapeError,
        "ShawRelative",
        "head_dim 7",
        "5",
        "head_dim=7",
    ),
    "shaw values": (lambda: attend(bias=positions.ShawRelative(7)), ShapeError, "value_dim", "13", "7", "value_dim=13"),
    "scale": (lambda: attend(scale=float("nan")), OptionError, "scale", "finite", "nan", "query"),
    "scale of text": (lambda: attend(scale="big"), OptionError, "scale", "finite", "'big'", "query"),
    "dropout": (lambda: attend(dropout=1.0), OptionError, "dropout", "0 <= dropout < 1", "1.0", "0.1"),
    "dropout of text": (lambda: attend(dropout="a"), OptionError, "dropout", "0 <= dropout < 1", "'a'", "0.1"),
    "impl": (
        lambda: attend(impl="refrence"),
        OptionError,
        "impl 'refrence'",
        "auto, flex, native, reference, sdpa",
        "",
        "'reference'",
    ),
    "flex on a CPU": (lambda: attend(impl="flex"), RefusedError, "CUDA or XPU", "exactly", "on cpu", 'impl="auto"'),
    "sdpa observes": (lambda: observe(impl="sdpa"), RefusedError, "statistics", "", "mask None", "auto"),
    "top": (lambda: observe(top=-1), OptionError, "top", "0 or more", "-1", "top=8"),
    "top of True": (lambda: observe(top=True), OptionError, "top", "0 or more", "True", "top=8"),
    "rows": (lambda: observe(rows=[0, 5]), OptionError, "rows", "from -5 to 4", "[0, 5]", "from 0"),
    "rows of text": (lambda: observe(rows=["it"]), OptionError, "rows", "integers", "it", "from 0"),
    "rows of halves": (lambda: observe(rows=[0.5]), OptionError, "rows", "integers", "0.5", "from 0"),
    # mechanisms
    "mechanism": (
        lambda: regard.mechanism("dotproduct", heads=2, head_dim=4),
        OptionError,
        "mechanism 'dotproduct'",
        "additive, bigbird, ",
        "",
        "'dot_product'?",
    ),
    "option": (
        lambda: regard.mechanism("additive", heads=2, head_dim=4, iner=3),
        OptionError,
        "option of mechanism 'additive'",
        "dropout, impl, inner",
        "'iner'",
        "'inner'",
    ),
    "heads": (lambda: regard.mechanism("additive", heads=0, head_dim=4), OptionError, "heads", "1 or more", "0", ""),
    "impl of a mechanism": (
        lambda: regard.mechanism("dot_product", heads=2, head_dim=4, impl="fast"),
        OptionError,
        "impl 'fast'",
        "auto, flex, native, reference, sdpa",
        "",
        "",
    ),
    "scale of a mechanism": (
        lambda: regard.mechanism("dot_product", heads=2, head_dim=4, scale=float("inf")),
        OptionError,
        "scale",
        "finite",
        "inf",
        "",
    ),
    # masks
    "window": (lambda: masks.window(-1, 2), OptionError, "left", "0 or more", "-1", ""),
    "window of halves": (lambda: masks.window(1, 2.5), OptionError, "right", "integer", "2.5", ""),
    "alignment": (lambda: masks.causal(align="top"), OptionError, "'top'", "end, start", "", ""),
    "padding side": (lambda: masks.padding([1], side="both"), OptionError, "'both'", "left, right", "", ""),
    "padding matrix": (
        lambda: masks.padding(zeros(2, 3, dtype=torch.long)),
        ShapeError,
        "one length",
        "(batch,)",
        "(2, 3)",
        "padding_of",
    ),
    "padding of floats": (
        lambda: masks.padding(zeros(2)),
        DtypeError,
        "integer lengths",
        "integers",
        "float32",
        "keep",
    ),
    "negative length": (lambda: masks.padding([3, -1]), OptionError, "negative", "0 or more", "[3, -1]", "count"),
    "padding_of": (
        lambda: masks.padding_of(zeros(3, dtype=torch.long), 0),
        ShapeError,
        "matrix",
        "(batch, keys)",
        "(3,)",
        "ids[None]",
    ),
    "keep": (lambda: masks.keep(zeros(5, 7)), DtypeError, "masks.keep", "torch.bool", "float32", "from_sdpa"),
    "blocked": (lambda: masks.blocked(bools[0]), ShapeError, "masks.blocked", "(queries, keys)", "(11,)", ""),
    "float ids": (lambda: masks.documents(zeros(2, 3)), DtypeError, "document ids", "integer", "float32", "long"),
    "ids in 3-d": (
        lambda: masks.documents(zeros(2, 3, 1, dtype=torch.long)),
        ShapeError,
        "document ids",
        "(batch, keys)",
        "(2, 3, 1)",
        "",
    ),
    "ids of another batch": (
        lambda: masks.documents([[0, 1]] * 2, query_ids=[[0]] * 3),
        ShapeError,
        "different batch",
        "2",
        "3",
        "same batch",
    ),
    "global tokens": (
        lambda: masks.global_tokens([-1]),
        OptionError,
        "positions or flags",
        "0 or more",
        "[-1]",
        "global_tokens([0])",
    ),
    "global flags": (
        lambda: masks.global_tokens(bools[None]),
        ShapeError,
        "1 or 2",
        "(batch, length)",
        "(1, 5, 11)",
        "",
    ),
    "random blocks": (lambda: masks.random_blocks(-1), OptionError, "count", "0 or more", "-1", ""),
    "blocks of nothing": (lambda: masks.random_blocks(1, block=0), OptionError, "block", "1 or more", "0", ""),
    "join": (lambda: masks.causal() & bools, OptionError, "combined by &", "a mask", "Tensor", "masks.keep"),
    "truth": (lambda: bool(masks.causal()), OptionError, "truth value", "& | ~", "", "is None"),
    "joined batches": (
        lambda: masks.padding([1, 2]) & masks.padding([1, 2, 3]),
        ShapeError,
        "batch",
        "one size",
        "for 2, ",
        "same batch",
    ),
    "tile": (lambda: masks.causal().tiles(5, 5, tile=48), OptionError, "tile", "multiple of 64", "48", "tile=64"),
    # positions
    "odd sinusoidal": (lambda: positions.Sinusoidal(5), OptionError, "pairs", "even", "5", "even"),
    "learned": (
        lambda: positions.Learned(7, 3)(5, offset=3),
        ShapeError,
        "learned",
        "at most 7",
        "5 tokens from position 3",
        "truncation",
    ),
    "rotary layout": (
        lambda: positions.Rotary(6, layout="paired"),
        OptionError,
        "'paired'",
        "halves, pairs",
        "",
        "'pairs'",
    ),
    "odd rotary": (lambda: positions.Rotary(7), OptionError, "pairs", "even", "7", "rotated"),
    "rotary head_dim": (
        lambda: positions.Rotary(6)(zeros(3, 8)),
        ShapeError,
        "head_dim",
        "length, 6",
        "(3, 8)",
        "width / heads",
    ),
    "alibi": (lambda: positions.ALiBi(0), OptionError, "heads", "1 or more", "0", ""),
    "t5": (lambda: positions.T5Buckets(2, buckets=2), OptionError, "T5", "4 buckets", "buckets=2", "buckets=32"),
    "shaw distance": (lambda: positions.ShawRelative(5, -1), OptionError, "max_distance", "0 or more", "-1", ""),
    # layers
    "width": (layer(16, 3), OptionError, "not divisible", "multiple", "width=16, heads=3", "1, 2, 4, 8"),
    "no heads": (layer(16, 0), OptionError, "heads", "1 or more", "0", ""),
    "key_value_heads": (layer(16, 4, key_value_heads=3), OptionError, "key_value_heads", "divisor of 4", "3", ""),
    "mechanism by class": (
        layer(16, 4, mechanism=regard.mechanisms.DotProduct),
        OptionError,
        "neither a name",
        "catalogue",
        "DotProduct",
        "dot_product",
    ),
    "added positions": (
        layer(16, 4, position=positions.Sinusoidal(16)),
        OptionError,
        "Sinusoidal",
        "Rotary",
        "",
        "embeddings",
    ),
    "tokens": (
        layer_call(zeros(2, 5, 14)),
        ShapeError,
        "query tokens",
        "(batch, length, 15)",
        "(2, 5, 14)",
        "batch first",
    ),
    "tokens in 2-d": (layer_call(zeros(5, 15)), ShapeError, "query tokens", "(batch, length, 15)", "(5, 15)", ""),
    "token dtype": (
        layer_call(zeros(2, 5, 15, dtype=torch.float64)),
        DtypeError,
        "dtypes",
        "float32",
        "float64",
        ".to(dtype)",
    ),
    "mask of a layer": (
        layer_call(zeros(2, 5, 15), mask=bools),
        OptionError,
        "not a regard mask",
        "",
        "",
        "masks.blocked",
    ),
    "cache": (
        lambda: make_cache(zeros(2, 2, 1, 5), zeros(2, 2, 1, 5)),
        ShapeError,
        "do not fit the cache",
        "(1, 2, 3, 5)",
        "(2, 2, 1, 5)",
        "empty()",
    ),
    "cache dtype": (
        lambda: make_cache(*(zeros(1, 2, 1, 5, dtype=torch.float64) for _ in range(2))),
        ShapeError,
        "cache",
        "float32",
        "float64",
        "",
    ),
    "empty cache": (lambda: KeyValueCache.empty().key, ShapeError, "empty", "extended", "no tokens", "length"),
    "norm": (lambda: encoder_block(8, 2, 16, norm="layer"), OptionError, "norm 'layer'", "post, pre", "", ""),
    "activation": (lambda: FeedForward(8, 16, activation="swigl"), OptionError, "'swigl'", "gelu_tanh", "", "'swiglu'"),
    "no memory": (
        lambda: decoder_block(8, 2, 16)(zeros(1, 3, 8)),
        OptionError,
        "memory",
        "(batch, keys",
        "None",
        "encoder",
    ),
    "unwanted memory": (
        lambda: decoder_block(8, 2, 16, cross_attention=False)(zeros(1, 3, 8), zeros(1, 5, 8)),
        OptionError,
        "no cross-attention",
        "memory=None",
        "(1, 5, 8)",
        "cross_attention=True",
    ),
    "record": (
        lambda: regard.record(torch.nn.Linear(2, 2)).__enter__(),
        OptionError,
        "Linear",
        "attention layers",
        "none",
        "regard.MultiHeadAttention",
    ),
    "record of a model that does not attend": (
        _record_without_attention,
        RefusedError,
        "Doubled ran",
        "scaled_dot_product_attention",
        "none of these",
        "regard.MultiHeadAttention",
    ),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_have_all_four_parts(name):
    call, kind, what, expected, got, do = MESSAGES[name]
    with pytest.raises(kind) as raised:
        call()
    error = raised.value
    assert isinstance(error, RegardError)
    for part, fact in (("what", what), ("expected", expected), ("got", got), ("do", do)):
        assert getattr(error, part), f"{part} is empty"
        assert fact in getattr(error, part), f"{fact!r} not in {part}: {getattr(error, part)!r}"
        assert getattr(error, part) in str(error)
    assert str(error).splitlines()[0] == error.what
    assert re.fullmatch(r"(?s)[^\n]+\n  expected: .*\n  got:      .*\n  to do:    .*", str(error))


def test_errors_subclass_pythons_errors():
    """Code that does not import regard can catch them; each has the documented exit code."""
    expected = {
        ShapeError: (ValueError, 2),
        DtypeError: (TypeError, 2),
        DeviceError: (ValueError, 2),
        OptionError: (ValueError, 2),
        RefusedError: (RuntimeError, 2),
        DataError: (ValueError, 3),
        CheckpointError: (ValueError, 4),
        OutputExistsError: (FileExistsError, 5),
        MissingPackageError: (ImportError, 6),
    }
    for kind, (base, code) in expected.items():
        assert issubclass(kind, base)
        assert issubclass(kind, RegardError)
        assert kind.exit_code == code


def test_missing_layer_of_a_recording_is_named():
    model = torch.nn.ModuleDict({"first": MultiHeadAttention(6, 2)})
    with regard.record(model) as recording:
        model["first"](zeros(1, 3, 6))
    with pytest.raises(OptionError, match=r"(?s)'second'.*one of first"):
        recording["second"]


def test_refusal_describes_the_request():
    """The error describes the request: shapes, dtype, device, mask, bias and dropout."""
    with pytest.raises(RefusedError) as raised:
        attend(mask=masks.causal() & ~masks.padding([3, 4]), bias=zeros(1, 1, 1, 1), dropout=0.25, impl="flex")
    for fact in ("(2, 3, 5, 7)", "(2, 3, 11, 7)", "float32", "cpu", "causal() & ~padding([3, 4])", "Tensor", "0.25"):
        assert fact in raised.value.got


def test_torch_compile_quotes_the_error():
    """torch.compile raises its own error if the graph must be whole, and quotes regard's."""
    whole = torch.compile(attend, backend="eager", fullgraph=True)
    with pytest.raises(RuntimeError, match="key and value have different numbers of heads"):
        whole(key=(2, 1, 11, 7))


def test_errors_can_be_pickled():
    error = OutputExistsError("what", expected="this", got="that", do="so")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error) == "what\n  expected: this\n  got:      that\n  to do:    so"
    assert again.do == "so"
