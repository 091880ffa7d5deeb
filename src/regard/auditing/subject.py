"""The model that is audited, as one small interface: texts go in, and outputs (batch, positions, features) come back.

A subject knows the sequences that the model reads (``Stream``), how each is drawn at random for any length, and the
argument that hides some of its tokens. Properties ask it for calls, and never for its class.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, TypeAlias, final

import torch
from torch import Tensor, nn

from regard.auditing.calls import Call, Step
from regard.auditing.draws import MeanDraws, Place
from regard.auditing.float64 import Float64Mode
from regard.errors import RefusedError, class_and_line, short_repr

Text: TypeAlias = Mapping[str, Tensor]
"""The arguments that carry one text, or several of one length: a batch, at ``Stream.batch_dim``."""


@final
@dataclass(frozen=True, eq=False)
class Row:
    """A text of a batch. ``visible`` (length,) is False at hidden tokens, such as padding; None hides none."""

    text: Text
    visible: Tensor | None = None


@final
@dataclass(frozen=True, eq=False)
class Stream:
    """A sequence that the model reads.

    name         what messages call it
    draw         makes a text of some length at random
    mask         the argument that hides tokens; "" if there is none
    other_masks  arguments that need the same value, such as the mask of what an encoder has made of the tokens
    make_mask    makes its value from a bool tensor (batch, length), False at hidden tokens
    is_aligned   whether output i belongs to token i of this sequence
    dims         dimension of the positions in each argument
    """

    name: str
    draw: Callable[[int, torch.Generator], Text]
    length: int
    is_aligned: bool
    dims: Mapping[str, int]
    batch_dims: Mapping[str, int]
    mask: str = ""
    make_mask: Callable[[Tensor], Any] = torch.Tensor.long
    fixed: str = ""
    """Why the length cannot be changed; "" if it can."""
    other_masks: tuple[str, ...] = ()
    pads: tuple[int, ...] = ()
    """Ids that are used as padding, the usual one first; () for vectors."""
    positions: str = ""
    """The argument of the places of tokens, counted from 0; "" if there is none, or if they are counted otherwise."""

    def join(self, parts: Sequence[Text]) -> Text:
        """One text after another."""
        return {name: torch.cat([part[name] for part in parts], dim) for name, dim in self.dims.items()}

    def stack(self, texts: Sequence[Text]) -> Text:
        """Texts of one length as a batch."""
        return {name: torch.cat([text[name] for text in texts], dim) for name, dim in self.batch_dims.items()}

    def cut(self, text: Text, start: int, end: int) -> Text:
        """The tokens from ``start`` to ``end``."""
        return {name: text[name].narrow(dim, start, end - start) for name, dim in self.dims.items()}

    def replace(self, text: Text, position: int, other: Text) -> Text:
        """The text with the token at ``position`` from another one."""
        length = self.length_of(text)
        pieces = (
            self.cut(text, 0, position),
            self.cut(other, position, position + 1),
            self.cut(text, position + 1, length),
        )
        return self.join(pieces)

    def length_of(self, text: Text) -> int:
        """Number of tokens."""
        for name, dim in self.dims.items():
            return text[name].shape[dim]
        return 1  # pictures and sounds, which have no positions

    def padding(self, length: int, seed: int, pad: int | None = None) -> Text:
        """Hidden tokens: the id ``pad``, or else random ones."""
        text = self.draw(length, torch.Generator().manual_seed(seed))
        if pad is None:
            return text
        return {name: torch.full_like(tensor, pad) for name, tensor in text.items()}


@final
@dataclass(frozen=True, eq=False)
class Subject:
    """A model, or a function of query, key and value, ready to be called in many ways.

    function     what is called with keyword arguments
    module       where hooks are placed; None for a function
    streams      the sequences that it reads; outputs belong to the tokens of the first
    constants    makes the other arguments, for a batch and a length of the first stream
    takes        names of the arguments that it has
    takes_any    whether it takes any other argument as well, and may ignore it
    wrap         makes ``function`` of the module, or of a copy of it; None if the module itself is called
    causal       whether it declares that no later token has an influence; None if it does not say
    config       hyperparameters of ``transformers`` or regard; None for others
    """

    name: str
    kind: str
    function: Callable[..., Any]
    module: nn.Module | None
    streams: tuple[Stream, ...]
    takes: frozenset[str]
    takes_any: bool = False
    causal: bool | None = None
    config: Any = None
    family: str = "torch"
    wrap: Callable[[Any], Callable[..., Any]] | None = None
    precision: str = "float64"
    seed: int = 0
    constants: Callable[[int, int], Mapping[str, Any]] = lambda batch, length: {}
    notes: tuple[str, ...] = ()
    prefix: int = 0
    """The number of first tokens that see one another in a causal model."""
    cache: str = ""
    """The argument that passes on a cache; "" without one."""
    unaligned: str = ""
    """Why no output belongs to a token, where tokens are read; "" if outputs belong to tokens."""
    draws_of_rows: frozenset[Place] | None = None
    """Where random numbers for each row are drawn, if outputs in eval mode depend on random numbers; else None.

    Calls then have means in their place.
    """

    @property
    def stream(self) -> Stream:
        """The sequence to whose tokens the outputs belong."""
        return self.streams[0]

    @property
    def positions(self) -> str:
        """The argument of the places of the tokens to which the outputs belong; "" if there is none."""
        return self.stream.positions

    @property
    def device(self) -> torch.device:
        """The device of the module; the CPU for a function."""
        tensors = () if self.module is None else itertools.chain(self.module.parameters(), self.module.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def with_module(self, module: Any) -> Subject:
        """The subject with a copy of its module, or a compiled one, in place of it."""
        return replace(self, module=module, function=module if self.wrap is None else self.wrap(module))

    def accepts(self, *names: str) -> bool:
        """Whether it can be called with these arguments."""
        return self.takes_any or set(names) <= self.takes

    def text(self, seed: int, length: int | None = None, stream: Stream | None = None) -> Text:
        """A random text, the same for the same seed, of ``length`` tokens or as many as the example has."""
        stream = stream or self.stream
        return stream.draw(length or stream.length, torch.Generator().manual_seed(1000 * self.seed + seed))

    def call(self, rows: Sequence[Row], stream: Stream | None = None, *, training: bool = False, **extra: Any) -> Call:
        """Build a call for the rows of one sequence; each other sequence has the same text in all rows."""
        stream = stream or self.stream
        arguments: dict[str, Any] = dict(stream.stack([row.text for row in rows]))
        length = stream.length_of(rows[0].text)
        if any(row.visible is not None for row in rows):
            keep = [torch.ones(length, dtype=torch.bool) if row.visible is None else row.visible for row in rows]
            value = stream.make_mask(torch.stack(keep))
            arguments |= dict.fromkeys((stream.mask, *stream.other_masks), value)
        for number, other in enumerate(self.streams):
            if other is not stream:
                arguments |= other.stack([self.text(900 + number, stream=other)] * len(rows))
        output_length = length if stream is self.stream else self.stream.length
        arguments = {**self.constants(len(rows), output_length), **arguments, **extra}
        return Call((Step(arguments, output_length),), len(rows), training)

    def run(self, call: Call, *, gradients: bool = False) -> Tensor:
        """The outputs of a call as (batch, positions, features); a single position if they do not belong to tokens."""
        outputs, cache = [], None
        with self.running(call, gradients=gradients):
            for step in call.steps:
                arguments = {name: self.prepare(value) for name, value in step.arguments.items()}
                if call.steps[0] is not step:
                    if cache is None:
                        raise RefusedError(
                            "the model returns no cache",
                            expected=f"an output with {self.cache}",
                            got="none",
                            do="return it if use_cache is True",
                        )
                    cache = cache if step.change_cache is None else step.change_cache(cache)
                    arguments[self.cache] = cache
                result = self.function(**arguments)
                cache = read_cache(result)
                output = read_output(result)
                is_of_rows = self.unaligned and output.shape[0] == call.batch
                outputs.append((_by_row(output) if is_of_rows else align(output, call.batch, step.length)).cpu())
        return torch.cat(outputs, 1)

    def prepare(self, value: Any) -> Any:
        """An argument in the precision of the subject and on its device; an empty cache, where a function makes one: it
        is used once.
        """
        if isinstance(value, FunctionType):
            return value()
        if not isinstance(value, Tensor):
            return value
        return value.to(self.device, getattr(torch, self.precision) if value.is_floating_point() else None)

    @contextmanager
    def running(self, call: Call, *, gradients: bool = False) -> Iterator[None]:
        """The state in which the model is called: precision, mode, a seed of its own, and the context of the call."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(self.seed + call.seed)
            stack.enter_context(torch.set_grad_enabled(gradients))
            if self.precision == "float64":
                stack.enter_context(Float64Mode())
            if call.training and self.module is not None:
                stack.enter_context(_training_mode(self.module))
            elif self.draws_of_rows is not None and not call.is_random:
                stack.enter_context(MeanDraws(self.draws_of_rows))
            if call.around is not None:
                stack.enter_context(call.around())
            yield


