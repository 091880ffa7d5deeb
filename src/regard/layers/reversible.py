"""Reversible blocks: the inputs of each block are computed again from its outputs, so only the last outputs are stored.

    y_1 = x_1 + attention(norm(x_2))        x_2 = y_2 - feed_forward(norm(y_1))
    y_2 = x_2 + feed_forward(norm(y_1))     x_1 = y_1 - attention(norm(x_2))

Gomez et al. 2017, "The reversible residual network"; Kitaev et al. 2020 (Reformer), section 3. Tokens are (batch,
length, width); a stack starts with both streams equal to its input, and returns their mean. In training, the memory for
tokens does not depend on the number of blocks, and a backward pass computes each block once more. Dropout and other
random numbers are replayed: the state of the generators is kept for each sublayer that draws some, 5 KB on a CPU. The
inputs that are computed again differ from the first ones by rounding. There is no second derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, cast, final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_kind, short_repr
from regard.kernels.autograd_function import Function
from regard.kernels.tracing import any_requires_grad, is_eager
from regard.layers.dropout import Dropout
from regard.layers.feed_forward import FeedForward
from regard.layers.multi_head import MultiHeadAttention
from regard.masks.base import Mask


@final
class Sublayer(NamedTuple):
    """A function of one stream, and the parameters that it uses."""

    run: Callable[[Tensor], Tensor]
    parameters: tuple[nn.Parameter, ...]


@final
@explain_arguments
class ReversibleBlock(nn.Module):
    """Attention and feed-forward that each add to one of two streams of tokens, and read the other.

    Args:
        attention, feed_forward: the sublayers, of one width.
        attention_norm, feed_forward_norm: what each reads its stream through, such as ``nn.LayerNorm(width)``.
        dropout: probability of dropping an element of a sublayer's output, in training.
    """

    def __init__(
        self,
        *,
        attention: MultiHeadAttention,
        feed_forward: FeedForward,
        attention_norm: nn.Module,
        feed_forward_norm: nn.Module,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, norm in (("attention_norm", attention_norm), ("feed_forward_norm", feed_forward_norm)):
            check_kind(name, norm, nn.Module, do="for example torch.nn.LayerNorm(width)")
        self.attention, self.attention_norm = attention, attention_norm
        self.feed_forward, self.feed_forward_norm = feed_forward, feed_forward_norm
        self.dropout = Dropout(dropout)

    def forward(self, first: Tensor, second: Tensor, *, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
        """Transform two streams (batch, length, width) to two of the same shape, as any other block does."""
        attend, feed = self.sublayers(mask)
        first = first + attend.run(second)
        return first, second + feed.run(first)

    def sublayers(self, mask: Mask | None) -> tuple[Sublayer, Sublayer]:
        """Return attention and feed-forward, each with its norm and dropout."""

        def attend(tokens: Tensor) -> Tensor:
            output: Tensor = self.dropout(self.attention(self.attention_norm(tokens), mask=mask))
            return output

        def feed(tokens: Tensor) -> Tensor:
            output: Tensor = self.dropout(self.feed_forward(self.feed_forward_norm(tokens)))
            return output

        def trained(*parts: nn.Module) -> tuple[nn.Parameter, ...]:
            return tuple(parameter for part in parts for parameter in part.parameters() if parameter.requires_grad)

        return (
            Sublayer(attend, trained(self.attention, self.attention_norm)),
            Sublayer(feed, trained(self.feed_forward, self.feed_forward_norm)),
        )


@final
@explain_arguments
class ReversibleStack(nn.Module):
    """Reversible blocks one after the other, which store the output of the last one only."""

    def __init__(self, blocks: Sequence[ReversibleBlock]) -> None:
        super().__init__()
        blocks = list(blocks)
        if not blocks or not all(isinstance(block, ReversibleBlock) for block in blocks):
            raise OptionError(
                "wrong blocks",
                expected="a list of one or more ReversibleBlock",
                got=short_repr(blocks),
                do="build each block with attention, feed_forward and their norms",
            )
        self.blocks = nn.ModuleList(blocks)

    def forward(self, tokens: Tensor, *, mask: Mask | None = None) -> Tensor:
        """Transform tokens (batch, length, width) to the same shape: the mean of the two streams at the end."""
        first, second = self.streams(tokens, tokens, mask=mask)
        return (first + second) / 2

    def streams(self, first: Tensor, second: Tensor, *, mask: Mask | None = None) -> tuple[Tensor, Tensor]:
        """Transform two streams (batch, length, width) to two of the same shape."""
        blocks = cast("Sequence[ReversibleBlock]", self.blocks)
        steps = [step for block in blocks for step in block.sublayers(mask)]
        trained = list({id(parameter): parameter for step in steps for parameter in step.parameters}.values())
        if not any_requires_grad(first, second, *trained) or not is_eager(first, second):
            for block in blocks:
                first, second = block(first, second, mask=mask)
            return first, second
        results: tuple[Tensor, Tensor] = _Reversible.apply(steps, first, second, *trained)
        return results


@final
class _Randomness(NamedTuple):
    """The states of the random number generators before a sublayer: of the CPU, and of the devices of its tokens."""

    cpu: Tensor
    devices: list[int]
    states: list[Tensor]

    @classmethod
    def capture(cls, tokens: Tensor) -> _Randomness:
        """Return the present states."""
        devices, states = get_device_states(tokens)
        return cls(torch.get_rng_state(), devices, states)

    def equals(self, other: _Randomness) -> bool:
        """Whether the states are the same: no random number was drawn between the two."""
        pairs = zip(self.states, other.states, strict=True)
        return torch.equal(self.cpu, other.cpu) and all(torch.equal(state, its) for state, its in pairs)

    def restore(self, tokens: Tensor) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.cpu)
        if self.devices:
            set_device_states(self.devices, self.states, device_type=tokens.device.type)


def _autocast_of(tokens: Tensor) -> Callable[[], AbstractContextManager[Any]]:
    """Return a function that makes the present settings of autocast again."""
    kind = tokens.device.type
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)


@final
class _Reversible(Function):
    """Sublayers that add to two streams in turn; the backward pass goes back from the last streams."""

    @staticmethod
    def forward(
        ctx: Any, steps: list[Sublayer], first: Tensor, second: Tensor, *trained: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the last streams, and save these alone."""
        ctx.steps, ctx.randomness, ctx.autocast = steps, [], _autocast_of(first)
        ctx.trained = [id(parameter) for parameter in trained]
        changed, read = first, second
        for step in steps:
            before = _Randomness.capture(read)
            changed, read = read, changed + step.run(read)
            ctx.randomness.append(None if before.equals(_Randomness.capture(read)) else before)
        # After each step the streams have changed places, and a block has two steps.
        ctx.save_for_backward(changed, read)
        return changed, read

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        """Compute the inputs of each step again, from the last step to the first, and its gradients."""
        (changed, read), (of_changed, of_read) = ctx.saved_tensors, gradients
        found: dict[int, Tensor] = {}
        present = _Randomness.capture(read)
        for step, randomness in zip(reversed(ctx.steps), reversed(ctx.randomness), strict=True):
            # The step read what is in `changed` now, and added to what is in `read`.
            leaf = changed.detach().requires_grad_()
            if randomness is not None:
                randomness.restore(leaf)
            with torch.enable_grad(), ctx.autocast():
                added = step.run(leaf)
            inputs = (leaf, *step.parameters)
            of_leaf, *others = torch.autograd.grad(added, inputs, of_read, allow_unused=True, materialize_grads=True)
            for parameter, gradient in zip(step.parameters, others, strict=True):
                before = found.get(id(parameter))
                found[id(parameter)] = gradient if before is None else before + gradient
            changed, read = read - added.detach(), leaf.detach()
            of_changed, of_read = of_read, of_changed + of_leaf
        present.restore(read)
        return (None, of_changed, of_read, *(found[number] for number in ctx.trained))
