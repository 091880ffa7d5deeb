"""Linformer: keys and values are projected along their length to a fixed number before queries attend to them.

    output = softmax(scale * Q (E K)^T) F V        E, F (projected, length), scale = 1/sqrt(head_dim)

Wang et al. 2020, "Linformer: self-attention with linear complexity", equation 7; E and F are drawn as R of theorem 2,
normal with a variance of 1 / projected. Fewer keys than ``length`` use the first columns of E and F; more keys are
refused. Time is n * projected * d, and memory is linear in the length. It approximates softmax attention: the weights
of a query over keys are softmax(..) F, of either sign.

E and F may be shared (section 4): by the heads of a layer ("headwise"); by keys and values too, so that E = F
("key-value"); by all layers too ("layerwise"), in a model or where made with the same parameter; or each head has
its own ("none").

In a layer K = X W_K^T + b_K, so E K = (E X) W_K^T + (E 1) b_K^T: tokens can be projected along their length first, and
then along their width, of which only ``projected`` are left. If heads share E this has fewer products, and the layer
passes keys and values as what they are computed from (``TokenProjection``).

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). A key that is hidden from every query,
such as padding, is left out of the projection. Masks that differ between queries, such as causal ones, are not
supported, since the projection mixes keys for all queries alike.
"""

from __future__ import annotations

from typing import Literal, cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, check_choice, check_sizes, check_weights, short_repr
from regard.kernels.autocast import disable_autocast
from regard.kernels.request import Bias, Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.select import attend
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.clean_tokens import fill_zeros, is_finite, mark_heads
from regard.mechanisms.extra_input import AbsorbsProjections
from regard.mechanisms.steps import Factors

SHARINGS = ("headwise", "key-value", "layerwise", "none")


