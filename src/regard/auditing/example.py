"""Example inputs of a model, read as sequences: which arguments carry tokens, and how others follow from their length.

ids (batch, length)                        a text of token ids; random ids of the vocabulary
numbers (batch, length, width)             a text of vectors; normal numbers of the same size
numbers (batch, heads, length, head_dim)   query, key or value; a text of vectors
a square of two values, upper triangle     a causal mask, made for any length
other arguments                            constants; with a batch, their first row
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from regard.auditing.subject import Stream, Text
from regard.errors import OptionError, short_repr

_TYPES = {
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
}
"""Types of numbers of an example."""

_BLOCKED = {"key_padding_mask", "src_key_padding_mask", "tgt_key_padding_mask", "memory_key_padding_mask"}
"""Arguments of torch in which True hides a token."""

_HIDING = ("attention_mask", "mask", "key_padding_mask", "padding_mask", "src_key_padding_mask", "token_mask")
"""Arguments that may hide tokens of the first sequence, beside those that begin with its name."""

_PICTURE_NAMES = ("pixel_values", "pixels", "images")
"""Names of pictures, which have no positions of tokens, as sounds have none."""

SOUND_NAMES = ("input_values", "input_features")
"""Names of sounds in models of ``transformers``."""

OWN_SOUND_NAMES = ("features",)
"""Names of sounds in models of regard. In other models they are vectors of tokens."""

_SOURCES = ("memory", "context", "encoder_hidden_states", "source", "src", "encoder_outputs")
"""Names of sequences that are read beside the one to whose tokens outputs belong."""

_FOLLOWING = {"position_ids", "positions", "token_type_ids", "segments", "attention_mask", *_BLOCKED}
"""Arguments that follow from the texts; the model's own defaults are used."""


@final
@dataclass(frozen=True, eq=False)
class Example:
    """Example inputs, read: the sequences, and the other arguments for any length."""

    streams: tuple[Stream, ...]
    constants: Callable[[int, int], Mapping[str, Any]]
    is_causal: bool
    """Whether a causal mask is among the inputs."""


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; of a compiled one without a signature, those of attention."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return {name: inspect.Parameter(name, kind) for name in ("query", "key", "value")}


