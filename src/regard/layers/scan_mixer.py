"""``ScanMixer``: a mechanism of the scan family between projections with a short convolution, and a gated norm.

    x = silu(convolution(projected tokens)),    query, key, value = parts of x
    output = W_o norm(mechanism(query, key, value, ...), gate)

Models replace an attention layer, its norm and often the feed-forward layer by such a block. The convolution mixes
neighbours, so hidden tokens are 0 before it, as if they were not there: what they hold has no influence. Tokens are
(batch, length, width).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import final, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import RefusedError, ShapeError, short_repr
from regard.fields import repr_of_fields
from regard.kernels.operators.activation_op import activate
from regard.kernels.request import Bias
from regard.layers.short_convolution import ShortConvolution
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts
from regard.mechanisms.key_value_cache import take_rows
from regard.mechanisms.linear_state import LinearState
from regard.mechanisms.scan_mechanism import ScanMechanism
from regard.mechanisms.state import State, StateBytes, wrong_state_error
from regard.validation import check_mask, check_tokens


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class MixerCache(State):
    """Decoding state of a mixer, of constant size: the last inputs of its convolution (batch, kernel - 1, channels),
    None before the first token, and the state of its mechanism.
    """

    __repr__ = repr_of_fields

    recent: Tensor | None
    state: LinearState

    length: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", self.state.length)

    @property
    def bytes(self) -> StateBytes:
        """The memory of one sequence, of any length."""
        return StateBytes.sum((StateBytes.of_sums(self.recent), self.state.bytes))

    def reordered(self, entries: Int[Tensor, " batch"]) -> MixerCache:
        """Select batch entries by index, in that order. Raises OptionError for invalid indices."""
        recent = None if self.recent is None else take_rows(self.recent, entries)
        return MixerCache(recent, self.state.reordered(entries))


@explain_arguments
class ScanMixer(nn.Module, ABC):
    """Base class of mixers; a subclass makes the projections, splits what was convolved, and computes the output."""

    position = None
    """A mixer has no position: its state knows the order of the tokens."""

    def __init__(self, width: int, mechanism: ScanMechanism, convolution: ShortConvolution) -> None:
        super().__init__()
        self.width, self.mechanism, self.convolution = width, mechanism, convolution

    @abstractmethod
    def project(self, tokens: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length channels"]:
        """Compute the inputs of the convolution."""

    @abstractmethod
    def split_heads(
        self, convolved: Float[Tensor, "batch length channels"], tokens: Float[Tensor, "batch length width"]
    ) -> dict[str, Tensor]:
        """Return the arguments of the mechanism by name: the activated outputs of the convolution, split into heads as
        query, key and value, and the extra inputs, projected from the tokens.
        """

    @abstractmethod
    def finish(
        self,
        mixed: Float[Tensor, "batch heads length value_dim"],
        value: Float[Tensor, "batch heads length value_dim"],
        tokens: Float[Tensor, "batch length width"],
    ) -> Float[Tensor, "batch length width"]:
        """Compute the output of the layer from the output of the mechanism."""

    @final
    def empty_cache(self, *, window: int | None = None) -> MixerCache:
        """Make the cache before the first token, to pass as ``cache=``; its size is constant, whatever the window."""
        del window
        return MixerCache(None, self.mechanism.empty_state())

    @overload
    def forward(
        self, tokens: Tensor, *, mask: Mask | None = ..., bias: Bias | None = ..., cache: None = ...
    ) -> Tensor: ...

    @overload
    def forward(
        self, tokens: Tensor, *, mask: Mask | None = ..., bias: Bias | None = ..., cache: State
    ) -> tuple[Tensor, MixerCache]: ...

    def forward(
        self, tokens: Tensor, *, mask: Mask | None = None, bias: Bias | None = None, cache: State | None = None
    ) -> Tensor | tuple[Tensor, MixerCache]:
        """Mix each token with those before it.

        Args:
            tokens: (batch, length, width).
            mask: causal, padding, or both; over all tokens, including those in the cache.
            bias: None: there are no scores that one could be added to.
            cache: the state after earlier tokens: ``empty_cache()``, or what an earlier call returned.

        Returns:
            (batch, length, width); with a cache, a pair of this output and the extended cache.

        Raises ShapeError, DtypeError, OptionError, and RefusedError for other masks.
        """
        check_tokens("tokens", tokens, f"(batch, length, {self.width})")
        check_mask(mask)
        if bias is not None:
            raise RefusedError(
                f"{type(self).__name__} refuses a bias, which is added to scores: a state of constant size has none",
                expected="bias=None",
                got=short_repr(bias),
                do="leave it out, or use layers.MultiHeadAttention with the mechanism dot_product",
            )
        if tokens.dim() != 3 or tokens.shape[2] != self.width:
            raise ShapeError(
                "tokens do not fit the layer",
                expected=f"(batch, length, {self.width})",
                got=str(tuple(tokens.shape)),
                do="put the batch first, and build the layer with the width of its tokens",
            )
        if cache is not None and not isinstance(cache, MixerCache):
            raise wrong_state_error(cache, MixerCache, type(self).__name__)
        hidden = self._hidden_tokens(tokens, mask, 0 if cache is None else cache.length)
        projected = self.project(tokens if hidden is None else tokens.masked_fill(hidden, 0.0))
        if hidden is not None:
            tokens, projected = tokens.masked_fill(hidden, 0.0), projected.masked_fill(hidden, 0.0)
        convolved, recent = self.convolution(projected, None if cache is None else cache.recent)
        heads = self.split_heads(activate(convolved, "silu"), tokens)
        if cache is None:
            return self.finish(self.mechanism(**heads, mask=mask), heads["value"], tokens)
        mixed, state = self.mechanism.step(**heads, state=cache.state, mask=mask)
        return self.finish(mixed, heads["value"], tokens), MixerCache(recent, state)

    def _hidden_tokens(self, tokens: Tensor, mask: Mask | None, known: int) -> Tensor | None:
        """True for tokens that are hidden from every query, (batch or 1, length, 1); None if none is."""
        if mask is None:
            return None
        frame = Frame(tokens.shape[1], known + tokens.shape[1])
        mask.check(tokens.shape[0], self.mechanism.heads, frame.queries, frame.keys)
        parts = causal_parts(mask, frame)
        visible = None if parts is None else parts.visible_keys(frame, tokens.device)
        if visible is None:
            return None  # a mask of another form is refused by the mechanism
        if visible.shape[1] != 1:
            raise RefusedError(
                f"{type(self).__name__} refuses a mask that differs between heads",
                expected="a mask that hides a token from all heads or from none",
                got=repr(mask),
                do="the convolution before the heads has one text: use a mask without heads",
            )
        return ~visible[:, 0, known:, None]


def rms_norm(tokens: Float[Tensor, "*shape size"], epsilon: float) -> Float[Tensor, "*shape size"]:
    """Divide by the root mean square: x / sqrt(mean x^2 + epsilon). Zhang and Sennrich 2019."""
    return tokens * torch.rsqrt(tokens.square().mean(-1, keepdim=True) + epsilon)
