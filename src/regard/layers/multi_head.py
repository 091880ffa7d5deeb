"""Multi-head attention.

    MultiHead(X, Y) = Concat(head_1, .., head_h) W_O,    head_i = mechanism(X W_Q^i, Y W_K^i, Y W_V^i)

Vaswani et al. 2017, section 3.2.2. Grouped queries: Ainslie et al. 2023. Tokens are (batch, length, width),
batch first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, cast, final, overload

from torch import Tensor, nn

from regard.arguments import explain_arguments, unknown_argument_error
from regard.contract import Frame
from regard.errors import (
    LARGEST_SIZE,
    check_count,
    check_dropout,
    check_flag,
    check_size,
    check_sizes,
    check_weights,
)
from regard.kernels.autocast import to_autocast_dtype
from regard.kernels.request import Bias
from regard.kernels.token_projection import TokenProjection
from regard.layers.input_checks import check_layer_input
from regard.layers.multi_head_parts import (
    check_head_norms,
    check_heads,
    check_mechanism_position,
    check_memory,
    check_position,
    check_shared_projection,
    resolve_mechanism,
    shared_memory_error,
    two_biases_error,
)
from regard.layers.projection import is_plain_linear, linear_activation
from regard.layers.torch_multi_head import read_options, rename_weights
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.extra_input import AbsorbsProjections, ExtraInput
from regard.mechanisms.key_value_cache import KeyValueCache
from regard.mechanisms.state import State, wrong_state_error
from regard.positions.base import PairBias, Rotation, rotate_tokens
from regard.tensors import is_traced
from regard.validation import check_mask


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
            ``ShawRelative``, ``RelativeSinusoidal``, ``Relative2d`` (bias of scores).
        dropout: probability of dropping a weight in training, for a mechanism given by name.
        bias: whether the projections have a bias.
        output_bias: whether the output projection has a bias; None is ``bias``.
        head_dim: size of a head; None is width / heads.
        value_head_dim: size of the values of a head, and so of its output; None is ``head_dim``. Jaegle et al. 2021,
            "Perceiver IO", appendix E, has values of another size than queries and keys.
        key_width: size of the tokens that keys are computed from; None is ``width``.
        value_width: size of the tokens that values are computed from; None is ``key_width``.
        query_norm: a module that normalises the queries of each head (batch, heads, queries, head_dim), before any
            rotation, such as ``layers.RMSNorm(head_dim)``; None is no norm. Henry et al. 2020, "Query-key
            normalization for transformers", and Dehghani et al. 2023, section 2, have such norms.
        key_norm: the same for the keys.
        output_gate: whether the output of the heads is multiplied by sigmoid(X W_G), before the output projection. Qiu
            et al. 2025, "Gated attention for large language models", section 2.2.

    ``key_projection`` is None if the mechanism shares queries and keys (``mechanisms.Traits``): keys are then
    projected by ``query_projection``. ``input_projections`` holds a projection for each input that the mechanism
    declares beside query, key and value. Positions are counted along the keys, and the last query has the position of
    the last key (``contract.Frame``).

    Raises OptionError if sizes do not divide, a name is unknown, or the position is one that is added to embeddings;
    RefusedError for a position that is a bias if the mechanism supports no bias.
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
        output_bias: bool | None = None,
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        key_width: int | None = None,
        value_width: int | None = None,
        query_norm: nn.Module | None = None,
        key_norm: nn.Module | None = None,
        output_gate: bool = False,
    ) -> None:
        super().__init__()
        key_value_heads = heads if key_value_heads is None else key_value_heads
        key_width = width if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        output_bias = bias if output_bias is None else output_bias
        check_sizes(
            width=width, heads=heads, key_value_heads=key_value_heads, key_width=key_width, value_width=value_width
        )
        check_heads(width, heads, key_value_heads, head_dim, value_head_dim)
        check_position(position)
        for name, flag in (("bias", bias), ("output_bias", output_bias), ("output_gate", output_gate)):
            check_flag(name, flag)
        check_head_norms(query_norm, key_norm)
        check_dropout(dropout)
        self.width, self.heads, self.key_value_heads = width, heads, key_value_heads
        self.head_dim = width // heads if head_dim is None else head_dim
        self.value_head_dim = self.head_dim if value_head_dim is None else value_head_dim
        largest_head = max(self.head_dim, self.value_head_dim)
        check_weights(width=max(width, key_width, value_width), heads=heads, head_dim=largest_head)
        self.query_projection = nn.Linear(width, heads * self.head_dim, bias=bias)
        self.key_projection: nn.Linear | None = nn.Linear(key_width, key_value_heads * self.head_dim, bias=bias)
        self.value_projection = nn.Linear(value_width, key_value_heads * self.value_head_dim, bias=bias)
        self.output_projection = nn.Linear(heads * self.value_head_dim, width, bias=bool(output_bias))
        self.gate_projection = nn.Linear(width, heads * self.value_head_dim, bias=bias) if output_gate else None
        self.mechanism = resolve_mechanism(mechanism, mechanism_options, heads, self.head_dim, dropout)
        check_mechanism_position(self.mechanism, position)
        if self.mechanism.traits.shares_query_key:
            check_shared_projection(self.mechanism, width, key_width, heads, key_value_heads, query_norm, key_norm)
            self.key_projection = None
        self.query_norm, self.key_norm = query_norm, key_norm
        self.input_projections = nn.ModuleDict(
            {
                each.name: nn.Linear(width if each.side == "query" else key_width, each.heads * each.size, bias=bias)
                for each in self.mechanism.extra_inputs
                if each.projected
            }
        )
        self.position = position
        nn.Module.register_load_state_dict_pre_hook(self, _read_torch_weights)
        self._init_weights()

    @overload
    def forward(
        self,
        query: Tensor,
        key: Tensor | None = ...,
        value: Tensor | None = ...,
        *,
        mask: Mask | None = ...,
        bias: Bias | None = ...,
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
        bias: Bias | None = ...,
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
        bias: Bias | None = None,
        cache: State | None = None,
        **inputs: Tensor,
    ) -> Tensor | tuple[Tensor, State]:
        """Attend from ``query`` to ``key`` and ``value``.

        Args:
            query: (batch, queries, width).
            key: (batch, keys, key_width); None is ``query``: self-attention.
            value: (batch, keys, value_width); None is ``key``.
            mask: from ``regard.masks``, over queries and keys, including those in the cache.
            bias: added to the scores, over the same queries and keys, as for ``regard.attention``: for a bias that
                several layers share. Only in a layer without a bias of its own, which is ``position``.
            cache: the state after earlier tokens: ``empty_cache()``, or the cache that an earlier call returned. For
                softmax mechanisms it is a ``KeyValueCache``, a ``WindowCache`` for a sliding window, or a
                ``PagedCache`` for sequences of different lengths.
            inputs: extra inputs of the mechanism that the layer does not project itself.

        Returns:
            (batch, queries, width); with a cache, a pair of this output and the extended cache.

        Raises ShapeError, DtypeError, DeviceError, OptionError or RefusedError, as ``regard.attention`` does.
        """
        mechanism = self.mechanism
        self._check_call(inputs, mask, cache)
        if key is None and isinstance(query, Tensor):  # one cast for queries, keys and values
            query = to_autocast_dtype(query)
        key = query if key is None else key
        value = key if value is None else value
        bias = self.choose_bias(bias)
        queries = self._project_queries(query)
        absorbed = self._absorb_keys(key, value) if cache is None else None
        if absorbed is not None:
            return self._merge_heads(mechanism(queries, *absorbed, mask, bias=bias, **inputs), mechanism, query)
        # The same tensor if queries are keys, so that a mechanism need not hash it twice, for example.
        same = key is query and self.key_projection is None
        keys = queries if same else self._project_keys(key)
        values = self._project_heads(value, self.value_projection, "value", size=self.value_head_dim)
        known = (0,) if cache is None else cache.next_positions
        ahead = 0 if key is query else key.shape[1] - query.shape[1]
        starts = known if ahead == 0 or isinstance(known, Tensor) else [start + ahead for start in known]
        queries = self._rotate(queries, starts)
        keys = queries if same else self._rotate(keys, known)
        # In a step all tokens are projected, so that each step has the same inputs.
        frame = Frame(query.shape[1], key.shape[1]) if cache is None else None
        projected = self._project_inputs("query", query, starts, frame, inputs)
        projected |= self._project_inputs("key", key, known, frame, inputs)
        if cache is None:
            mixed = mechanism(queries, keys, values, mask, bias=bias, **inputs, **projected)
            return self._merge_heads(mixed, mechanism, query)
        mixed, cache = mechanism.step(queries, keys, values, cache, mask, bias=bias, **inputs, **projected)
        return self._merge_heads(mixed, mechanism, query), cache

    def empty_cache(self, *, window: int | None = None) -> State:
        """Make the cache before the first token, to pass as ``cache=``: the empty state of the mechanism.

        With a ``window``, every call has a mask by which a query attends to its own token and the ``window`` - 1 before
        it at most, such as ``masks.window(window - 1, 0)``; the dot product then keeps these tokens alone. Masks and
        biases are over the kept and the new tokens. Raises OptionError for a window below 1.
        """
        if window is None:
            return self.mechanism.empty_state()
        check_size("window", window)
        return self.mechanism.empty_window_state(window)

    def project_memory(self, memory: Tensor) -> KeyValueCache:
        """Compute keys and values of ``memory`` (batch, keys, key_width) once, for ``attend_memory`` at each step."""
        if self.key_projection is None:
            raise shared_memory_error(self.mechanism)
        keys = self._rotate(self._project_keys(memory), (0,))
        values = self._project_heads(memory, self.value_projection, "value", size=self.value_head_dim)
        return KeyValueCache.empty().extended(keys, values, self._project_inputs("key", memory, (0,)))

    def attend_memory(
        self, query: Tensor, memory: KeyValueCache, *, mask: Mask | None = None, offset: int | None = None
    ) -> Tensor:
        """Attend from ``query`` (batch, queries, width) to the keys and values that ``project_memory`` returned.

        ``offset`` is the position of the first query for a rotation; None aligns the last query with the last key.
        """
        check_mask(mask)
        check_memory(memory)
        if offset is not None:
            check_count("offset", offset, minimum=-LARGEST_SIZE, maximum=LARGEST_SIZE)
        queries = self._project_queries(query)
        start = Frame(query.shape[1], memory.length).offset if offset is None else offset
        queries = self._rotate(queries, (start,))
        inputs = self._project_inputs("query", query, (start,)) | memory.inputs
        mechanism = self.mechanism
        mixed = mechanism(queries, memory.key, memory.value, mask, bias=self._bias, **inputs)
        return self._merge_heads(mixed, mechanism, query)

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
        layer = cls(**read_options(module, batch_first))
        layer.to(module.out_proj.weight)
        layer.load_state_dict(module.state_dict())
        return layer.train(module.training)

    def _check_call(self, inputs: Mapping[str, Tensor], mask: object, cache: object) -> None:
        """Raise ArgumentError for an input that the mechanism does not declare, or that the layer itself projects.

        Raises OptionError unless ``mask`` is a mask, and ``cache`` a state.
        """
        if inputs:
            passed = [extra_input.name for extra_input in self.mechanism.extra_inputs if not extra_input.projected]
            for name, tensor in inputs.items():
                if name not in passed:
                    known = ["query", "key", "value", "mask", "bias", "cache", *passed]
                    raise unknown_argument_error(type(self).__name__, name, tensor, known)
        check_mask(mask)
        if cache is not None and not isinstance(cache, State):
            raise wrong_state_error(cache, type(self.mechanism.empty_state()), type(self.mechanism).__name__)

    def _project_inputs(
        self,
        side: Literal["query", "key"],
        tokens: Tensor,
        offsets: Sequence[int] | Tensor,
        frame: Frame | None = None,
        passed: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Project the tokens of one side to its extra inputs of the mechanism, each (batch, heads, length, size).

        If the ``frame`` of the call is known, tokens whose input the mechanism does not read, by the inputs ``passed``
        by the caller, are not projected: there it is 0. And projections may be left to the mechanism
        (``TokenProjection``).
        """
        if not self.input_projections:
            return {}
        inputs: dict[str, Any] = {}
        for extra_input in self.mechanism.extra_inputs:
            if not extra_input.projected or extra_input.side != side or extra_input.name not in self.input_projections:
                continue  # a layer that was trained without an input has no projection for it
            projection = cast("nn.Linear", self.input_projections[extra_input.name])
            read, mechanism = None, self.mechanism
            if frame is not None and isinstance(mechanism, AbsorbsProjections):
                read = mechanism.tokens_read(extra_input, frame, passed)
                if (
                    read is None
                    and self._is_plain(extra_input, projection)
                    and mechanism.absorbs_input(extra_input, frame, passed)
                ):
                    inputs[extra_input.name] = _leave_to_mechanism(side, tokens, projection, extra_input.heads)
                    continue
            if read is None:
                heads = self._project_heads(tokens, projection, side, size=extra_input.size)
            elif read.shape[0] == 0:
                continue
            else:
                heads = self._project_tokens(tokens, read.to(tokens.device), projection, side, extra_input.size)
            inputs[extra_input.name] = self._rotate(heads, offsets) if extra_input.rotates else heads
        return inputs

    def _project_tokens(self, tokens: Tensor, read: Tensor, projection: nn.Linear, name: str, size: int) -> Tensor:
        """Project the tokens with the indices ``read``, and split heads; the others have 0."""
        some = self._project_heads(tokens[:, read], projection, name, size=size)
        stored = (some.shape[0], tokens.shape[1], some.shape[1], size)  # as a projection stores its heads
        return some.new_zeros(stored).index_copy_(1, read, some.transpose(1, 2)).transpose(1, 2)

    def _absorb_keys(self, key: Tensor, value: Tensor) -> tuple[TokenProjection, TokenProjection] | None:
        """Return keys and values as tokens and their projections, if the mechanism needs fewer products then."""
        mechanism, of_key, of_value = self.mechanism, self.key_projection, self.value_projection
        if not isinstance(mechanism, AbsorbsProjections):
            return None
        if of_key is None or self.key_norm is not None or isinstance(self.position, Rotation) or is_traced():
            return None
        if not is_plain_linear(of_key) or not is_plain_linear(of_value):
            return None
        keys = _leave_to_mechanism("key", key, of_key, self.key_value_heads)
        value = keys.tokens if value is key else value  # one tensor, so that the mechanism sees that they are the same
        values = _leave_to_mechanism("value", value, of_value, self.key_value_heads)
        return (keys, values) if mechanism.absorbs_keys(keys, values) else None

    def _is_plain(self, extra_input: ExtraInput, projection: nn.Linear) -> bool:
        """Whether an extra input is nothing but a projection of the tokens, so that it may be left to the mechanism."""
        changes = self._bias is not None or (extra_input.rotates and isinstance(self.position, Rotation))
        return not changes and is_plain_linear(projection) and not is_traced()

    def _project_heads(self, tokens: Tensor, projection: nn.Linear, name: str, size: int | None = None) -> Tensor:
        """Project tokens and split heads: (batch, length, width) -> (batch, heads, length, size); None is head_dim."""
        check_layer_input(name, tokens, projection)
        size = self.head_dim if size is None else size
        projected = linear_activation(tokens, projection)
        batch, length, width = projected.shape
        return projected.view(batch, length, width // size, size).transpose(1, 2)

    def _project_queries(self, tokens: Tensor) -> Tensor:
        """Project tokens to queries (batch, heads, length, head_dim), and normalise them if there is a norm."""
        queries = self._project_heads(tokens, self.query_projection, "query")
        return queries if self.query_norm is None else self.query_norm(queries)

    def _project_keys(self, tokens: Tensor) -> Tensor:
        """Project tokens to keys (batch, heads, length, head_dim), as queries are if the mechanism shares the two."""
        own = self.key_projection
        projection = self.query_projection if own is None else own
        keys = self._project_heads(tokens, projection, "key")
        return keys if self.key_norm is None else self.key_norm(keys)

    def _rotate(self, tokens: Tensor, offsets: Sequence[int] | Tensor) -> Tensor:
        """Rotate tokens by their positions: a tensor of them, or one offset per entry, or one for all."""
        position = self.position
        if not isinstance(position, Rotation):
            return tokens
        return rotate_tokens(position, tokens, offsets, parts=self.mechanism.traits.score_parts)

    def choose_bias(self, passed: Bias | None) -> Bias | None:
        """Return the bias of a call: the layer's own, or the one passed. Raises OptionError if there are both."""
        own = self._bias
        if passed is not None and own is not None:
            raise two_biases_error(own)
        return own if passed is None else passed

    @property
    def _bias(self) -> PairBias | None:
        """The position if it is added to scores, else None."""
        position = self.position
        return position if isinstance(position, PairBias) else None

    def _merge_heads(self, heads: Tensor, mechanism: Mechanism, query: Tensor) -> Tensor:
        """Merge heads and project: (batch, heads, length, value_head_dim) -> (batch, length, width)."""
        merged = mechanism.normalize_heads(heads).transpose(1, 2).flatten(2)
        if self.gate_projection is not None:
            merged = merged * linear_activation(query, self.gate_projection).sigmoid()
        return linear_activation(merged, self.output_projection)

    def _init_weights(self) -> None:
        """Initialise weights by Xavier uniform, as Vaswani et al. and nn.MultiheadAttention do, and biases by 0."""
        for projection in (
            self.query_projection,
            *(() if self.key_projection is None else (self.key_projection,)),
            self.value_projection,
            self.output_projection,
            *(() if self.gate_projection is None else (self.gate_projection,)),
            *cast("Iterable[nn.Linear]", self.input_projections.values()),
        ):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        values = "" if self.value_head_dim == self.head_dim else f", value_head_dim={self.value_head_dim}"
        return (
            f"width={self.width}, heads={self.heads}, key_value_heads={self.key_value_heads}, head_dim={self.head_dim}"
            + values
        )


def _leave_to_mechanism(name: str, tokens: Tensor, projection: nn.Linear, heads: int) -> TokenProjection:
    """Return an input that the mechanism need not compute. Raises ShapeError, DeviceError or DtypeError."""
    check_layer_input(name, tokens, projection)
    return TokenProjection(to_autocast_dtype(tokens), projection.weight, projection.bias, heads)


def _read_torch_weights(module: MultiHeadAttention, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Accept the weights of an ``nn.MultiheadAttention`` in ``load_state_dict``."""
    parts = {"query": module.query_projection, "key": module.key_projection, "value": module.value_projection}
    rows = {name: projection.out_features for name, projection in parts.items() if projection is not None}
    rename_weights(state, prefix, rows)