@final
@explain_arguments
class Linformer(AbsorbsProjections, Mechanism):
    """Linformer: softmax(scale * Q (E K)^T) F V, for at most ``length`` keys, projected to ``projected``.

    Args:
        heads, head_dim: of the queries.
        length: the largest number of keys.
        projected: the number that they are projected to.
        dropout: probability of dropping a weight of a projected key in training.
        sharing: what has one projection: "headwise", the heads of a layer, with E and F apart; "key-value", also keys
            and values, E = F; "layerwise", also all layers; "none", nothing.
        projection: for sharing="layerwise" the parameter (projected, length), the same one for each layer. None makes a
            new one; all layers of a model use the parameter of the first one.
    """

    traits = Traits(weights_are="signed", approximates="dot_product", divides_scores=True)

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        length: int = 512,
        projected: int = 128,
        dropout: float = 0.0,
        sharing: Literal["headwise", "key-value", "layerwise", "none"] = "headwise",
        projection: nn.Parameter | None = None,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_sizes(length=length, projected=projected)
        check_choice("sharing", sharing, SHARINGS)
        own_heads = (heads,) if sharing == "none" else ()
        check_weights(projected=projected, length=length, heads=heads if own_heads else 1)
        _check_projection(projection, sharing, (projected, length))
        self.length, self.projected, self.sharing = length, projected, sharing
        if sharing in ("key-value", "layerwise"):
            self.projection = make_projection(projected, length) if projection is None else projection
        else:
            self.key_projection = make_projection(*own_heads, projected, length)
            self.value_projection = make_projection(*own_heads, projected, length)

    def refuses(self, request: Request) -> str | None:
        """Refuse masks that differ between queries, a bias, and more keys than ``length``."""
        if request.frame.keys > self.length:
            return f"its projections were made for at most {self.length} keys, and there are {request.frame.keys}"
        if request.bias is not None:
            return "a bias is defined for pairs of a query and a key, and it projects keys along their length first"
        parts = causal_parts(request.mask, request.frame)
        if parts is None or (parts.high is not None and parts.high < request.frame.keys - 1):
            return "it projects keys along their length, so every query attends to the same keys: no causal mask"
        return None

    def absorbs_keys(self, key: TokenProjection, value: TokenProjection) -> bool:
        """Whether E (X W^T) has more products than (E X) W^T, for keys and values together."""
        return self.sharing != "none" and sum(self._saved_products(side) for side in (key, value)) > 0

    def _saved_products(self, side: TokenProjection) -> int:
        _, heads, length, size = side.shape
        columns, width = heads * size, side.tokens.shape[2]
        return length * columns * (width + self.projected) - self.projected * width * (length + columns)

    def forward(
        self,
        query: Tensor,
        key: Tensor | TokenProjection,
        value: Tensor | TokenProjection,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor | TokenProjection,
    ) -> Tensor:
        """Compute the output (batch, heads, queries, value_dim), with keys and values projected in either order.

        Raises what ``Mechanism.forward`` raises.
        """
        if not (isinstance(key, TokenProjection) and isinstance(value, TokenProjection)):
            # Both are tensors, or the call is refused there.
            return super().forward(query, cast(Tensor, key), cast(Tensor, value), mask, bias=bias, **inputs)
        # Tensors of the shapes of keys and values, without memory for their numbers.
        of_key, of_value = (query.new_zeros(1).expand(side.shape) for side in (key, value))
        request = self.make_request(query, of_key, of_value, mask, bias, inputs)
        visible = self._visible_keys(request)
        if visible is not None and visible.shape[1] > 1:  # other keys for each head
            return self.attend(request.replace(key=key.compute(), value=value.compute()))
        return self._attend_absorbed(request, key, value, visible)

    def _attend_absorbed(
        self,
        request: Request,
        key: TokenProjection,
        value: TokenProjection,
        visible: Bool[Tensor, "#batch 1 keys"] | None,
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output from (E X) W_K^T + (E 1) b_K^T and (F X) W_V^T + (F 1) b_V^T."""
        dtype = accumulation_dtype(request.query.dtype)
        keys, values = (side.tokens.to(dtype)[:, None] for side in (key, value))
        if value.tokens is key.tokens:
            values = keys
        bad, excluded = _find_excluded(keys, values, visible)
        of_key, of_value = self.projections
        with disable_autocast(request.device):
            short_keys = short_values = _project(of_key, fill_zeros(keys, excluded))
            if values is not keys or of_value is not of_key:
                short_values = _project(of_value, fill_zeros(values, excluded))
            kept = (~excluded)[..., None].to(dtype)
            projected_key = _project_width(short_keys, _project(of_key, kept), key)
            projected_value = _project_width(short_values, _project(of_value, kept), value)
            output = _attend_to_projected(request, projected_key, projected_value, "auto")
        return _mark(output, bad, visible).to(request.query.dtype)

    def weight_factors(self, request: Request) -> Factors | None:
        """Return the weights of the projected keys, and the columns of F; None if keys are hidden."""
        if self._visible_keys(request) is not None:
            return None
        dtype = accumulation_dtype(request.query.dtype)
        key = request.key.to(dtype).repeat_interleave(request.group, dim=1)
        of_key, of_value = self.projections
        scores = self.scale * request.query.to(dtype) @ _project(of_key, key).mT
        columns = of_value[..., : key.shape[2]].to(dtype).mT.expand(*scores.shape[:2], -1, -1)
        return Factors("projected keys", scores.softmax(-1), columns, is_divided=False)

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output; half precision is computed in float32 and rounded once."""
        return self._attend(request, "auto")

    def _attend(self, request: Request, impl: str) -> Float[Tensor, "batch heads queries value_dim"]:
        dtype = accumulation_dtype(request.query.dtype)
        visible = self._visible_keys(request)
        key, value = request.key.to(dtype), request.value.to(dtype)
        if self.sharing == "none" or (visible is not None and visible.shape[1] > 1):
            key, value = (side.repeat_interleave(request.group, dim=1) for side in (key, value))
        bad, excluded = _find_excluded(key, value, visible)
        of_key, of_value = self.projections
        with disable_autocast(request.device):
            projected_key = _project(of_key, fill_zeros(key, excluded))
            projected_value = _project(of_value, fill_zeros(value, excluded))
            output = _attend_to_projected(request, projected_key, projected_value, impl)
        return _mark(output, bad, visible).to(request.query.dtype)

    @staticmethod
    def _visible_keys(request: Request) -> Bool[Tensor, "#batch #heads keys"] | None:
        """Return which keys the queries may see; None is all."""
        parts = causal_parts(request.mask, request.frame)
        assert parts is not None, "other masks are refused"
        return parts.visible_keys(request.frame, request.device)

    def attend_in_torch(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output without the fused kernels, which have no second derivatives."""
        return self._attend(request, "reference")

    @property
    def projections(self) -> tuple[Tensor, Tensor]:
        """E and F, each (projected, length), or (heads, projected, length) if each head has its own."""
        if self.sharing in ("key-value", "layerwise"):
            return self.projection, self.projection
        return self.key_projection, self.value_projection

    def refusal_error(self, reason: str, request: Request) -> RefusedError:
        """Build the error for a call that is not supported; for too many keys it says what to do."""
        error = super().refusal_error(reason, request)
        if request.frame.keys > self.length:
            error.do = (
                f"build it with length={request.frame.keys} and train it, or cut the text to {self.length} tokens"
            )
        return error

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        sizes = f"length={self.length}, projected={self.projected}"
        return f"{super().extra_repr()}, {sizes}, sharing={self.sharing!r}"


def make_projection(*sizes: int) -> nn.Parameter:
    """Make a projection of the given sizes, the last two of which are projected and length; variance 1 / projected."""
    return nn.Parameter(torch.randn(sizes) * sizes[-2] ** -0.5)


def _project(
    weight: Float[Tensor, "*heads projected length"], tokens: Float[Tensor, "batch some_heads keys size"]
) -> Float[Tensor, "batch some_heads projected size"]:
    """Compute E K or F V."""
    return weight[..., : tokens.shape[2]].to(tokens) @ tokens


def _project_width(
    short: Float[Tensor, "batch 1 projected width"],
    sums: Float[Tensor, "#batch 1 projected 1"],
    side: TokenProjection,
) -> Float[Tensor, "batch key_heads projected size"]:
    """Compute (E X) W^T + (E 1) b^T of each head from E X and E 1."""
    projected = functional.linear(short[:, 0], side.weight.to(short.dtype))
    if side.bias is not None:
        projected = projected + sums[:, 0] * side.bias.to(short.dtype)
    return projected.unflatten(2, (side.heads, -1)).transpose(1, 2)


def _attend_to_projected(
    request: Request,
    key: Float[Tensor, "batch key_heads projected head_dim"],
    value: Float[Tensor, "batch key_heads projected value_dim"],
    impl: str,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention of all queries to projected keys and values, in their dtype."""
    projected = request.replace(query=request.query.to(key.dtype), key=key, value=value, mask=None)
    return attend("attention", impl, projected)


def _find_excluded(
    key: Float[Tensor, "batch some_heads keys key_size"],
    value: Float[Tensor, "batch some_heads keys value_size"],
    visible: Bool[Tensor, "#batch #some_heads keys"] | None,
) -> tuple[Bool[Tensor, "batch some_heads keys"], Bool[Tensor, "batch some_heads keys"]]:
    """Return which tokens are not finite, and which the projections leave out: those and hidden ones."""
    bad = ~(is_finite(key) if value is key else is_finite(key) & is_finite(value))
    return bad, bad if visible is None else bad | ~visible


def _mark(
    output: Float[Tensor, "batch heads queries value_dim"],
    bad: Bool[Tensor, "batch some_heads keys"],
    visible: Bool[Tensor, "#batch #some_heads keys"] | None,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """Set outputs to 0 where no key is visible, and to NaN where a visible one is not finite."""
    empty = (torch.zeros_like(bad) if visible is None else ~visible.expand_as(bad)).all(-1)
    broken = (bad if visible is None else bad & visible).any(-1)
    empty, broken = (flag.repeat_interleave(output.shape[1] // flag.shape[1], 1) for flag in (empty, broken))
    return mark_heads(output, empty, broken)


def _check_projection(projection: object, sharing: str, sizes: tuple[int, int]) -> None:
    """Raise OptionError unless there is a projection of these sizes exactly if layers share one."""
    if projection is None:
        return
    if sharing == "layerwise" and isinstance(projection, nn.Parameter) and tuple(projection.shape) == sizes:
        return
    raise OptionError(
        "the projection that the layers share does not fit"
        if sharing == "layerwise"
        else f"sharing={sharing!r} has projections of its own",
        expected=f"projection=an nn.Parameter {sizes}" if sharing == "layerwise" else "no projection",
        got=f"projection={short_repr(projection)}",
        do="make the layers with the same one: regard.mechanisms.linformer.make_projection(projected, length)"
        if sharing == "layerwise"
        else 'use sharing="layerwise", or leave it out',
    )
