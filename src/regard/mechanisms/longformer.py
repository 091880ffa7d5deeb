"""Longformer: each token attends to a window around it, and a few global tokens attend to all and are attended by all.

    ordinary token i    softmax(scale * q_i . k_j) v_j       over |j - i| = 0, d, .., (w/2) d, and over global tokens j
    global token i      softmax(scale * q'_i . k'_j) v'_j    over all j          q', k', v': projections of their own

Beltagy et al. 2020, "Longformer: the long-document transformer", section 3.1: ``window`` is w, the number of keys
beside the token itself, half of them on each side; ``dilation`` is d, one for all heads or one for each. scale =
1/sqrt(head_dim). As in the authors' code, ordinary tokens attend to global ones with their ordinary query, key and
value. Time and memory are n * w, and n for each global token.

In a layer, k'_j = W_K x_j + b_K and v'_j = W_V x_j + b_V take more time than the few global queries that read them. So
without a rotation or a bias, these attend to the tokens themselves, with the same output (``TokenProjection``):

    q' . k'_j = (W_K^T q') . x_j + q' . b_K        sum_j w_j v'_j = W_V (sum_j w_j x_j) + b_V sum_j w_j

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). Queries are the last of the keys
(``contract.Frame``), and positions of global tokens are counted along the keys. The mask of a call restricts both rows;
``masks.causal()`` leaves the left half of the window, and global tokens before the query.

A global value has head_dim numbers, so other values need ``global_tokens=[]`` or ``global_projections=False``. A trace
cannot take ``is_global``, whose values decide how many queries are global.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import LARGEST_LENGTH, OptionError, check_count, check_flag, check_size, short_repr
from regard.kernels.reference.attention import compute_output, compute_weights, make_dot_product_problem
from regard.kernels.request import Request, repeat_heads
from regard.kernels.select import attend
from regard.kernels.token_projection import TokenProjection
from regard.masks.band import check_dilations
from regard.masks.base import Mask
from regard.masks.dense_mask import Keep
from regard.masks.reindexed import reindex
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.extra_input import AbsorbsProjections, ExtraInput
from regard.mechanisms.pattern_cache import PatternCache
from regard.mechanisms.steps import Steps
from regard.positions.base import PairBias
from regard.tensors import has_values, is_traced

_ABSORBED_COST = 2
"""Time of a product in attention divided by the time of a product in a projection."""
_MIN_SAVED = 320
"""Keys by which a dilation widens the window, on average over the heads, from which sorting the tokens is faster."""


@final
class _GlobalTokens(NamedTuple):
    """The global tokens of a call.

    ``tokens`` are positions, or flags (batch or 1, keys); ``name`` determines them. ``rows`` are the queries that are
    global in any batch entry, and ``valid`` says in which; None: in all.
    """

    tokens: list[int] | Tensor
    name: Hashable
    rows: Int[Tensor, " rows"]
    valid: Bool[Tensor, "batch rows"] | None = None


@final
@explain_arguments
class Longformer(AbsorbsProjections, Mechanism):
    """Longformer: a window of ``window`` keys beside the token itself, half on each side, and global tokens.

    Args:
        window: even number of keys in the window, without the token itself.
        dilation: distance of neighbouring keys in the window, one number or one for each head.
        global_tokens: positions of the global tokens, the same in each text; by default the first token.
        global_projections: whether global tokens have projections of their own, which a layer then trains; without
            global tokens in its calls, False saves parameters without gradients.

    Inputs of a call, all optional: ``global_query``, ``global_key`` and ``global_value``, by default the ordinary ones;
    and ``is_global`` (batch, 1, keys, 1), which marks global tokens of each text, beside ``global_tokens``.
    """

    traits = Traits(
        approximates="dot_product",
        divides_scores=True,
        no_steps_reason="Global tokens have queries and keys of their own in this layer.",
    )

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        window: int = 512,
        dilation: int | Sequence[int] = 1,
        global_tokens: Sequence[int] = (0,),
        global_projections: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_size("window", window)
        if window % 2:
            raise OptionError(
                "wrong window",
                expected="an even number of keys, half of them on each side of the token",
                got=short_repr(window),
                do=f"use window={window + 1}",
            )
        check_flag("global_projections", global_projections)
        self.window, self.global_projections = int(window), bool(global_projections)
        self.dilations = check_dilations(dilation)
        if len(self.dilations) not in (1, heads):
            raise OptionError(
                "wrong dilation",
                expected=f"one number, or one for each of {heads} heads",
                got=short_repr(dilation),
                do="for example dilation=2",
            )
        self.global_tokens = check_global_tokens(global_tokens)
        side = self.window // 2
        self._near = masks.window(side, side, dilation=self.dilations)
        self._pattern = self._make_pattern(list(self.global_tokens)) if self.global_tokens else self._near
        self._patterns = PatternCache()

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The projections of global tokens, if they have their own, and which tokens are global."""
        heads, size = self.heads, self.head_dim
        projections = (
            ExtraInput("global_query", "query", heads, size, rotates=True, copied_from="query"),
            ExtraInput("global_key", "key", heads, size, rotates=True, copied_from="key"),
            ExtraInput("global_value", "key", heads, size, copied_from="value"),
        )
        is_global = ExtraInput("is_global", "key", 1, 1, projected=False)
        return (*projections, is_global) if self.global_projections else (is_global,)

    def absorbs_keys(self, key: TokenProjection, value: TokenProjection) -> bool:
        """No: a window has as many products with tokens as with keys, and tokens are wider."""
        del key, value
        return False

    def tokens_read(
        self, extra_input: ExtraInput, frame: Frame, inputs: Mapping[str, Tensor]
    ) -> Int[Tensor, " tokens"] | None:
        """Return the global tokens of the queries for ``global_query``; none of the keys if no query is global."""
        rows = self._global_queries(frame, inputs)
        return rows if rows is None or extra_input.side == "query" or rows.shape[0] == 0 else None

    def absorbs_input(self, extra_input: ExtraInput, frame: Frame, inputs: Mapping[str, Tensor]) -> bool:
        """Whether global queries are so few that attention to tokens is faster than projecting these.

        With r of them, the tokens take r / head_dim of the products of a projection.
        """
        if extra_input.side != "key" or not extra_input.projected or self.active_dropout > 0:
            return False
        rows = self._global_queries(frame, inputs)
        return rows is not None and _ABSORBED_COST * rows.shape[0] <= self.head_dim

    def _global_queries(self, frame: Frame, inputs: Mapping[str, Tensor]) -> Int[Tensor, " rows"] | None:
        """Return the queries that are global in a call with extra inputs; None if the call will be refused."""
        flags, device = inputs.get("is_global"), torch.device("cpu")
        if flags is not None:
            fits = isinstance(flags, Tensor) and flags.dim() == 4 and flags.shape[2] == frame.keys
            if not fits or not has_values(flags):
                return None
            device = flags.device
        found = self._find_global_tokens(flags, frame, device)
        return torch.zeros(0, dtype=torch.long) if found is None else found.rows

    def refuses(self, request: Request) -> str | None:
        """Refuse ``is_global`` without values, and global values that do not have the size of the ordinary ones."""
        flags = request.inputs.get("is_global")
        if flags is not None and not has_values(flags):
            return "is_global decides how many queries are global, so its values are needed, which a trace has not"
        size, given = request.value.shape[3], "global_value" in {*request.inputs, *request.projections}
        if given and size not in (0, self.head_dim):  # 0: the weights alone are needed
            return (
                f"a global value has {self.head_dim} numbers, and other values have {size}; "
                "global_tokens=[] or global_projections=False takes values of any size"
            )
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute ordinary and global tokens in a call of attention each, with the projections of each.

        A text whose tokens are all within half a window of each other is computed as exact attention, if global tokens
        have the projections of the others.
        """
        if self._reaches_all(request):
            return attend("attention", "auto", request.replace(inputs={}))
        found = self._global_tokens_of(request)
        output = self._attend_from_ordinary(request, found)
        if found is None or found.rows.shape[0] == 0:
            return output
        of_rows = self._attend_from_global(request, found)
        if found.valid is not None:
            of_rows = torch.where(found.valid[:, None, :, None], of_rows, output[:, :, found.rows])
        if output.requires_grad or of_rows.requires_grad or not (has_values(output) and has_values(of_rows)):
            return output.index_copy(2, found.rows, of_rows)
        return output.index_copy_(2, found.rows, of_rows)  # the output of kernels is a new tensor

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries in plain torch; global tokens have weights of the global values."""
        request = request.replace(
            inputs={name: tensor for name, tensor in request.inputs.items() if name != "global_value"}
        )
        found = self._global_tokens_of(request)
        ordinary = compute_weights(make_dot_product_problem(self._ordinary_request(request, found)), rows)
        if found is None:
            return ordinary
        of_global = self._global_request(request).replace(mask=_restrict_to_global(request.mask, found))
        return ordinary + compute_weights(make_dot_product_problem(of_global), rows)  # in each row one of them is 0

    def steps(self, request: Request) -> Steps | None:
        """Return the inputs of the scaled dot product; None if global tokens have their own in this call."""
        found = self._global_tokens_of(request)
        if found is not None and (request.projections or any(name != "is_global" for name in request.inputs)):
            return None
        near = self._near if found is None else self._near | masks.global_tokens(found.tokens)
        mask = near if request.mask is None else request.mask & near
        return Steps(request.query, request.repeated_key, mask, scale=self.scale, hidden_by="window")

    def _reaches_all(self, request: Request) -> bool:
        """Whether every window holds all keys, and global tokens have the projections of the others.

        A graph that is traced is for any length, so there it is False.
        """
        if is_traced():
            return False
        frame, side = request.frame, self.window // 2
        own_projections = request.projections or any(name != "is_global" for name in request.inputs)
        return max(frame.queries, frame.keys) <= side + 1 and max(self.dilations) == 1 and not own_projections

    def _global_tokens_of(self, request: Request) -> _GlobalTokens | None:
        return self._find_global_tokens(request.inputs.get("is_global"), request.frame, request.device)

    def _find_global_tokens(self, flagged: Tensor | None, frame: Frame, device: torch.device) -> _GlobalTokens | None:
        """Return the global tokens of a call with the input ``is_global``; None if there are none."""
        if flagged is None:
            if not self.global_tokens:
                return None
            known = [at - frame.offset for at in self.global_tokens if 0 <= at - frame.offset < frame.queries]
            rows = torch.tensor(known, dtype=torch.long, device=device)
            return _GlobalTokens(list(self.global_tokens), self.global_tokens, rows)
        flags = flagged[:, 0, :, 0] != 0
        flags[:, [at for at in self.global_tokens if at < frame.keys]] = True
        flags = flags[:1] if bool((flags == flags[:1]).all()) else flags
        rows = flags.any(0).nonzero()[:, 0] - frame.offset
        rows = rows[(rows >= 0) & (rows < frame.queries)]
        valid = None if flags.shape[0] == 1 else flags[:, rows + frame.offset]
        name = (tuple(flags.shape), flags.cpu().numpy().tobytes())
        return _GlobalTokens(flags, name, rows, valid) if bool(flags.any()) else None

    def _attend_from_ordinary(
        self, request: Request, found: _GlobalTokens | None
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute attention of ordinary tokens; for a large dilation with the tokens in another order."""
        frame = request.frame
        saved = self.window * (sum(self.dilations) / len(self.dilations) - 1)
        if saved < _MIN_SAVED or frame.queries != frame.keys or request.bias is not None or is_traced():
            whole = self._ordinary_request(request, found)
            return attend("attention", "auto", whole)
        if len(self.dilations) == 1:
            return self._attend_reordered(request, found, self.dilations[0], None)
        of_group = request.replace(key=request.repeated_key, value=repeat_heads(request.value, request.group))
        parts, order = [], []
        for dilation in sorted(set(self.dilations)):
            heads = [head for head, rate in enumerate(self.dilations) if rate == dilation]
            order += heads
            parts.append(self._attend_reordered(of_group, found, dilation, torch.tensor(heads, device=request.device)))
        return torch.cat(parts, dim=1)[:, torch.tensor(order, device=request.device).argsort()]

    def _attend_reordered(
        self, request: Request, found: _GlobalTokens | None, dilation: int, heads: Int[Tensor, " heads"] | None
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute some heads with the tokens sorted by position modulo the dilation.

        A dilated window is then a window without gaps among tokens of the same remainder, which has full tiles.
        """
        keys = request.frame.keys
        position = torch.arange(keys, device=request.device)
        order = (position % dilation).argsort(stable=True)

        def make() -> Mask:
            side = self.window // 2
            near = masks.window(side, side) & masks.documents(position[order] % dilation)
            if found is None:
                return ~~near  # one part, with one tile map
            flags = torch.zeros(1, keys, dtype=torch.bool, device=request.device)
            if isinstance(found.tokens, Tensor):
                flags = found.tokens
            else:
                flags[:, [at for at in found.tokens if at < keys]] = True
            flags = flags[:, order]
            return (near | masks.global_tokens(flags, side="key")) & ~masks.global_tokens(flags, side="query")

        pattern = self._patterns.get((dilation, keys, None if found is None else found.name), make)
        mask = self._patterns.join(pattern, request.mask, partial(reindex, order=order, of_heads=heads))
        query, key, value = (
            (side if heads is None else side[:, heads])[:, :, order]
            for side in (request.query, request.key, request.value)
        )
        moved = request.replace(query=query, key=key, value=value, mask=mask, inputs={})
        output = attend("attention", "auto", moved)
        return output[:, :, order.argsort()]

    def _ordinary_request(self, request: Request, found: _GlobalTokens | None) -> Request:
        """Return the request of ordinary tokens, to the window and global tokens; global tokens attend to nothing."""
        pattern = self._pattern
        if found is not None and isinstance(found.tokens, Tensor):
            pattern = self._patterns.get(found.name, partial(self._make_pattern, found.tokens))
        return request.replace(mask=self._patterns.join(pattern, request.mask), inputs={})

    def _make_pattern(self, tokens: list[int] | Tensor) -> Mask:
        """Return to which keys ordinary tokens attend, if ``tokens`` are global: positions or flags."""
        near = self._near | masks.global_tokens(tokens, side="key")
        return near & ~masks.global_tokens(tokens, side="query")

    def _attend_from_global(
        self, request: Request, found: _GlobalTokens
    ) -> Float[Tensor, "batch heads rows value_dim"]:
        """Compute attention of the global queries alone; 0 in batch entries in which they are not global."""
        key, value = (request.projections.get(name) for name in ("global_key", "global_value"))
        if key is None or value is None or request.bias is not None or request.terms.dropout > 0:
            return _attend_from_rows(self._global_request(request), found)
        query = request.inputs.get("global_query", request.query)
        return _attend_absorbed(_of_rows(request.replace(query=query), found), key, value)

    def _global_request(self, request: Request) -> Request:
        """Return the request with the projections of global tokens, still for all queries."""
        inputs = {**request.inputs, **{name: projection.compute() for name, projection in request.projections.items()}}
        query = inputs.get("global_query", request.query)
        key = inputs.get("global_key", request.key)
        value = inputs.get("global_value", request.value)
        if key.shape[1] != value.shape[1]:
            key, value = (repeat_heads(side, self.heads // side.shape[1]) for side in (key, value))
        return request.replace(query=query, key=key, value=value, inputs={})

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        dilation = self.dilations[0] if len(self.dilations) == 1 else list(self.dilations)
        return (
            f"{super().extra_repr()}, window={self.window}, dilation={dilation}, "
            f"global_tokens={list(self.global_tokens)}, global_projections={self.global_projections}"
        )


def _attend_from_rows(request: Request, found: _GlobalTokens) -> Float[Tensor, "batch heads rows value_dim"]:
    """Compute attention of the global queries alone; 0 in batch entries in which they are not global."""
    if isinstance(request.bias, PairBias):  # kernels count the positions of queries from the last one
        problem = make_dot_product_problem(request.replace(mask=_restrict_to_global(request.mask, found)))
        return compute_output(problem, dropout=request.terms.dropout, dtype=request.query.dtype, rows=found.rows)
    request = _of_rows(request, found)
    return attend("attention", "auto", request)


def _attend_absorbed(
    request: Request, key: TokenProjection, value: TokenProjection
) -> Float[Tensor, "batch heads rows value_dim"]:
    """Compute attention to the projections ``key`` and ``value`` of tokens, as attention to the tokens."""
    tokens, bias = key.tokens[:, None], None
    if key.bias_of_heads is not None:
        bias = request.terms.scale * (request.query * key.bias_of_heads).sum(-1, keepdim=True)
    request = request.replace(query=request.query @ key.weight_of_heads, key=tokens, value=tokens, bias=bias)
    output = attend("attention", "auto", request) @ value.weight_of_heads.mT
    if value.bias_of_heads is None:
        return output
    if request.mask is None:
        return output + value.bias_of_heads
    some = request.mask.dense(request.frame.queries, request.frame.keys, device=request.device).any(-1, keepdim=True)
    return output + value.bias_of_heads * some  # the weights of a query that sees nothing add up to 0


def _of_rows(request: Request, found: _GlobalTokens) -> Request:
    """Return the request of the global queries alone, without inputs; masked where they are not global."""
    frame, mask, rows, bias = request.frame, request.mask, found.rows, request.bias
    assert not isinstance(bias, PairBias), "its positions are counted from the last query"
    if mask is not None and mask.depends_on_query:
        mask = Keep(mask.dense(frame.queries, frame.keys, device=request.device, rows=rows))
    if found.valid is not None:
        is_valid = Keep(found.valid[:, None, :, None])
        mask = is_valid if mask is None else mask & is_valid
    bias = bias if bias is None or bias.shape[-2] == 1 else bias[..., rows, :]
    return request.replace(query=request.query[:, :, rows], mask=mask, bias=bias, inputs={}, projections={})


def _restrict_to_global(mask: Mask | None, found: _GlobalTokens) -> Mask:
    """Return the mask of a call, restricted to queries that are global."""
    of_queries = masks.global_tokens(found.tokens, side="query")
    return of_queries if mask is None else mask & of_queries


def check_global_tokens(positions: object) -> tuple[int, ...]:
    """Return positions of global tokens, sorted. Raises OptionError if they are not integers of 0 or more."""
    if not isinstance(positions, list | tuple):
        raise OptionError(
            "wrong global_tokens",
            expected="a list of positions, counted from 0",
            got=short_repr(positions),
            do="for example global_tokens=[0]",
        )
    for position in positions:
        check_count("position in global_tokens", position, minimum=0, maximum=LARGEST_LENGTH)
    return tuple(sorted({int(position) for position in positions}))
