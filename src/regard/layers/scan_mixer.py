"""``ScanMixer``: a mechanism of the scan family between projections with a short convolution, and a gated norm.

    x = silu(convolution(projected tokens)),    query, key, value = parts of x
    output = W_o norm(mechanism(query, key, value, ...), gate)

    convolution(x)_t = sum_{i = 0 .. kernel-1} w_i x_(t - kernel + 1 + i) + b        x before the text is 0

Models replace an attention layer, its norm and often the feed-forward layer by such a block. The convolution mixes
neighbours, so hidden tokens are 0 before it, as if they were not there: what they hold has no influence. Tokens are
(batch, length, width).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, final, overload

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import OptionError, RefusedError, ShapeError, check_flag, check_sizes, check_weights, short_repr
from regard.fields import repr_of_fields
from regard.kernels.operators.activation_op import activate
from regard.kernels.request import Bias
from regard.masks.base import Mask
from regard.masks.causal_parts import causal_parts, causal_parts_of_texts
from regard.mechanisms.key_value_cache import take_rows
from regard.mechanisms.linear_state import LinearState
from regard.mechanisms.scan_mechanism import ScanMechanism
from regard.mechanisms.state import State, StateBytes, wrong_state_error
from regard.validation import check_mask, check_tokens


@final
@explain_arguments
class ShortConvolution(nn.Module):
    """Causal convolution of each of ``channels`` along the text, with ``kernel`` weights, and a ``bias`` or none."""

    def __init__(self, channels: int, kernel: int, *, bias: bool = False) -> None:
        super().__init__()
        check_sizes(channels=channels, kernel=kernel)
        check_weights(channels=channels, kernel=kernel)
        check_flag("bias", bias)
        self.kernel = kernel
        self.weight = nn.Parameter(torch.empty(channels, 1, kernel).uniform_(-(kernel**-0.5), kernel**-0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self,
        tokens: Float[Tensor, "batch length channels"],
        before: Float[Tensor, "batch earlier channels"] | None = None,
    ) -> tuple[Float[Tensor, "batch length channels"], Float[Tensor, "batch earlier channels"]]:
        """Return the convolved tokens, and the last kernel - 1 inputs, which the next call takes as ``before``."""
        if before is None:
            before = tokens.new_zeros(tokens.shape[0], self.kernel - 1, tokens.shape[2])
        inputs = torch.cat([before, tokens], dim=1)
        last = inputs[:, inputs.shape[1] - (self.kernel - 1) :]
        if tokens.shape[1] == 0:
            return tokens, last
        channels = self.weight.shape[0]
        convolved = nn.functional.conv1d(inputs.transpose(1, 2), self.weight, self.bias, groups=channels)
        return convolved.transpose(1, 2), last

    def extra_repr(self) -> str:
        """Format the sizes for ``repr``."""
        return f"{self.weight.shape[0]}, kernel={self.kernel}, bias={self.bias is not None}"


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
    """Base class of mixers; a subclass makes the projections, and computes the output.

    ``heads`` are those of values, of size ``value_dim``; ``key_heads`` those of queries and keys, of size ``head_dim``.
    """

    position = None
    """A mixer has no position: its state knows the order of the tokens."""

    inputs: ClassVar[tuple[str, ...]]
    """The extra inputs of the mechanism, each of which has a projection of the tokens."""

    channels: ClassVar[tuple[str, ...]] = ("query", "key", "value")
    """The order of the channels of the convolution."""

    stored_names: ClassVar[Mapping[str, str]]
    """The names of tensors in the same layer of ``transformers``, and here."""

    fused_names: ClassVar[Mapping[str, tuple[str, ...]]]
    """The names of linear layers there that are several projections here, and the names of these."""

    fuses_heads: ClassVar[bool] = False
    """Whether such a layer has the rows of all projections for the first head of keys first, then for the second."""

    def __init__(
        self,
        width: int,
        mechanism: ScanMechanism,
        *,
        heads: int,
        key_heads: int,
        head_dim: int,
        value_dim: int,
        kernel: int,
        convolution_bias: bool = False,
        epsilon: float,
    ) -> None:
        super().__init__()
        self.width, self.mechanism, self.epsilon = width, mechanism, epsilon
        self.heads, self.key_heads, self.head_dim, self.value_dim = heads, key_heads, head_dim, value_dim
        self.convolution = ShortConvolution(2 * key_heads * head_dim + heads * value_dim, kernel, bias=convolution_bias)
        nn.Module.register_load_state_dict_pre_hook(self, _read_stored_weights)

    def _project(self, name: str, tokens: Tensor) -> Tensor:
        """Project tokens to a side or an extra input."""
        projected: Tensor = self.get_submodule(f"{name}_projection")(tokens)
        return projected

    def _split_heads(
        self, convolved: Float[Tensor, "batch length channels"], tokens: Float[Tensor, "batch length width"]
    ) -> dict[str, Tensor]:
        """Return the arguments of the mechanism by name: the activated outputs of the convolution, split into heads as
        query, key and value, and the extra inputs, projected from the tokens.

        Each head of queries and keys serves several heads of values.
        """
        sizes = {"query": self.head_dim, "key": self.head_dim, "value": self.value_dim}
        counts = {"query": self.key_heads, "key": self.key_heads, "value": self.heads}
        parts = convolved.split([counts[side] * sizes[side] for side in self.channels], dim=-1)
        arguments = {}
        for side, part in zip(self.channels, parts, strict=True):
            split = part.unflatten(-1, (counts[side], sizes[side]))
            if side != "value":
                split = split.repeat_interleave(self.heads // self.key_heads, dim=2)
            arguments[side] = split.transpose(1, 2)
        return arguments | {name: self._project(name, tokens).transpose(1, 2)[..., None] for name in self.inputs}

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
        tokens = tokens if hidden is None else tokens.masked_fill(hidden, 0.0)
        projected = torch.cat([self._project(side, tokens) for side in self.channels], dim=-1)
        if hidden is not None:
            projected = projected.masked_fill(hidden, 0.0)
        convolved, recent = self.convolution(projected, None if cache is None else cache.recent)
        heads = self._split_heads(activate(convolved, "silu"), tokens)
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
        if parts is None and causal_parts_of_texts(mask, frame) is not None:
            raise RefusedError(
                f"{type(self).__name__} refuses several texts in a row",
                expected="a mask that is causal, hides keys from all queries, or both",
                got=repr(mask),
                do="pad the texts instead of packing them: the convolution before the heads would mix them",
            )
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


def check_divides(name: str, number: int, heads: int) -> None:
    """Raise OptionError unless the number divides the heads."""
    if heads % number:
        raise OptionError(
            f"{name} does not divide heads",
            expected=f"a divisor of {heads}",
            got=str(number),
            do=f"for example {name}={heads}",
        )


def _read_stored_weights(module: ScanMixer, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Rename the weights of the same layer of ``transformers`` in a state dict, and split the fused ones."""
    for stored, name in module.stored_names.items():
        if prefix + stored in state:
            state[prefix + name] = state.pop(prefix + stored)
    heads = module.key_heads if module.fuses_heads else 1
    for stored, names in module.fused_names.items():
        sizes = [cast("nn.Linear", module.get_submodule(f"{name}_projection")).out_features // heads for name in names]
        for kind in ("weight", "bias"):
            fused = state.pop(f"{prefix}{stored}.{kind}", None)
            if fused is not None:
                parts = fused.unflatten(0, (heads, -1)).split(sizes, dim=1)
                state |= {
                    f"{prefix}{name}_projection.{kind}": part.flatten(0, 1)
                    for name, part in zip(names, parts, strict=True)
                }