def bind_inputs(function: Callable[..., Any], inputs: Any) -> dict[str, Any]:
    """Inputs as keyword arguments: a mapping, a tuple of arguments in their order, or a single tensor."""
    if isinstance(inputs, Mapping) and inputs and all(isinstance(name, str) for name in inputs):
        for name, value in inputs.items():
            _check_tensor(name, value)
        return dict(inputs)
    values = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    names = [
        name
        for name, parameter in parameters_of(function).items()
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(names) < len(values) or not any(isinstance(value, Tensor) for value in values):
        raise OptionError(
            "wrong inputs",
            expected="a tensor, a tuple of tensors in the order of the arguments, or a mapping of arguments",
            got=short_repr(inputs),
            do="for example inputs=torch.randint(0, 100, (1, 13)), token ids of one text",
        )
    arguments = dict(zip(names, values, strict=False))
    for name, value in arguments.items():
        _check_tensor(name, value)
    return arguments


def _check_tensor(name: str, value: Any) -> None:
    """Raise OptionError for a tensor that cannot be an example: an empty one, or one of another layout or type."""
    is_tensor = isinstance(value, Tensor)
    if is_tensor and (
        value.layout != torch.strided or value.is_nested or value.dtype not in _TYPES or not value.numel()
    ):
        raise OptionError(
            f"wrong input {name}",
            expected="a dense tensor with numbers or ids of tokens in it",
            got=short_repr(value),
            do="convert it, for example by .to_dense() or .float()",
        )


def read_example(
    function: Callable[..., Any],
    module: nn.Module | None,
    inputs: Mapping[str, Any],
    *,
    sounds: Sequence[str] = SOUND_NAMES,
) -> Example:
    """Read example inputs, of which ``sounds`` are sounds. Raises OptionError if no argument is a sequence."""
    takes = set(parameters_of(function))
    batch_first = _is_batch_first(module)
    tensors = {
        name: value
        for name, value in inputs.items()
        if isinstance(value, Tensor)
        and name not in _FOLLOWING
        and (_is_media(name, value, sounds) or _is_sequence(name, value))
    }
    groups: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        is_source = name in _SOURCES and len(tensors) > 1
        is_media = _is_media(name, tensor, sounds)
        key = "media" if is_media else "source" if is_source else str(_length(tensor, batch_first))
        groups.setdefault(key, []).append(name)
    if not groups:
        raise OptionError(
            "no input is a sequence of tokens",
            expected="token ids (batch, length), vectors (batch, length, width) or query, key and value",
            got=", ".join(f"{name}: {short_repr(value)}" for name, value in inputs.items()) or "no inputs",
            do="pass the inputs of one call of the model",
        )
    ordered = sorted(groups.items(), key=lambda group: group[0] in ("source", "media"))
    rest = {name: value for name, value in inputs.items() if name not in tensors and name not in _FOLLOWING}
    first = tensors[ordered[0][1][0]]
    length = 0 if ordered[0][0] == "media" else _length(first, batch_first)
    constants, fixed, is_causal = _make_constants(rest, length)
    streams = tuple(
        make_media({name: tensors[name] for name in names}, takes, sounds)
        if key == "media"
        else _make_stream(
            {name: tensors[name] for name in names}, module, takes, batch_first, fixed, number == 0, inputs
        )
        for number, (key, names) in enumerate(ordered)
    )
    return Example(streams, constants, is_causal)


def _is_media(name: str, tensor: Tensor, sounds: Sequence[str]) -> bool:
    """Whether a tensor is pictures or sounds: by its name, or by 4 dimensions that are not those of attention."""
    if not tensor.is_floating_point() or "mask" in name:
        return False
    return name in (*_PICTURE_NAMES, *sounds) or (
        tensor.dim() == 4 and name not in ("query", "key", "value", "q", "k", "v")
    )


def make_media(
    tensors: Mapping[str, Tensor], takes: Collection[str] = (), sounds: Sequence[str] = SOUND_NAMES
) -> Stream:
    """Pictures or sounds: drawn at random in the size of the example.

    A sound may be hidden in part by an argument of those that the model ``takes``.
    """
    name = next(iter(tensors))
    masks = ("attention_mask", "mask") if name in sounds else ()
    batch_dims = dict.fromkeys(tensors, 0)
    return Stream(
        name,
        _make_draw(tensors, {}, batch_dims, 2),
        1,
        False,
        {},
        batch_dims,
        next((mask for mask in masks if mask in takes), ""),
        fixed="pictures and sounds have no positions of tokens",
    )


def _is_batch_first(module: nn.Module | None) -> bool:
    """Whether vectors are (batch, length, width). Modules of torch say it; others are taken to be so."""
    if module is None or not type(module).__module__.startswith("torch.nn"):
        return True
    return all(getattr(part, "batch_first", True) for part in module.modules())


def _is_sequence(name: str, tensor: Tensor) -> bool:
    if tensor.dtype == torch.bool or "mask" in name:
        return False
    return tensor.dim() == 2 if not tensor.is_floating_point() else tensor.dim() in (3, 4)


def _position_dim(tensor: Tensor, batch_first: bool) -> int:
    if tensor.dim() == 4:
        return 2
    return 1 if batch_first or not tensor.is_floating_point() else 0


def _length(tensor: Tensor, batch_first: bool) -> int:
    return tensor.shape[_position_dim(tensor, batch_first)]


def _make_stream(
    tensors: Mapping[str, Tensor],
    module: nn.Module | None,
    takes: set[str],
    batch_first: bool,
    fixed: str,
    is_first: bool,
    inputs: Mapping[str, Any],
) -> Stream:
    name = next(iter(tensors))
    dims = {argument: _position_dim(tensor, batch_first) for argument, tensor in tensors.items()}
    batch_dims = {argument: 1 if dim == 0 else 0 for argument, dim in dims.items()}
    named = (f"{name}_key_padding_mask", f"{name}_padding_mask", f"{name}_attention_mask", f"{name}_mask")
    of_decoder = ("decoder_attention_mask",) if name == "decoder_input_ids" else _HIDING if is_first else ()
    candidates = (*named, *of_decoder)
    mask = next((candidate for candidate in candidates if candidate in takes), "")
    example = tensors[name]
    return Stream(
        name,
        _make_draw(tensors, dims, batch_dims, _vocabulary(module, tensors, inputs)),
        example.shape[dims[name]],
        is_first,
        dims,
        batch_dims,
        mask,
        torch.logical_not if mask in _BLOCKED else Tensor.bool,
        fixed,
        ("memory_key_padding_mask",) if name == "src" and "memory_key_padding_mask" in takes else (),
        () if example.is_floating_point() else (0,),
    )


def _vocabulary(module: nn.Module | None, tensors: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> int:
    """The number of token ids: of the embedding that reads them, or else of the example."""
    ids = next((tensor for tensor in tensors.values() if not tensor.is_floating_point()), None)
    if ids is None:
        return 2
    if module is not None:
        model = module
        embedding = find_embedding(model, lambda: model(**inputs), ids)
        if embedding is not None:
            return embedding.num_embeddings
    return max(int(ids.max()) + 1, 2)


def find_embedding(module: nn.Module, run: Callable[[], Any], ids: Tensor) -> nn.Embedding | None:
    """The first embedding that reads these ids while ``run`` calls the model; None if there is none."""
    found: list[nn.Embedding] = []

    def hook(part: nn.Module, arguments: tuple[Any, ...]) -> None:
        read = arguments[0] if arguments else None
        if isinstance(part, nn.Embedding) and isinstance(read, Tensor) and read.shape == ids.shape:
            found.extend([part] if torch.equal(read.cpu(), ids.cpu().to(read.dtype)) else [])

    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    handles = [part.register_forward_pre_hook(hook) for part in embeddings]
    try:
        with torch.no_grad():
            run()
    # An example that does not fit is reported where the model is run for its outputs.
    except Exception:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def _make_draw(
    tensors: Mapping[str, Tensor], dims: Mapping[str, int], batch_dims: Mapping[str, int], vocabulary: int
) -> Callable[[int, torch.Generator], Text]:
    """Draw arguments of any length; arguments that are equal in the example stay equal."""

    def draw(length: int, generator: torch.Generator) -> Text:
        text: dict[str, Tensor] = {}
        for name, example in tensors.items():
            same = next((other for other in text if _is_same(tensors[other], example)), None)
            text[name] = text[same] if same is not None else draw_like(name, example, length, generator)
        return text

    def draw_like(name: str, example: Tensor, length: int, generator: torch.Generator) -> Tensor:
        shape = list(example.shape)
        shape[batch_dims[name]] = 1
        if name in dims:
            shape[dims[name]] = length
        if not example.is_floating_point():
            return torch.randint(min(3, vocabulary - 1), vocabulary, shape, generator=generator).to(example.dtype)
        spread = float(example.double().std()) if example.numel() > 1 else 1.0
        numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * (spread or 1.0)
        return numbers.to(example.dtype)

    return draw


def _is_same(example: Tensor, other: Tensor) -> bool:
    return example is other or (example.shape == other.shape and bool(torch.equal(example, other)))


def _make_constants(rest: Mapping[str, Any], length: int) -> tuple[Callable[[int, int], Mapping[str, Any]], str, bool]:
    """The other arguments for any batch and length; why the length is fixed; whether one is a causal mask."""
    triangles = {name: value for name, value in rest.items() if is_triangle(value)}
    fixed = next(
        (
            f"the example's {name} has the length of its text, and is not known for others"
            for name, value in rest.items()
            if name not in triangles and isinstance(value, Tensor) and length in value.shape and length > 1
        ),
        "",
    )

    def make(batch: int, length: int) -> Mapping[str, Any]:
        made = dict(rest)
        for name, value in triangles.items():
            made[name] = _triangle_like(value, length)
        return made

    is_causal = bool(triangles) or any(
        name in ("is_causal", "causal") and value is True for name, value in rest.items()
    )
    return make, fixed, is_causal


def is_triangle(value: Any, *, smallest: int = 2, corner: int | None = None) -> bool:
    """Whether a value is a square mask with one value on and below the diagonal, and another one above it.

    It has at least ``smallest`` positions; of a larger one than ``corner`` only the first positions are looked at.
    """
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[-1] != value.shape[-2]:
        return False
    if value.shape[-1] < smallest:
        return False
    square = value.reshape(-1, *value.shape[-2:])[0][:corner, :corner].double()
    above = torch.ones_like(square, dtype=torch.bool).triu(1)
    inside, outside = square[~above], square[above]
    return bool((inside == inside[0]).all() and (outside == outside[0]).all() and inside[0] != outside[0])


def _triangle_like(value: Tensor, length: int) -> Tensor:
    above = torch.ones(length, length, dtype=torch.bool, device=value.device).triu(1)
    inside, outside = value.flatten()[0], value.reshape(-1, *value.shape[-2:])[0][0, 1]
    shape = (*(1 for _ in value.shape[:-2]), length, length)
    return torch.where(above, outside, inside).reshape(shape)
