"""Readings of weights that a program computed, with the tokens that they belong to.

    weights                  (layers, heads, queries, keys), (heads, queries, keys) of one layer, (queries, keys) of one
                             head, or one array for each layer; there (1, heads, queries, keys) is a batch of one, as
                             ``output_attentions=True`` of ``transformers`` returns it
    queries, keys, values    (layers, heads, tokens, head_dim), or as above; keys and values may have fewer heads

With queries, keys and values the page shows how weights are computed: they are softmax(scale * query . key), and a key
that has no weight in any head of a layer is hidden from the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from regard import masks
from regard.arrays import as_tensor, is_foreign
from regard.errors import DataError, DtypeError, OptionError, ShapeError, check_choice, check_number, short_repr
from regard.mechanisms.steps import Steps
from regard.tensors import check_tensor, has_values
from regard.text.tokenizer import USUAL_SPECIAL_TOKENS, TokenizedText
from regard.view.attention_layer import AttentionLayer, check_finite
from regard.view.from_recording import check_number_of_weights, to_float32
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights, WeightsAre
from regard.view.read import find_sink, tokens_of
from regard.view.reading import Reading, Tokens

NO_STEPS = "The weights were passed without queries and keys."
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_WORD_MARKERS = ("▁", "Ġ")
"""The first letter of a token that begins a word, in vocabularies that have one."""
_CONTINUATION = "##"
"""The beginning of a token that continues a word, in vocabularies of word pieces."""


def layers_of_weights(
    weights: Any,
    *,
    queries: Any = None,
    keys: Any = None,
    values: Any = None,
    scale: float | None = None,
    weights_are: WeightsAre = "distribution",
) -> tuple[AttentionLayer, ...]:
    """Make the layers of weights, and of the queries, keys and values that they are computed from, if given.

    Arguments and errors are those of ``regard.show``.
    """
    check_choice("kind of weights", weights_are, get_args(WeightsAre))
    layers = split_layers("weights", weights)
    check_number_of_weights([(layer.shape[0], layer.shape[1], layer.shape[2]) for layer in layers])
    for number, layer in enumerate(layers):
        _check_weights(f"layers.{number}", layer, weights_are)
    vectors = {"queries": queries, "keys": keys, "values": values}
    if any(part is not None for part in vectors.values()):
        return _read_steps(layers, vectors, scale, weights_are)
    if scale is not None:
        raise OptionError(
            "`scale` has no effect without queries and keys", expected="`queries`, `keys` and `values` beside it",
            got=short_repr(scale), do="leave out `scale`",
        )  # fmt: skip
    return tuple(
        LayerWeights(f"layers.{number}", to_float32(layer), weights_are, NO_STEPS)
        for number, layer in enumerate(layers)
    )


def read_weights(weights: Any, *, tokens: Any = None, key_tokens: Any = None, **options: Any) -> Reading:
    """Make the reading of weights and their tokens; ``options`` are those of ``layers_of_weights``."""
    return read_layers(layers_of_weights(weights, **options), tokens, key_tokens)


def read_layers(layers: Sequence[AttentionLayer], tokens: Any, key_tokens: Any) -> Reading:
    """Make the reading of layers of the same tokens, which are as ``name_tokens`` reads them.

    Raises ShapeError for other numbers of tokens.
    """
    sizes = layers[0].queries, layers[0].keys
    if key_tokens is None and sizes[0] != sizes[1]:
        raise ShapeError(
            f"{layers[0].name or 'the layer'} has other numbers of queries and keys: it is attention to another text",
            expected="`key_tokens`, the tokens of the keys",
            got=f"{sizes[0]} queries and {sizes[1]} keys",
            do="pass `key_tokens`; the tokens of the queries are `tokens`",
        )
    own = name_tokens("tokens", tokens, sizes[0])
    others = None if key_tokens is None else name_tokens("key_tokens", key_tokens, sizes[1])
    return Reading(own, tuple(layers), keys=others, sink=find_sink(layers, len(own)) if others is None else None)


def name_tokens(name: str, tokens: Any, count: int) -> Tokens:
    """The tokens of a text: ``Tokens`` or ``TokenizedText``, or as a vocabulary spells them; None numbers them from 0.

    A token that begins with ▁ or Ġ begins a word, one that begins with ## continues one; in a list without ▁ and Ġ any
    other begins a word. Tokens such as [CLS] and <s> are special. Raises OptionError for other values, ShapeError for
    another number than ``count``. ``name`` is the name of the argument.
    """
    if tokens is None:
        tokens = [str(number) for number in range(count)]
    if isinstance(tokens, TokenizedText):
        tokens = tokens_of(tokens)
    if not isinstance(tokens, Tokens):
        if isinstance(tokens, str) or not isinstance(tokens, Sequence) or not all(isinstance(t, str) for t in tokens):
            raise OptionError(
                f"wrong {name}",
                expected="a list of strings, one for each token, or regard.view.Tokens",
                got=short_repr(tokens),
                do="tokenizer.convert_ids_to_tokens(ids) gives them"
                if not isinstance(tokens, str)
                else f"split it as the model does: {name}=text.split() for a model of words",
            )
        tokens = _join_tokens(tokens)
    if len(tokens) != count:
        raise ShapeError(
            f"the numbers of {name} and of weights differ",
            expected=f"{count} tokens",
            got=f"{len(tokens)}: {short_repr(list(tokens.pieces))}",
            do="pass a string for each token that the model read, special tokens such as [CLS] included",
        )
    return tokens


def _join_tokens(pieces: Sequence[str]) -> Tokens:
    """Join tokens to a text, and find the span of each in it; a special token has an empty span."""
    is_marked = any(piece.startswith(_WORD_MARKERS) for piece in pieces)
    special = tuple(piece in USUAL_SPECIAL_TOKENS for piece in pieces)
    text, spans = "", []
    for piece, is_special in zip(pieces, special, strict=True):
        begins = piece.startswith(_WORD_MARKERS) if is_marked else not piece.startswith(_CONTINUATION)
        own = (
            ""
            if is_special
            else piece.lstrip("".join(_WORD_MARKERS))
            if is_marked
            else piece.removeprefix(_CONTINUATION)
        )
        gap = " " if begins and text and not is_special else ""
        text += gap + own
        spans.append((len(text) - len(own), len(text)))
    return Tokens(text, tuple(pieces), tuple(spans), special)


def split_layers(name: str, arrays: Any) -> list[Float[Tensor, "heads _ _"]]:
    """Split an array, or a sequence of arrays, into the (heads, rows, columns) of each layer.

    Raises DtypeError for what is no array of floats, ShapeError for other shapes, DataError for empty ones.
    """
    several = isinstance(arrays, Sequence) and not isinstance(arrays, str | bytes)
    if several and any(layer is None for layer in arrays):
        raise DtypeError(
            f"{name} has None in place of a layer",
            expected="an array for each layer",
            got=f"None for layer {next(at for at, layer in enumerate(arrays) if layer is None)}",
            do="load a transformers model with attn_implementation='eager', or record it: regard.record(model)",
        )
    tensors = [_to_tensor(name, array) for array in (arrays if several else [arrays])]
    layers = [layer for tensor in tensors for layer in _split_array(name, tensor, is_layer=several)]
    if not layers or not all(layer.numel() for layer in layers):
        raise DataError(
            f"{name} is empty", expected="one layer, head, query and key or more",
            got="no layer" if not layers else str(tuple(layers[0].shape)), do="check how it was made",
        )  # fmt: skip
    return layers


def _to_tensor(name: str, array: Any) -> Tensor:
    tensor = as_tensor(array, name) if is_foreign(array) else array
    check_tensor(name, tensor, "an array or tensor of floats, or one for each layer")
    if tensor.dtype not in _FLOATS:
        raise DtypeError(
            f"{name} has an unsupported dtype", expected="float16, bfloat16, float32 or float64",
            got=str(tensor.dtype), do="convert it with .float()",
        )  # fmt: skip
    if not has_values(tensor):
        raise DtypeError(
            f"{name} has no values that can be read", expected="numbers in memory", got=f"a tensor on {tensor.device}",
            do="run the model on a device that computes",
        )  # fmt: skip
    return tensor.detach().cpu()


def _split_array(name: str, tensor: Tensor, *, is_layer: bool) -> list[Tensor]:
    """The layers of an array; ``is_layer`` says that it is one."""
    if tensor.dim() == 5 and tensor.shape[1] == 1 and not is_layer:
        tensor = tensor[:, 0]
    if is_layer and tensor.dim() == 4 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.dim() == 2:
        tensor = tensor[None]
    if tensor.dim() == 4 and not is_layer:
        return list(tensor)
    if tensor.dim() != 3:
        raise ShapeError(
            f"{name} has the wrong shape",
            expected="(heads, rows, columns) for each layer, or (1, heads, rows, columns)"
            if is_layer
            else "(layers, heads, rows, columns), or (heads, rows, columns) of one layer",
            got=str(tuple(tensor.shape)),
            do="pass one entry of a batch: weights[0], or [layer[:1] for layer in weights]",
        )
    return [tensor]


def _tolerance(layer: Tensor) -> float:
    """How far a sum of weights may be from 1: weights of 16 bits are rounded by up to 1/256 of themselves."""
    return 2e-2 if layer.dtype.itemsize < 4 else 1e-3


def _check_weights(name: str, layer: Tensor, weights_are: WeightsAre) -> None:
    """Raise DataError unless weights are finite, and as ``weights_are`` says; a row of zeros attends to nothing."""
    numbers = layer.double()
    check_finite(name, numbers.numpy(), expected="finite weights; 0 for a key that a query may not attend to")
    if weights_are != "signed" and bool((numbers < 0).any()):
        raise DataError(
            f"{name} has weights below 0",
            expected="weights of 0 or more, as after a softmax",
            got=f"{float(numbers.min()):.4g}",
            do="pass weights after the softmax, not scores; or say weights_are='signed'",
        )
    sums = numbers.sum(-1)
    wrong = ((sums - 1).abs() > _tolerance(layer)) & (sums != 0)
    if weights_are == "distribution" and bool(wrong.any()):
        head, query = wrong.nonzero()[0].tolist()
        raise DataError(
            f"the weights of {name} do not sum to 1",
            expected="rows that sum to 1, or to 0 for a query that attends to nothing",
            got=f"{float(sums[head, query]):.4g} for head {head}, query {query}, and {int(wrong.sum()) - 1} more rows",
            do="pass weights before dropout, with a row for each query; or say weights_are='non-negative'",
        )


def _read_steps(
    weights: Sequence[Tensor], vectors: dict[str, Any], scale: float | None, weights_are: WeightsAre
) -> tuple[LayerReading, ...]:
    """Layers by their queries, keys and values. Raises DataError if ``weights`` are not those of queries and keys."""
    missing = [name for name, part in vectors.items() if part is None]
    if missing or weights_are != "distribution":
        raise OptionError(
            "the steps of weights need queries, keys and values, and a softmax",
            expected="`queries`, `keys` and `values`, or none of them",
            got=f"no {' and no '.join(missing)}" if missing else f"weights_are={weights_are!r}",
            do="pass all three, or the weights alone",
        )
    if scale is not None:
        check_number("scale", scale)
    parts = [split_layers(name, part) for name, part in vectors.items()]
    if any(len(part) != len(weights) for part in parts):
        raise ShapeError(
            "weights, queries, keys and values have different numbers of layers",
            expected=f"{len(weights)} of each, as of weights",
            got=", ".join(f"{len(part)} of {name}" for name, part in zip(vectors, parts, strict=True)),
            do="pass the layers of all",
        )
    return tuple(
        _read_layer(f"layers.{number}", layer, *map(to_float32, of_layer), scale=scale)
        for number, (layer, *of_layer) in enumerate(zip(weights, *parts, strict=True))
    )


def _read_layer(
    name: str, weights: Tensor, query: Tensor, key: Tensor, value: Tensor, *, scale: float | None
) -> LayerReading:
    heads, queries, keys = weights.shape
    fits = query.shape[:2] == (heads, queries) and key.shape[2] == query.shape[2]
    fits &= all(part.shape[1] == keys and heads % part.shape[0] == 0 for part in (key, value))
    if not fits:
        raise ShapeError(
            f"the queries, keys and values of {name} do not fit its weights",
            expected=f"queries ({heads}, {queries}, head_dim), keys ({heads}, {keys}, head_dim), "
            f"values ({heads}, {keys}, value_dim)",
            got=", ".join(str(tuple(part.shape)) for part in (query, key, value)),
            do="pass (heads, tokens, head_dim) of each layer: .transpose(1, 2) of (batch, tokens, heads, head_dim)",
        )
    visible = (weights != 0).any(dim=0)
    mask = None if bool(visible.all()) else masks.keep(visible[None, None])
    key, value = (part.repeat_interleave(heads // part.shape[0], dim=0) for part in (key, value))
    factor = query.shape[2] ** -0.5 if scale is None else float(scale)
    layer = LayerReading(name, Steps(query[None], key[None], mask, factor), value)
    difference = float((torch.from_numpy(layer.weights()) - weights.double()).abs().max())
    if difference > _tolerance(weights):
        raise DataError(
            f"the weights of {name} are not those of its queries and keys",
            expected=f"softmax({factor:.4g} * query . key)",
            got=f"weights that differ by up to {difference:.2g}",
            do="pass `scale`, and queries and keys after their rotation by position; or leave them out",
        )
    return layer
