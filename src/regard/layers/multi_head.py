"""Multi-head attention.

    MultiHead(X, Y) = Concat(head_1, .., head_h) W_O,    head_i = mechanism(X W_Q^i, Y W_K^i, Y W_V^i)

Vaswani et al. 2017, section 3.2.2. Grouped queries: Ainslie et al. 2023. Tokens are (batch, length, width),
batch first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, cast, final, overload

import torch
from torch import Tensor, nn

from regard.arguments import explain_arguments, unknown_argument_error
from regard.catalogue import mechanism as make_mechanism
from regard.contract import Frame
from regard.errors import (
    LARGEST_SIZE,
    OptionError,
    RefusedError,
    ShapeError,
    check_count,
    check_flag,
    check_kind,
    check_size,
    check_weights,
    short_repr,
)
from regard.layers.layer_input import check_layer_input
from regard.layers.projection import linear_activation
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.state import State, wrong_state_error
from regard.positions.base import PairBias, Rotation
from regard.validation import check_dropout, check_mask


@final
@explain_arguments
class MultiHeadAttention(nn.Module):
    """Multi-head self- and cross-attention with any mechanism and position.

    Args:
        width: size of input and output tokens.
        heads: number of query heads.
        key_value_heads: number of heads of keys and values, a divisor of ``heads``; None is ``heads``.
        mechanism: a name in the catalogue, or a ``Mechanism`` made for ``heads`` of ``head_dim``.
        mechanism_options: options of ``regard.mechanism`` for a mechanism given by name.
        position: None, ``positions.Rotary`` (rotates queries and keys), or ``ALiBi``, ``T5Buckets``,
            ``ShawRelative`` (bias of scores).
        dropout: probability of dropping a weight in training, for a mechanism given by name.
        bias: whether the projections have a bias.
        head_dim: size of a head; None is width / heads.
        key_width: size of the tokens that keys are computed from; None is ``width``.
        value_width: size of the tokens that values are computed from; None is ``key_width``.

    ``key_projection`` is None if the mechanism shares queries and keys (``Mechanism.shares_query_key``): keys are then
    projected by ``query_projection``. ``input_projections`` holds a projection for each input that the mechanism
    declares beside query, key and value. Positions are counted along the keys, and the last query has the position of
    the last key (``contract.Frame``).

    Raises OptionError if sizes do not divide, a name is unknown, or the position is one that is added to embeddings.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        key_value_heads: int | None = None,
        mechanism: str | Mechanism = "dot_product",
        mechanism_options: Mapping[str, Any] | None = None,
        position: Rotation | PairBias | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        head_dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
    ) -> None:
        super().__init__()
        key_value_heads = heads if key_value_heads is None else key_value_heads
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        counts = {"width": width, "heads": heads, "key_value_heads": key_value_heads}
        for name, count in (counts | {"key_width": key_width, "value_width": value_width}).items():
            check_size(name, count)
        _check_heads(width, heads, key_value_heads, head_dim)
        _check_position(position)
        check_flag("bias", bias)
        check_dropout(dropout)
        self.width, self.heads, self.key_value_heads = width, heads, key_value_heads
        self.head_dim = width // heads if head_dim is None else head_dim
        check_weights(width=max(width, key_width, value_width), heads=heads, head_dim=self.head_dim)
        self.query_projection = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.key_projection: nn.Linear | None = nn.Linear(key_width, key_value_heads * self.head_dim, bias=bias)
        self.value_projection = nn.Linear(value_width, key_value_heads * self.head_dim, bias=bias)
        self.output_projection = nn.Linear(heads * self.head_dim, width, bias=bias)
        self.mechanism = _resolve_mechanism(mechanism, mechanism_options, heads, self.head_dim, dropout)
        if self.mechanism.shares_query_key:
            _check_shared(self.mechanism, width, key_width, heads, key_value_heads)
            self.key_projection = None
        widths = {"query": width, "key": key_width}
        self.input_projections = nn.ModuleDict(
            {
                one.name: nn.Linear(widths[one.side], one.heads * one.size, bias=bias)
                for one in self.mechanism.extra_inputs
                if one.projected
            }
        )
        self.position = position
        nn.Module.register_load_state_dict_pre_hook(self, _split_fused)
        self._init_weights()

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = ...,
        value: Tensor | None = ...,
        *,
        mask: Mask | None = ...,
        cache: None = ...,
        **inputs: Tensor,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = ...,
        value: Tensor | None = ...,
        *,
        mask: Mask | None = ...,
        cache: State,
        **inputs: Tensor,
    ) -> tuple[Tensor, State]: ...

    def forward(
        self,
        query: Tensor,
        key: Tensor | None = None,
        value: Tensor | None = None,
        *,
        mask: Mask | None = None,
        cache: State | None = None,
        **inputs: Tensor,
    ) -> Tensor | tuple[Tensor, State]:
        """Attend from ``query`` to ``key`` and ``value``.

        Args:
            query: (batch, queries, width).
            key: (batch, keys, key_width); None is ``query``: self-attention.
            value: (batch, keys, value_width); None is ``key``.
            mask: from ``regard.masks``, over queries and keys, including those in the cache.
            cache: the state after earlier tokens: ``empty_cache()``, or the cache that an earlier call returned. For
                softmax mechanisms it is a ``KeyValueCache``, or a ``PagedCache`` for sequences of different lengths.
            inputs: extra inputs of the mechanism that the layer does not project itself.

        Returns:
            (batch, queries, width); with a cache, a pair of this output and the extended cache.

        Raises ShapeError, DtypeError, DeviceError, OptionError or RefusedError, as ``regard.attention`` does.
        """
        self._check_input_names(inputs)
        key = query if key is None else key
        value = key if value is None else value
        check_mask(mask)
        if cache is not None and not isinstance(cache, State):
            raise wrong_state_error(cache, type(self.mechanism.empty_state()), type(self.mechanism).__name__)
        queries = self._project_heads(query, self.query_projection, "query")
        # The same tensor if queries are keys, so that a mechanism need not hash it twice, for example.
        same = self.key_projection is None and key is query
        keys = queries if same else self._project_keys(key)
        values = self._project_heads(value, self.value_projection, "value")
        known = (0,) if cache is None else cache.next_positions
        starts = [Frame(query.shape[1], start + key.shape[1]).offset for start in known]
        queries = self._rotate(queries, starts)
        keys = queries if same else self._rotate(keys, known)
        # With a cache all are projected, so that each step has the same inputs.
        frame = Frame(query.shape[1], key.shape[1]) if cache is None else None
        inputs |= self._project_inputs("query", query, starts, frame, inputs) | self._project_inputs(
            "key", key, known, frame, inputs
        )
        if cache is None:
            return self._attend(queries, keys, values, mask, inputs)
        mixed, cache = self.mechanism.step(queries, keys, values, cache, mask, bias=self._bias, **inputs)
        return self._merge_heads(mixed), cache

    def empty_cache(self) -> State:
        """Make the cache before the first token, to pass as ``cache=``: the empty state of the mechanism."""
        return self.mechanism.empty_state()

    def project_memory(self, memory: Tensor) -> KeyValueCache:
        """Compute keys and values of ``memory`` (batch, keys, key_width) once, for ``attend_memory`` at each step."""
        if self.key_projection is None:
            raise _shared_memory_error(self.mechanism)
        keys = self._rotate(self._project_keys(memory), (0,))
        values = self._project_heads(memory, self.value_projection, "value")
        return KeyValueCache.empty().extended(keys, values, self._project_inputs("key", memory, (0,)))

    def attend_memory(
        self, query: Tensor, memory: KeyValueCache, *, mask: Mask | None = None, offset: int | None = None
    ) -> Tensor:
        """Attend from ``query`` (batch, queries, width) to the keys and values that ``project_memory`` returned.

        ``offset`` is the position of the first query for a rotation; None aligns the last query with the last key.
        """
        check_mask(mask)
        _check_cache(memory)
        if offset is not None:
            check_count("offset", offset, least=-LARGEST_SIZE, most=LARGEST_SIZE)
        queries = self._project_heads(query, self.query_projection, "query")
        start = Frame(query.shape[1], memory.length).offset if offset is None else offset
        queries = self._rotate(queries, (start,))
        inputs = self._project_inputs("query", query, (start,)) | memory.inputs
        return self._attend(queries, memory.key, memory.value, mask, inputs)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, *, batch_first: bool | None = None) -> MultiHeadAttention:
        """Convert an ``nn.MultiheadAttention`` to the same layer, with copies of its weights.

        Args:
            module: the layer of torch.
            batch_first: True confirms that calls will pass tokens (batch, length, width), the only order supported
                here. It is required for a module made with ``batch_first=False``, torch's default, since the same call
                would return other numbers and raise no error. None is the module's own setting.

        Raises RefusedError if tokens would be (length, batch, width), and for ``add_bias_kv`` and ``add_zero_attn``,
        which are not supported.
        """
        if not isinstance(module, nn.MultiheadAttention):
            raise OptionError(
                "from_torch takes a layer of torch",
                expected="an nn.MultiheadAttention",
                got=type(module).__name__,
                do="pass the attention layer itself, not the model around it",
            )
        if module.bias_k is not None or module.add_zero_attn:
            raise RefusedError(
                "nn.MultiheadAttention with add_bias_kv or add_zero_attn is not supported",
                expected="a module without them",
                got=f"add_bias_kv={module.bias_k is not None}, add_zero_attn={module.add_zero_attn}",
                do="append the extra key and value to the tokens yourself",
            )
        if (module.batch_first if batch_first is None else batch_first) is not True:
            raise RefusedError(
                "this nn.MultiheadAttention takes tokens (length, batch, width): batch_first=False, torch's default",
                expected="tokens (batch, length, width), the only order supported here",
                got=f"batch_first={module.batch_first if batch_first is None else short_repr(batch_first)}",
                do="call from_torch(module, batch_first=True), and pass tokens.transpose(0, 1) to the layer",
            )
        layer = cls(
            module.embed_dim,
            module.num_heads,
            dropout=module.dropout,
            bias=module.in_proj_bias is not None,
            key_width=module.kdim,
            value_width=module.vdim,
        )
        layer.to(module.out_proj.weight)
        layer.load_state_dict(module.state_dict())
        return layer.train(module.training)

    def _check_input_names(self, inputs: Mapping[str, Tensor]) -> None:
        """Raise ArgumentError for an input that the mechanism does not declare, or that the layer itself projects."""
        if not inputs:
            return
        passed = [one.name for one in self.mechanism.extra_inputs if not one.projected]
        for name, tensor in inputs.items():
            if name not in passed:
                known = ["query", "key", "value", "mask", "cache", *passed]
                raise unknown_argument_error(type(self).__name__, name, tensor, known)

    def _project_inputs(
        self,
        side: Literal["query", "key"],
        tokens: Tensor,
        offsets: Sequence[int],
        frame: Frame | None = None,
        passed: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Project the tokens of one side to its extra inputs of the mechanism, each (batch, heads, length, size).

        If the ``frame`` of the call and the inputs ``passed`` by the caller are known, tokens whose input the mechanism
        does not read are not projected: there it is 0.
        """
        if not self.input_projections:
            return {}
        inputs = {}
        for one in self.mechanism.extra_inputs:
            if not one.projected or one.side != side or one.name not in self.input_projections:
                continue  # a layer that was trained without an input has no projection for it
            projection = cast("nn.Linear", self.input_projections[one.name])
            read = None if frame is None else self.mechanism.tokens_read(one, frame, {} if passed is None else passed)
            if read is None:
                heads = self._project_heads(tokens, projection, side, size=one.size)
            elif read.shape[0] == 0:
                continue
            else:
                read = read.to(tokens.device)
                some = self._project_heads(tokens[:, read], projection, side, size=one.size)
                shape = (some.shape[0], tokens.shape[1], some.shape[1], one.size)  # as a projection stores its heads
                heads = some.new_zeros(shape).index_copy_(1, read, some.transpose(1, 2)).transpose(1, 2)
            inputs[one.name] = self._rotate(heads, offsets) if one.rotates else heads
        return inputs

    def _project_heads(self, tokens: Tensor, projection: nn.Linear, name: str, size: int | None = None) -> Tensor:
        """Project tokens and split heads: (batch, length, width) -> (batch, heads, length, size); None is head_dim."""
        check_layer_input(name, tokens, projection)
        size = self.head_dim if size is None else size
        return linear_activation(tokens, projection).unflatten(-1, (-1, size)).transpose(1, 2)

    def _project_keys(self, tokens: Tensor) -> Tensor:
        """Project tokens to keys (batch, heads, length, head_dim), as queries are if the mechanism shares the two."""
        projection = self.query_projection if self.key_projection is None else self.key_projection
        return self._project_heads(tokens, projection, "key")

    def _rotate(self, tokens: Tensor, offsets: Sequence[int]) -> Tensor:
        """Rotate each part of tokens by their positions, which start at one offset per entry, or at one for all."""
        if not isinstance(self.position, Rotation):
            return tokens
        if self.mechanism.score_parts > 1:
            tokens = tokens.unflatten(-1, (self.mechanism.score_parts, -1)).transpose(2, 3)
            return self._rotate_tokens(self.position, tokens, offsets).transpose(2, 3).flatten(3)
        return self._rotate_tokens(self.position, tokens, offsets)

    def _rotate_tokens(self, position: Rotation, tokens: Tensor, offsets: Sequence[int]) -> Tensor:
        """Rotate tokens (batch, .., length, size)."""
        if len(set(offsets)) < 2:
            rotated: Tensor = position(tokens, offset=offsets[0] if offsets else 0)
            return rotated
        if len(offsets) != len(tokens):
            raise ShapeError(
                "tokens and the cache have different batch sizes",
                expected=f"tokens of {len(offsets)} sequences, as in the cache",
                got=str(len(tokens)),
                do="select the sequences to continue with cache.reordered(...)",
            )
        parts = zip(tokens.split(1), offsets, strict=True)
        return torch.cat([position(part, offset=offset) for part, offset in parts])

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        return self._merge_heads(self.mechanism(query, key, value, mask, bias=self._bias, **inputs))

    @property
    def _bias(self) -> PairBias | None:
        """The position if it is added to scores, else None."""
        return self.position if isinstance(self.position, PairBias) else None

    def _merge_heads(self, heads: Tensor) -> Tensor:
        """Merge heads and project: (batch, heads, length, head_dim) -> (batch, length, width)."""
        heads = self.mechanism.normalize_heads(heads)
        return linear_activation(heads.transpose(1, 2).flatten(2), self.output_projection)

    def _init_weights(self) -> None:
        """Initialise weights by Xavier uniform, as Vaswani et al. and nn.MultiheadAttention do, and biases by 0."""
        for projection in (
            self.query_projection,
            *(() if self.key_projection is None else (self.key_projection,)),
            self.value_projection,
            self.output_projection,
            *cast("Iterable[nn.Linear]", self.input_projections.values()),
        ):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return (
            f"width={self.width}, heads={self.heads}, key_value_heads={self.key_value_heads}, head_dim={self.head_dim}"
        )


def _split_fused(module: MultiHeadAttention, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the entries of an ``nn.MultiheadAttention``, and split its fused ``in_proj`` into three."""
    parts = {"query": module.query_projection, "key": module.key_projection, "value": module.value_projection}
    projections = {name: part for name, part in parts.items() if part is not None}
    names = [f"{prefix}{name}_projection." for name in projections]
    sizes = [projection.out_features for projection in projections.values()]
    for kind in ("weight", "bias"):
        fused = state.pop(f"{prefix}in_proj_{kind}", None)
        if fused is None:
            continue
        if fused.shape[0] != sum(sizes):
            raise ShapeError(
                f"{prefix}in_proj_{kind} does not split into {', '.join(projections)}",
                expected=f"{sum(sizes)} rows = " + " + ".join(str(size) for size in sizes),
                got=f"shape {tuple(fused.shape)}",
                do="build the layer with the width and heads of the checkpoint",
            )
        for name, part in zip(names, fused.split(sizes), strict=True):
            state[name + kind] = part
    renamed: Mapping[str, str] = {
        "q_proj_weight": "query_projection.weight",
        "k_proj_weight": "key_projection.weight",
        "v_proj_weight": "value_projection.weight",
        "out_proj.weight": "output_projection.weight",
        "out_proj.bias": "output_projection.bias",
    }
    for old, new in renamed.items():
        if prefix + old in state:
            state[prefix + new] = state.pop(prefix + old)


def _resolve_mechanism(
    mechanism: object, options: Mapping[str, Any] | None, heads: int, head_dim: int, dropout: float
) -> Mechanism:
    """Build the mechanism of a name, or return an existing one, which has its own dropout and options."""
    if isinstance(mechanism, str):
        extra = {} if options is None else options
        check_kind("mechanism_options", extra, Mapping, do='for example {"window": 5}')
        taken = {"heads", "head_dim"} | ({"dropout"} if dropout else set())
        if not all(isinstance(name, str) and name not in taken for name in extra):
            raise OptionError(
                "mechanism_options contains invalid names",
                expected=f"names of options other than {', '.join(sorted(taken))}, which the layer sets",
                got=", ".join(map(short_repr, extra)),
                do='for example {"window": 5}',
            )
        # dropout is passed only if it is not 0, since mechanisms that form no weights have no such option.
        return make_mechanism(
            mechanism, heads=heads, head_dim=head_dim, **({"dropout": dropout} if dropout else {}), **extra
        )
    if not isinstance(mechanism, Mechanism):
        raise OptionError(
            "mechanism is neither a name nor a mechanism",
            expected="a name in regard.catalogue(), or a module made by regard.mechanism(...)",
            got=short_repr(mechanism),
            do='for example mechanism="dot_product"',
        )
    for name, value in (("dropout", dropout or None), ("mechanism_options", options)):
        if value is not None:
            raise OptionError(
                f"{name} cannot be set for an existing mechanism",
                expected=f"no {name}, or a mechanism by name",
                got=f"{name}={value} and a {type(mechanism).__name__}",
                do="pass it to the mechanism: regard.mechanism(name, ...)",
            )
    return mechanism


def _check_shared(mechanism: Mechanism, width: int, key_width: int, heads: int, key_value_heads: int) -> None:
    """Raise OptionError unless keys may be projected as queries are."""
    name = type(mechanism).__name__
    if key_value_heads != heads or key_width != width:
        raise OptionError(
            f"{name} has one projection for queries and keys",
            expected=f"key_value_heads={heads} and key_width={width}, as of queries",
            got=f"key_value_heads={key_value_heads}, key_width={key_width}",
            do="leave key_value_heads and key_width out, or choose a mechanism with a projection of keys",
        )


def _shared_memory_error(mechanism: Mechanism) -> RefusedError:
    name = type(mechanism).__name__
    return RefusedError(
        f"{name} has one projection for queries and keys, so it does not attend to a memory",
        expected="self-attention",
        got="the tokens of a memory",
        do="use another mechanism for cross-attention, such as dot_product",
    )


def _check_heads(width: int, heads: int, key_value_heads: int, head_dim: int | None) -> None:
    if head_dim is not None:
        check_size("head_dim", head_dim)
    elif width % heads:
        raise OptionError(
            "width is not divisible by heads",
            expected="a multiple of heads, or head_dim=",
            got=f"width={width}, heads={heads}",
            do=f"use {', '.join(str(n) for n in range(1, 33) if width % n == 0)} heads, or pass head_dim=",
        )
    if heads % key_value_heads:
        raise OptionError(
            "heads is not divisible by key_value_heads",
            expected=f"a divisor of {heads}",
            got=str(key_value_heads),
            do="choose a divisor: each key/value head serves the same number of query heads",
        )


def _check_cache(cache: object) -> None:
    if not isinstance(cache, KeyValueCache):
        raise OptionError(
            "this is not a cache of keys and values",
            expected="a KeyValueCache: KeyValueCache.empty(), or what an earlier call or project_memory returned",
            got=type(cache).__name__,
            do="start with cache=KeyValueCache.empty()",
        )


def _check_position(position: object) -> None:
    if position is None or isinstance(position, Rotation | PairBias):
        return
    name = position.__name__ + ", a class" if isinstance(position, type) else type(position).__name__
    raise OptionError(
        f"{name} is not a position inside attention",
        expected="an instance of positions.Rotary, ALiBi, T5Buckets or ShawRelative, or None",
        got=name,
        do="Sinusoidal and Learned positions are added to the embeddings, before the layer",
    )