def expand_rows(arguments: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Arguments of one row, (1, ..), for several rows."""
    return {
        name: value.expand(rows, *value.shape[1:]) if isinstance(value, Tensor) else value
        for name, value in arguments.items()
    }


@contextmanager
def _training_mode(module: nn.Module) -> Iterator[None]:
    """Set training mode, and restore the mode of each module, and its buffers, at the end."""
    modes = {part: part.training for part in module.modules()}
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    module.train()
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])


_OUTPUTS = ("logits", "last_hidden_state", "hidden", "hidden_states", "output", "prediction_logits")
_PAIRS = (
    ("text_embeddings", "image_embeddings"),
    ("text_embeds", "image_embeds"),
    ("text_embeds", "audio_embeds"),
)
"""Outputs of models that embed texts beside pictures or sounds. Their logits compare all rows of a batch."""
_CACHES = ("past_key_values", "cache_params", "state", "cache")


def read_output(result: Any) -> Tensor:
    """The tensor of outputs in the result of a model. Raises RefusedError if there is none."""
    if isinstance(result, Tensor):
        return result

    def get(name: str) -> Any:
        return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)

    for pair in _PAIRS:
        embeddings = [value for value in map(get, pair) if isinstance(value, Tensor)]
        if len(embeddings) == len(pair) and embeddings[0].shape[0] == embeddings[1].shape[0]:
            return torch.cat(embeddings, -1)
    for name in _OUTPUTS:
        value = get(name)
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    values = list(result.values()) if isinstance(result, Mapping) else list(result) if _is_sequence(result) else []
    for value in values:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
        if _is_sequence(value) and value and isinstance(value[0], Tensor):
            return value[0]
    raise RefusedError(
        "the model returns no tensor of numbers",
        expected="a tensor, a tuple that begins with one, or an output with logits or last_hidden_state",
        got=short_repr(result),
        do="wrap the model in a module that returns a tensor (batch, positions, features)",
    )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, tuple | list)


def read_cache(result: Any) -> Any:
    """The cache in the result of a model; None without one."""
    for name in _CACHES:
        value = getattr(result, name, None)
        if value is not None and not callable(value):
            return value
    return None


def align(output: Tensor, batch: int, length: int) -> Tensor:
    """Outputs as (batch, positions, features). Raises RefusedError if they belong neither to tokens nor to rows."""
    shape = tuple(output.shape)
    if output.dim() == 3 and shape[:2] == (batch, length):
        return output
    if output.dim() >= 4 and shape[0] == batch and length in shape[1:-1]:
        dim = 1 + shape[1:-1].index(length)
        return output.movedim(dim, 1).flatten(2)
    if output.dim() == 3 and shape[:2] == (length, batch):
        return output.transpose(0, 1)
    if output.dim() == 3 and shape[0] == batch and shape[2] == length:
        return output.transpose(1, 2)
    if output.dim() == 2 and shape == (batch, length):
        return output[..., None]
    if output.dim() == 2 and shape[0] == batch * length and batch * length > batch:
        return output.unflatten(0, (batch, length))
    if shape and shape[0] == batch:
        return _by_row(output)
    if output.dim() == 2 and batch == 1 and shape[0] == length:
        return output[None]
    raise RefusedError(
        "the outputs of the model do not belong to the texts of its batch",
        expected=f"a tensor whose first dimension is the batch, {batch}",
        got=short_repr(output),
        do="wrap the model in a module that returns (batch, positions, features)",
    )


def _by_row(output: Tensor) -> Tensor:
    """Outputs (batch, ..) as those of a single position."""
    return output.flatten(1)[:, None]


def failure(error: Exception) -> str:
    """The reason that an error of the model gives, in one line."""
    return f"the model raised {class_and_line(error, 200)}"
